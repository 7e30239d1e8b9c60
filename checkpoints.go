package spillway

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

const (
	lastTries = 5 // of the last checkpoint, where another try may help
	lastPause = 200 * time.Millisecond
)

// Checkpoints yields a checkpoint at each tick, already begun, and a last one
// when done is closed. The body of the loop has it filled, and commits it. One
// that fails costs nothing but itself; only the last one is yielded again, a few
// times, where that may help.
//
// The loop ends without an error when the last one is complete: what a job puts
// out once and for all it puts out then. An error ends it before: ErrFenced if
// another coordinator has taken over, ErrUnavailable if the job is to be opened
// again (Coordinator.Judge), the cause of the end of ctx, why none can be begun,
// or why the last one could not be committed.
func (j *Job) Checkpoints(ctx context.Context, tick <-chan time.Time, done <-chan struct{}) iter.Seq2[*Checkpoint, error] {
	return func(yield func(*Checkpoint, error) bool) {
		var again <-chan time.Time
		for tries := 1; ; {
			select {
			case <-ctx.Done():
			case <-tick:
			case <-again:
			case <-done:
				tick, done = nil, nil
			}
			more, err := j.next(ctx, yield)
			switch over := cmp.Or(j.Coordinator.Judge(ctx, j.Coordinator.Err()), context.Cause(ctx)); {
			case !more || err == nil && over == nil && done == nil:
				return
			case over != nil:
				yield(nil, over)
				return
			case done != nil: // there will be others
			case tries == lastTries || !inflight.Retryable(err):
				yield(nil, fmt.Errorf("the last checkpoint could not be committed: %w: what it would have put out was not; mend that and restore the latest one", err))
				return
			default:
				tries++
				again = time.After(lastPause)
			}
		}
	}
}

// next begins and yields a checkpoint, and returns how it went.
func (j *Job) next(ctx context.Context, yield func(*Checkpoint, error) bool) (more bool, err error) {
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	c, err := j.Begin(ctx)
	if err != nil {
		yield(nil, j.Coordinator.Judge(ctx, err))
		return false, err
	}
	more = yield(c, nil)
	if c.failed == nil && c.pending.Checkpoint() == nil {
		c.Abort(ctx, fmt.Errorf("%w: nobody has committed it", inflight.ErrOrder))
	}
	return more, c.failed
}
