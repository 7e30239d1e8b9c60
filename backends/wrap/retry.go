package wrap

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// RetryOptions are the options of Retry.
type RetryOptions struct {
	Attempts int           // in all; 0 means 5
	First    time.Duration // pause after the first; 0 means 50ms. It doubles each time
	Longest  time.Duration // pause; 0 means 2s
}

// repeatable are the calls that can be made again whatever became of the first.
var repeatable = map[Op]bool{OpOpen: true, OpList: true, OpChildren: true, OpStat: true, OpRemove: true}

// Retry repeats Open, List, Children, Stat and Remove when inflight.Retryable says
// that it may help. A listing goes on behind what was yielded. Of each pause, a
// random half is left out, so that many clients do not come back at once.
func Retry(b backends.Backend, opt RetryOptions) backends.Backend {
	if opt.Attempts == 0 {
		opt.Attempts = 5
	}
	if opt.First == 0 {
		opt.First = 50 * time.Millisecond
	}
	if opt.Longest == 0 {
		opt.Longest = 2 * time.Second
	}
	return &layer{Backend: b, around: func(ctx context.Context, c *Call, do func() error) error {
		err := do()
		pause := opt.First
		for n := 1; n < opt.Attempts && repeatable[c.Op] && inflight.Retryable(err); n++ {
			pause = min(pause, opt.Longest)
			if ended := sleep(ctx, pause/2+rand.N(pause/2+1)); ended != nil {
				return &inflight.Error{Op: string(c.Op), Object: c.Name, Err: fmt.Errorf("%w while waiting to try again after: %w", ended, err)}
			}
			pause *= 2
			err = do()
		}
		return err
	}}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
