package restore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// Sink takes what is restored of one subtask. Its methods are called one after
// the other, by one goroutine: State for all operator state, Output for all
// captured output, Input for all captured input, then Done; so the first call
// of a kind says that what comes before is there. Each may block for as long as
// it likes, until ctx ends: no other subtask waits for it.
//
// A buffer is valid until the method returns. A sink copies its bytes, or takes
// them over with Retain.
type Sink interface {
	// State takes the next piece of the operator state of that name.
	State(ctx context.Context, name inflight.StateName, b *reader.Buffer) error
	// Output takes the next buffer of a subpartition.
	Output(ctx context.Context, sub inflight.Subpartition, pos inflight.Pos, b *reader.Buffer) error
	// Input takes the next buffer of an input channel.
	Input(ctx context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error
	// Done says that all has been handed over.
	Done(ctx context.Context) error
}

// ReplayOptions are the options of NewReplay.
type ReplayOptions struct {
	// Tasks are the subtasks to restore here. Default: all of the plan.
	Tasks []inflight.Task
	// Observer is told how far each subtask is, a few times a second, and when
	// it is done. Default: nobody.
	Observer inflight.Observer
}

// Replay restores subtasks of one checkpoint in one process.
type Replay struct {
	c        *reader.Checkpoint
	plan     *Plan
	obs      inflight.Observer // nil: nobody
	tasks    []task
	byTask   map[inflight.Task]*task
	violated []reader.Flow

	mu   sync.Mutex
	left int
	done chan struct{}
}

// task is one subtask being restored.
type task struct {
	plan *TaskPlan
	s    *reader.Subtask
	run  *run
}

// Channel is what was handed over of one address.
type Channel struct {
	Task    inflight.Task
	Address inflight.Address
	Buffers uint64
	Bytes   uint64
	Digest  format.Digest // of the bytes, checked
	Start   inflight.Pos
	End     inflight.Pos
}

// Result is what a Replay did.
type Result struct {
	Checkpoint inflight.CheckpointID
	Channels   []Channel // by subtask and address
	Skipped    []Channel // not handed over, since the plan drops it
	Dropped    []Dropped
	Violations []reader.Flow // that the plan allows
	Buffers    uint64
	Bytes      uint64
	Duration   time.Duration
}

// String says it in a line, for a log; nil is that nothing was there.
func (r *Result) String() string {
	if r == nil {
		return "nothing to restore: starting afresh"
	}
	return fmt.Sprintf("checkpoint %d restored: %d bytes in %v", r.Checkpoint, r.Bytes, r.Duration.Round(time.Microsecond))
}

// NewReplay opens what the plan restores of c: it reads the index of every
// subtask and checks it, no data. What cannot be restored is refused here,
// before anything moves. Rest works from here on. Close the Replay after use.
func NewReplay(ctx context.Context, c *reader.Checkpoint, p *Plan, o ReplayOptions) (*Replay, error) {
	r := &Replay{c: c, plan: p, obs: o.Observer, done: make(chan struct{})}
	if err := r.choose(o.Tasks); err != nil {
		return nil, err
	}
	r.left = len(r.tasks)
	err := r.open(ctx)
	if err == nil {
		err = r.checkFlows()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if r.left == 0 {
		close(r.done)
	}
	return r, nil
}

// choose picks the subtasks to restore: nil means all of the plan.
func (r *Replay) choose(tasks []inflight.Task) error {
	all := make(map[inflight.Task]*TaskPlan, len(r.plan.Tasks))
	chosen := make([]*TaskPlan, 0, len(r.plan.Tasks))
	for i := range r.plan.Tasks {
		if t := &r.plan.Tasks[i]; tasks == nil {
			chosen = append(chosen, t)
		} else {
			all[t.Task] = t
		}
	}
	for _, t := range tasks {
		chosen = append(chosen, all[t])
	}
	r.tasks, r.byTask = make([]task, len(chosen)), make(map[inflight.Task]*task, len(chosen))
	for i, plan := range chosen {
		if plan == nil || r.byTask[plan.Task] != nil {
			return &inflight.Error{Op: "restore", Object: tasks[i].String(), Err: fmt.Errorf("%w: it stands twice, or not in the plan", inflight.ErrConfig)}
		}
		r.tasks[i].plan, r.byTask[plan.Task] = plan, &r.tasks[i]
	}
	return nil
}

// openers is how many subtasks are opened at a time. Where a request costs
// little, another one is woken only for as many subtasks as take longer than
// that.
const (
	openers  = 8
	wakeFrom = 8
)

// open opens and plans all subtasks, a few at a time. The caller begins with the
// first ones, the others with the last ones: those that share a file mostly
// stand side by side, and who comes late finds the less to do.
func (r *Replay) open(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	left, step := r.tasks, max(1, len(r.tasks)/(4*openers))
	next := func(first bool) (part []task) {
		mu.Lock()
		defer mu.Unlock()
		n := min(step, len(left))
		if first {
			part, left = left[:n], left[n:]
		} else {
			left, part = left[:len(left)-n], left[len(left)-n:]
		}
		return part
	}
	n := len(r.tasks)
	if !r.c.Remote() {
		n = (n + wakeFrom - 1) / wakeFrom
	}
	together(min(openers, n), func(i int) {
		for part := next(i == 0); len(part) > 0; part = next(i == 0) {
			for j := range part {
				t := &part[j]
				err := ctx.Err()
				if err == nil {
					t.s, err = r.c.Open(ctx, t.plan.Handle)
				}
				if err != nil {
					cancel(err)
					return
				}
				t.run = newRun(r, t)
			}
		}
	})
	return context.Cause(ctx)
}

// together calls f for 0 to n-1 at the same time, once here and otherwise each
// in a goroutine of its own, and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := 1; i < n; i++ {
		wg.Go(func() { f(i) })
	}
	if n > 0 {
		f(0)
	}
	wg.Wait()
}

