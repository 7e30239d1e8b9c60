package attach

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// once answers true for one checkpoint, the first that is asked about from the
// third on, as often as it is asked about that one.
type once struct{ chosen *atomic.Int64 }

func (o once) is(id inflight.CheckpointID) bool {
	return id >= 3 && (o.chosen.CompareAndSwap(0, int64(id)) || o.chosen.Load() == int64(id))
}

// tamper is what stands between the runtime and its store, and lies about one
// checkpoint.
type tamper struct {
	once
	cuts  func([]inflight.Cut)
	whole func(*dataflow.Completed)
}

type tamperedStore struct {
	dataflow.Store
	t *tamper
}

func (s tamperedStore) Begin(reason string) (dataflow.Slot, error) {
	k, err := s.Store.Begin(reason)
	if err != nil {
		return nil, err
	}
	return tamperedSlot{k, s.t}, nil
}

func (s tamperedStore) Writer(t inflight.Task) (dataflow.CaptureWriter, error) {
	w, err := s.Store.Writer(t)
	return tamperedWriter{w, s.t}, err
}

type tamperedSlot struct {
	dataflow.Slot
	t *tamper
}

func (k tamperedSlot) Commit(c dataflow.Completed, done func(dataflow.Committed, error)) {
	if k.t.whole != nil && len(c.Finished) == 0 && k.t.is(c.ID) {
		k.t.whole(&c)
	}
	k.Slot.Commit(c, done)
}

type tamperedWriter struct {
	dataflow.CaptureWriter
	t *tamper
}

func (w tamperedWriter) Start(id inflight.CheckpointID, o dataflow.StartOptions) (dataflow.Capture, error) {
	c, err := w.CaptureWriter.Start(id, o)
	if err != nil || w.t.cuts == nil || !w.t.is(id) {
		return c, err
	}
	return tamperedCapture{c, w.t}, nil
}

type tamperedCapture struct {
	dataflow.Capture
	t *tamper
}

func (c tamperedCapture) Cuts(cuts ...inflight.Cut) {
	c.t.cuts(cuts)
	c.Capture.Cuts(cuts...)
}

// liar is a store that answers one Stat of a state file wrongly.
type liar struct {
	backends.Backend
	lied *atomic.Bool
	lie  func(backends.Info) (backends.Info, error)
}

func (l liar) Stat(ctx context.Context, name string) (backends.Info, error) {
	i, err := l.Backend.Stat(ctx, name)
	if err == nil && strings.HasSuffix(name, ".cstate") && l.lied.CompareAndSwap(false, true) {
		return l.lie(i)
	}
	return i, err
}

// holding takes its time until a checkpoint has failed its check.
type holding struct {
	dataflow.Operator
	until *atomic.Bool
}

func (o holding) Process(c *dataflow.Context, r dataflow.Record) error {
	if !o.until.Load() {
		c.Busy(100 * time.Microsecond)
	}
	return o.Operator.Process(c, r)
}

// shifted has a source say that it has passed more records, or fewer.
func shifted(by int) func(*dataflow.Completed) {
	return func(c *dataflow.Completed) {
		i := slices.IndexFunc(c.Acks, func(a dataflow.Ack) bool { return a.PositionKnown })
		c.Acks[i].Position += uint64(by)
	}
}

// TestEndedEarly: who has ended must have nobody upstream who has not.
func TestEndedEarly(t *testing.T) {
	topology := &format.Topology{
		Vertices: []format.Vertex{{ID: "a", Parallelism: 2}, {ID: "b", Parallelism: 2}, {ID: "c", Parallelism: 2}},
		Edges:    []format.Edge{{From: "a", To: "b", Partitioner: "hash"}, {From: "b", To: "c", Partitioner: "forward"}},
	}
	for _, tc := range []struct{ finished, found string }{
		{"", ""}, {"a/0", ""}, {"a/0 a/1", ""}, {"a/0 a/1 b/0", ""}, {"a/0 a/1 b/1 c/1", ""}, {"a/0 a/1 b/0 b/1 c/0 c/1", ""},
		{"b/0", "b/0"}, {"a/1 b/0", "b/0"}, {"a/0 b/0 b/1 c/0", "b/0 b/1"},
	} {
		m := &format.Manifest{Topology: topology}
		for _, name := range strings.Fields(tc.finished) {
			m.Finished = append(m.Finished, inflight.Task{Vertex: name[:1], Subtask: int(name[2] - '0')})
		}
		var found []string
		for _, f := range early(m, "chk-1") {
			require.Equal(t, CodeEndedEarly, f.Code)
			found = append(found, f.Task.String())
		}
		require.Equal(t, tc.found, strings.Join(found, " "), tc.finished)
	}
}

