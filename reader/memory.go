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

// spare is free memory, of all Readers: what was used a moment ago is in the
// cache, and has its pages. A little is kept for good, the rest until the next
// garbage collection.
var spare struct {
	mu   sync.Mutex
	kept int64
	free [64][]*memory // by class
	more [64]sync.Pool
}

const (
	smallest  = 12 // logarithm of the size of the smallest piece
	keepSpare = 8 << 20
)

// classOf returns the class of memory for n bytes, and its size: a power of two,
// or that of a piece of a request.
func classOf(n int) (class, size int) {
	if n > 512<<10 && n <= pieceSize {
		return 0, pieceSize
	}
	class = max(smallest, bits.Len(uint(n-1)))
	return class, 1 << class
}

// heldFor is how much is held for n bytes.
func heldFor(n int) int64 {
	_, size := classOf(n)
	return int64(size)
}

// get returns memory of n bytes, held once.
func (a *arena) get(n int) *memory {
	a.reserve(n)
	return a.take(n)
}

// reserve counts memory of n bytes as held, for take or unreserve.
func (a *arena) reserve(n int) { a.held.Add(heldFor(n)) }

func (a *arena) unreserve(n int) { a.held.Add(-heldFor(n)) }

// take returns memory of n bytes that was reserved, held once.
func (a *arena) take(n int) *memory {
	class, size := classOf(n)
	m := takeSpare(class, size)
	if m == nil {
		m = &memory{b: make([]byte, size)}
	}
	m.arena, m.b = a, m.b[:n]
	m.refs.Store(1)
	return m
}

func takeSpare(class, size int) *memory {
	spare.mu.Lock()
	defer spare.mu.Unlock()
	if l := spare.free[class]; len(l) > 0 {
		m := l[len(l)-1]
		spare.free[class] = l[:len(l)-1]
		spare.kept -= int64(size)
		return m
	}
	m, _ := spare.more[class].Get().(*memory)
	return m
}

func giveSpare(m *memory) {
	class, size := classOf(cap(m.b))
	spare.mu.Lock()
	defer spare.mu.Unlock()
	if spare.kept+int64(size) > keepSpare {
		spare.more[class].Put(m)
		return
	}
	spare.kept += int64(size)
	spare.free[class] = append(spare.free[class], m)
}

// room reports whether n bytes more stay within the limit.
func (a *arena) room(n int64) bool { return a.held.Load()+n <= a.limit }

func (m *memory) retain() { m.refs.Add(1) }

func (m *memory) release() {
	if m.refs.Add(-1) == 0 {
		m.arena.held.Add(-int64(cap(m.b)))
		m.arena = nil
		giveSpare(m)
	}
}
