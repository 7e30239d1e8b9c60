package dataflow

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// task is one subtask at work: a step function over its mail, its inputs and
// its outputs. Fields without a remark are its own goroutine's.
type task struct {
	id       inflight.Task
	exec     Executor
	epoch    inflight.Epoch
	worker   Worker
	mail     mailbox
	in       inputs
	out      []*partition
	src      Source   // or
	op       Operator // one of the two
	ctx      *Context
	bar      *barriers
	upstream []inflight.Task
	writer   CaptureWriter // nil: no checkpoints
	boss     taskObserver
	opts     *Options
	cancel   atomic.Bool // set by anybody

	budget    int      // records that this step may still do
	cur       *channel // whose buffer is being read
	full      bool     // an output took its last buffer
	busyUntil time.Duration
	lastFlush time.Duration
	now       time.Duration // when the step began
	phase     phase
	exhausted bool // the end of the data has come on every channel
	released  bool // the checkpoint that phase final waits for is complete
	finished  bool // Finish was called, perhaps before a restore
	replaying int  // channels that have not seen the end of recovery

	watermark int64 // event time, reached
	firing    bool  // timers are due before the watermark is passed on
	idle      bool  // all inputs are
	timers    *Timers

	states   []namedState
	restored map[inflight.StateName][]byte
	past     atomic.Pointer[past] // of a source; nil before its first checkpoint
	ckpt     checkpointing
	done     uint64 // elements processed or emitted by a source
	shown    atomic.Uint64
	meter    meter
	nextMark time.Duration // when a source marks the next record
}

// phase is how far a task has come.
type phase uint8

const (
	running  phase = iota
	draining       // all input is consumed; outputs are not
	final          // waits for a checkpoint that holds all of its effects
	ended
	failed
)

type namedState struct {
	name inflight.StateName
	s    State
}

// taskObserver is told how a task gets on. Calls come from the task's
// goroutine, or from who made a capture durable, and only enqueue.
type taskObserver interface {
	acked(Ack)
	declined(task inflight.Task, id inflight.CheckpointID, r Reason, cause error)
	replayed(task inflight.Task)
	drained(task inflight.Task)
	ended(task inflight.Task, cuts []inflight.Cut)
	failed(task inflight.Task, err error)
	marked(took time.Duration) // a marked record has come to a sink
	traced(TraceEvent)
}

const noWatermark = math.MinInt64

// flushInterval bounds how long a record waits in an unfinished buffer of a
// task that never pauses (Flink: the buffer timeout).
const flushInterval = 100 * time.Millisecond

// Step implements Actor.
func (t *task) Step(budget int) Status {
	t.now = t.exec.Now()
	if t.busyUntil > t.now && !t.cancel.Load() {
		return Status{Why: Busy, At: t.busyUntil}
	}
	t.busyUntil = 0
	t.meter.turn(t.now, meterBusy)
	st := t.work(budget)
	t.shown.Store(t.done)
	switch {
	case st.Why == Done:
		t.meter.turn(t.exec.Now(), meterIdle)
		return st
	case t.busyUntil > 0:
		t.flush()
		return Status{Why: Busy, At: t.busyUntil}
	case st.Why == Ready:
		if t.now-t.lastFlush >= flushInterval {
			t.flush()
		}
		return st
	}
	t.flush()
	waits := int64(meterIdle)
	if st.Why == NoOutput {
		waits = meterBackpressured
	}
	t.meter.turn(t.exec.Now(), waits)
	st.At = t.earlier(st.At)
	return st
}

// work does up to budget things, until there is something to wait for.
func (t *task) work(budget int) (st Status) {
	for t.budget = budget; t.budget > 0 && st.Why == Ready && t.busyUntil == 0; t.budget-- {
		if t.cancel.Load() {
			return Status{Why: Done}
		}
		var err error
		if st, err = t.once(); err != nil {
			t.phase = failed
			t.boss.failed(t.id, err)
			return Status{Why: Done}
		}
	}
	return st
}

