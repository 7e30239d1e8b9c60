package spillway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/backends"
	_ "github.com/spillway-io/spillway/backends/all" // so that Open knows every scheme
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// Options are the options of Open. The zero value restores the latest
// checkpoint, or starts afresh where there is none.
type Options struct {
	Start    catalog.StartOptions
	Restore  restore.Options
	Catalog  catalog.Options
	Writer   writer.Options // Backend and Job are set by Open
	Reader   reader.Options
	Timeout  time.Duration     // of Commit; default 10 minutes
	Observer inflight.Observer // of all that has none of its own
}

const (
	defaultTimeout = 10 * time.Minute
	closeTime      = time.Second // for what is still being deleted
)

// Job is a job that this process is in charge of, with all of its subtasks.
type Job struct {
	Backend     backends.Backend
	Coordinator *catalog.Coordinator
	Reader      *reader.Reader
	Topology    *format.Topology

	log     *catalog.Log
	pool    *writer.Pool
	writers []*writer.Writer // in the order of the topology
	plan    *restore.Plan    // nil: there is nothing to restore
	observe inflight.Observer
	timeout time.Duration

	life       context.Context // of what goes on in the background
	stop       context.CancelFunc
	background sync.WaitGroup
	retiring   sync.Mutex
}

// Open opens the store at url and takes charge of a job: whoever was before is
// fenced by that. If the checkpoint to be restored does not fit the topology,
// nobody is. Close the Job after use.
func Open(ctx context.Context, url, job string, t *format.Topology, o Options) (*Job, error) {
	b, err := backends.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	j := &Job{Backend: b, Topology: t, observe: o.Observer, timeout: cmp.Or(o.Timeout, defaultTimeout), Reader: reader.Open(b, job, o.Reader)}
	j.life, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := j.open(ctx, job, o); err != nil {
		_ = j.Close() // nothing is being captured
		return nil, err
	}
	return j, nil
}

func (j *Job) open(ctx context.Context, job string, o Options) (err error) {
	o.Writer.Backend, o.Writer.Job = j.Backend, job
	o.Writer.Observer = cmp.Or(o.Writer.Observer, o.Observer)
	o.Catalog.Observer = cmp.Or(o.Catalog.Observer, o.Observer)
	if j.pool, err = writer.NewPool(o.Writer); err != nil {
		return err
	}
	for _, v := range j.Topology.Vertices {
		for i := range v.Parallelism {
			w, err := j.pool.Writer(inflight.Task{Vertex: v.ID, Subtask: i})
			if err != nil {
				return err
			}
			j.writers = append(j.writers, w)
		}
	}
	if j.log, err = catalog.Open(j.Backend, job, o.Catalog); err != nil {
		return err
	}
	if latest, err := j.log.Latest(ctx); err == nil && o.Start.Base == catalog.BaseLatest {
		if _, err := restore.NewPlan(latest.Manifest, j.Topology, o.Restore); err != nil {
			return err
		}
	}
	if j.Coordinator, err = j.log.Start(ctx, o.Start); err != nil {
		return err
	}
	if base := j.Coordinator.Base(); base != nil {
		j.plan, err = restore.NewPlan(base.Manifest, j.Topology, o.Restore)
	}
	return err
}

// Restore hands everything that was captured to the engine: for each subtask
// open is told what there is and where its connections stood, and the function
// that it returns gets the buffers: state, output, input, as restore.Sink has it.
// Subtasks are restored at the same time. The result is nil where there is
// nothing to restore.
func (j *Job) Restore(ctx context.Context, open func(inflight.Task, []reader.Entry) func(*reader.Buffer) error) (*restore.Result, error) {
	if j.plan == nil {
		return nil, nil
	}
	base := j.Coordinator.Base()
	r, err := restore.NewReplay(ctx, j.Reader.At(base.Manifest, base.Dir), j.plan, restore.ReplayOptions{Observer: j.observe})
	if err != nil {
		return nil, j.log.Unreadable(ctx, base, err)
	}
	defer r.Close()
	result, err := r.Run(ctx, func(t inflight.Task) restore.Sink { return sink(open(t, slices.Collect(r.Entries(t)))) })
	if err != nil {
		return result, j.log.Unreadable(ctx, base, err)
	}
	j.Coordinator.ReplayDone()
	return result, nil
}

