package dataflow

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/inflight"
)

// subpartition is the sending end of a connection: a queue of views and events
// with a priority section in front. One task writes, one channel (or the
// network) reads.
//
// The writer alone sees the buffer that it fills, and publishes views of it:
// when it is full, when a barrier comes, when the task is about to wait. So
// nothing is locked for a record.
type subpartition struct {
	part   *partition
	index  int // in part
	target int // the downstream subtask
	// notify tells the reader that there is something, perhaps with priority.
	notify func(prio bool)
	tap    func([]byte) // sees what is published; for tests, else nil
	// reader is told what a local channel takes, and of barriers with priority;
	// nil: the network reads. It is guarded by mu.
	reader *persister

	// The writer's alone.
	cur      *segment
	pos, pub int    // written to, and published to, in cur
	records  uint64 // elements written since the job began

	drained atomic.Bool // the reader has taken the end of the data

	mu        sync.Mutex
	prio, q   ring
	blocked   bool   // behind an aligned barrier, until resumed
	published uint64 // bytes since the job began
	held      *heldBarrier
}

// heldBarrier is an aligned barrier in the queue that may still time out.
type heldBarrier struct {
	b    barrier
	at   uint64 // bytes published when it was queued
	hold Hold
}

// append writes one element.
func (s *subpartition) append(tag byte, time int64, body []byte) {
	s.records++
	n := elementSize(tag, len(body))
	if c := s.cur; c != nil && len(c.b)-s.pos > n {
		b := c.b[s.pos : s.pos+n]
		s.pos += n
		if tag == tagPlain { // nearly all are
			binary.BigEndian.PutUint32(b, uint32(n-lengthBytes))
			b[lengthBytes] = tagPlain
			copy(b[lengthBytes+1:], body)
			return
		}
		copy(b[putHead(b, tag, time, n):], body)
		return
	}
	var head [lengthBytes + 1 + timeBytes]byte
	s.write(head[:putHead(head[:], tag, time, n)])
	s.write(body)
}

// write copies p into as many buffers as it takes.
func (s *subpartition) write(p []byte) {
	for len(p) > 0 {
		if s.cur == nil {
			s.cur = s.part.pool.request(s.index)
			s.pos, s.pub = 0, 0
			s.part.open++
			if !s.part.pool.avail.Load() {
				*s.part.full = true
			}
		}
		n := copy(s.cur.b[s.pos:], p)
		s.pos += n
		p = p[n:]
		if s.pos == len(s.cur.b) {
			s.finish()
		}
	}
}

// flush publishes what is written.
func (s *subpartition) flush() {
	if s.cur == nil || s.pos == s.pub {
		return
	}
	s.mu.Lock()
	s.publish()
	s.mu.Unlock()
	s.notify(false)
}

// finish publishes and gives the buffer up, so that it goes home when it is
// consumed.
func (s *subpartition) finish() {
	if s.cur == nil {
		return
	}
	s.flush()
	s.cur.release()
	s.cur = nil
	s.part.open--
}

// publish appends what is written and not published to the queue. A view that
// still stands at the end of the queue grows instead.
func (s *subpartition) publish() {
	if s.cur == nil || s.pos == s.pub {
		return
	}
	s.published += uint64(s.pos - s.pub)
	if s.tap != nil {
		s.tap(s.cur.b[s.pub:s.pos])
	}
	if s.q.n > 0 {
		if last := s.q.at(s.q.n - 1); last.seg == s.cur && last.end == s.pub {
			last.end, s.pub = s.pos, s.pos
			return
		}
	}
	s.q.push(entry{view: view{s.cur, s.pub, s.pos}.retain()})
	s.pub = s.pos
}

// event puts ev behind everything written so far, and returns how much that
// is. The unfinished buffer is closed by it, as in Flink.
func (s *subpartition) event(ev *event) (inFront uint64) {
	s.finish()
	s.mu.Lock()
	inFront = s.q.bytes()
	s.q.push(entry{ev: ev})
	s.mu.Unlock()
	s.notify(false)
	return inFront
}

// overtake puts an unaligned barrier in front of the queue and returns what it
// overtakes, and where that begins. The data stays in the queue and is sent.
func (s *subpartition) overtake(b barrier) (vs []view, offset uint64) {
	s.finish()
	s.mu.Lock()
	vs = s.q.views(s.q.n)
	offset = s.published - size(vs)
	if len(vs) > 0 && b.passage != nil {
		s.q.push(entry{ev: b.mark()})
	}
	s.pushPrio(b)
	s.mu.Unlock()
	s.notify(true)
	return vs, offset
}

// pushPrio puts a barrier in front. For a local channel it has come then.
func (s *subpartition) pushPrio(b barrier) {
	s.prio.push(entry{ev: &event{kind: evBarrier, b: b}})
	if s.reader != nil {
		s.reader.barrier(b.id)
	}
}

