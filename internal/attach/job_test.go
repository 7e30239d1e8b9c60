package attach

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/writer"
)

const (
	records = 30_000 / (1 + scarce/10) // of each of two sources
	keys    = 17
)

// failing fails once in each of the first runs: after some records, when there is
// a checkpoint to go on from.
type failing struct {
	dataflow.Operator
	after, runs, completed *atomic.Int64
}

func (o *failing) Process(c *dataflow.Context, r dataflow.Record) error {
	if o.after.Add(-1) <= 0 && o.runs.Load() > 0 {
		if o.completed.Swap(0) > 0 {
			o.after.Store(records / 2)
			o.runs.Add(-1)
			return errors.New("it broke")
		}
		c.Busy(100 * time.Microsecond)
	}
	return o.Operator.Process(c, r)
}

// counting is a job that counts the keys of its sources, into files. wrap
// may put something around the operator that counts.
func counting(files dataflow.SinkFiles, wrap func(dataflow.Operator) dataflow.Operator) *dataflow.Graph {
	g := dataflow.NewGraph()
	g.Source("source", 2, func(int) dataflow.Source {
		return &dataflow.Generator{Records: records, Body: func(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n%keys, 10) }}
	})
	g.Operator("map", 2, dataflow.Map(func(b []byte) ([]byte, error) { return b, nil }), dataflow.From("source", dataflow.Rebalance()))
	count := dataflow.Count(dataflow.LineKey, 0)
	g.Operator("count", 2, func(sub int) dataflow.Operator { return wrap(count(sub)) }, dataflow.From("map", dataflow.Hash(dataflow.LineKey)))
	g.Operator("sink", 1, func(int) dataflow.Operator { return &dataflow.FileSink{Files: files} }, dataflow.From("count", dataflow.Hash(dataflow.LineKey)))
	return g
}

func asIs(o dataflow.Operator) dataflow.Operator { return o }

// checkCounts compares the committed lines with what must be there.
func checkCounts(t *testing.T, dir string) {
	lines := map[string][]int{}
	names, err := filepath.Glob(filepath.Join(dir, "part-*.tsv"))
	require.NoError(t, err)
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
	require.Len(t, lines, keys)
	for key, n := range lines {
		k, _ := strconv.Atoi(key)
		want := 2 * (records / keys)
		if k < records%keys {
			want += 2
		}
		require.Len(t, n, want, "key %s: each line once", key)
		require.True(t, slices.IsSorted(n), "key %s went back", key)
		require.Equal(t, want, n[len(n)-1], key)
	}
	pending, err := dataflow.Dir(dir).Pending()
	require.NoError(t, err)
	require.Empty(t, pending)
}

var modes = []struct {
	name string
	o    dataflow.Options
}{
	{"aligned local", dataflow.Options{}},
	{"aligned credit", dataflow.Options{Credit: true}},
	{"unaligned local", dataflow.Options{Unaligned: true}},
	{"unaligned credit", dataflow.Options{Unaligned: true, Credit: true}},
	{"mixed local", dataflow.Options{Unaligned: true, AlignedTimeout: 300 * time.Microsecond}},
	{"mixed credit", dataflow.Options{Unaligned: true, AlignedTimeout: 300 * time.Microsecond, Credit: true}},
	{"at least once", dataflow.Options{AtLeastOnce: true}},
}

// TestRestarts runs a job on a local disk in every mode. Its tasks fail twice,
// and it goes on in the same process; each checkpoint is proven before it is
// committed.
func TestRestarts(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var after, runs, proven, completed, all atomic.Int64
			after.Store(records / 2)
			runs.Store(2)
			dir, out := t.TempDir(), t.TempDir()
			o := m.o
			o.Interval, o.BufferSize, o.Restarts, o.TolerableFailures = time.Millisecond, 512, 2, -1
			o.OnCheckpoint = func(r dataflow.CheckpointResult) {
				if r.Cause != nil {
					t.Log(r.ID, r.Reason, r.Cause)
				}
				if r.Completed {
					completed.Add(1)
					all.Add(1)
				}
			}
			g := counting(dataflow.Dir(out), func(o dataflow.Operator) dataflow.Operator { return &failing{o, &after, &runs, &completed} })
			b := local.New(dir)
			var restores []RestoreInfo
			job, err := New(Options{Backend: b, Name: "job", Graph: g, Dataflow: o, OnRestore: func(i RestoreInfo) { restores = append(restores, i) },
				BeforeCommit: func(ctx context.Context, m *format.Manifest, _ []dataflow.Ack) error {
					proven.Add(1)
					return prove(ctx, b, m)
				}})
			require.NoError(t, err)
			require.NoError(t, dataflow.NewJob(g, o, job.Open).Run(t.Context()))
			require.NoError(t, job.Close())
			require.Zero(t, runs.Load(), "it broke too seldom")
			require.Len(t, restores, 2)
			require.Greater(t, proven.Load(), int64(2))
			require.GreaterOrEqual(t, proven.Load(), all.Load())
			if !m.o.AtLeastOnce {
				checkCounts(t, out)
			}
		})
	}
}

// TestTightBudget lets captures hold so little that many checkpoints are declined
// while their buffers are on their way in.
func TestTightBudget(t *testing.T) {
	for _, m := range modes {
		if !m.o.Unaligned {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var declined atomic.Int64
			out := t.TempDir()
			o := m.o
			o.Interval, o.BufferSize, o.TolerableFailures, o.Timeout = time.Millisecond, 512, -1, 20*time.Second
			o.OnCheckpoint = func(r dataflow.CheckpointResult) {
				if r.Reason == dataflow.ReasonOverBudget {
					declined.Add(1)
				}
			}
			g := counting(dataflow.Dir(out), asIs)
			job, err := New(Options{Backend: local.New(t.TempDir()), Name: job, Graph: g, Dataflow: o, Writer: writer.Options{MaxBuffered: 4 << 10}})
			require.NoError(t, err)
			require.NoError(t, dataflow.NewJob(g, o, job.Open).Run(t.Context()))
			require.NoError(t, job.Close())
			t.Logf("%d declined", declined.Load())
			if m.o.AlignedTimeout == 0 { // else they may all leave in time
				require.Positive(t, declined.Load())
			}
			checkCounts(t, out)
		})
	}
}

// prove verifies a checkpoint whose manifest may not be committed yet.
func prove(ctx context.Context, b backends.Backend, m *format.Manifest) error {
	r := reader.Open(b, "job", reader.Options{})
	defer r.Close()
	report, err := r.At(m, "job/"+format.CheckpointDir(m.ID)).Verify(ctx, reader.VerifyOptions{Records: true})
	if err != nil {
		return err
	}
	for _, f := range report.Findings {
		return errors.New(f.Text)
	}
	for _, f := range report.Flows {
		if f.Verdict != reader.Proven && m.Mode == format.ExactlyOnce {
			return errors.New(reader.Table([]reader.Flow{f}))
		}
	}
	return nil
}
