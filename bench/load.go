package main

import (
	"fmt"
	"sync/atomic"

	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/inflight"
)

// A load is the payload of a cell in memory, cut into buffers that are only
// retained and released while a round runs, as those of a network stack are.
// The bytes lie outside of the Go heap, so that the collector does not count
// them.
type load struct {
	cell
	mem     []byte
	pieces  []piece
	handles []inflight.Buffer // &pieces[i], ready to be handed over
	free    func() error
}

// piece is a reference-counted buffer.
type piece struct {
	p    []byte
	refs atomic.Int32
}

func (b *piece) Bytes() []byte { return b.p }
func (b *piece) Release()      { b.refs.Add(-1) }

func newLoad(c cell) (*load, error) {
	mem, free, err := allocate(c.bytes())
	if err != nil {
		return nil, err
	}
	n := c.buffers()
	l := &load{cell: c, mem: mem, free: free, pieces: make([]piece, n), handles: make([]inflight.Buffer, n)}
	for i := range n {
		l.pieces[i].p = mem[i*c.Size : (i+1)*c.Size : (i+1)*c.Size]
		l.handles[i] = &l.pieces[i]
	}
	for s := range c.S {
		for ch := range c.I {
			payload.Fill(l.stream(s, payload.Input, ch), c.Payload, s, payload.Input, ch)
		}
		for ch := range c.O {
			payload.Fill(l.stream(s, payload.Output, ch), c.Payload, s, payload.Output, ch)
		}
	}
	return l, nil
}

// fits reports whether l is the payload of c too: only Max and the name differ.
func (l *load) fits(c cell) bool {
	c.Name, c.Max = l.Name, l.Max
	return l.cell == c
}

// first is the index of a channel's first buffer.
func (c cell) first(sub int, side payload.Side, ch int) int {
	if side == payload.Output {
		ch += c.I
	}
	return (sub*(c.I+c.O) + ch) * c.B
}

// stream returns the bytes of a channel.
func (l *load) stream(sub int, side payload.Side, ch int) []byte {
	at := l.first(sub, side, ch) * l.Size
	return l.mem[at : at+l.B*l.Size]
}

// retain returns the buffers of a channel, each to be released once.
func (l *load) retain(sub int, side payload.Side, ch int) []inflight.Buffer {
	i := l.first(sub, side, ch)
	for j := range l.B {
		l.pieces[i+j].refs.Add(1)
	}
	return l.handles[i : i+l.B]
}

// settled reports an error unless every buffer was released once.
func (l *load) settled() error {
	for i := range l.pieces {
		if n := l.pieces[i].refs.Load(); n != 0 {
			return fmt.Errorf("buffer %d of %s was released %+d times too few", i, l.Name, n)
		}
	}
	return nil
}
