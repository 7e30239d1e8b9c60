package attach_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/enginetest"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/attach"
)

// TestConformance runs the conformance kit for engines on the reference runtime,
// with both kinds of channels.
func TestConformance(t *testing.T) {
	for _, credit := range []bool{false, true} {
		t.Run(fmt.Sprintf("credit=%t", credit), func(t *testing.T) {
			o := enginetest.Options{BufferSize: bufferSize, Rounds: 3, VirtualTime: true}
			if os.Getenv("SPILLWAY_CRASH") != "" {
				o.Rounds = 60
			}
			enginetest.Run(t, engine{credit}, o)
		})
	}
}

const bufferSize = 512

// engine has the runtime do the jobs of the kit:
//
//	source ── hash ──▶ slow ── hash ──▶ sink ×2
//
// The sink has transactions, so a record that was taken twice would come out
// twice.
type engine struct{ credit bool }

// instance is a run of the job.
type instance struct {
	job   *dataflow.Job
	stop  context.CancelFunc
	ended chan struct{}
	err   error
}

func (e engine) Run(ctx context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return e.start(ctx, j, true)
}

func (e engine) Restore(ctx context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return e.start(ctx, j, false)
}

func (e engine) start(ctx context.Context, j *enginetest.Job, fresh bool) (enginetest.Instance, error) {
	if err := os.MkdirAll(output(j), 0o700); err != nil {
		return nil, err
	}
	store, err := backends.Open(ctx, j.Store)
	if err != nil {
		return nil, err
	}
	running := make(chan struct{})
	g := graph(j, sync.OnceFunc(func() { close(running) }))
	o := dataflow.Options{Timeout: j.Timeout, Unaligned: j.Mode != enginetest.Aligned, AlignedTimeout: j.AlignedTimeout, Credit: e.credit,
		BufferSize: bufferSize, TolerableFailures: -1, Restarts: 3, RestartDelay: 10 * time.Millisecond}
	a, err := attach.New(attach.Options{Backend: store, Name: j.Name, Graph: g, Dataflow: o, Fresh: fresh})
	if err != nil {
		return nil, err
	}
	in := &instance{job: dataflow.NewJob(g, o, a.Open), ended: make(chan struct{})}
	ctx, in.stop = context.WithCancel(ctx)
	go func() {
		defer close(in.ended)
		defer in.stop()
		in.err = errors.Join(in.job.Run(ctx), a.Close())
	}()
	select {
	case <-running:
	case <-in.ended:
		if in.err != nil {
			return nil, in.err
		}
	}
	return in, nil
}

func graph(j *enginetest.Job, running func()) *dataflow.Graph {
	byKey := dataflow.Hash(func(body []byte) dataflow.Key { return dataflow.StringKey([]byte(enginetest.Key(string(body)))) })
	g := dataflow.NewGraph()
	g.Source("source", len(j.Sources), func(i int) dataflow.Source { return &source{records: j.Sources[i], running: running} })
	g.Operator("slow", j.Parallelism, func(int) dataflow.Operator { return slow{sleep: j.Sleep} }, dataflow.From("source", byKey))
	g.Operator("sink", 2, func(int) dataflow.Operator { return &dataflow.FileSink{Files: dataflow.Dir(output(j))} }, dataflow.From("slow", byKey))
	return g
}

// source emits records.
type source struct {
	records []string
	running func()
	at      *dataflow.Value[int64]
}

func (s *source) Open(c *dataflow.Context) (err error) {
	s.running()
	s.at, err = dataflow.NewValue(c, "position", dataflow.Int64, 0)
	return err
}

func (s *source) Next(c *dataflow.Context) (dataflow.Status, error) {
	if s.at.V == int64(len(s.records)) {
		return dataflow.Status{Why: dataflow.Done}, nil
	}
	c.Emit(dataflow.Record{Body: []byte(s.records[s.at.V])})
	s.at.V++
	return dataflow.Status{}, nil
}

func (s *source) Passed() uint64 { return uint64(s.at.V) }

func (s *source) Complete(*dataflow.Context, inflight.CheckpointID) error { return nil }

func (s *source) Close() error { return nil }

// slow takes its time.
type slow struct {
	dataflow.Base
	sleep time.Duration
}

func (s slow) Process(c *dataflow.Context, r dataflow.Record) error {
	c.Emit(r)
	c.Busy(s.sleep)
	return nil
}

func (in *instance) Trigger(ctx context.Context) (inflight.CheckpointID, error) {
	r, err := in.job.Trigger(ctx, dataflow.Request{})
	if errors.Is(err, inflight.ErrClosed) {
		if err := in.Stop(ctx); err != nil {
			return 0, err
		}
		return 0, enginetest.ErrFinished
	}
	return r.ID, err
}

func (in *instance) Stop(ctx context.Context) error {
	select {
	case <-in.ended:
		return in.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *instance) Crash() {
	in.stop()
	<-in.ended
}

func output(j *enginetest.Job) string { return filepath.Join(j.Dir, "output") }

func (engine) Output(_ context.Context, j *enginetest.Job) (out enginetest.Output, err error) {
	names, err := filepath.Glob(filepath.Join(output(j), "part-*.tsv"))
	if err != nil {
		return out, err
	}
	slices.Sort(names) // they grow with commits
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return out, err
		}
		for line := range bytes.Lines(text) {
			out.Order = append(out.Order, string(bytes.TrimSuffix(line, []byte("\n"))))
		}
	}
	return out, nil
}
