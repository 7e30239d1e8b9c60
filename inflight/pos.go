package inflight

import (
	"fmt"
	"math"
)

// Pos says where captured bytes stand in the byte stream of one connection.
//
// Offset counts the data bytes that the upstream subtask emitted into the
// connection before these, since the job began: it goes on across a restore,
// so the sums of the conservation proof need no special case. Epoch is the
// coordinator's epoch in which the bytes were emitted. Seq numbers buffers, for
// people; nothing is derived from it. The same holds for operator state, whose
// Offset counts from 0 within its name.
type Pos struct {
	Epoch  Epoch
	Offset uint64
	Seq    uint64
}

// PosUnknown is the position given by an engine that cannot tell it. What is
// captured with it is restored, but not proven.
var PosUnknown = Pos{Epoch: math.MaxUint32, Offset: math.MaxUint64, Seq: math.MaxUint64}

// Known reports whether p is a position at all.
func (p Pos) Known() bool { return p.Offset != math.MaxUint64 }

// Advance returns the position behind buffers buffers of n bytes in all.
// PosUnknown stays unknown.
func (p Pos) Advance(n uint64, buffers int) Pos {
	if !p.Known() {
		return p
	}
	p.Offset += n
	p.Seq += uint64(buffers)
	return p
}

// String returns "epoch/offset#seq" or "unknown".
func (p Pos) String() string {
	if !p.Known() {
		return "unknown"
	}
	return fmt.Sprintf("%d/%d#%d", p.Epoch, p.Offset, p.Seq)
}

// Cut is where one connection stood when its subtask was snapshotted: for an
// input channel what the operator had consumed, for a subpartition what the
// operator had emitted. Bytes count as Pos.Offset does; Records are counted
// where a record is emitted and where the operator is called.
//
// RecordsKnown is false where the engine does not count records; the proof is
// then made in bytes only.
type Cut struct {
	Address      Address
	Epoch        Epoch
	Bytes        uint64
	Records      uint64
	RecordsKnown bool
}

// Advance counts a record of n bytes that was emitted in an epoch, and returns
// where it stands.
func (c *Cut) Advance(e Epoch, n int) Pos {
	p := Pos{Epoch: e, Offset: c.Bytes, Seq: c.Records}
	c.Epoch, c.Bytes, c.Records = e, c.Bytes+uint64(n), c.Records+1
	return p
}