// hold queues an aligned barrier that may still time out. An older one that
// is still held fails: its checkpoint is over.
func (s *subpartition) hold(b barrier, h Hold) (inFront uint64) {
	s.finish()
	s.mu.Lock()
	inFront = s.q.bytes()
	old := s.held
	s.held = &heldBarrier{b: b, at: s.published, hold: h}
	s.q.push(entry{ev: &event{kind: evBarrier, b: b}})
	s.mu.Unlock()
	if old != nil {
		old.hold.Drop(inflight.ErrSubsumed)
	}
	s.notify(false)
	return inFront
}

// overtaken is what a barrier has overtaken that was held.
type overtaken struct {
	hold Hold
	pos  inflight.Pos
	vs   []view
}

func (o overtaken) fill() { o.hold.Fill(o.pos, buffers(o.vs)...) }

// timeout turns the held barrier of a checkpoint into an unaligned one, if it
// is still here. What it overtakes is to fill the hold.
func (s *subpartition) timeout(id inflight.CheckpointID) (o overtaken, switched bool) {
	s.mu.Lock()
	h := s.held
	if h == nil || h.b.id != id {
		s.mu.Unlock()
		return o, false
	}
	s.held = nil
	at := s.find(id)
	o = overtaken{h.hold, inflight.Pos{Epoch: s.part.pool.epoch, Offset: h.at}, s.q.views(at)}
	if len(o.vs) > 0 && h.b.passage != nil {
		s.q.at(at).ev = h.b.mark()
	} else {
		s.q.remove(at)
	}
	s.pushPrio(h.b.unaligned())
	s.mu.Unlock()
	if len(o.vs) > 0 {
		o.pos = inflight.Pos{Epoch: o.vs[0].seg.epoch, Offset: h.at - size(o.vs)}
	}
	s.notify(true)
	return o, true
}

// find returns where the barrier of a checkpoint stands in the queue.
func (s *subpartition) find(id inflight.CheckpointID) int {
	for i := range s.q.n {
		if e := s.q.at(i); !e.isData() && e.ev.kind == evBarrier && e.ev.b.id == id {
			return i
		}
	}
	return -1
}

// abort fails what is held for a checkpoint.
func (s *subpartition) abort(id inflight.CheckpointID, cause error) {
	s.mu.Lock()
	h := s.held
	if h != nil && h.b.id == id {
		s.held = nil
	} else {
		h = nil
	}
	s.mu.Unlock()
	if h != nil {
		h.hold.Drop(cause)
	}
}

// poll returns the next entry that may be read: any that has priority; none
// while blocked; data only with credit. more says that another would follow;
// backlog counts the data that waits.
func (s *subpartition) poll(credit int) (e entry, ok, more bool, backlog int) {
	s.mu.Lock()
	var left *heldBarrier
	switch {
	case s.prio.n > 0:
		e, ok = s.prio.pop(), true
	case s.readable(credit):
		if e, ok = s.q.pop(), true; !e.isData() {
			s.blocked = e.ev.blocks()
			if s.held != nil && e.ev.kind == evBarrier && e.ev.b.id == s.held.b.id {
				left, s.held = s.held, nil
			}
		}
	}
	if ok && e.isData() {
		credit--
	}
	if ok && s.reader != nil {
		s.reader.saw(e)
	}
	more = s.prio.n > 0 || s.readable(credit)
	backlog = s.backlog()
	s.mu.Unlock()
	if left != nil {
		left.hold.Fill(inflight.Pos{Epoch: s.part.pool.epoch, Offset: left.at}) // it left in time: nothing was overtaken
	}
	return e, ok, more, backlog
}

func (s *subpartition) readable(credit int) bool {
	return !s.blocked && s.q.n > 0 && (credit > 0 || !s.q.at(0).isData())
}

// backlog is what the sender tells the receiver: how many buffers wait. A
// blocked one says 0, so that it does not keep credit which the channel of the
// awaited barrier needs.
func (s *subpartition) backlog() int {
	if s.blocked {
		return 0
	}
	return s.q.data
}

// resume lets data pass again behind an aligned barrier.
func (s *subpartition) resume() {
	s.mu.Lock()
	was := s.blocked
	s.blocked = false
	some := s.q.n > 0
	s.mu.Unlock()
	if was && some {
		s.notify(false)
	}
}

// close releases everything; what is held fails.
func (s *subpartition) close() {
	if s.cur != nil {
		s.cur.release()
		s.cur = nil
		s.part.open--
	}
	s.mu.Lock()
	h := s.held
	s.held = nil
	s.q.clear()
	s.prio.clear()
	s.mu.Unlock()
	if h != nil {
		h.hold.Drop(inflight.ErrClosed)
	}
}

func (s *subpartition) hasPrio() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prio.n > 0
}
