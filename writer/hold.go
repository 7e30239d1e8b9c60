package writer

import (
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/sharing"
)

// Hold is a place in the stream of a subpartition whose content is not known
// yet: its barrier is aligned, and may still time out. What comes later for the
// subpartition queues behind it. Exactly one call of Fill or Drop decides it.
type Hold struct {
	c       *Capture
	ch      *channel
	decided bool
	later   []queued
}

// queued is a call that came behind a hold.
type queued struct {
	pos   inflight.Pos
	bufs  []inflight.Buffer
	bytes int64
	file  format.FileRef // of a reference, where bufs is nil
	run   format.Run
}

// HoldOutput holds the place of what the barrier of sub may still overtake. The
// capture is not finished before the hold is decided.
func (c *Capture) HoldOutput(sub inflight.Subpartition) (*Hold, error) {
	c.mu.Lock()
	ch, err := c.channel(sub.Address())
	if err == nil && ch.hold != nil {
		err = fmt.Errorf("%w: %s is held already", inflight.ErrOrder, ch.addr)
	}
	var h *Hold
	if err == nil {
		h = &Hold{c: c, ch: ch}
		ch.hold = h
		c.holds++
	}
	c.mu.Unlock()
	return h, c.verdict(err)
}

// queue keeps buffers that came behind the hold.
func (h *Hold) queue(pos inflight.Pos, bufs []inflight.Buffer) (taken bool, err error) {
	q := queued{pos: pos, bufs: slices.Clone(bufs)}
	for _, b := range bufs {
		q.bytes += int64(len(b.Bytes()))
	}
	if q.bytes == 0 {
		return false, nil
	}
	h.later = append(h.later, q)
	return true, h.c.stream.Take(q.bytes)
}

// Fill decides the hold: the barrier has timed out, and overtakes these buffers.
// pos is the position of the first.
func (h *Hold) Fill(pos inflight.Pos, bufs ...inflight.Buffer) error {
	c := h.c
	c.mu.Lock()
	err := c.refusal()
	if err == nil && h.decided {
		err = fmt.Errorf("%w: the hold of %s was decided before", inflight.ErrOrder, h.ch.addr)
	}
	if err != nil {
		c.mu.Unlock()
		sharing.Release(bufs)
		return c.verdict(err)
	}
	taken, err := c.push(h.ch, pos, bufs)
	if taken {
		bufs = nil
	}
	return h.decide(err, bufs)
}

// Drop decides the hold: with nil the barrier has left in time, and overtakes
// nothing; with a cause the capture fails. It does nothing to a hold that was
// decided before.
func (h *Hold) Drop(cause error) {
	h.c.mu.Lock()
	if h.decided || h.c.over {
		h.c.mu.Unlock()
		return
	}
	_ = h.decide(cause, nil) // it is the capture's error now
}

// decide lets go what came behind the hold, unlocks the capture, and releases
// unused and what was not taken. With err the capture fails.
func (h *Hold) decide(err error, unused []inflight.Buffer) error {
	c := h.c
	h.decided, h.ch.hold = true, nil
	c.holds--
	for _, q := range h.later {
		c.stream.Give(q.bytes)
		taken := false
		switch {
		case err != nil:
		case q.bufs == nil:
			err = c.refer(h.ch, q.file, q.run)
		default:
			taken, err = c.push(h.ch, q.pos, q.bufs)
		}
		if !taken {
			unused = append(slices.Clip(unused), q.bufs...)
		}
	}
	h.later = nil
	last := err == nil && c.settle()
	c.mu.Unlock()
	sharing.Release(unused)
	if last {
		c.stream.End(c.cuts)
	}
	return c.verdict(err)
}

// giveUp releases what came behind a hold of a capture that has failed.
func (h *Hold) giveUp() {
	for _, q := range h.later {
		h.c.stream.Give(q.bytes)
		sharing.Release(q.bufs)
	}
	h.later = nil
}
