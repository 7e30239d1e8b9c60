package dataflow

import (
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/inflight"
)

// pool gives the segments of one result partition to its subpartitions.
//
// It is available while fewer than size segments are out and no subpartition
// holds perSub of them: only then a task takes new input. A request that is
// already under way is never refused: it overdraws, and beyond that it takes
// memory that is only counted, so that no step ever waits in mid-record.
type pool struct {
	size, perSub, overdraft int
	bytes                   int // of a segment
	epoch                   inflight.Epoch
	avail                   atomic.Bool
	owner                   Waker

	mu      sync.Mutex
	free    []*segment
	taken   int
	held    []int // by subpartition
	atLimit int   // subpartitions that hold perSub or more
	// Requests that overdrew, and that went beyond that: for the statistics.
	overdrafts, beyond int
}

func newPool(subs, size, perSub, overdraft, bytes int, epoch inflight.Epoch) *pool {
	p := &pool{size: size, perSub: perSub, overdraft: overdraft, bytes: bytes, epoch: epoch, held: make([]int, subs)}
	p.avail.Store(size > 0)
	return p
}

func (p *pool) request(sub int) *segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.size+p.overdraft:
		p.beyond++
	case p.taken >= p.size:
		p.overdrafts++
	}
	p.taken++
	p.held[sub]++
	if p.held[sub] == p.perSub {
		p.atLimit++
	}
	p.update()
	var s *segment
	if n := len(p.free); n > 0 {
		s, p.free = p.free[n-1], p.free[:n-1]
	} else {
		s = &segment{b: make([]byte, p.bytes), home: p, epoch: p.epoch}
	}
	s.sub = sub
	s.refs.Store(1)
	return s
}

// adopt counts a segment that was made elsewhere. What is recovered takes the
// place of what would be emitted: else each crash during a recovery would leave
// more in flight than the one before.
func (p *pool) adopt(sub int, b []byte, epoch inflight.Epoch) *segment {
	s := heapSegment(b, epoch)
	s.home, s.sub = p, sub
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken++
	p.held[sub]++
	if p.held[sub] == p.perSub {
		p.atLimit++
	}
	p.update()
	return s
}

// recycle takes a segment back. The owner is woken also when the pool does not
// become available by it: it may now be the case that only open buffers are
// out, which the owner can do something about (partition.available).
func (p *pool) recycle(s *segment) {
	p.mu.Lock()
	was := p.avail.Load()
	p.taken--
	if p.held[s.sub] == p.perSub {
		p.atLimit--
	}
	p.held[s.sub]--
	if s.epoch == p.epoch && len(p.free) < p.size+p.overdraft { // an adopted one is older
		p.free = append(p.free, s)
	}
	p.update()
	p.mu.Unlock()
	if !was {
		p.owner.Wake()
	}
}

func (p *pool) update() { p.avail.Store(p.taken < p.size && p.atLimit == 0) }

// out returns how many segments are out.
func (p *pool) out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// full reports whether sub holds its limit.
func (p *pool) full(sub int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[sub] >= p.perSub
}
