package dataflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// failing fails once, after some records, in each of the first runs.
type failing struct {
	Operator
	after *atomic.Int64
	runs  *atomic.Int64
}

func (o *failing) Process(c *Context, r Record) error {
	if o.after.Add(-1) == 0 && o.runs.Add(-1) >= 0 {
		o.after.Store(20_000)
		return errors.New("it broke")
	}
	return o.Operator.Process(c, r)
}

// TestJob runs a job on goroutines in every mode, lets it fail twice, and
// compares the committed lines with what must be there.
func TestJob(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
	}{
		{"aligned local", Options{}},
		{"aligned credit", Options{Credit: true}},
		{"unaligned local", Options{Unaligned: true}},
		{"unaligned credit", Options{Unaligned: true, Credit: true}},
		{"mixed local", Options{Unaligned: true, AlignedTimeout: 300 * time.Microsecond}},
		{"mixed credit", Options{Unaligned: true, AlignedTimeout: 300 * time.Microsecond, Credit: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			const records, keys = 30_000, 17
			var after, runs atomic.Int64
			after.Store(20_000)
			runs.Store(2)
			dir := t.TempDir()
			g := NewGraph()
			g.Source("source", 2, func(sub int) Source {
				return &Generator{Records: records, Body: func(dst []byte, n int64) []byte {
					return strconv.AppendInt(dst, n%keys, 10)
				}}
			})
			g.Operator("map", 2, Map(func(b []byte) ([]byte, error) { return b, nil }), From("source", Rebalance()))
			count := Count(LineKey, 0)
			g.Operator("count", 2, func(sub int) Operator { return &failing{count(sub), &after, &runs} }, From("map", Hash(LineKey)))
			g.Operator("sink", 1, func(int) Operator { return &FileSink{Files: Dir(dir)} }, From("count", Hash(LineKey)))
			o := tc.o
			o.Interval, o.BufferSize, o.Restarts, o.TolerableFailures = time.Millisecond, 512, 2, -1
			var checkpoints atomic.Int64
			o.OnCheckpoint = func(r CheckpointResult) {
				if r.Completed {
					checkpoints.Add(1)
				}
			}
			log := newMemLog()
			job := NewJob(g, o, nil)
			job.open = func(context.Context) (Store, error) { return log.open(job.exec), nil }
			log.conns = []connection{{inflight.Task{Vertex: "source"}, inflight.Task{Vertex: "map", Subtask: 1}, 0, 0},
				{inflight.Task{Vertex: "map", Subtask: 1}, inflight.Task{Vertex: "count"}, 0, 0}}
			require.NoError(t, job.Run(t.Context()))
			require.Empty(t, log.red)
			require.Greater(t, checkpoints.Load(), int64(2))
			require.Less(t, runs.Load(), int64(1), "it never broke")
			lines := committed(t, dir)
			require.Len(t, lines, keys)
			for key, n := range lines {
				k, _ := strconv.Atoi(key)
				want := 2 * (records / keys)
				if k < records%keys {
					want += 2
				}
				require.Equal(t, want, n[len(n)-1], key)
				require.True(t, slices.IsSorted(n), "key %s went back", key)
				require.Len(t, n, want, "key %s: each line once", key)
			}
		})
	}
}

// committed reads the counts of each key, in the order of the files' names.
func committed(t *testing.T, dir string) map[string][]int {
	lines := map[string][]int{}
	names, err := filepath.Glob(filepath.Join(dir, "part-*.tsv"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	slices.Sort(names)
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range bytes.Lines(data) {
			key, count, ok := strings.Cut(strings.TrimSpace(string(line)), "\t")
			require.True(t, ok)
			n, err := strconv.Atoi(count)
			require.NoError(t, err)
			lines[key] = append(lines[key], n)
		}
	}
	pending, err := Dir(dir).Pending()
	require.NoError(t, err)
	require.Empty(t, pending)
	return lines
}

func TestJobStops(t *testing.T) {
	g := NewGraph()
	g.Source("source", 1, func(int) Source {
		return &Generator{Records: -1, Body: func(dst []byte, n int64) []byte { return append(dst, 'x') }}
	})
	g.Operator("count", 1, Count(LineKey, 0), From("source", Forward()))
	ctx, cancel := context.WithCancel(t.Context())
	var job *Job
	o := Options{OnCheckpoint: func(r CheckpointResult) {}, Interval: time.Millisecond}
	o.OnCheckpoint = func(r CheckpointResult) {
		if r.Completed && job.Stats().Records[inflight.Task{Vertex: "source"}] > 1000 {
			cancel()
		}
	}
	log := newMemLog()
	job = NewJob(g, o, nil)
	job.open = func(context.Context) (Store, error) { return log.open(job.exec), nil }
	require.ErrorIs(t, job.Run(ctx), context.Canceled)
	_, err := NewJob(g, o, nil).Savepoint(t.Context())
	require.ErrorIs(t, err, inflight.ErrClosed)
}

// TestSavepoint takes savepoints while unaligned checkpoints run: they are
// aligned, and hold no channel state.
func TestSavepoint(t *testing.T) {
	g := NewGraph()
	g.Source("source", 2, func(int) Source {
		return &Generator{Records: -1, Body: func(dst []byte, n int64) []byte { return fmt.Appendf(dst, "%d", n%100) }}
	})
	g.Operator("count", 2, Count(LineKey, 0), From("source", Hash(LineKey)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{}, 1)
	log := newMemLog()
	job := NewJob(g, Options{Unaligned: true, Interval: time.Millisecond, BufferSize: 256, OnCheckpoint: func(CheckpointResult) {
		select {
		case started <- struct{}{}:
		default:
		}
	}}, nil)
	job.open = func(context.Context) (Store, error) { return log.open(job.exec), nil }
	done := make(chan error, 1)
	go func() { done <- job.Run(ctx) }()
	<-started
	for range 3 {
		r, err := job.Savepoint(ctx)
		require.NoError(t, err)
		require.True(t, r.Savepoint)
		require.Equal(t, "aligned", r.Alignment())
		for _, a := range r.Acks {
			require.Zero(t, a.Handle.PersistedBytes())
		}
		log.mu.Lock()
		require.True(t, log.byID[r.ID].Savepoint)
		log.mu.Unlock()
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}
