package dataflow

import (
	"errors"

	"github.com/spillway-io/spillway/inflight"
)

// Reason says why a checkpoint did not complete. It is the same word in the
// log, in JSON and in metrics.
type Reason string

// The reasons.
const (
	ReasonNone        Reason = ""
	ReasonTimeout     Reason = "timeout"         // not complete within checkpoint.timeout
	ReasonSubsumed    Reason = "subsumed"        // a newer checkpoint took its place
	ReasonUpstream    Reason = "upstream"        // a task upstream gave it up
	ReasonAborted     Reason = "aborted"         // given up by the coordinator
	ReasonNotReady    Reason = "tasks-not-ready" // a task is not running yet, or still recovering
	ReasonOverBudget  Reason = "over-budget"     // more in flight than may be held in memory
	ReasonWrite       Reason = "write-failed"    // the capture could not be made durable
	ReasonCommit      Reason = "commit-failed"   // the log did not take it
	ReasonCheck       Reason = "check-failed"    // it would not have restored
	ReasonSourceGone  Reason = "source-gone"     // a source subtask cannot tell where it stands
	ReasonFenced      Reason = "fenced"          // another coordinator has taken over
	ReasonTaskFailed  Reason = "task-failed"     // a task ended with an error
	ReasonSkipped     Reason = "skipped"         // not triggered: Options.Decide said so
	ReasonTaskStopped Reason = "job-stopped"     // the job ended first
)

// ErrCheckFailed is what a Store answers for a checkpoint that is durable and
// contradicts itself: it is given up, and shows a fault.
var ErrCheckFailed = errors.New("the checkpoint failed its check")

// Declined reports whether r means that the checkpoint was called off rather
// than that something failed: it does not count as a failure.
func (r Reason) Declined() bool {
	switch r {
	case ReasonSubsumed, ReasonUpstream, ReasonAborted, ReasonNotReady, ReasonOverBudget, ReasonTaskStopped, ReasonSkipped:
		return true
	}
	return false
}

// ReasonOf returns the reason that err stands for.
func ReasonOf(err error) Reason {
	switch {
	case errors.Is(err, inflight.ErrSubsumed):
		return ReasonSubsumed
	case errors.Is(err, inflight.ErrAborted):
		return ReasonAborted
	case errors.Is(err, inflight.ErrOverBudget):
		return ReasonOverBudget
	case errors.Is(err, inflight.ErrRecovering):
		return ReasonNotReady
	case errors.Is(err, inflight.ErrFenced):
		return ReasonFenced
	case errors.Is(err, ErrSourceGone):
		return ReasonSourceGone
	}
	return ReasonWrite
}
