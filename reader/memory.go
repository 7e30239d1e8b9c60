package reader

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// arena lends memory for what is read, and takes it back when the last holder
// has released it. It never makes anybody wait: room tells who can be modest.
type arena struct {
	limit int64

	mu   sync.Mutex
	held int64         // lent
	kept int64         // free, for the next one
	free [64][]*memory // by the logarithm of their size
}

// memory is a piece of memory with several holders.
type memory struct {
	b    []byte
	refs atomic.Int32
	pool *arena
}

// get returns memory of n bytes, held once.
func (a *arena) get(n int) *memory {
	class := max(12, bits.Len(uint(n-1)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held += 1 << class
	var m *memory
	if l := a.free[class]; len(l) > 0 {
		m = l[len(l)-1]
		a.free[class] = l[:len(l)-1]
		a.kept -= 1 << class
	} else {
		m = &memory{b: make([]byte, 1<<class), pool: a}
	}
	m.b = m.b[:n]
	m.refs.Store(1)
	return m
}

// room reports whether n bytes more stay within the limit.
func (a *arena) room(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held+n <= a.limit
}

func (m *memory) retain() { m.refs.Add(1) }

func (m *memory) release() {
	if m.refs.Add(-1) > 0 {
		return
	}
	a, size := m.pool, int64(cap(m.b))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= size
	if a.held+a.kept+size <= a.limit {
		a.kept += size
		class := bits.Len64(uint64(size - 1))
		a.free[class] = append(a.free[class], m)
	}
}
