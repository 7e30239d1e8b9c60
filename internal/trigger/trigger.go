// Package trigger decides how the next checkpoint goes where unaligned.trigger
// is auto: whether what lies in front of its barrier is worth storing, and
// whether there is room for it.
package trigger

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/spillway-io/spillway/dataflow"
)

// Chain is the chain of decisions. A checkpoint overtakes when the queues are
// full enough, when alignments have taken too long, and when the store has room
// for what it overtakes; otherwise it is aligned. It never waits, and it never
// weakens what makes a checkpoint right.
type Chain struct {
	QueueFill      float64       // from this share of the queues' capacity on, 0 to 1
	OverrunShare   float64       // from this share of the last alignments on, 0 to 1
	AlignedTimeout time.Duration // an alignment that takes longer is an overrun
	MinFree        int64         // bytes of free space
	Force          bool          // unaligned.force: unaligned without asking
	// Free is the free space of the store in bytes; ok is false where nobody can
	// tell, which counts as enough.
	Free func() (bytes int64, ok bool)
	// State is the size in bytes of what even an aligned checkpoint has to store.
	State func() int64
}

// Decide is a dataflow.Options.Decide.
func (c Chain) Decide(q dataflow.QueueState) dataflow.Decision {
	if c.Force {
		return dataflow.Decision{Choice: dataflow.ChooseUnaligned, Reason: "unaligned.force"}
	}
	free, known := c.free()
	if state := c.state(); known && free < state {
		return decision(dataflow.ChooseSkip, "%s free, the state alone needs %s", size(free), size(state))
	}
	over, of := c.overruns(q.Alignments)
	switch {
	case q.Fill() < c.QueueFill:
		return decision(dataflow.ChooseAligned, "queues %s full (threshold %s)", percent(q.Fill()), percent(c.QueueFill))
	case of > 0 && float64(over) < c.OverrunShare*float64(of):
		return decision(dataflow.ChooseAligned, "%d of %d alignments over %v (threshold %s)", over, of, c.AlignedTimeout, percent(c.OverrunShare))
	case known && free < c.MinFree:
		return decision(dataflow.ChooseAligned, "%s free (threshold %s)", size(free), size(c.MinFree))
	}
	return decision(dataflow.ChooseUnaligned, "queues %s full (threshold %s)", percent(q.Fill()), percent(c.QueueFill))
}

func (c Chain) free() (int64, bool) {
	if c.Free == nil {
		return 0, false
	}
	return c.Free()
}

func (c Chain) state() int64 {
	if c.State == nil {
		return 0
	}
	return c.State()
}

// overruns counts the alignments that took too long.
func (c Chain) overruns(took []time.Duration) (over, of int) {
	for _, d := range took {
		if d > c.AlignedTimeout {
			over++
		}
	}
	return over, len(took)
}

func decision(choice dataflow.Choice, format string, args ...any) dataflow.Decision {
	return dataflow.Decision{Choice: choice, Reason: fmt.Sprintf(format, args...)}
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }
