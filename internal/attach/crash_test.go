package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

// run runs a job to its end, or to that of ctx.
func run(ctx context.Context, b backends.Backend, g *dataflow.Graph, o dataflow.Options) error {
	job, err := New(Options{Backend: b, Name: job, Graph: g, Dataflow: o})
	if err != nil {
		return err
	}
	err = dataflow.NewJob(g, o, job.Open).Run(ctx)
	return errors.Join(err, job.Close())
}

// TestKilled stops a job at random moments, in every mode, and goes on from what
// is on the disk: each line is there once in the end.
func TestKilled(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			dir, out := t.TempDir(), t.TempDir()
			o := m.o
			o.Interval, o.BufferSize, o.TolerableFailures = time.Millisecond, 512, -1
			kills := 0
			for life := 20 * time.Millisecond; ; life += life / 4 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(life))))
				err := run(ctx, local.New(dir), counting(dataflow.Dir(out), asIs), o)
				cancel()
				if err == nil {
					break
				}
				require.ErrorIs(t, err, context.DeadlineExceeded)
				kills++
			}
			t.Logf("killed %d times", kills)
			require.Positive(t, kills)
			if !m.o.AtLeastOnce {
				checkCounts(t, out)
			}
		})
	}
}

// memFiles are files of a sink in memory.
type memFiles struct {
	mu             sync.Mutex
	pending, final map[string]*memFile
}

type memFile struct{ bytes.Buffer }

func (*memFile) Finish() error { return nil }

func newMemFiles() *memFiles {
	return &memFiles{pending: map[string]*memFile{}, final: map[string]*memFile{}}
}

func (m *memFiles) Create(name string) (dataflow.SinkFile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending[name] != nil {
		return nil, fs.ErrExist
	}
	m.pending[name] = &memFile{}
	return m.pending[name], nil
}

func (m *memFiles) Commit(name, final string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.pending[name]
	switch {
	case f == nil && m.final[final] == nil:
		return fs.ErrNotExist
	case f == nil:
		return nil
	case m.final[final] != nil:
		return fs.ErrExist
	}
	m.final[final] = f
	delete(m.pending, name)
	return nil
}

func (m *memFiles) Pending() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pending)), nil
}

func (m *memFiles) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pending, name)
	return nil
}

// smallRecords is how many records each of two sources of a small job has.
const smallRecords = 24

// small is a job that takes some checkpoints, in a bubble's time.
func small(files dataflow.SinkFiles) *dataflow.Graph {
	g := dataflow.NewGraph()
	g.Source("source", 2, func(int) dataflow.Source {
		return &dataflow.Generator{Records: smallRecords, Pause: 500 * time.Microsecond, Body: func(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n%5, 10) }}
	})
	g.Operator("count", 2, dataflow.Count(dataflow.LineKey, 2*time.Millisecond), dataflow.From("source", dataflow.Hash(dataflow.LineKey)))
	g.Operator("sink", 1, func(int) dataflow.Operator { return &dataflow.FileSink{Files: files} }, dataflow.From("count", dataflow.Hash(dataflow.LineKey)))
	return g
}

// check compares what the sink of a small job has committed with what it must.
// What a fenced process has begun later is pending.
func (m *memFiles) check(fenced bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[string]int{}
	lines := 0
	for _, name := range slices.Sorted(maps.Keys(m.final)) {
		for line := range strings.Lines(m.final[name].String()) {
			key, count, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if next[key]++; count != strconv.Itoa(next[key]) {
				return fmt.Errorf("%s: %s of key %s follows on %d", path.Base(name), count, key, next[key]-1)
			}
			lines++
		}
	}
	if lines != 2*smallRecords || len(m.pending) > 0 && !fenced {
		return fmt.Errorf("%d lines, not %d; %d files are pending", lines, 2*smallRecords, len(m.pending))
	}
	return nil
}

var smallOptions = dataflow.Options{Interval: 10 * time.Millisecond, BufferSize: 128, Unaligned: true, TolerableFailures: -1, Restarts: 3, Timeout: 2 * time.Second}

