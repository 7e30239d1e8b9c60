// Package attach joins the reference runtime to the toolkit: what dataflow
// declares that it needs of a store, kept by catalog, writer and restore. It is
// to dataflow what spillway.Job is to a pipeline that is written by hand.
//
//	dataflow                     here            the toolkit
//	Store                        store           catalog.Coordinator, writer.Pool
//	Slot                         slot            catalog.Pending
//	CaptureWriter, Capture       captureWriter   writer.Writer, writer.Capture
//	Store.Restore                restore         restore.Plan, restore.Replay
//
// Nothing waits for I/O on a goroutine of the runtime: commits and aborts are
// done one after the other on a goroutine of their own, statistics and deletions
// on another one. A commit is answered when it is certain: where an answer was
// lost, the slot is settled before anybody is told.
package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// Options are the options of New.
type Options struct {
	// Backend is the store. The caller has opened it; Job.Close closes it.
	Backend backends.Backend
	// Name is that of the job.
	Name string
	// Graph and Dataflow are what the job runs; their topology is in manifests.
	Graph    *dataflow.Graph
	Dataflow dataflow.Options
	// Start is how the first incarnation starts. Later ones, in the same process,
	// restore the latest checkpoint.
	Start catalog.StartOptions
	// Fresh has the first incarnation restore nothing.
	Fresh bool

	Catalog  catalog.Options
	Writer   writer.Options // Backend and Job are set by New
	Restore  restore.Options
	Reader   reader.Options
	Observer inflight.Observer // of all that has none of its own

	// OnRestore is told what was restored; may be nil.
	OnRestore func(RestoreInfo)
	// Unfilled is told which slots above what the first incarnation restores have
	// files and no manifest, if there are any; may be nil.
	Unfilled func([]inflight.CheckpointID)
	// Capacity is how many bytes the queues and the partial records of the job
	// can hold; a checkpoint that holds much more is not committed. May be nil.
	Capacity func() int64
	// Accounted is told what a completed checkpoint holds of each connection; may
	// be nil.
	Accounted func(inflight.CheckpointID, []reader.Flow)
	// BeforeCommit looks at a checkpoint that is durable and not committed, and
	// fails it with an error; may be nil.
	BeforeCommit func(context.Context, *format.Manifest, []dataflow.Ack) error
	// Decorate adds to the statistics of a checkpoint; may be nil.
	Decorate func(*format.CheckpointStats)
}

// RestoreInfo is what was restored.
type RestoreInfo struct {
	Checkpoint inflight.CheckpointID
	Savepoint  bool
	Partial    bool   // a source subtask was gone
	Buffers    uint64 // of channel state, and their bytes
	Bytes      uint64
	StateBytes uint64
	Duration   time.Duration
	Dropped    []restore.Dropped // what was given up, as Options.Restore allows
	Fresh      []string          // vertices that the checkpoint does not know
}

// Job is the checkpoints of a job in this process, over all its incarnations.
type Job struct {
	o        Options
	topology *format.Topology
	log      *catalog.Log
	reader   *reader.Reader

	life context.Context // until Close
	stop context.CancelFunc
	turn chan struct{} // guards what follows; Open may hold it for long

	at      *store // the incarnation at work; nil: none
	claimed bool   // by this process: from then on the latest is restored
	closed  bool
}

const (
	defaultTimeout = 10 * time.Minute
	closeTime      = time.Second // for what is still being written or deleted
)

// New returns the job. It does no I/O.
func New(o Options) (*Job, error) {
	if o.Backend == nil || o.Graph == nil {
		return nil, &inflight.Error{Op: "open", Object: o.Name, Err: fmt.Errorf("%w: a job needs a backend and a graph", inflight.ErrConfig)}
	}
	o.Writer.Backend, o.Writer.Job = o.Backend, o.Name
	o.Writer.Observer = cmp.Or(o.Writer.Observer, o.Observer)
	o.Catalog.Observer = cmp.Or(o.Catalog.Observer, o.Observer)
	o.Dataflow.Timeout = cmp.Or(o.Dataflow.Timeout, defaultTimeout)
	if o.Fresh {
		o.Start.Base = catalog.BaseFresh
	}
	log, err := catalog.Open(o.Backend, o.Name, o.Catalog)
	if err != nil {
		return nil, err
	}
	j := &Job{o: o, topology: Topology(o.Graph, o.Dataflow), log: log, reader: reader.Open(o.Backend, o.Name, o.Reader), turn: make(chan struct{}, 1)}
	j.life, j.stop = context.WithCancel(context.Background())
	return j, nil
}

// Open takes charge of the job: whoever was before, the last incarnation in this
// process too, is fenced by that. It restores the base. If that does not fit the
// graph, nobody is fenced.
func (j *Job) Open(ctx context.Context) (dataflow.Store, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(j.life, cancel)()
	j.turn <- struct{}{}
	defer func() { <-j.turn }()
	if j.closed {
		return nil, &inflight.Error{Op: "start", Object: j.o.Name, Err: inflight.ErrClosed}
	}
	if j.at != nil {
		superseded, err := j.at.coord.Superseded(ctx)
		_ = j.at.close() // what it was writing is given up
		j.at = nil
		if err == nil && superseded { // a restart must not take the job back
			return nil, &inflight.Error{Op: "restart", Object: j.o.Name, Err: fmt.Errorf("%w: another coordinator is at work", inflight.ErrFenced)}
		}
	}
	s, err := j.start(ctx)
	if err != nil {
		return nil, err
	}
	j.at = s
	return s, nil
}

func (j *Job) start(ctx context.Context) (*store, error) {
	start := j.o.Start
	if j.claimed {
		start = catalog.StartOptions{AllowOlder: start.AllowOlder}
	}
	if err := j.fits(ctx, start); err != nil {
		return nil, err
	}
	pool, err := writer.NewPool(j.o.Writer)
	if err != nil {
		return nil, err
	}
	coord, err := j.log.Start(ctx, start)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	if ids := coord.Unfilled(); !j.claimed && len(ids) > 0 && j.o.Unfilled != nil {
		j.o.Unfilled(ids)
	}
	j.claimed = true
	s := newStore(j, coord, pool)
	if err := s.restore(ctx); err != nil {
		if superseded, e := coord.Superseded(ctx); e == nil && superseded {
			// It may have been deleted by who has taken over meanwhile.
			err = &inflight.Error{Op: "restore", Object: j.o.Name, Err: fmt.Errorf("%w: %w", inflight.ErrFenced, err)}
		}
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// fits refuses a checkpoint that does not fit the graph before anybody is fenced.
func (j *Job) fits(ctx context.Context, o catalog.StartOptions) error {
	var c *catalog.Checkpoint
	err := error(nil)
	switch o.Base {
	case catalog.BaseFresh:
		return nil
	case catalog.BaseID:
		c, err = j.log.Load(ctx, o.ID)
	default:
		c, err = j.log.Latest(ctx)
	}
	if err != nil {
		return nil // the start says it better
	}
	_, err = restore.NewPlan(c.Manifest, j.topology, j.o.Restore)
	return err
}

// Topology returns the topology as manifests have it.
func (j *Job) Topology() *format.Topology { return j.topology }

// Close ends all use of the store, and closes the backend. What is being written
// is given up after a second, an Open at once.
func (j *Job) Close() error {
	j.stop()
	j.turn <- struct{}{}
	defer func() { <-j.turn }()
	if j.closed {
		return nil
	}
	j.closed = true
	var err error
	if j.at != nil {
		err = j.at.close()
	}
	return errors.Join(err, j.reader.Close(), j.o.Backend.Close())
}
