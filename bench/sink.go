package main

import (
	"bytes"
	"fmt"

	"github.com/spillway-io/spillway/bench/payload"
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
	want           *load
	at             map[channel]int // with want: how far each channel has come
}

type channel struct {
	side payload.Side
	ch   int
}

func newSink(c cell, sub int, want *load) *sink {
	s := &sink{cell: c, sub: sub, want: want, at: map[channel]int{}}
	for i := range s.ring {
		s.ring[i] = make([]byte, max(c.Size, 32768))
	}
	return s
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

// complete reports an error unless everything came.
func (s *sink) complete() error {
	if want := s.cell.bytes() / s.S; s.bytes != want {
		return fmt.Errorf("subtask %d: %d bytes were restored of %d", s.sub, s.bytes, want)
	}
	return nil
}