// TestFaultAtEveryCall has each call to the store fail in turn, in each way: it
// fails, its answer is lost, or the process dies before it or after it.
func TestFaultAtEveryCall(t *testing.T) {
	kinds := map[string]wrap.Fault{
		"unavailable": wrap.Fail(inflight.ErrUnavailable), "refused": wrap.Fail(inflight.ErrPermission), "lost": wrap.LoseAnswer(),
		"killed before": wrap.Kill(), "killed after": wrap.KillAfter(),
	}
	for name, fault := range kinds {
		t.Run(name, func(t *testing.T) {
			k, step := 1, 1
			if scarce > 1 {
				step = 7
			}
			for struck := true; struck; k += step {
				synctest.Test(t, func(t *testing.T) { struck = faultAt(t, k, fault) })
			}
			t.Logf("%d calls", k)
			require.Greater(t, k, 60)
		})
	}
}

// faultAt runs a small job whose k-th call suffers a fault, and reports whether
// there was one.
func faultAt(t *testing.T, k int, fault wrap.Fault) (struck bool) {
	disk, files := undying{mem.New(mem.Options{})}, newMemFiles()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := wrap.NewFaults(disk, wrap.Rule{When: wrap.AtOp(k), Then: func(ctx context.Context, f *wrap.Faults, c *wrap.Call, do func() error) error {
		err := fault(ctx, f, c, do)
		if f.Killed() {
			cancel() // a process without a store would go on for ever
		}
		return err
	}})
	o := smallOptions
	var failed []string
	o.OnCheckpoint = func(r dataflow.CheckpointResult) {
		if !r.Completed && len(failed) < 10 {
			failed = append(failed, fmt.Sprintf("%d: %s: %v", r.ID, r.Reason, r.Cause))
		}
	}
	err := run(ctx, f, small(files), o)
	require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded, "call %d: it does not end: %s", k, failed)
	struck = f.Ops() >= k
	if err != nil {
		require.True(t, struck, "call %d: %v", k, err)
		err = run(t.Context(), disk, small(files), smallOptions) // another process
	}
	require.NoError(t, err, "call %d", k)
	require.NoError(t, files.check(false), "call %d", k)
	time.Sleep(time.Minute) // what was killed winds up //lint:sleep in a bubble
	return struck
}

// TestPaused stops the store of a process at the worst moments, has another one
// run the job to its end, and lets the first go on: it ends as fenced.
func TestPaused(t *testing.T) {
	manifest := wrap.And(wrap.On(wrap.OpFinish), wrap.NameHas("_manifest.json"))
	for _, tc := range []struct {
		name  string
		when  wrap.Predicate
		after bool
		again bool // it is not its first start
	}{
		{"before a fill", wrap.Nth(3, manifest), false, false},
		{"after a fill", wrap.Nth(3, manifest), true, false},
		{"after the check", wrap.Nth(3, wrap.On(wrap.OpChildren)), true, false},
		{"while retiring", wrap.Nth(2, wrap.On(wrap.OpRemove)), false, false},
		{"before restoring", wrap.Nth(1, wrap.And(wrap.On(wrap.OpOpen), wrap.NameHas(".cstate"))), false, true},
		{"in the middle of restoring", wrap.Nth(2, wrap.And(wrap.On(wrap.OpReadAt, wrap.OpStream), wrap.NameHas(".cstate"))), false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk, files := undying{mem.New(mem.Options{})}, newMemFiles()
				if tc.again {
					ctx, cancel := context.WithTimeout(t.Context(), 35*time.Millisecond)
					defer cancel()
					require.ErrorIs(t, run(ctx, disk, small(files), smallOptions), context.DeadlineExceeded)
				}
				paused, goOn := make(chan struct{}), make(chan struct{})
				var once sync.Once
				frozen := false // guarded by Faults, which asks for one call at a time
				f := wrap.NewFaults(disk, wrap.Rule{When: func(c wrap.Call) bool {
					frozen = frozen || tc.when(c)
					return frozen
				}, Then: func(_ context.Context, _ *wrap.Faults, _ *wrap.Call, do func() error) error {
					first := false
					once.Do(func() { first = true; close(paused) })
					if first && tc.after {
						defer func() { <-goOn }()
						return do()
					}
					<-goOn
					return do()
				}})
				ended := make(chan error, 1)
				go func() { ended <- run(t.Context(), f, small(files), smallOptions) }()
				<-paused
				require.NoError(t, run(t.Context(), disk, small(files), smallOptions))
				require.NoError(t, files.check(true))
				close(goOn)
				require.ErrorIs(t, <-ended, inflight.ErrFenced)
				require.NoError(t, files.check(true))
				log, err := catalog.Open(disk, job, catalog.Options{})
				require.NoError(t, err)
				latest, err := log.Latest(t.Context())
				require.NoError(t, err)
				require.NoError(t, prove(t.Context(), disk, latest.Manifest))
			})
		})
	}
}
