package dataflow

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// QueueState is what a decision may look at.
type QueueState struct {
	Queued   int64 // bytes in the queues that an unaligned checkpoint would capture
	Capacity int64 // bytes that these can hold
	// Alignments are how long the last checkpoints took to align, oldest first,
	// at most 20. An unaligned one counts with the time in which what it had
	// overtaken was consumed, or has not been yet; one that timed out with its
	// timeout.
	Alignments []time.Duration
}

// Fill is which share of the queues is in use, 0 to 1.
func (q QueueState) Fill() float64 { return fill(q.Queued, q.Capacity) }

// Decision says how the next checkpoint goes, and why.
type Decision struct {
	Choice Choice
	Reason string // ends up in CheckpointResult.Decision
}

// Choice is how a checkpoint goes.
type Choice uint8

// The choices.
const (
	ChooseConfigured Choice = iota // as the options say
	ChooseAligned                  // without timeout
	ChooseUnaligned                // from the start
	ChooseSkip                     // not at all; the next one is decided upon in its turn
)

// Request asks for a checkpoint out of turn.
type Request struct {
	Savepoint bool // always aligned
	Unaligned bool // overtakes from the start, whatever the timeout
}

func (r Request) kind() string {
	if r.Savepoint {
		return "savepoint"
	}
	return "checkpoint"
}

func (r Request) check(o *Options) error {
	why := ""
	switch {
	case r.Savepoint && r.Unaligned:
		why = "savepoints cannot be unaligned"
	case r.Unaligned && !o.Unaligned:
		why = "unaligned checkpoints are off"
	default:
		return nil
	}
	return &inflight.Error{Op: r.kind(), Err: fmt.Errorf("%s: %w", why, inflight.ErrConfig)}
}

// historySize is how many alignments are remembered.
const historySize = 20

// history is how long the last alignments took.
type history struct {
	took []time.Duration
	// open is the last checkpoint, if it was unaligned: its time is known when
	// what it has overtaken is consumed.
	open *passage
	at   time.Duration
}

func (h *history) add(d time.Duration) {
	if len(h.took) == historySize {
		h.took = h.took[:copy(h.took, h.took[1:])]
	}
	h.took = append(h.took, d)
}

// settle enters the unaligned checkpoint that is still open.
func (h *history) settle(now time.Duration) {
	if h.open != nil {
		h.add(h.open.took(now - h.at))
		h.open = nil
	}
}

// enter notes how checkpoint p went.
func (h *history) enter(p *pendingCheckpoint) {
	var longest time.Duration
	for _, a := range p.result.Acks {
		longest = max(longest, a.StartDelay+a.Alignment)
	}
	switch {
	case p.result.Reason == ReasonTimeout:
		h.add(p.result.Duration)
	case !p.result.Completed:
	case p.result.Alignment() == "aligned":
		h.add(longest)
	default:
		h.open, h.at = p.b.passage, p.b.at
	}
}

// decide asks Options.Decide, where there is something to decide.
func (c *coordinator) decide(r Request) Decision {
	switch {
	case c.realign:
		return Decision{ChooseAligned, "the last checkpoint went over the memory bound"}
	case r.Unaligned:
		return Decision{ChooseUnaligned, "asked for"}
	}
	c.history.settle(c.exec.Now())
	if c.opts.Decide == nil || !c.opts.Unaligned || r.Savepoint || c.allDrained() {
		return Decision{}
	}
	q := QueueState{Alignments: slices.Clone(c.history.took)}
	for _, e := range c.a.load() {
		if e.Edge.Unaligned {
			q.Queued += e.Queued
			q.Capacity += e.Capacity
		}
	}
	return c.opts.Decide(q)
}

// skip reports a checkpoint that is not triggered. It has no id.
func (c *coordinator) skip(d Decision) {
	if c.opts.OnCheckpoint != nil {
		c.opts.OnCheckpoint(CheckpointResult{Reason: ReasonSkipped, Decision: d.Reason})
	}
	c.schedule(c.opts.Interval)
}