// sink is a restore.Sink that leaves it to the buffer to say what it is.
type sink func(*reader.Buffer) error

func (s sink) State(_ context.Context, _ inflight.StateName, b *reader.Buffer) error { return s(b) }

func (s sink) Output(_ context.Context, _ inflight.Subpartition, _ inflight.Pos, b *reader.Buffer) error {
	return s(b)
}

func (s sink) Input(_ context.Context, _ inflight.InputChannel, _ inflight.Pos, b *reader.Buffer) error {
	return s(b)
}

func (s sink) Done(context.Context) error { return nil }

// Checkpoint is a checkpoint under way. Captures has the capture of each
// subtask, to be filled and finished by it.
type Checkpoint struct {
	Captures map[inflight.Task]*writer.Capture

	job     *Job
	pending *catalog.Pending
	begun   time.Time
	took    time.Duration // until Commit returned
	failed  error         // of Commit or Abort
}

// Begin begins the next checkpoint, and the capture of each subtask.
func (j *Job) Begin(ctx context.Context) (*Checkpoint, error) {
	p, err := j.Coordinator.Begin()
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Captures: map[inflight.Task]*writer.Capture{}, job: j, pending: p, begun: time.Now()}
	for _, w := range j.writers {
		capture, err := w.Start(p.ID(), writer.StartOptions{Epoch: j.Coordinator.Epoch(), Attempt: p.Attempt()})
		if err != nil {
			return nil, c.abort(ctx, err)
		}
		c.Captures[w.Task()] = capture
	}
	return c, nil
}

// ID returns the checkpoint's id.
func (c *Checkpoint) ID() inflight.CheckpointID { return c.pending.ID() }

// Commit waits until all captures are durable, and makes the checkpoint
// complete; what is no longer kept is deleted in the background. Otherwise the
// checkpoint is given up, and the job may go on, unless Coordinator.Err says why
// it must not.
func (c *Checkpoint) Commit(ctx context.Context, a format.Alignment) (*catalog.Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, c.job.timeout)
	defer cancel()
	m := &format.Manifest{Mode: format.ExactlyOnce, Alignment: a, Topology: c.job.Topology}
	err := c.collect(ctx, m)
	acked := time.Now()
	if err == nil {
		err = c.pending.Commit(ctx, m)
	}
	if err != nil {
		err = c.abort(ctx, err)
	}
	if err == nil {
		c.job.tidy(c.stats(c.pending.Checkpoint(), acked))
	}
	c.took, c.failed = time.Since(c.begun), err
	return c.pending.Checkpoint(), err
}

// tidy keeps the statistics of a checkpoint, and deletes what is no longer kept,
// unless that is going on. What it leaves is for the next time.
func (j *Job) tidy(stats *format.CheckpointStats) {
	j.background.Go(func() {
		_ = j.Coordinator.WriteStats(j.life, stats) // no restore needs them
		if j.retiring.TryLock() {
			defer j.retiring.Unlock()
			_ = j.Coordinator.Retire(j.life)
		}
	})
}

