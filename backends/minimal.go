package backends

import (
	"context"
	"iter"

	"github.com/spillway-io/spillway/inflight"
)

// Minimal implements those methods of Backend that a simple object store has no
// use for: it has no leftovers, names that are durable at once, no figure of
// its free space and nothing to close. A driver may embed it.
type Minimal struct{}

// Leftovers yields nothing.
func (Minimal) Leftovers(context.Context, string) iter.Seq2[Leftover, error] {
	return func(func(Leftover, error) bool) {}
}

// SyncNames does nothing.
func (Minimal) SyncNames(ctx context.Context, _ string) error { return ctx.Err() }

// Space answers ErrUnsupported.
func (Minimal) Space(context.Context) (Space, error) {
	return Space{}, &inflight.Error{Op: "space", Err: inflight.ErrUnsupported}
}

// Close does nothing.
func (Minimal) Close() error { return nil }
