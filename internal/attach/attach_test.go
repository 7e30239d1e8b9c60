package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// start runs a small job of these options until ctx ends, and returns what its
// checkpoints came to.
func start(ctx context.Context, t *testing.T, b backends.Backend, o Options) (results []dataflow.CheckpointResult, err error) {
	if o.Graph == nil {
		o.Graph = small(newMemFiles())
	}
	o.Backend, o.Name = b, job
	o.Dataflow.OnCheckpoint = func(r dataflow.CheckpointResult) { results = append(results, r) }
	j, err := New(o)
	require.NoError(t, err)
	err = dataflow.NewJob(o.Graph, o.Dataflow, j.Open).Run(ctx)
	require.NoError(t, j.Close())
	return results, err
}

// forAWhile is a context that ends before a small job does.
func forAWhile(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// stats reads the statistics of a slot.
func stats(t *testing.T, b backends.Backend, id inflight.CheckpointID) *format.CheckpointStats {
	src, err := b.Open(t.Context(), job+"/"+format.CheckpointDir(id)+"/"+format.StatsName)
	require.NoError(t, err)
	defer src.Close()
	r, err := src.Stream(t.Context(), 0, -1)
	require.NoError(t, err)
	p, err := io.ReadAll(r)
	require.NoError(t, err)
	s, err := format.DecodeStats(p)
	require.NoError(t, err)
	return s
}

// TestStatistics compares _stats.json with what the runtime was told, for a
// checkpoint that completed and for one that was refused.
func TestStatistics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := undying{mem.New(mem.Options{})}
		refuse := errors.New("not this one")
		n := 0
		results, err := start(forAWhile(t), t, disk, Options{
			Dataflow: smallOptions, Catalog: catalog.Options{Retained: 100},
			BeforeCommit: func(_ context.Context, m *format.Manifest, acks []dataflow.Ack) error {
				require.Equal(t, format.KindCheckpoint, m.Kind)
				require.Len(t, acks, len(m.Handles))
				if n++; n >= 2 { // and nothing is retired then
					return refuse
				}
				return nil
			},
			Decorate: func(s *format.CheckpointStats) { s.Triggered = "now" },
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, len(results), 2)
		log, err := catalog.Open(disk, job, catalog.Options{})
		require.NoError(t, err)
		list, err := log.List(t.Context())
		require.NoError(t, err)
		slots := map[inflight.CheckpointID]catalog.Slot{}
		for _, s := range list {
			slots[s.ID] = s
		}
		for _, r := range results[:2] {
			s := stats(t, disk, r.ID)
			require.Equal(t, r.ID, s.ID)
			require.Equal(t, catalog.SlotCheckpoint, s.Kind)
			require.Equal(t, "now", s.Triggered)
			require.Equal(t, string(r.Reason), s.Reason)
			require.Equal(t, string(slots[r.ID].State), s.State)
			require.InDelta(t, ms(r.AckTime), s.AckMS, 0.5)
			require.InDelta(t, ms(r.Duration), s.DurationMS, 0.5)
			require.Equal(t, r.Alignment(), string(s.Alignment))
			require.Len(t, s.Subtasks, len(r.Acks))
			for i, a := range r.Acks {
				require.Equal(t, format.SubtaskStats{Task: a.Task, StartDelayMS: ms(a.StartDelay), AlignmentMS: ms(a.Alignment), SyncMS: ms(a.Sync), AsyncMS: ms(a.Async),
					EndToEndMS: ms(a.EndToEnd), PersistedBytes: a.Handle.PersistedBytes(), StateBytes: a.Handle.StateBytes, Unaligned: a.Unaligned}, s.Subtasks[i])
			}
		}
		first := stats(t, disk, results[0].ID)
		require.Equal(t, results[0].Committed.Bytes, first.SizeBytes)
		require.Equal(t, results[0].Committed.Files, first.Files)
		require.Positive(t, first.ChannelStateBytes)
		require.Equal(t, dataflow.ReasonCommit, results[1].Reason)
		require.ErrorIs(t, results[1].Cause, refuse)
		require.Equal(t, "commit-failed", slots[results[1].ID].Manifest.Cause.Reason)
	})
}

// TestRestoreChoices starts a job anew in every way that Start allows.
func TestRestoreChoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := undying{mem.New(mem.Options{})}
		retained := catalog.Options{Retained: 3}
		results, err := start(forAWhile(t), t, disk, Options{Dataflow: smallOptions, Catalog: retained})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, len(results), 1)
		newest := results[len(results)-1].ID
		next := newest
		for _, tc := range []struct {
			name string
			o    Options
			base inflight.CheckpointID // 0: none
		}{
			{"latest", Options{}, newest},
			{"this one", Options{Start: catalog.StartOptions{Base: catalog.BaseID, ID: results[0].ID}}, results[0].ID},
			{"afresh", Options{Fresh: true}, 0},
		} {
			var restored []RestoreInfo
			tc.o.Dataflow, tc.o.Catalog = smallOptions, retained
			tc.o.OnRestore = func(i RestoreInfo) { restored = append(restored, i) }
			tc.o.Dataflow.Interval = time.Hour // it restores, and makes none
			_, err := start(forAWhile(t), t, disk, tc.o)
			require.ErrorIs(t, err, context.DeadlineExceeded, tc.name)
			if tc.base == 0 {
				require.Empty(t, restored)
			} else {
				require.Len(t, restored, 1, tc.name)
				require.Equal(t, tc.base, restored[0].Checkpoint, tc.name)
				require.Positive(t, restored[0].Buffers, tc.name)
				require.Positive(t, restored[0].StateBytes, tc.name)
			}
			log, err := catalog.Open(disk, job, retained)
			require.NoError(t, err)
			slots, err := log.List(t.Context())
			require.NoError(t, err)
			top := slots[len(slots)-1]
			require.Equal(t, catalog.SlotClaim, top.Kind)
			require.Greater(t, top.ID, next, "ids go on")
			next = top.ID
		}
	})
}

