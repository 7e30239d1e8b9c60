package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// A sink is the consumer of one restored subtask. It copies each buffer into a
// ring of segments, as an engine that owns its network memory has to, counts
// it, and recycles it at once. With a load it also compares every byte.
type sink struct {
	cell
	sub            int
	ring           [16][]byte
	next           int
	bytes, buffers int
	done           bool
	want           *load
	at             map[channel]int // with want: how far each channel has come
}

type channel struct {
	side payload.Side
	ch   int
}

func newSink(c cell, sub int) *sink {
	s := &sink{cell: c, sub: sub}
	for i := range s.ring {
		s.ring[i] = make([]byte, max(c.Size, 32768))
		for j := range s.ring[i] { // resident, as network memory is
			s.ring[i][j] = 1
		}
	}
	return s
}

// reset makes s ready for the next restore.
func (s *sink) reset(want *load) {
	s.bytes, s.buffers, s.done, s.want, s.at = 0, 0, false, want, map[channel]int{}
}

// take takes the next buffer of a channel.
func (s *sink) take(side payload.Side, ch int, p []byte) error {
	if len(p) > len(s.ring[0]) {
		return fmt.Errorf("a buffer of %d bytes was restored; none that large was captured", len(p))
	}
	copy(s.ring[s.next], p)
	s.next = (s.next + 1) % len(s.ring)
	s.bytes += len(p)
	s.buffers++
	if s.want == nil {
		return nil
	}
	k := channel{side, ch}
	at := s.at[k]
	if stream := s.want.stream(s.sub, side, ch); at+len(p) > len(stream) || !bytes.Equal(stream[at:at+len(p)], p) {
		return fmt.Errorf("subtask %d, side %d, channel %d: bytes %d to %d are not what was captured", s.sub, side, ch, at, at+len(p))
	}
	s.at[k] = at + len(p)
	return nil
}

// State implements restore.Sink.
func (s *sink) State(_ context.Context, name inflight.StateName, _ *reader.Buffer) error {
	return fmt.Errorf("state %q was restored; none was captured", name)
}

// Output implements restore.Sink.
func (s *sink) Output(_ context.Context, sub inflight.Subpartition, at inflight.Pos, b *reader.Buffer) error {
	if s.want != nil {
		if want := s.position(payload.Output, sub.Subpartition); at != want {
			return fmt.Errorf("%v of subtask %d was restored at %v, captured at %v", sub, s.sub, at, want)
		}
	}
	return s.take(payload.Output, sub.Subpartition, b.Bytes)
}

// Input implements restore.Sink.
func (s *sink) Input(_ context.Context, ch inflight.InputChannel, at inflight.Pos, b *reader.Buffer) error {
	if s.want != nil {
		if want := s.position(payload.Input, ch.Channel); at != want {
			return fmt.Errorf("%v of subtask %d was restored at %v, captured at %v", ch, s.sub, at, want)
		}
	}
	return s.take(payload.Input, ch.Channel, b.Bytes)
}

// position is where the next buffer of a channel was captured.
func (s *sink) position(side payload.Side, ch int) inflight.Pos {
	n := s.at[channel{side, ch}]
	return pos(s.sub, ch).Advance(uint64(n), n/s.Size)
}

// Done implements restore.Sink.
func (s *sink) Done(context.Context) error {
	s.done = true
	return nil
}

// complete reports an error unless everything came.
func (s *sink) complete() error {
	if bytes, buffers := s.cell.bytes()/s.S, s.cell.buffers()/s.S; s.bytes != bytes || s.buffers != buffers || !s.done {
		return fmt.Errorf("subtask %d: %d bytes in %d buffers were restored of %d in %d", s.sub, s.bytes, s.buffers, bytes, buffers)
	}
	return nil
}
