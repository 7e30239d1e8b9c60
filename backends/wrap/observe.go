package wrap

import (
	"context"
	"io"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Observe tells obs of every call, as an EventRequest, when it ends. A listing
// lasts as long as it is read; a stream counts when it is opened, and its reads
// only when they fail.
func Observe(b backends.Backend, obs inflight.Observer) backends.Backend {
	return &layer{Backend: b, around: func(_ context.Context, c *Call, do func() error) error {
		start := time.Now()
		err := do()
		if c.Op == OpStreamRead && (err == nil || err == io.EOF) {
			return err
		}
		e := inflight.Event{Name: inflight.EventRequest, Object: string(c.Op), Count: 1, Duration: time.Since(start), Err: err}
		if err == nil {
			e.Bytes = c.Bytes
		}
		obs.Observe(e)
		return err
	}}
}

// ReadOnly refuses every call that changes the store with ErrReadOnly.
func ReadOnly(b backends.Backend) backends.Backend {
	return &layer{Backend: b, around: func(_ context.Context, c *Call, do func() error) error {
		if writes[c.Op] {
			return &inflight.Error{Op: string(c.Op), Object: c.Name, Err: inflight.ErrReadOnly, Mend: "it was opened for reading only"}
		}
		return do()
	}}
}