// TestChangedGraph refuses a checkpoint that does not fit, before anybody is
// fenced, unless what does not fit may be dropped.
func TestChangedGraph(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := undying{mem.New(mem.Options{})}
		_, err := start(forAWhile(t), t, disk, Options{Dataflow: smallOptions})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		changed := func() *dataflow.Graph {
			g := dataflow.NewGraph()
			g.Source("source", 2, func(int) dataflow.Source {
				return &dataflow.Generator{Records: 10, Body: func(dst []byte, _ int64) []byte { return append(dst, 'x') }}
			})
			g.Operator("count", 2, dataflow.Count(dataflow.LineKey, 0), dataflow.From("source", dataflow.Hash(dataflow.LineKey)))
			g.Operator("other", 1, func(int) dataflow.Operator { return &dataflow.FileSink{Files: newMemFiles()} }, dataflow.From("count", dataflow.Hash(dataflow.LineKey)))
			return g
		}
		before := disk.Backend.(*mem.Backend).Snapshot().Fingerprint()
		_, err = start(t.Context(), t, disk, Options{Graph: changed(), Dataflow: smallOptions})
		require.ErrorIs(t, err, inflight.ErrMismatch)
		require.Equal(t, before, disk.Backend.(*mem.Backend).Snapshot().Fingerprint(), "nothing was claimed")
		var info RestoreInfo
		_, err = start(t.Context(), t, disk, Options{Graph: changed(), Dataflow: smallOptions, OnRestore: func(i RestoreInfo) { info = i },
			Restore: restore.Options{AllowDropped: []restore.Scope{{Vertex: "sink"}}}})
		require.NoError(t, err)
		require.Len(t, info.Dropped, 1)
		require.Equal(t, []string{"other"}, info.Fresh)
	})
}

// TestSavepoints takes a savepoint while unaligned checkpoints run: it is aligned,
// holds no channel state, and is kept.
func TestSavepoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := undying{mem.New(mem.Options{})}
		g := small(newMemFiles())
		j, err := New(Options{Backend: disk, Name: job, Graph: g, Dataflow: smallOptions})
		require.NoError(t, err)
		run := dataflow.NewJob(g, smallOptions, j.Open)
		ended := make(chan error)
		go func() { ended <- run.Run(t.Context()) }()
		time.Sleep(15 * time.Millisecond)
		r, err := run.Savepoint(t.Context())
		require.NoError(t, err)
		require.NoError(t, <-ended)
		require.NoError(t, j.Close())
		log, err := catalog.Open(disk, job, catalog.Options{})
		require.NoError(t, err)
		c, err := log.Load(t.Context(), r.ID)
		require.NoError(t, err, "it is kept")
		require.True(t, c.Manifest.Savepoint)
		require.Zero(t, c.Manifest.PersistedBytes())
		require.NoError(t, prove(t.Context(), disk, c.Manifest))
		s := stats(t, disk, r.ID)
		require.Equal(t, catalog.SlotSavepoint, s.Kind)
		require.Equal(t, format.Aligned, s.Alignment)
	})
}

// TestOverBudget holds less in memory than is in flight: such a checkpoint is
// declined, and the next one aligned.
func TestOverBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := undying{mem.New(mem.Options{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		results, err := start(ctx, t, disk, Options{Dataflow: smallOptions, Writer: writer.Options{MaxBufferedPerTask: 100}})
		require.NoError(t, err)
		declined := 0
		for i, r := range results[:len(results)-1] {
			if r.Reason != dataflow.ReasonOverBudget {
				continue
			}
			declined++
			require.ErrorIs(t, r.Cause, inflight.ErrOverBudget)
			require.Equal(t, r.ID+1, results[i+1].ID)
			require.Equal(t, "aligned", results[i+1].Alignment())
		}
		require.Positive(t, declined)
	})
}

// TestCloseEndsOpen closes a job whose store hangs while it is opened.
func TestCloseEndsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		j, err := New(Options{Backend: hanging{undying{mem.New(mem.Options{})}, &calls}, Name: job, Graph: small(newMemFiles()), Dataflow: smallOptions})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := j.Open(t.Context())
			ended <- err
		}()
		synctest.Wait()
		require.Positive(t, calls.Load())
		require.NoError(t, j.Close())
		require.ErrorIs(t, <-ended, context.Canceled)
		_, err = j.Open(t.Context())
		require.ErrorIs(t, err, inflight.ErrClosed)
		require.NoError(t, j.Close())
	})
}

// hanging hangs in every Create.
type hanging struct {
	backends.Backend
	calls *atomic.Int64
}

func (h hanging) Create(ctx context.Context, name string, _ backends.CreateOptions) (backends.Object, error) {
	h.calls.Add(1)
	<-ctx.Done()
	return nil, fmt.Errorf("%s: %w", name, ctx.Err())
}