// checkFlows refuses connections whose captured parts do not join.
func (r *Replay) checkFlows() error {
	if len(r.plan.topology.Edges) == 0 {
		return nil
	}
	e := reader.Evidence{Topology: r.plan.topology, Finished: r.plan.finished, State: map[inflight.Task][]reader.Entry{}}
	for _, t := range r.tasks {
		e.State[t.plan.Task] = slices.AppendSeq(make([]reader.Entry, 0, t.s.Len()), r.Entries(t.plan.Task))
	}
	for _, f := range e.Prove() {
		if f.Verdict == reader.Violated && f.Edge >= 0 {
			r.violated = append(r.violated, f)
		}
	}
	if len(r.violated) == 0 || r.plan.allowViolations {
		return nil
	}
	f := &r.violated[0]
	return &inflight.Error{Op: "restore", Object: fmt.Sprintf("checkpoint %d, %s → %s", r.plan.Checkpoint, f.From, f.To),
		Err:  fmt.Errorf("%w: %s; %d connections in all do not add up", inflight.ErrCorrupt, f.Reason, len(r.violated)),
		Mend: "verify the checkpoint; restore an older one, or allow violations"}
}

// Close ends the use of the checkpoint. Run must have returned. It is
// idempotent.
func (r *Replay) Close() {
	for _, t := range r.tasks {
		if t.s != nil {
			t.s.Close()
		}
	}
}

// Done is closed when every subtask of this Replay has taken all of its state:
// from then on nothing here needs the checkpoint any more.
func (r *Replay) Done() <-chan struct{} { return r.done }

// Run hands everything over, all subtasks at the same time, each to the sink that
// open returns for it; open is called at the same time, too. It returns when all are done; or, after the first
// error or the end of ctx, when all have stopped. It can be run once.
func (r *Replay) Run(ctx context.Context, open func(inflight.Task) Sink) (*Result, error) {
	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runs, total := make([]*run, len(r.tasks)), 0
	for i := range r.tasks {
		runs[i] = r.tasks[i].run
		total += len(runs[i].taken)
	}
	slices.SortFunc(runs, func(a, b *run) int { return a.task.plan.Task.Compare(b.task.plan.Task) })
	channels, from := make([]Channel, total), 0
	for _, n := range runs { // each has a place for its own, which are in order there
		n.result = channels[from : from : from+len(n.taken)]
		from += len(n.taken)
	}
	var failed error // the first one: what the others say after it follows from it
	var once sync.Once
	together(len(r.tasks), func(i int) {
		n := r.tasks[i].run
		err := n.replay(ctx, open(n.task.plan.Task))
		n.result = n.channels(n.result)
		if err != nil {
			once.Do(func() { failed = err })
			cancel()
			return
		}
		r.finished()
	})
	res := &Result{Checkpoint: r.plan.Checkpoint, Channels: channels[:0], Dropped: r.plan.Dropped, Violations: r.violated, Duration: time.Since(begin)}
	for _, n := range runs {
		res.Channels = append(res.Channels, n.result...)
		res.Skipped = n.skipped(res.Skipped)
		res.Buffers += n.buffers
		res.Bytes += n.bytes
	}
	return res, failed
}

func (r *Replay) finished() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left--; r.left == 0 {
		close(r.done)
	}
}

// Entries returns what the checkpoint has of a subtask, as far as the plan keeps
// it.
func (r *Replay) Entries(t inflight.Task) iter.Seq[reader.Entry] {
	return func(yield func(reader.Entry) bool) {
		n := r.byTask[t]
		if n == nil {
			return
		}
		for e := range n.s.Entries() {
			if n.plan.Keeps(e.Address) && !yield(e) {
				return
			}
		}
	}
}

// Rest returns the part of address a of t that has not been handed over, as
// references for the capture of a new checkpoint: behind the first after bytes
// of a, which is what its sink has accepted. The engine captures what it has
// accepted and not used up itself, before these references. Whoever calls it
// sees to it that the sink accepts no more of a until the capture has them; the
// Replay may go on, and stands in the call of the sink.
//
// The handle of the capture names the files of the references, so the manifest
// lists them, and they are kept.
func (r *Replay) Rest(ctx context.Context, t inflight.Task, a inflight.Address, after uint64) ([]reader.Reference, error) {
	n := r.byTask[t]
	if n == nil {
		return nil, &inflight.Error{Op: "refer to the rest of", Object: t.String(), Err: fmt.Errorf("%w: it is not restored here", inflight.ErrRecovering)}
	}
	if !n.plan.Keeps(a) {
		return nil, nil
	}
	return n.s.Rest(ctx, a, after)
}
