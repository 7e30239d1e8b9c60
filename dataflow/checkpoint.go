package dataflow

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Ack is a subtask's part of a checkpoint, durable.
type Ack struct {
	Task      inflight.Task
	ID        inflight.CheckpointID
	Handle    inflight.Handle
	Cuts      []inflight.Cut
	Unaligned bool // its barrier overtook data, here or on its way down
	Forced    bool // it had no choice: its edges are forced-aligned
	Partial   bool // its source was gone: the state is that of its last acknowledged checkpoint

	// Position is how many records a source's position has passed, where it can
	// tell; Marks is how many watermarks and markers the cuts of each partition
	// count beside its records, since this deployment began.
	Position      uint64
	PositionKnown bool
	Marks         []uint64

	StartDelay time.Duration // trigger → first barrier
	Alignment  time.Duration // first barrier → last barrier
	Sync       time.Duration // what the task's records waited for
	Async      time.Duration // → durable
	EndToEnd   time.Duration // trigger → durable
	Late       uint64        // bytes of input captured when they arrived
	Buffered   uint64        // bytes that stood behind aligned barriers when the last one came
	InFront    uint64        // bytes that stood at the outputs in front of the barriers when these were emitted
}

// checkpointing is the task's side of its checkpoints.
type checkpointing struct {
	last    int64 // newest id that was triggered or given up; -1
	aborted map[inflight.CheckpointID]bool
	at      *snapshot // the one at work
	finalID int64     // the first triggered in phase final; -1
	err     error     // an operator's, on its way to Step
}

// snapshot is one checkpoint of one task. It ends beside the task: who brings
// the last barrier completes the input, and who makes the capture durable sends
// the acknowledgement, so that neither waits for a record that is being worked on.
type snapshot struct {
	b       barrier
	capture Capture
	clock   func() time.Duration
	first   time.Duration // when the first barrier came
	late    atomic.Uint64 // bytes captured on arrival

	past     past // of a source; encode fills it, before the capture ends
	mu       sync.Mutex
	missing  int // channels whose barrier is still to come
	received bool
	synced   time.Duration
	ack      Ack
}

// barrierCame says that nothing more is captured of one channel.
func (s *snapshot) barrierCame() {
	s.mu.Lock()
	s.missing--
	last := s.missing == 0
	s.mu.Unlock()
	if last {
		s.inputDone()
	}
}

// inputDone completes the input part, once.
func (s *snapshot) inputDone() {
	s.mu.Lock()
	was := s.received
	if !was {
		s.received = true
		s.ack.Alignment = s.clock() - s.first
	}
	s.mu.Unlock()
	if !was {
		s.capture.FinishInput()
	}
}

// trigger is the coordinator's call. At a source it is the snapshot; a task
// whose inputs have ended takes it in place of the barriers.
func (t *task) triggered(b barrier) error {
	t.trace(PointUrgentMail, b.id, "%s", b.alignment)
	if len(t.in.channels) > 0 && t.someOpen() {
		t.bar.inject(b)
		return t.ckpt.err
	}
	if err := t.trigger(b); err != nil {
		t.aborted(b.id, ReasonOf(err), err)
	} else {
		t.allReceived(b.id)
	}
	return t.ckpt.err
}

func (t *task) someOpen() bool {
	for _, c := range t.in.channels {
		if !c.ended {
			return true
		}
	}
	return false
}

// initInputs implements barrierHost.
func (t *task) initInputs(b barrier) error {
	c, err := t.writer.Start(b.id, StartOptions{Savepoint: b.savepoint, ChannelState: b.needsChannelState()})
	if err != nil {
		return err
	}
	s := &snapshot{b: b, capture: c, clock: t.exec.Now, first: t.bar.first(b.id)}
	t.ckpt.at = s
	if b.alignment != Unaligned {
		s.inputDone()
		return nil
	}
	t.trace(PointFirstBarrier, b.id, "%d channels", len(t.in.channels))
	if b.passage != nil && len(t.in.channels) > 0 && !t.forced() && b.passage.seen.CompareAndSwap(false, true) {
		t.trace(PointUnaligned, b.id, "the first unaligned barrier has come, after %v", t.exec.Now()-b.at)
	}
	var bytes uint64
	s.missing = 1 + len(t.in.channels) // 1: until all have started
	defer s.barrierCame()
	for _, ch := range t.in.channels {
		n, err := ch.start(b.id, s)
		if err != nil {
			return err
		}
		bytes += n
	}
	t.trace(PointInputCapture, b.id, "%d bytes", bytes)
	return nil
}