func (t *task) flush() {
	t.lastFlush = t.now
	for _, p := range t.out {
		p.flush()
	}
}

// once does one thing, in this order: mail, events with priority, timers, one
// record. So a barrier with priority waits for one record at most; it does not
// wait for output.
func (t *task) once() (Status, error) {
	if t.phase == ended {
		return Status{Why: Done}, nil // what comes now comes too late
	}
	if f := t.mail.take(); f != nil {
		return Status{}, f()
	}
	if t.in.nprio.Load() > 0 {
		return Status{}, t.takePriority()
	}
	if t.phase != running {
		return t.wind()
	}
	t.full = false
	for _, p := range t.out {
		if !p.available() {
			return Status{Why: NoOutput}, nil
		}
	}
	if t.firing || t.timers != nil {
		if did, err := t.fire(); did || err != nil {
			return Status{}, err
		}
	}
	if t.src != nil {
		return t.emit()
	}
	if t.exhausted && t.cur == nil {
		return Status{}, t.endOfInput()
	}
	return t.input()
}

// interrupted reports whether there is something to do before the next record.
func (t *task) interrupted() bool {
	return t.mail.some.Load() || t.in.nprio.Load() > 0 || t.full || t.firing || t.timers != nil || t.busyUntil > 0
}

// emit lets a source emit until something else is to be done.
func (t *task) emit() (Status, error) {
	if t.finished { // before a restore: tasks further down may have ended since
		return Status{}, t.endOfInput()
	}
	if every := t.opts.LatencyInterval; every > 0 && t.now >= t.nextMark {
		t.nextMark = t.now + every
		t.mark(t.exec.Epoch().Add(t.now).UnixNano())
	}
	for {
		st, err := t.src.Next(t.ctx)
		switch {
		case err != nil:
			return st, err
		case st.Why == Done:
			t.forwardWatermark(math.MaxInt64)
			return Status{}, t.endOfInput()
		case st.Why == Busy:
			t.busyUntil = st.At
			return st, nil
		case st.Why != Ready:
			return st, nil
		}
		t.done++
		if t.budget--; t.budget <= 0 || t.interrupted() {
			return st, nil
		}
	}
}

// input takes the next buffer or event, or processes elements of the buffer at
// hand until something else is to be done.
func (t *task) input() (Status, error) {
	c := t.cur
	if c == nil {
		return t.nextEntry()
	}
	for {
		var err error
		p := c.d.whole()
		if p == nil {
			if p, err = c.d.next(); err != nil {
				return Status{}, fmt.Errorf("%s: %w", c, err)
			}
		}
		if p != nil {
			if len(p) > 0 && p[0] == tagPlain { // nearly all are
				t.ctx.Gate = c.address.Gate
				err = t.op.Process(t.ctx, Record{Body: p[1:]})
			} else {
				err = t.element(c, p)
			}
			if err != nil {
				return Status{}, err
			}
			c.records++
			t.done++
			c.d.done()
		}
		if !c.d.has() {
			t.cur = nil
			return Status{}, nil
		}
		if t.budget--; t.budget <= 0 || t.interrupted() {
			return Status{}, nil
		}
	}
}

func (t *task) nextEntry() (Status, error) {
	c := t.in.next(false)
	if c == nil {
		return Status{Why: NoInput}, nil
	}
	e, ok := c.poll()
	switch {
	case !ok:
	case e.isData():
		c.d.feed(e.view)
		t.cur = c
	default:
		return Status{}, t.event(c, e.ev)
	}
	return Status{}, nil
}

// element takes what is not a plain record.
func (t *task) element(c *channel, p []byte) error {
	e, err := parseElement(p)
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	switch e.tag {
	case tagWatermark:
		c.watermark = max(c.watermark, e.record.Time)
		t.advanceTime()
	case tagMarker:
		if len(t.out) > 0 {
			t.mark(e.record.Time)
		} else {
			t.boss.marked(time.Duration(t.exec.Epoch().Add(t.exec.Now()).UnixNano() - e.record.Time))
		}
	case tagStatus:
		c.idle = e.status != 0
		t.advanceTime()
	default:
		t.ctx.Gate = c.address.Gate
		return t.op.Process(t.ctx, e.record)
	}
	return nil
}

