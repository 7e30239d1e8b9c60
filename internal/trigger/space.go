package trigger

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/backends"
)

// Space keeps an eye on the free space of a store, so that a decision does not
// wait for the store to answer. Its methods may be called by several goroutines.
type Space struct {
	ask     func(context.Context) (backends.Space, error)
	free    atomic.Int64
	known   atomic.Bool
	running atomic.Bool
	asking  sync.WaitGroup
}

// NewSpace asks the store once, and waits for the answer.
func NewSpace(ctx context.Context, b backends.Backend) *Space {
	s := &Space{ask: b.Space}
	s.look(ctx)
	return s
}

// Free returns the bytes that were free when the store last answered; ok is
// false where it cannot tell.
func (s *Space) Free() (bytes int64, ok bool) { return s.free.Load(), s.known.Load() }

// Refresh asks again, in the background, unless it is asking.
func (s *Space) Refresh(ctx context.Context) {
	if s.running.CompareAndSwap(false, true) {
		s.asking.Go(func() {
			defer s.running.Store(false)
			s.look(ctx)
		})
	}
}

// Wait waits for what Refresh has started.
func (s *Space) Wait() { s.asking.Wait() }

// look keeps the last answer where there is none: a store that does not answer
// now has not become larger or smaller.
func (s *Space) look(ctx context.Context) {
	space, err := s.ask(ctx)
	if err != nil {
		return
	}
	s.free.Store(space.Free)
	s.known.Store(true)
}
