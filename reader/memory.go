package reader

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// arena counts the memory that one Reader holds. It never makes anybody wait:
// room tells who can be modest.
type arena struct {
	limit int64
	held  atomic.Int64
}

// memory is a piece of memory with several holders.
type memory struct {
	b     []byte
	refs  atomic.Int32
	arena *arena
}

// spare is free memory by the logarithm of its size, of all Readers: what was
// used a moment ago is in the cache and need not be zeroed.
var spare [64]sync.Pool

// smallest is the logarithm of the smallest piece.
const smallest = 12

func classOf(n int) int { return max(smallest, bits.Len(uint(n-1))) }

// get returns memory of n bytes, held once.
func (a *arena) get(n int) *memory {
	class := classOf(n)
	m, _ := spare[class].Get().(*memory)
	if m == nil {
		m = &memory{b: make([]byte, 1<<class)}
	}
	a.held.Add(1 << class)
	m.arena, m.b = a, m.b[:n]
	m.refs.Store(1)
	return m
}

// room reports whether n bytes more stay within the limit.
func (a *arena) room(n int64) bool { return a.held.Load()+n <= a.limit }

func (m *memory) retain() { m.refs.Add(1) }

func (m *memory) release() {
	if m.refs.Add(-1) == 0 {
		m.arena.held.Add(-int64(cap(m.b)))
		m.arena = nil
		spare[classOf(cap(m.b))].Put(m)
	}
}