// trigger implements barrierHost: it sends the barrier on, captures what it
// overtakes, and takes the picture of the state, in one go on the task.
func (t *task) trigger(b barrier) error {
	k := &t.ckpt
	switch {
	case int64(b.id) <= k.last:
		t.writer.Abort(b.id, inflight.ErrSubsumed)
		return nil
	case k.aborted[b.id]:
		k.last = int64(b.id)
		t.giveUp(b.id, inflight.ErrAborted)
		return nil
	}
	k.last = int64(b.id)
	for id := range k.aborted {
		if id < b.id {
			delete(k.aborted, id)
		}
	}
	start := t.exec.Now()
	b = b.supported()
	if k.at == nil || k.at.b.id != b.id {
		if err := t.initInputs(b); err != nil {
			return err
		}
	}
	s := k.at
	if t.op != nil {
		if err := t.op.Prepare(t.ctx, b.id); err != nil {
			k.err = err
			return err
		}
	}
	past, err := t.pastOfSource()
	if err != nil {
		return err
	}
	inFront := t.sendBarrier(b, s.capture)
	if t.phase == final && k.finalID < 0 {
		k.finalID = int64(b.id)
	}
	frozen := t.freeze(past)
	s.synced = t.exec.Now()
	s.mu.Lock()
	s.ack = Ack{Task: t.id, ID: b.id, Cuts: t.cuts(), Unaligned: b.alignment == Unaligned, Forced: t.forced(), Alignment: s.ack.Alignment,
		StartDelay: s.first - b.at, Sync: s.synced - start, Buffered: t.buffered(b), InFront: inFront}
	s.ack.Partial = past != nil
	if s.ack.Position, s.ack.PositionKnown = position(t.src); s.ack.PositionKnown {
		for _, p := range t.out {
			s.ack.Marks = append(s.ack.Marks, p.marks)
		}
	}
	s.mu.Unlock()
	s.capture.Cuts(s.ack.Cuts...)
	t.exec.Go(func() { t.encode(s, frozen) })
	s.capture.Done(func(h inflight.Handle, err error) { t.durable(s, h, err) })
	return nil
}

// position asks a source how far it has come.
func position(s Source) (passed uint64, known bool) {
	switch s := s.(type) {
	case *scriptedSource:
		return position(s.Source)
	case Positioned:
		return s.Passed(), true
	}
	return 0, false
}

// buffered is what stands behind the aligned barriers that have all come.
func (t *task) buffered(b barrier) (n uint64) {
	if b.alignment == Unaligned {
		return 0
	}
	for _, c := range t.in.channels {
		n += c.queued()
	}
	return n
}

// forced reports whether nothing may be overtaken that comes to t or, of a
// source, that it emits.
func (t *task) forced() bool {
	if len(t.in.channels) == 0 {
		return len(t.out) > 0 && !slices.ContainsFunc(t.out, func(p *partition) bool { return p.unaligned })
	}
	return !slices.ContainsFunc(t.in.channels, func(c *channel) bool { return c.up.part.unaligned })
}

// sendBarrier broadcasts the barrier. One that may still time out gets a timer.
// It returns how many bytes stand in front of it, or did when it overtook them.
func (t *task) sendBarrier(b barrier, c Capture) (inFront uint64) {
	for _, p := range t.out {
		inFront += p.barrier(b, c)
	}
	if b.alignment == Unaligned {
		t.trace(PointHandOver, b.id, "%d bytes", inFront)
	}
	if b.timeoutable() && len(t.out) > 0 {
		t.timer(max(b.at+b.timeout, t.exec.Now()), func() { t.outputTimeout(b.id) })
	}
	return inFront
}

// outputTimeout lets the barrier overtake what it still stands behind.
func (t *task) outputTimeout(id inflight.CheckpointID) {
	var late []overtaken
	for _, p := range t.out {
		late = append(late, p.timeout(id)...)
	}
	if len(late) == 0 {
		return
	}
	var bytes uint64
	for _, o := range late {
		bytes += size(o.vs)
	}
	t.trace(PointSwitchUpstream, id, "%d subpartitions, %d bytes", len(late), bytes)
	if s := t.ckpt.at; s != nil && s.b.id == id {
		s.mu.Lock()
		s.ack.Unaligned = true
		s.mu.Unlock()
	}
	for _, o := range late {
		o.fill()
	}
}

