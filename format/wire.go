package format

import (
	"encoding/binary"
	"errors"
	"math"
)

// errWire is the cause of every decoding failure below a checksum: bytes that
// are intact and make no sense. Callers give it a place.
var errWire = errors.New("malformed")

// wire decodes varint-coded bytes. The first failure sticks: later reads give
// zero, and err tells.
type wire struct {
	p   []byte
	at  int // what comes next, in p: to move a slice would cost write barriers
	err error
}

func (w *wire) fail() { w.err, w.at = errWire, len(w.p) }

// left returns how many bytes are left.
func (w *wire) left() int { return len(w.p) - w.at }

func (w *wire) uvarint() uint64 {
	if w.at < len(w.p) {
		if b := w.p[w.at]; b < 0x80 { // most are
			w.at++
			return uint64(b)
		}
	}
	return w.longUvarint()
}

func (w *wire) longUvarint() uint64 {
	v, n := binary.Uvarint(w.p[w.at:])
	if n <= 0 {
		w.fail()
		return 0
	}
	w.at += n
	return v
}

// varint undoes zigzag coding.
func (w *wire) varint() int64 {
	u := w.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// number reads a varint that must not exceed limit.
func (w *wire) number(limit uint64) uint64 {
	v := w.uvarint()
	if v > limit {
		w.fail()
		return 0
	}
	return v
}

// index reads a small non-negative int.
func (w *wire) index() int { return int(w.number(math.MaxInt32)) }

// count reads a number of things of at least size bytes each, so that nothing
// is allocated for things that cannot be there.
func (w *wire) count(size int) int { return int(w.number(uint64(w.left() / size))) }

func (w *wire) byte() byte {
	if w.at == len(w.p) {
		w.fail()
		return 0
	}
	w.at++
	return w.p[w.at-1]
}

func (w *wire) bytes(n int) []byte {
	if n < 0 || n > w.left() {
		w.fail()
		return nil
	}
	w.at += n
	return w.p[w.at-n : w.at]
}

func (w *wire) uint32() uint32 {
	if b := w.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (w *wire) uint64() uint64 {
	if b := w.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// string reads a length-prefixed string. Where it equals last, last is
// returned, which saves the allocation.
func (w *wire) string(last string) string {
	b := w.bytes(int(w.number(maxName)))
	if string(b) == last {
		return last
	}
	return string(b)
}

// maxName is the longest name (vertex, state, file, job, group) in bytes.
const maxName = 1024

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}
