package dataflow

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/spillway-io/spillway/inflight"
)

// Timer calls an operator back for a key, at a time in milliseconds: event
// time, or processing time since the Unix epoch.
type Timer struct {
	Event bool
	At    int64
	Key   Key
}

// Timers are keyed state: they are in every snapshot, and fire after a restore
// as if nothing had happened. Setting one twice sets one.
type Timers struct {
	t     *task
	link  int // whose they are, in a chain
	event timerQueue
	clock timerQueue
}

// NewTimers registers the timers of an operator.
func NewTimers(c *Context) (*Timers, error) {
	if c.t.timers != nil {
		return nil, &inflight.Error{Op: "open", Object: c.Task.String(), Mend: "give the other one a vertex of its own",
			Err: fmt.Errorf("two operators of a chain have timers: %w", inflight.ErrConfig)}
	}
	s := &Timers{t: c.t, link: c.link, event: newTimerQueue(), clock: newTimerQueue()}
	if err := c.Register("timers", s); err != nil {
		return nil, err
	}
	c.t.timers = s
	return s, nil
}

// Set sets a timer.
func (s *Timers) Set(t Timer) { s.queue(t.Event).set(t) }

// Delete takes a timer back.
func (s *Timers) Delete(t Timer) { delete(s.queue(t.Event).live, t.id()) }

// Len is how many timers are set.
func (s *Timers) Len() int { return len(s.event.live) + len(s.clock.live) }

func (s *Timers) queue(event bool) *timerQueue {
	if event {
		return &s.event
	}
	return &s.clock
}

// due takes out the next timer that is due.
func (s *Timers) due(watermark, clock int64) (Timer, bool) {
	if s.event.soonest <= watermark && s.event.next() <= watermark && len(s.event.live) > 0 {
		return s.event.pop(), true
	}
	if s.clock.soonest <= clock && s.clock.next() <= clock && len(s.clock.live) > 0 {
		return s.clock.pop(), true
	}
	return Timer{}, false
}

// Freeze implements State.
func (s *Timers) Freeze() Frozen {
	var out []byte
	for _, q := range []*timerQueue{&s.event, &s.clock} {
		for _, t := range q.heap {
			if _, ok := q.live[t.id()]; !ok {
				continue
			}
			kind := byte(0)
			if t.Event {
				kind = 1
			}
			out = append(out, kind)
			out = binary.BigEndian.AppendUint64(out, uint64(t.At))
			out = binary.BigEndian.AppendUint32(out, uint32(t.Key.Hash))
			out = binary.AppendUvarint(out, uint64(len(t.Key.Bytes)))
			out = append(out, t.Key.Bytes...)
		}
	}
	return FrozenBytes(out)
}

// Restore implements State.
func (s *Timers) Restore(data []byte) error {
	for len(data) > 0 {
		const head = 1 + 8 + 4
		if len(data) < head {
			return fmt.Errorf("timers end within a timer: %w", inflight.ErrCorrupt)
		}
		t := Timer{Event: data[0] == 1, At: int64(binary.BigEndian.Uint64(data[1:])),
			Key: Key{Hash: int32(binary.BigEndian.Uint32(data[9:]))}}
		var ok bool
		if t.Key.Bytes, data, ok = cutBytes(data[head:]); !ok {
			return fmt.Errorf("timers end within a timer: %w", inflight.ErrCorrupt)
		}
		s.Set(t)
	}
	return nil
}

type timerID struct {
	at   int64
	hash int32
	key  string
}

func (t Timer) id() timerID { return timerID{t.At, t.Key.Hash, string(t.Key.Bytes)} }

// timerQueue is a heap; what was deleted stays in it until it comes up.
type timerQueue struct {
	heap    timerHeap
	live    map[timerID]struct{}
	soonest int64 // none is due before; asked once a record
}

func newTimerQueue() timerQueue {
	return timerQueue{live: map[timerID]struct{}{}, soonest: math.MaxInt64}
}

func (q *timerQueue) set(t Timer) {
	id := t.id()
	if _, ok := q.live[id]; ok {
		return
	}
	q.live[id] = struct{}{}
	t.Key.Bytes = []byte(id.key)
	q.soonest = min(q.soonest, t.At)
	heap.Push(&q.heap, t)
}

// next is when the next timer is due.
func (q *timerQueue) next() int64 {
	q.soonest = math.MaxInt64
	for len(q.heap) > 0 {
		if _, ok := q.live[q.heap[0].id()]; ok {
			q.soonest = q.heap[0].At
			break
		}
		heap.Pop(&q.heap)
	}
	return q.soonest
}

func (q *timerQueue) pop() Timer {
	t := heap.Pop(&q.heap).(Timer)
	delete(q.live, t.id())
	q.next()
	return t
}

// timerHeap orders timers by time, then key, so that runs can be repeated.
type timerHeap []Timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	if h[i].At != h[j].At {
		return h[i].At < h[j].At
	}
	return string(h[i].Key.Bytes) < string(h[j].Key.Bytes)
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(Timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