// encode writes the picture of the state beside the task.
func (t *task) encode(s *snapshot, frozen []Frozen) {
	for i, f := range frozen {
		name := t.states[i].name
		f.Encode(func(p []byte) {
			if t.keepsPast() {
				s.past.keep(name, p)
			}
			s.capture.State(name, inflight.Bytes(p))
		})
	}
	s.capture.FinishOutput()
}

// allReceived implements barrierHost.
func (t *task) allReceived(id inflight.CheckpointID) {
	if s := t.ckpt.at; s != nil && s.b.id == id {
		s.inputDone()
	}
}

// durable is called when the capture has ended, on any goroutine.
func (t *task) durable(s *snapshot, h inflight.Handle, err error) {
	if err != nil {
		t.boss.declined(t.id, s.b.id, ReasonOf(err), err)
		return
	}
	now := t.exec.Now()
	s.mu.Lock()
	a := s.ack
	s.mu.Unlock()
	if t.keepsPast() {
		s.past.cuts = a.Cuts
		t.past.Store(&s.past)
	}
	a.Handle, a.Late = h, s.late.Load()
	a.Async, a.EndToEnd = now-s.synced, now-s.b.at
	t.boss.acked(a)
}

// aborted implements barrierHost. The coordinator is told first: the reason is
// this one, not that those downstream hear of it.
func (t *task) aborted(id inflight.CheckpointID, r Reason, cause error) {
	t.ckpt.last = max(t.ckpt.last, int64(id))
	t.boss.declined(t.id, id, r, cause)
	t.giveUp(id, cause)
}

// giveUp drops what was captured for a checkpoint and says so downstream.
func (t *task) giveUp(id inflight.CheckpointID, cause error) {
	t.writer.Abort(id, cause)
	for _, p := range t.out {
		p.abort(id, cause)
		p.event(&event{kind: evCancel, b: barrier{id: id}})
	}
	if s := t.ckpt.at; s != nil && s.b.id == id {
		t.ckpt.at = nil
	}
}

// notifyAborted is the coordinator's word that it has given a checkpoint up.
func (t *task) notifyAborted(id inflight.CheckpointID) error {
	t.bar.given(id)
	t.writer.Abort(id, inflight.ErrAborted)
	if int64(id) > t.ckpt.last {
		t.ckpt.aborted[id] = true
		return t.ckpt.err
	}
	for _, p := range t.out {
		p.abort(id, inflight.ErrAborted)
	}
	if t.op == nil {
		return nil
	}
	return t.op.Abort(t.ctx, id)
}

// notifyComplete is the coordinator's word that a checkpoint is complete.
func (t *task) notifyComplete(id inflight.CheckpointID) error {
	var err error
	if t.op != nil {
		err = t.op.Complete(t.ctx, id)
	} else if !t.sourceGone() {
		err = t.src.Complete(t.ctx, id)
	}
	if err == nil && t.phase == final && t.ckpt.finalID >= 0 && int64(id) >= t.ckpt.finalID {
		t.released = true
	}
	return err
}

// cuts say what of each connection was consumed and emitted.
func (t *task) cuts() (cuts []inflight.Cut) {
	for _, c := range t.in.channels {
		cuts = append(cuts, c.cut(t.epoch))
	}
	for _, p := range t.out {
		cuts = p.cuts(cuts)
	}
	return cuts
}

// slow says what the barrier of a checkpoint waits for, channel by channel.
func (t *task) slow(id inflight.CheckpointID) error {
	for _, c := range t.in.channels {
		if c.ended || t.bar.current > int64(id) || t.bar.current == int64(id) && (!t.bar.isPending() || t.bar.aligned[c.index]) {
			continue
		}
		t.trace(PointSlow, id, "no barrier of %s; %d bytes stand in front", c, c.inFront(id))
	}
	return nil
}

// stopInputs implements barrierHost.
func (t *task) stopInputs(id inflight.CheckpointID) {
	for _, c := range t.in.channels {
		c.stop(id)
	}
}

// clock implements barrierHost.
func (t *task) clock() time.Duration { return t.exec.Now() }

// timer implements barrierHost.
func (t *task) timer(at time.Duration, f func()) (stop func()) {
	return t.exec.At(at, func() {
		t.mail.put(func() error { f(); return t.ckpt.err }, true)
	})
}

// trace implements barrierHost.
func (t *task) trace(p Point, id inflight.CheckpointID, format string, args ...any) {
	if t.opts.wants(p) {
		t.boss.traced(TraceEvent{At: t.exec.Now(), Point: p, Task: t.id, Checkpoint: id, Text: fmt.Sprintf(format, args...)})
	}
}
