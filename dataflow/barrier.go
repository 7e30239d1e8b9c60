package dataflow

import (
	"fmt"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// barriers decides when a task takes its snapshot: it counts the barriers of
// one checkpoint over all channels of all gates. The outer layer is common;
// what a barrier does depends on the state, as in the tables of
// docs/semantics.md.
type barriers struct {
	host     barrierHost
	channels []*channel
	// alternating: unaligned checkpoints are on, so aligned ones may switch.
	alternating bool

	current  int64 // id of the newest checkpoint seen; -1: none
	lastDone int64 // id of the newest one that is complete or cancelled
	pending  barrier
	aligned  []bool // by channel: its barrier, or its end, has come
	count    int    // of aligned
	target   int    // how many channels were open when it began
	open     int

	firstAt   time.Duration // when the first barrier of the current one came
	state     alignState
	blocked   []bool
	announced []announcement
	stopTimer func()
}

type announcement struct {
	seq uint32
	set bool
}

// alignState is the state of the alternating handler; the aligned one uses the
// first two.
type alignState uint8

const (
	waiting             alignState = iota // AW: no barrier yet
	collecting                            // AC: some have come, aligned
	waitingUnaligned                      // UW: timed out before the first came
	collectingUnaligned                   // UC: the snapshot is taken, barriers are still to come
)

// barrierHost is what the handler needs of its task.
type barrierHost interface {
	// initInputs starts the capture; for an unaligned b it takes in what stands
	// in front of the barriers.
	initInputs(b barrier) error
	// trigger takes the snapshot and sends the barrier on.
	trigger(b barrier) error
	// stopInputs ends the capturing of what arrives.
	stopInputs(id inflight.CheckpointID)
	// allReceived says that the last barrier has come.
	allReceived(id inflight.CheckpointID)
	// aborted gives the checkpoint up, upstream and downstream.
	aborted(id inflight.CheckpointID, r Reason, cause error)
	clock() time.Duration
	// timer calls timedOut at t, on the task.
	timer(t time.Duration, f func()) (stop func())
	trace(p Point, id inflight.CheckpointID, format string, args ...any)
}

func newBarriers(host barrierHost, channels []*channel, alternating bool) *barriers {
	n := len(channels)
	return &barriers{
		host: host, channels: channels, alternating: alternating, current: -1, lastDone: -1,
		aligned: make([]bool, n), blocked: make([]bool, n), announced: make([]announcement, n), open: n,
	}
}

func (h *barriers) isPending() bool { return h.current >= 0 && h.current != h.lastDone }

// obsolete reports whether checkpoint id is over here.
func (h *barriers) obsolete(id inflight.CheckpointID) bool {
	return h.current > int64(id) || h.current == int64(id) && !h.isPending()
}

// begin makes b's checkpoint the current one, if it is newer.
func (h *barriers) begin(b barrier) {
	if h.current >= int64(b.id) {
		return
	}
	if h.isPending() {
		h.abort(inflight.CheckpointID(h.current), ReasonSubsumed,
			fmt.Errorf("a barrier of checkpoint %d has come: %w", b.id, inflight.ErrSubsumed))
	}
	h.current, h.pending = int64(b.id), b
	h.resetAligned()
	h.target = h.open
	if h.alternating && b.timeoutable() {
		due := b.at + b.timeout
		h.stopTimer = h.host.timer(max(due, h.host.clock()), func() { h.timeout(b.id) })
	}
}

// first is when the first barrier of checkpoint id came; now, if none has.
func (h *barriers) first(id inflight.CheckpointID) time.Duration {
	if h.current == int64(id) && h.count > 0 {
		return h.firstAt
	}
	return h.host.clock()
}

func (h *barriers) resetAligned() {
	clear(h.aligned)
	h.count = 0
}

func (h *barriers) cancelTimer() {
	if h.stopTimer != nil {
		h.stopTimer()
		h.stopTimer = nil
	}
}

// barrier takes the barrier that stands at the head of ch. block says that its
// sender stopped behind it (not so when the coordinator injects it).
func (h *barriers) barrier(b barrier, ch *channel, block bool) {
	if h.obsolete(b.id) {
		if b.alignment != Unaligned {
			ch.resume()
		}
		return
	}
	h.begin(b)
	h.host.trace(PointBarrierAtHead, b.id, "%s of %s, %d of %d", b.alignment, ch, h.count+1, h.target)
	h.align(ch, func(all bool) error {
		if !h.alternating {
			return h.alignedBarrier(b, ch, block, all)
		}
		return h.alternatingBarrier(b, ch, block, all)
	})
}

// align counts ch and lets the inner state act.
func (h *barriers) align(ch *channel, inner func(all bool) error) {
	if !h.aligned[ch.index] {
		if h.count == 0 {
			h.firstAt = h.host.clock()
		}
		h.aligned[ch.index] = true
		h.count++
	}
	id, all := h.current, h.count == h.target
	if err := inner(all); err != nil {
		h.abort(inflight.CheckpointID(id), ReasonOf(err), err)
		return
	}
	if all && h.current == id && h.isPending() {
		h.resetAligned()
		h.lastDone = id
		h.cancelTimer()
		h.host.allReceived(inflight.CheckpointID(id))
	}
}

func (h *barriers) alignedBarrier(b barrier, ch *channel, block, all bool) error {
	if b.alignment == Unaligned {
		return fmt.Errorf("%s at a task that only aligns: %w", b, inflight.ErrConfig)
	}
	h.block(ch, block)
	h.state = collecting
	if !all {
		return nil
	}
	err := h.host.trigger(b)
	h.finish()
	return err
}

// alternatingBarrier is the row "barrier" of the alternating handler.
func (h *barriers) alternatingBarrier(b barrier, ch *channel, block, all bool) error {
	aligned := b.alignment != Unaligned
	if aligned {
		h.announced[ch.index] = announcement{}
		h.block(ch, block)
	}
	switch h.state {
	case waiting, collecting:
		switch {
		case aligned && all:
			return h.alignedDone(b)
		case aligned && !b.timedOut(h.host.clock()):
			h.state = collecting
			return nil
		}
		h.prioritiseAnnounced()
		if err := h.startUnaligned(b); err != nil {
			return err
		}
	case waitingUnaligned:
		if err := h.startUnaligned(b); err != nil {
			return err
		}
	}
	if all {
		h.unalignedDone()
	}
	return nil
}

// alignedDone snapshots after the last aligned barrier.
func (h *barriers) alignedDone(b barrier) error {
	defer h.finish()
	if b.timeoutable() {
		if err := h.host.initInputs(b); err != nil {
			return err
		}
	}
	return h.host.trigger(b)
}

// startUnaligned takes the snapshot before the other barriers have come.
func (h *barriers) startUnaligned(b barrier) error {
	h.state = collectingUnaligned
	b = b.unaligned()
	if err := h.host.initInputs(b); err != nil {
		return err
	}
	return h.host.trigger(b)
}

func (h *barriers) unalignedDone() {
	h.host.stopInputs(inflight.CheckpointID(h.current))
	h.finish()
}

// announcement takes word of a barrier that may time out and stands behind
// data at a credit channel.
func (h *barriers) announcement(b barrier, ch *channel, seq uint32) {
	if h.begin(b); h.obsolete(b.id) || !h.alternating {
		return
	}
	if h.state == waitingUnaligned || h.state == collectingUnaligned {
		ch.prioritise(seq)
		return
	}
	h.announced[ch.index] = announcement{seq, true}
}

// timeout switches an aligned checkpoint whose barriers wait too long.
func (h *barriers) timeout(id inflight.CheckpointID) {
	if h.current != int64(id) || !h.isPending() {
		return
	}
	switch h.state {
	case waiting:
		h.state = waitingUnaligned
		h.host.trace(PointSwitchDownstream, id, "no barrier has come")
		h.prioritiseAnnounced()
	case collecting:
		h.host.trace(PointSwitchDownstream, id, "%d of %d barriers have come", h.count, h.target)
		h.prioritiseAnnounced()
		if err := h.startUnaligned(h.pending); err != nil {
			h.abort(id, ReasonOf(err), err)
		}
	}
}

// cancel takes a cancel marker.
func (h *barriers) cancel(id inflight.CheckpointID) {
	if int64(id) > h.current || int64(id) == h.current && h.count > 0 {
		h.abort(id, ReasonUpstream, fmt.Errorf("cancelled by an input: %w", inflight.ErrAborted))
	}
}

// end takes the end of a channel: it counts as a barrier of whatever is pending.
func (h *barriers) end(ch *channel) {
	h.open--
	h.announced[ch.index] = announcement{}
	h.blocked[ch.index] = false
	if !h.isPending() {
		return
	}
	h.align(ch, func(all bool) error {
		switch {
		case h.state == waiting || h.state == waitingUnaligned:
			return nil
		case h.state == collectingUnaligned:
			if all {
				h.unalignedDone()
			}
			return nil
		case all:
			return h.alignedDone(h.pending)
		case h.alternating && h.pending.timedOut(h.host.clock()):
			h.prioritiseAnnounced()
			return h.startUnaligned(h.pending)
		}
		return nil
	})
}

// inject takes a barrier from the coordinator itself: all inputs have ended or
// are about to.
func (h *barriers) inject(b barrier) {
	for _, ch := range h.channels {
		if !ch.ended {
			h.barrier(b, ch, false)
		}
	}
}

// given takes word that the coordinator has given checkpoint id up. Older ones
// are over, too, even if that word was lost.
func (h *barriers) given(id inflight.CheckpointID) {
	if h.current <= int64(id) && h.isPending() {
		h.abort(inflight.CheckpointID(h.current), ReasonAborted, inflight.ErrAborted)
	}
}

func (h *barriers) abort(id inflight.CheckpointID, r Reason, cause error) {
	h.current = max(h.current, int64(id))
	h.lastDone = max(h.lastDone, int64(id))
	h.resetAligned()
	h.target = 0
	h.cancelTimer()
	if h.state == collectingUnaligned {
		h.host.stopInputs(id)
	}
	h.finish()
	h.host.aborted(id, r, cause)
}

func (h *barriers) block(ch *channel, flagged bool) {
	if flagged {
		h.blocked[ch.index] = true
	}
}

// finish resumes what is blocked and goes back to waiting.
func (h *barriers) finish() {
	h.state = waiting
	clear(h.announced)
	for i, b := range h.blocked {
		if b {
			h.blocked[i] = false
			h.channels[i].resume()
		}
	}
}

func (h *barriers) prioritiseAnnounced() {
	for i, a := range h.announced {
		if a.set {
			h.announced[i] = announcement{}
			h.channels[i].prioritise(a.seq)
		}
	}
}