// TestCompletion has one checkpoint of a job contradict itself, in each way: it
// is given up with the finding, and the job goes on.
func TestCompletion(t *testing.T) {
	size := func(i backends.Info) (backends.Info, error) { i.Size++; return i, nil }
	gone := func(backends.Info) (backends.Info, error) { return backends.Info{}, inflight.ErrNotExist }
	for _, row := range []struct {
		code   string
		tamper tamper
		lie    func(backends.Info) (backends.Info, error)
		small  bool // the queues are said to hold nothing
	}{
		{code: CodeMissingSubtask, tamper: tamper{whole: func(c *dataflow.Completed) { c.Acks = c.Acks[1:] }}},
		{code: CodeMissingFile, lie: gone},
		{code: CodeFileSize, lie: size},
		{code: reader.CodeConservation, tamper: tamper{cuts: func(cuts []inflight.Cut) {
			if cuts[0].Address.Side == inflight.Output { // a source says that it has emitted more than arrived
				cuts[0].Bytes++
			}
		}}},
		{code: CodeWentBack, tamper: tamper{cuts: func(cuts []inflight.Cut) {
			for i := range cuts {
				cuts[i].Bytes, cuts[i].Records = 0, 0
			}
		}}},
		{code: CodeSourceGap, tamper: tamper{whole: shifted(1)}},
		{code: CodeSourceOverlap, tamper: tamper{whole: shifted(-1)}},
		{code: CodeOversized, small: true},
	} {
		t.Run(row.code, func(t *testing.T) {
			t.Parallel()
			row.tamper.chosen = new(atomic.Int64)
			var failed []error
			completed := 0
			var narrow, seen atomic.Bool
			narrow.Store(row.small)
			o := dataflow.Options{Interval: time.Millisecond, BufferSize: 512, TolerableFailures: -1, Unaligned: row.small}
			o.OnCheckpoint = func(r dataflow.CheckpointResult) {
				switch {
				case r.Completed:
					completed++
				case r.Reason == dataflow.ReasonCheck:
					failed = append(failed, r.Cause)
					narrow.Store(false)
					seen.Store(true)
				}
			}
			out := t.TempDir()
			g := counting(dataflow.Dir(out), func(o dataflow.Operator) dataflow.Operator { return holding{o, &seen} })
			var b backends.Backend = local.New(t.TempDir())
			if row.lie != nil {
				b = liar{b, new(atomic.Bool), row.lie}
			}
			job, err := New(Options{Backend: b, Name: "job", Graph: g, Dataflow: o, Capacity: func() int64 {
				if narrow.Load() {
					return 1
				}
				return 1 << 40
			}})
			require.NoError(t, err)
			require.NoError(t, dataflow.NewJob(g, o, func(ctx context.Context) (dataflow.Store, error) {
				s, err := job.Open(ctx)
				return tamperedStore{s, &row.tamper}, err
			}).Run(t.Context()))
			require.NoError(t, job.Close())
			require.NotEmpty(t, failed)
			check, ok := errors.AsType[*CompletionError](failed[0])
			require.True(t, ok, failed[0])
			var codes []string
			for _, f := range check.Findings {
				codes = append(codes, f.Code)
			}
			require.Contains(t, codes, row.code, check)
			if !row.small {
				require.Len(t, failed, 1, "it is one checkpoint only")
			}
			require.Positive(t, completed)
			checkCounts(t, out)
		})
	}
}
