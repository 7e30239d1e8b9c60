package sharing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/inflight"
)

// Budget counts the bytes that captures hold in the memory of this process:
// buffers that nobody has packed yet, encoded bytes that the store has not
// taken, and those kept for another try. Its methods may be called by several
// goroutines at once.
type Budget struct {
	limit int64
	used  atomic.Int64

	waiters atomic.Int32
	relieve func(needed int64) // called without locks, while somebody waits

	mu     sync.Mutex
	freed  chan struct{} // closed and replaced when bytes are freed
	closed bool
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, freed: make(chan struct{}), relieve: func(int64) {}}
}

// Used returns the bytes that are held. It may be beyond the limit by what
// encoding adds.
func (b *Budget) Used() int64 { return b.used.Load() }

// Room returns how many bytes Take would grant.
func (b *Budget) Room() int64 { return max(b.limit-b.used.Load(), 0) }

// Take counts n bytes more, or answers false where they exceed the limit.
func (b *Budget) Take(n int64) bool {
	for {
		used := b.used.Load()
		if n > b.limit-used {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// add counts n bytes, more or less, that need no asking.
func (b *Budget) add(n int64) {
	if n == 0 {
		return
	}
	b.used.Add(n)
	if n < 0 {
		b.look()
	}
}

// look has those who wait look again at what stands in their way.
func (b *Budget) look() {
	if b.waiters.Load() > 0 {
		b.wake()
	}
}

func (b *Budget) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.freed)
	b.freed = make(chan struct{})
}

// Wait waits until there is room for n bytes. It reserves nothing.
func (b *Budget) Wait(ctx context.Context, n int64) error {
	if n > b.limit {
		return &inflight.Error{Op: "wait for room", Object: fmt.Sprintf("%d bytes", n), Err: inflight.ErrOverBudget,
			Mend: fmt.Sprintf("ask for at most %d bytes, or raise unaligned.max-buffered-data", b.limit)}
	}
	b.waiters.Add(1)
	defer b.waiters.Add(-1)
	for {
		b.mu.Lock()
		freed, closed := b.freed, b.closed
		b.mu.Unlock()
		switch {
		case closed:
			return &inflight.Error{Op: "wait for room", Err: inflight.ErrClosed}
		case b.Room() >= n:
			return nil
		}
		b.relieve(n)
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends all waiting.
func (b *Budget) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake()
}
