package dataflow

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Alignment says how a barrier travels (flink-format: checkpoint options).
type Alignment uint8

// The alignments, numbered as in Flink.
const (
	AtLeastOnce   Alignment = iota // behind the data, blocks nothing
	Aligned                        // behind the data, blocks; may time out
	Unaligned                      // overtakes the data, which is captured
	ForcedAligned                  // behind the data, since this edge may hold no channel state
)

// String returns the alignment in lower case.
func (a Alignment) String() string {
	return [...]string{"at-least-once", "aligned", "unaligned", "forced-aligned"}[a]
}

// never is the timeout of a barrier that does not time out.
const never = time.Duration(math.MaxInt64)

// barrier separates what belongs to a checkpoint from what comes after it.
type barrier struct {
	id        inflight.CheckpointID
	at        time.Duration // when the coordinator triggered it
	alignment Alignment
	timeout   time.Duration // after which an aligned barrier overtakes; never
	savepoint bool
	passage   *passage // shared by all barriers of a checkpoint; nil in tests
}

// passage follows the data that the barriers of one checkpoint overtake, until
// all of it is consumed: about so long an aligned one would have taken.
type passage struct {
	ahead atomic.Int64 // marks behind overtaken data that are still queued
	last  atomic.Int64 // trigger → the last mark was taken
	seen  atomic.Bool  // a task has taken an unaligned barrier
}

// mark returns what is put behind the data that b overtakes.
func (b barrier) mark() *event {
	b.passage.ahead.Add(1)
	return &event{kind: evOvertaken, b: b}
}

// pass takes a mark.
func (p *passage) pass(after time.Duration) {
	for was := p.last.Load(); int64(after) > was && !p.last.CompareAndSwap(was, int64(after)); was = p.last.Load() {
	}
	p.ahead.Add(-1)
}

// took is how long the overtaken data has taken, so far at least.
func (p *passage) took(sinceTrigger time.Duration) time.Duration {
	if p.ahead.Load() > 0 {
		return sinceTrigger
	}
	return time.Duration(p.last.Load())
}

// timeoutable reports whether b is aligned for now.
func (b barrier) timeoutable() bool { return b.alignment == Aligned && b.timeout < never }

// timedOut reports whether b should overtake by now.
func (b barrier) timedOut(now time.Duration) bool {
	return b.timeoutable() && b.timeout < now-b.at
}

// needsChannelState reports whether data may be captured for b.
func (b barrier) needsChannelState() bool { return b.alignment == Unaligned || b.timeoutable() }

// blocks reports whether a subpartition stops after b until it is resumed.
func (b barrier) blocks() bool { return b.alignment == Aligned || b.alignment == ForcedAligned }

// unaligned returns b as it is after its timeout.
func (b barrier) unaligned() barrier {
	b.alignment, b.timeout = Unaligned, never
	return b
}

// forced returns b for an edge that may hold no channel state.
func (b barrier) forced() barrier {
	if b.needsChannelState() {
		b.alignment = ForcedAligned
	}
	return b
}

// supported undoes forced, for the edges further down.
func (b barrier) supported() barrier {
	switch {
	case b.alignment != ForcedAligned:
	case b.timeout < never:
		b.alignment = Aligned
	default:
		b.alignment = Unaligned
	}
	return b
}

// String returns for example "barrier 7 (aligned)".
func (b barrier) String() string { return fmt.Sprintf("barrier %d (%s)", b.id, b.alignment) }

type eventKind uint8

const (
	evBarrier   eventKind = iota
	evAnnounce            // made by a credit channel: a barrier that may time out has arrived behind data
	evCancel              // the checkpoint is given up upstream
	evOvertaken           // up to here a barrier has overtaken the data
	evRecovered           // what was captured has been replayed; live data follows
	evEndOfData           // the last record has been sent; the task may still take part in checkpoints
	evEnd                 // nothing follows (Flink: EndOfPartition)
)

// event is an element of a queue that is not data. It is never captured.
type event struct {
	kind eventKind
	b    barrier // evBarrier, evAnnounce; id alone: evCancel
	seq  uint32  // evAnnounce: of the announced barrier
}

func (e *event) blocks() bool { return e.kind == evBarrier && e.b.blocks() }

func (e *event) String() string {
	switch e.kind {
	case evBarrier:
		return e.b.String()
	case evAnnounce:
		return "announcement of " + e.b.String()
	case evCancel:
		return fmt.Sprintf("cancel marker %d", e.b.id)
	}
	return [...]string{evOvertaken: "end of overtaken data", evRecovered: "end of recovery", evEndOfData: "end of data", evEnd: "end of partition"}[e.kind]
}