// takePriority takes one event with priority, if it is still there.
func (t *task) takePriority() error {
	c := t.in.next(true)
	if c == nil {
		return nil
	}
	ev, ok := c.pollPriority()
	if !ok {
		return nil
	}
	t.in.enqueue(c, true) // perhaps one more
	return t.event(c, ev)
}

func (t *task) event(c *channel, ev *event) error {
	switch ev.kind {
	case evBarrier:
		t.bar.barrier(ev.b, c, true)
	case evAnnounce:
		t.bar.announcement(ev.b, c, ev.seq)
	case evCancel:
		t.bar.cancel(ev.b.id)
	case evOvertaken:
		ev.b.passage.pass(t.exec.Now() - ev.b.at)
	case evRecovered:
		if t.replaying--; t.replaying == 0 {
			t.boss.replayed(t.id)
		}
	case evEndOfData:
		c.dataEnded = true
		c.up.drain()
		t.advanceTime()
		t.exhausted = t.phase == running && t.allEnded()
	case evEnd:
		c.ended = true
		t.bar.end(c)
	}
	return t.ckpt.err
}

func (t *task) allEnded() bool {
	for _, c := range t.in.channels {
		if !c.dataEnded {
			return false
		}
	}
	return true
}

// endOfInput is called after the last record.
func (t *task) endOfInput() error {
	if !t.finished && t.op != nil {
		if err := t.op.Finish(t.ctx); err != nil {
			return err
		}
	}
	t.finished = true
	for _, p := range t.out {
		p.event(&event{kind: evEndOfData})
	}
	t.phase = draining
	return nil
}

// wind is the end of a task: its outputs are consumed, then a checkpoint is
// complete that holds all of its effects and its inputs have ended, then it
// says that nothing follows. So none ends before those upstream of it.
func (t *task) wind() (Status, error) {
	switch t.phase {
	case draining:
		for _, p := range t.out {
			for _, s := range p.subs {
				if !s.drained.Load() {
					return t.events()
				}
			}
		}
		t.phase = final
		t.released = t.writer == nil
		t.boss.drained(t.id)
		return Status{}, nil
	case final:
		if t.released && !t.someOpen() {
			t.end()
			return Status{}, nil
		}
	}
	return t.events()
}

// events takes what still comes after the end of the data.
func (t *task) events() (Status, error) {
	if t.src != nil {
		return Status{Why: NoInput}, nil
	}
	return t.input()
}

// end says that nothing follows, to the coordinator first: it hears of no task's
// end before that of those upstream.
func (t *task) end() {
	t.phase = ended
	t.boss.ended(t.id, t.cuts())
	for _, p := range t.out {
		p.event(&event{kind: evEnd})
	}
}

// advanceTime takes the minimum over the channels that are not idle.
func (t *task) advanceTime() {
	low, active := int64(math.MaxInt64), false
	for _, c := range t.in.channels {
		if !c.idle && !c.dataEnded {
			low, active = min(low, c.watermark), true
		}
	}
	t.setIdle(!active && !t.allEnded())
	if !active {
		low = noWatermark
		for _, c := range t.in.channels {
			if c.dataEnded {
				low = max(low, c.watermark)
			}
		}
		if !t.allEnded() {
			return
		}
	}
	if low > t.watermark {
		t.watermark, t.firing = low, true
	}
}

// setIdle passes on a change.
func (t *task) setIdle(idle bool) {
	if idle == t.idle {
		return
	}
	t.idle = idle
	for _, p := range t.out {
		p.status(idle)
	}
}