// stats says how a checkpoint went that has just been committed.
func (c *Checkpoint) stats(committed *catalog.Checkpoint, acked time.Time) *format.CheckpointStats {
	m := committed.Manifest
	s := &format.CheckpointStats{ID: c.ID(), State: string(catalog.StateCompleted), Kind: catalog.SlotCheckpoint, Alignment: m.Alignment,
		Triggered: c.begun.UTC().Format(time.RFC3339Nano), DurationMS: ms(c.begun, time.Now()), AckMS: ms(c.begun, acked),
		SizeBytes: committed.SizeBytes(), ChannelStateBytes: m.PersistedBytes(), StateBytes: m.StateBytes(), Files: len(m.Files)}
	for _, h := range m.Handles {
		_, finished, done := c.Captures[h.Task].Times()
		s.Subtasks = append(s.Subtasks, format.SubtaskStats{Task: h.Task, AsyncMS: ms(finished, done), EndToEndMS: ms(c.begun, done),
			PersistedBytes: h.PersistedBytes(), StateBytes: h.StateBytes, Unaligned: m.Alignment == format.Unaligned})
	}
	return s
}

func ms(from, to time.Time) float64 { return float64(to.Sub(from).Microseconds()) / 1000 }

// Err returns why the checkpoint is not complete: what Commit answered, or what it
// was aborted with.
func (c *Checkpoint) Err() error { return c.failed }

// String says in a line, for a log, how the checkpoint went that was committed or
// given up.
func (c *Checkpoint) String() string {
	switch done := c.pending.Checkpoint(); {
	case c.failed != nil:
		return fmt.Sprintf("checkpoint %d failed: %v", c.ID(), c.failed)
	case done == nil:
		return fmt.Sprintf("checkpoint %d is under way", c.ID())
	default:
		return fmt.Sprintf("checkpoint %d: captured %d bytes in flight in %v", c.ID(), done.Manifest.PersistedBytes(), c.took.Round(time.Microsecond))
	}
}

// Abort gives the checkpoint up, which was not committed, because of cause. The
// job goes on.
func (c *Checkpoint) Abort(ctx context.Context, cause error) {
	c.failed = c.abort(ctx, cause)
}

// abort gives the checkpoint up because of err. Nil means that it is complete:
// the answer was lost, not the commit.
func (c *Checkpoint) abort(ctx context.Context, err error) error {
	for _, w := range c.job.writers {
		w.Abort(c.ID(), err)
	}
	if committed, _ := c.pending.Abort(ctx, causeOf(err)); committed {
		return nil
	}
	return err
}

// collect waits for the captures, but not longer than ctx.
func (c *Checkpoint) collect(ctx context.Context, m *format.Manifest) (failed error) {
	stop := context.AfterFunc(ctx, func() {
		for _, w := range c.job.writers {
			w.Abort(c.ID(), context.Cause(ctx))
		}
	})
	defer stop()
	var handles []inflight.Handle
	var files []format.FileInfo
	for _, w := range c.job.writers {
		capture := c.Captures[w.Task()]
		<-capture.Done()
		h, err := capture.Handle()
		failed = cmp.Or(failed, err)
		handles, files = append(handles, h), append(files, capture.Files()...)
	}
	m.SetHandles(handles, files...)
	return failed
}

// causeOf says why a checkpoint is given up.
func causeOf(err error) format.Cause {
	c := format.Cause{Kind: format.CauseFailed, Reason: "failed", Text: err.Error()}
	switch {
	case errors.Is(err, inflight.ErrOverBudget):
		c.Kind, c.Reason = format.CauseDeclined, "over-budget"
	case errors.Is(err, inflight.ErrRecovering):
		c.Kind, c.Reason = format.CauseDeclined, "recovering"
	case errors.Is(err, context.DeadlineExceeded):
		c.Kind, c.Reason = format.CauseAborted, "timeout"
	case errors.Is(err, context.Canceled):
		c.Kind, c.Reason = format.CauseAborted, "cancelled"
	}
	return c
}

// Close ends all use of the store. What is being captured is given up.
func (j *Job) Close() error {
	late := time.AfterFunc(closeTime, j.stop)
	j.background.Wait()
	late.Stop()
	j.stop()
	var err error
	if j.pool != nil {
		err = j.pool.Close()
	}
	return errors.Join(err, j.Reader.Close(), j.Backend.Close())
}
