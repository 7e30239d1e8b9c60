package wrap

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Limits are the limits of Throttle; 0 means none.
type Limits struct {
	RequestsPerSecond float64 // at most a tenth of a second's at once, but one
	BytesPerSecond    float64 // written and read together; at most 1 MiB at once
}

const byteBurst = 1 << 20

// Throttle has calls wait until they are within the limits. Abort never waits,
// and ends a Write that does.
func Throttle(b backends.Backend, limits Limits) backends.Backend {
	requests, bytes := rate.NewLimiter(rate.Inf, 0), rate.NewLimiter(rate.Inf, byteBurst)
	if r := limits.RequestsPerSecond; r > 0 {
		requests = rate.NewLimiter(rate.Limit(r), max(1, int(r/10)))
	}
	if r := limits.BytesPerSecond; r > 0 {
		bytes.SetLimit(rate.Limit(r))
	}
	wait := func(ctx context.Context, c *Call) error {
		if c.Op == OpAbort {
			return nil
		}
		if c.Op != OpStreamRead {
			if err := requests.Wait(ctx); err != nil {
				return err
			}
		}
		if c.Op == OpStream {
			return nil // its reads count
		}
		for left := c.Bytes; left > 0; left -= byteBurst {
			if err := bytes.WaitN(ctx, int(min(left, byteBurst))); err != nil {
				return err
			}
		}
		return nil
	}
	return &layer{Backend: b, around: func(ctx context.Context, c *Call, do func() error) error {
		if err := wait(ctx, c); err != nil {
			if ctx.Err() == nil { // the limiter sees that the deadline comes too soon
				err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
			}
			return &inflight.Error{Op: string(c.Op), Object: c.Name, Err: err}
		}
		return do()
	}}
}