// fire calls one timer that is due. When none is left, the watermark that made
// them due is passed on. Between two timers a barrier may come.
func (t *task) fire() (did bool, err error) {
	if t.timers != nil {
		clock := t.exec.Epoch().Add(t.now).UnixMilli()
		if timer, ok := t.timers.due(t.watermark, clock); ok {
			return true, t.op.Timer(t.ctx, timer)
		}
	}
	if !t.firing {
		return false, nil
	}
	t.firing = false
	if err := t.op.Watermark(t.ctx, t.watermark); err != nil {
		return true, err
	}
	t.forwardWatermark(t.watermark)
	return true, nil
}

func (t *task) forwardWatermark(ms int64) {
	t.watermark = max(t.watermark, ms)
	for _, p := range t.out {
		p.watermark(t.watermark)
	}
}

// mark sends a marker on, over each edge to one subtask.
func (t *task) mark(at int64) {
	for _, p := range t.out {
		p.subs[t.ctx.Rand.IntN(len(p.subs))].append(tagMarker, at, nil)
		p.marks++
	}
}

// earlier returns at, or when the next timer of processing time is due.
func (t *task) earlier(at time.Duration) time.Duration {
	if t.timers == nil || t.phase != running || t.timers.clock.soonest == math.MaxInt64 {
		return at
	}
	due := time.UnixMilli(t.timers.clock.soonest).Sub(t.exec.Epoch())
	if due = max(due, t.now+1); at == 0 || due < at {
		return due
	}
	return at
}

// drain says that the reader has taken the end of the data.
func (s *subpartition) drain() {
	s.drained.Store(true)
	s.part.pool.owner.Wake()
}

// register restores a piece of state and remembers it for snapshots.
func (t *task) register(name inflight.StateName, s State) error {
	t.states = append(t.states, namedState{name, s})
	data, ok := t.restored[name]
	if !ok {
		return nil
	}
	if err := s.Restore(data); err != nil {
		return &inflight.Error{Op: "restore", Object: fmt.Sprintf("%s state %q", t.id, name), Err: err}
	}
	return nil
}

// open makes the task ready for its first step.
func (t *task) open(seed uint64) error {
	t.ctx = &Context{Task: t.id, Epoch: t.epoch, t: t, Parallelism: t.opts.parallelism[t.id.Vertex],
		Rand: rand.New(rand.NewPCG(seed, uint64(t.epoch)))}
	t.watermark = noWatermark
	if err := t.register("runtime", (*runtimeState)(t)); err != nil {
		return err
	}
	if t.src != nil {
		return t.src.Open(t.ctx)
	}
	return t.op.Open(t.ctx)
}

// runtimeState is what the runtime itself keeps of a task: whether Finish was
// called, and the watermark.
type runtimeState task

// Freeze implements State.
func (s *runtimeState) Freeze() Frozen {
	b := make([]byte, 1, 9)
	if s.finished {
		b[0] = 1
	}
	return FrozenBytes(binary.BigEndian.AppendUint64(b, uint64(s.watermark)))
}

// Restore implements State. The watermark is passed on once more: its timers may
// have been firing. Once Finish was called it has been passed on, and tasks
// further down may have ended.
func (s *runtimeState) Restore(b []byte) error {
	if len(b) != 9 {
		return fmt.Errorf("runtime state of %d bytes: %w", len(b), inflight.ErrCorrupt)
	}
	s.finished = b[0] == 1
	s.watermark = int64(binary.BigEndian.Uint64(b[1:]))
	s.firing = s.watermark != noWatermark && s.op != nil && !s.finished
	return nil
}

// close releases what the task holds, after all actors have ended.
func (t *task) close() (err error) {
	for _, c := range t.in.channels {
		c.close()
	}
	for _, p := range t.out {
		for _, s := range p.subs {
			s.close()
		}
	}
	switch {
	case t.ctx == nil: // it had ended before this deployment
	case t.src != nil:
		err = t.src.Close()
	default:
		err = t.op.Close()
	}
	if t.writer != nil {
		if e := t.writer.Close(); err == nil {
			err = e
		}
	}
	return err
}
