package dataflow

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// coordinator decides when a checkpoint is triggered, complete, or given up.
// It is an actor: everything reaches it as mail, in one attempt of a job.
type coordinator struct {
	a     *Deployment
	exec  Executor
	store Store
	opts  *Options
	mail  mailbox

	pending  *pendingCheckpoint
	requests []request // that wait for their turn
	history  history
	ended    map[inflight.Task]Finished
	drained  map[inflight.Task]bool
	replayed int           // tasks that have replayed their inputs
	idle     time.Duration // since when nothing is pending
	failures int           // in a row
	realign  bool          // the last one went over the memory bound
	waits    func()        // stops the timer of the next trigger
	stopped  bool
}

// request is a Request, and who made it; done is nil for the rhythm's own.
type request struct {
	Request
	done func(CheckpointResult) // nil: nobody asked
}

func (r request) answer(result CheckpointResult) {
	if r.done != nil {
		r.done(result)
	}
}

// pendingCheckpoint is one that was triggered and is not decided.
type pendingCheckpoint struct {
	b          barrier
	slot       Slot
	result     CheckpointResult
	waiting    map[inflight.Task]bool
	asked      map[inflight.Task]bool // got the trigger from here
	finished   []Finished
	stopTimer  func()
	committing bool
	request    request
}

// CheckpointResult is how a checkpoint went.
type CheckpointResult struct {
	ID        inflight.CheckpointID
	Savepoint bool
	Decision  string // why it went as it did, if that was decided
	Completed bool
	Reason    Reason // if not
	Cause     error
	Duration  time.Duration // trigger → durable and committed
	AckTime   time.Duration // trigger → last acknowledgement
	Acks      []Ack
	Committed Committed
}

// Partial reports whether a source subtask was gone.
func (r CheckpointResult) Partial() bool {
	return slices.ContainsFunc(r.Acks, func(a Ack) bool { return a.Partial })
}

// Alignment says how the checkpoint went at the subtasks that had a choice:
// aligned, unaligned, or mixed.
func (r CheckpointResult) Alignment() string {
	n, all := 0, 0
	for _, a := range r.Acks {
		if a.Forced {
			continue
		}
		if all++; a.Unaligned {
			n++
		}
	}
	switch n {
	case 0:
		return "aligned"
	case all:
		return "unaligned"
	}
	return "mixed"
}

// Step implements Actor.
func (c *coordinator) Step(budget int) Status {
	for range budget {
		if c.stopped {
			return Status{Why: Done}
		}
		f := c.mail.take()
		if f == nil {
			return Status{Why: NoInput}
		}
		_ = f() // its errors end the attempt by themselves
	}
	return Status{Why: Ready}
}

// do runs f on the coordinator.
func (c *coordinator) do(f func()) { c.mail.put(func() error { f(); return nil }, false) }

// start begins the rhythm of checkpoints.
func (c *coordinator) start() {
	switch {
	case len(c.ended) == len(c.a.tasks): // everything was over before
		c.a.finish()
	case c.store != nil && c.opts.Interval > 0:
		c.schedule(c.opts.Interval)
	}
}

// schedule triggers the next checkpoint after d, and not before the pause.
func (c *coordinator) schedule(d time.Duration) {
	if c.waits != nil {
		c.waits()
	}
	at := max(c.exec.Now()+d, c.idle+c.opts.MinPause)
	c.waits = c.exec.At(at, func() { c.do(c.tick) })
}

func (c *coordinator) tick() {
	if c.pending == nil && !c.stopped && len(c.ended) < len(c.a.tasks) {
		c.begin(request{})
	}
}

// begin triggers a checkpoint.
func (c *coordinator) begin(r request) {
	how := c.decide(r.Request)
	if how.Choice == ChooseSkip {
		c.skip(how)
		r.answer(CheckpointResult{Reason: ReasonSkipped, Decision: how.Reason})
		return
	}
	slot, err := c.store.Begin(how.Reason)
	if err != nil {
		r.answer(CheckpointResult{Savepoint: r.Savepoint, Reason: ReasonOf(err), Cause: err})
		c.a.fail(err)
		return
	}
	p := &pendingCheckpoint{
		slot: slot, request: r, b: c.opts.barrier(slot.ID(), c.exec.Now(), r.Savepoint, how.Choice),
		waiting: map[inflight.Task]bool{}, asked: map[inflight.Task]bool{},
	}
	if c.realign {
		c.trace(PointFallback, p.b.id, "aligned: %s", how.Reason)
	}
	c.realign = false
	p.result = CheckpointResult{ID: p.b.id, Savepoint: p.b.savepoint, Decision: how.Reason}
	c.pending = p
	for _, t := range c.a.tasks {
		if f, over := c.ended[t.id]; over {
			p.finished = append(p.finished, f)
		} else {
			p.waiting[t.id] = true
		}
	}
	c.trace(PointTriggered, p.b.id, "%s, %d tasks", p.b.alignment, len(p.waiting))
	p.stopTimer = c.exec.At(p.b.at+c.opts.Timeout, func() {
		c.do(func() { c.timeout(p) })
	})
	if c.opts.wants(PointSlow) {
		c.exec.At(p.b.at+slowBarrier, func() { c.do(func() { c.complain(p) }) })
	}
	c.ask(p)
}

