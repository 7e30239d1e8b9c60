package dataflow

import (
	"sync"
	"sync/atomic"
)

// inputs are all the input channels of a task, over all its gates, and which
// of them have something. Channels are served in turn, back to the end after
// each buffer, so that none starves.
type inputs struct {
	owner    Waker
	channels []*channel
	nprio    atomic.Int32 // read once a record

	mu          sync.Mutex
	ready, prio []*channel
}

// enqueue says that c has something, perhaps with priority.
func (in *inputs) enqueue(c *channel, prio bool) {
	in.mu.Lock()
	queue, listed := &in.ready, &c.inReady
	if prio {
		queue, listed = &in.prio, &c.inPrio
	}
	fresh := !*listed
	if fresh {
		*listed = true
		*queue = append(*queue, c)
		in.nprio.Store(int32(len(in.prio)))
	}
	in.mu.Unlock()
	if fresh {
		in.owner.Wake()
	}
}

// next returns the next channel that has something, those with priority first;
// with only set, no others.
func (in *inputs) next(only bool) *channel {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.prio) > 0 {
		c := in.prio[0]
		in.prio = in.prio[:copy(in.prio, in.prio[1:])]
		in.nprio.Store(int32(len(in.prio)))
		c.inPrio = false
		return c
	}
	if only || len(in.ready) == 0 {
		return nil
	}
	c := in.ready[0]
	in.ready = in.ready[:copy(in.ready, in.ready[1:])]
	c.inReady = false
	return c
}