// slowBarrier is after what time a barrier that is still awaited is spoken of.
const slowBarrier = time.Second

// complain has the tasks that have not acknowledged say what they wait for.
func (c *coordinator) complain(p *pendingCheckpoint) {
	if c.pending != p || p.committing {
		return
	}
	for _, t := range c.a.tasks {
		if p.waiting[t.id] {
			t.mail.put(func() error { return t.slow(p.b.id) }, false)
		}
	}
}

// ask triggers the tasks that no barrier will reach: those without a task
// upstream that still runs.
func (c *coordinator) ask(p *pendingCheckpoint) {
	for _, t := range c.a.tasks {
		if !p.waiting[t.id] || p.asked[t.id] || slices.ContainsFunc(t.upstream, func(u inflight.Task) bool {
			_, over := c.ended[u]
			return !over
		}) {
			continue
		}
		p.asked[t.id] = true
		c.tell(t, p.b.alignment == Unaligned, func() error { return t.triggered(p.b) })
	}
}

// tell sends a message to a task; it may be lost.
func (c *coordinator) tell(t *task, urgent bool, f func() error) {
	c.exec.Send(func() { t.mail.put(f, urgent) })
}

func (c *coordinator) tellAll(f func(*task) error) {
	for _, t := range c.a.tasks {
		if _, over := c.ended[t.id]; !over {
			c.tell(t, false, func() error { return f(t) })
		}
	}
}

// ack takes a subtask's part; one that comes twice or too late counts nothing.
func (c *coordinator) ack(a Ack) {
	p := c.pending
	if p == nil || p.b.id != a.ID || !p.waiting[a.Task] {
		return
	}
	delete(p.waiting, a.Task)
	p.result.Acks = append(p.result.Acks, a)
	c.trace(PointAcked, a.ID, "%s after %v", a.Task, a.EndToEnd)
	c.commitIfWhole()
}

func (c *coordinator) commitIfWhole() {
	p := c.pending
	if p == nil || len(p.waiting) > 0 || p.committing {
		return
	}
	p.committing = true
	p.stopTimer()
	p.result.AckTime = c.exec.Now() - p.b.at
	slices.SortFunc(p.result.Acks, func(a, b Ack) int { return a.Task.Compare(b.Task) })
	p.slot.Commit(Completed{ID: p.b.id, Savepoint: p.b.savepoint, Acks: p.result.Acks, Finished: p.finished},
		func(done Committed, err error) { c.do(func() { c.committed(p, done, err) }) })
}

func (c *coordinator) committed(p *pendingCheckpoint, done Committed, err error) {
	if err != nil {
		p.committing = false
		r := ReasonCommit
		switch {
		case errors.Is(err, inflight.ErrFenced):
			r = ReasonFenced
		case errors.Is(err, ErrCheckFailed):
			r = ReasonCheck
		}
		c.over(p, r, err)
		if r == ReasonFenced {
			c.a.fail(err)
		}
		return
	}
	c.pending = nil
	c.failures = 0
	c.idle = c.exec.Now()
	p.result.Completed, p.result.Committed, p.result.Duration = true, done, c.idle-p.b.at
	c.trace(PointCompleted, p.b.id, "%s after %v", p.result.Alignment(), p.result.Duration)
	c.tellAll(func(t *task) error { return t.notifyComplete(p.b.id) })
	c.store.Retire()
	c.report(p)
	c.next(p)
}

func (c *coordinator) report(p *pendingCheckpoint) {
	if c.opts.OnCheckpoint != nil {
		c.opts.OnCheckpoint(p.result)
	}
	c.history.enter(p)
	p.request.answer(p.result)
}

// next begins what waits, or goes back to the rhythm.
func (c *coordinator) next(p *pendingCheckpoint) {
	switch {
	case c.stopped:
	case len(c.ended) == len(c.a.tasks):
		c.a.finish()
	case len(c.requests) > 0:
		r := c.requests[0]
		c.requests = c.requests[1:]
		c.begin(r)
	case c.realign:
		c.begin(request{})
	case c.allDrained():
		c.schedule(min(cmp.Or(c.opts.Interval, finalPause), finalPause))
	case c.opts.Interval > 0:
		c.schedule(max(0, p.b.at+c.opts.Interval-c.exec.Now()))
	}
}

// finalPause is how long a final checkpoint is given to end the tasks, before
// the next one makes its lost notification good: sinks commit meanwhile.
const finalPause = time.Second

func (c *coordinator) timeout(p *pendingCheckpoint) {
	if c.pending == p && !p.committing {
		c.over(p, ReasonTimeout, fmt.Errorf("%d tasks have not acknowledged, such as %s: %w", len(p.waiting), anyOf(p.waiting), inflight.ErrTimeout))
	}
}

func anyOf(set map[inflight.Task]bool) inflight.Task {
	var all []inflight.Task
	for t := range set {
		all = append(all, t)
	}
	return slices.MinFunc(all, inflight.Task.Compare)
}

func (c *coordinator) decline(task inflight.Task, id inflight.CheckpointID, r Reason, cause error) {
	if p := c.pending; p != nil && p.b.id == id && !p.committing {
		c.over(p, r, fmt.Errorf("%s: %w", task, cause))
	}
}

// over gives a pending checkpoint up.
func (c *coordinator) over(p *pendingCheckpoint, r Reason, cause error) {
	c.pending = nil
	c.idle = c.exec.Now()
	p.stopTimer()
	p.result.Reason, p.result.Cause, p.result.Duration = r, cause, c.idle-p.b.at
	c.trace(PointFailed, p.b.id, "%s: %v", r, cause)
	p.slot.Abort(r, cause)
	c.tellAll(func(t *task) error { return t.notifyAborted(p.b.id) })
	c.report(p)
	c.realign = r == ReasonOverBudget
	if !r.Declined() && r != ReasonFenced {
		if c.failures++; c.opts.TolerableFailures >= 0 && c.failures > c.opts.TolerableFailures {
			c.a.fail(fmt.Errorf("%d checkpoints in a row have failed, the last one: %w", c.failures, cause))
			return
		}
	}
	c.next(p)
}

// trigger begins what r asks for as soon as nothing else is pending.
func (c *coordinator) trigger(r request) {
	err := r.check(c.opts)
	if c.store == nil {
		err = fmt.Errorf("the job has no store: %w", inflight.ErrConfig)
	}
	switch {
	case err != nil:
		r.done(CheckpointResult{Savepoint: r.Savepoint, Reason: ReasonNotReady, Cause: err})
	case c.pending == nil:
		c.begin(r)
	default:
		c.requests = append(c.requests, r)
	}
}

// taskReplayed counts; with the last one the base is needed no more.
func (c *coordinator) taskReplayed() {
	if c.replayed++; c.replayed == c.a.replaying {
		c.store.ReplayDone()
	}
}

// taskDrained begins the final checkpoint after the last task that drained.
func (c *coordinator) taskDrained(t inflight.Task) {
	c.drained[t] = true
	if c.store != nil && c.allDrained() && c.pending == nil {
		c.tick()
	}
}

// allDrained reports whether nothing will flow any more.
func (c *coordinator) allDrained() bool { return len(c.drained) == len(c.a.tasks) }

// taskEnded notes that a task is over. A pending checkpoint goes on without
// it; tasks further down get their trigger from here.
func (c *coordinator) taskEnded(f Finished) {
	c.ended[f.Task] = f
	c.drained[f.Task] = true
	if p := c.pending; p != nil && !p.committing {
		// Also one that has acknowledged: restored as one that runs, it would wait for
		// those further down that have ended after it.
		p.finished = append(p.finished, f)
		delete(p.waiting, f.Task)
		c.ask(p)
		c.commitIfWhole()
	}
	if len(c.ended) == len(c.a.tasks) && c.pending == nil {
		c.a.finish()
	}
}

// stop ends the coordinator; what is pending is given up.
func (c *coordinator) stop(r Reason) {
	if c.stopped {
		return
	}
	c.stopped = true
	if c.waits != nil {
		c.waits()
	}
	if p := c.pending; p != nil && p.committing { // nobody will be here to hear how it ends
		p.request.answer(CheckpointResult{ID: p.b.id, Savepoint: p.b.savepoint, Reason: r, Cause: inflight.ErrOutcomeUnknown})
	} else if p != nil {
		c.over(p, r, whyStopped(r))
	}
	for _, r := range c.requests {
		r.done(CheckpointResult{Savepoint: r.Savepoint, Reason: ReasonTaskStopped, Cause: inflight.ErrClosed})
	}
}

// whyStopped is the cause of what is given up when a coordinator stops.
func whyStopped(r Reason) error {
	if r == ReasonTaskStopped {
		return inflight.ErrClosed // there is nothing left that could be asked again
	}
	return inflight.ErrAborted
}

func (c *coordinator) trace(p Point, id inflight.CheckpointID, format string, args ...any) {
	if c.opts.wants(p) {
		c.opts.say(TraceEvent{At: c.exec.Now(), Point: p, Checkpoint: id, Text: fmt.Sprintf(format, args...)})
	}
}
