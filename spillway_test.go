package spillway_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/writer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	a = inflight.Task{Vertex: "a"}
	b = inflight.Task{Vertex: "b"}
)

func topology(parallelism int) *format.Topology {
	return &format.Topology{Vertices: []format.Vertex{{ID: "a", Parallelism: 1}, {ID: "b", Parallelism: parallelism}}, Edges: []format.Edge{{From: "a", To: "b", Partitioner: "hash"}}}
}

func open(t *testing.T, o spillway.Options) *spillway.Job {
	j, err := spillway.Open(t.Context(), url(t), "job", topology(1), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	return j
}

var stores atomic.Int64

// url names a store that no other run has; the same one for all calls of a test.
func url(t *testing.T) string {
	names.Lock()
	defer names.Unlock()
	if names.of == nil {
		names.of = map[*testing.T]string{}
	}
	if names.of[t] == "" {
		names.of[t] = fmt.Sprintf("mem://%s-%d", strings.ToLower(t.Name()), stores.Add(1))
		t.Cleanup(func() {
			names.Lock()
			defer names.Unlock()
			delete(names.of, t)
		})
	}
	return names.of[t]
}

var names struct {
	sync.Mutex
	of map[*testing.T]string
}

func begin(t *testing.T, j *spillway.Job) *spillway.Checkpoint {
	c, err := j.Begin(t.Context())
	require.NoError(t, err)
	return c
}

func finish(t *testing.T, c *writer.Capture) {
	require.NoError(t, c.FinishInput())
	require.NoError(t, c.FinishOutput())
}

// capture captures text in flight from a to b, and a state of each.
func capture(t *testing.T, c *spillway.Checkpoint, text string) {
	n, half := uint64(len(text)), len(text)/2
	out, in := c.Captures[a], c.Captures[b]
	require.NoError(t, out.State("s", inflight.Bytes("of a")))
	require.NoError(t, out.Cuts(inflight.Cut{Address: inflight.Subpartition{}.Address(), Bytes: 100 + n}))
	require.NoError(t, out.Output(inflight.Subpartition{}, inflight.Pos{Offset: 100 + uint64(half)}, inflight.Bytes(text[half:])))
	finish(t, out)
	require.NoError(t, in.State("s", inflight.Bytes("of b")))
	require.NoError(t, in.Cuts(inflight.Cut{Address: inflight.InputChannel{}.Address(), Bytes: 100}))
	require.NoError(t, in.Input(inflight.InputChannel{}, inflight.Pos{Offset: 100}, inflight.Bytes(text[:half])))
	finish(t, in)
}

func TestCommitAndRestore(t *testing.T) {
	j := open(t, spillway.Options{})
	result, err := j.Restore(t.Context(), nil)
	require.NoError(t, err)
	require.Nil(t, result)
	c := begin(t, j)
	capture(t, c, "in flight")
	done, err := c.Commit(t.Context(), format.Unaligned)
	require.NoError(t, err)
	require.EqualValues(t, 1, done.Manifest.ID)
	require.EqualValues(t, 9, done.Manifest.PersistedBytes())

	heir := open(t, spillway.Options{})
	var mu sync.Mutex
	got := map[inflight.Task]string{}
	cuts := map[inflight.Task]uint64{}
	result, err = heir.Restore(t.Context(), func(task inflight.Task, entries []reader.Entry) func(*reader.Buffer) error {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range entries {
			cuts[task] += e.Cut.Bytes
		}
		return func(b *reader.Buffer) error {
			mu.Lock()
			defer mu.Unlock()
			got[task] += string(b.Bytes) + ";"
			return nil
		}
	})
	require.NoError(t, err)
	require.EqualValues(t, 4, result.Buffers)
	require.Equal(t, map[inflight.Task]string{a: "of a;light;", b: "of b;in f;"}, got)
	require.Equal(t, map[inflight.Task]uint64{a: 109, b: 100}, cuts)

	capture(t, begin(t, heir), "more")
	require.ErrorIs(t, take(t, j), inflight.ErrFenced)
	require.ErrorIs(t, j.Coordinator.Err(), inflight.ErrFenced)
}

// take takes a checkpoint with a job that may have been superseded, and may know
// that already.
func take(t *testing.T, j *spillway.Job) error {
	c, err := j.Begin(t.Context())
	if err == nil {
		capture(t, c, "late")
		_, err = c.Commit(t.Context(), format.Unaligned)
	}
	return err
}

// TestRefused shows that a start that cannot restore fences nobody.
func TestRefused(t *testing.T) {
	j := open(t, spillway.Options{})
	require.NoError(t, take(t, j))
	_, err := spillway.Open(t.Context(), url(t), "job", topology(2), spillway.Options{})
	require.ErrorIs(t, err, inflight.ErrMismatch)
	require.NoError(t, take(t, j))
	fresh, err := spillway.Open(t.Context(), url(t), "job", topology(2), spillway.Options{Start: catalog.StartOptions{Base: catalog.BaseFresh}})
	require.NoError(t, err)
	require.NoError(t, fresh.Close())
	require.ErrorIs(t, take(t, j), inflight.ErrFenced)
}

// TestRestoreOfDamaged names the checkpoint to go back to, and claims nothing
// where it can be seen before that a file is lost.
func TestRestoreOfDamaged(t *testing.T) {
	o := spillway.Options{Catalog: catalog.Options{Retained: 2}}
	j := open(t, o)
	require.NoError(t, take(t, j))
	c := begin(t, j)
	capture(t, c, "second")
	done, err := c.Commit(t.Context(), format.Unaligned)
	require.NoError(t, err)
	name := "job/" + done.Manifest.Files[0].Name
	src, err := j.Backend.Open(t.Context(), name)
	require.NoError(t, err)
	data := make([]byte, src.Info().Size)
	require.NoError(t, src.ReadAt(t.Context(), data, 0))
	require.NoError(t, src.Close())
	replace := func(data []byte) {
		require.NoError(t, j.Backend.Remove(t.Context(), name))
		if data == nil {
			return
		}
		obj, err := j.Backend.Create(t.Context(), name, backends.CreateOptions{})
		require.NoError(t, err)
		_, err = obj.Write(data)
		require.NoError(t, err)
		_, err = obj.Finish(t.Context())
		require.NoError(t, err)
	}
	for _, lost := range [][]byte{nil, data[:len(data)-1]} {
		replace(lost)
		_, err = spillway.Open(t.Context(), url(t), "job", topology(1), o)
		require.ErrorIs(t, err, inflight.ErrIncomplete)
		require.ErrorContains(t, err, name[len("job/"):])
		require.ErrorContains(t, err, "the next one to go back to is 1 (")
	}
	require.NoError(t, j.Coordinator.Err())

	for i := range data {
		data[i] ^= 1
	}
	replace(data)
	heir := open(t, o)
	_, err = heir.Restore(t.Context(), func(inflight.Task, []reader.Entry) func(*reader.Buffer) error {
		return func(*reader.Buffer) error { return nil }
	})
	require.True(t, inflight.IsCorruption(err), "%v", err)
	require.ErrorContains(t, err, "or restore an older one: the next is 1)")
	old := o
	old.Start = catalog.StartOptions{Base: catalog.BaseID, ID: 1}
	result, err := open(t, old).Restore(t.Context(), func(inflight.Task, []reader.Entry) func(*reader.Buffer) error {
		return func(*reader.Buffer) error { return nil }
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, result.Checkpoint)
}

func TestBadOptions(t *testing.T) {
	for _, tc := range []struct {
		url, job string
		o        spillway.Options
	}{
		{"nowhere://x", "job", spillway.Options{}},
		{url(t), "a/b", spillway.Options{}},
		{url(t), "job", spillway.Options{Writer: writer.Options{TasksPerFile: -1}}},
	} {
		_, err := spillway.Open(t.Context(), tc.url, tc.job, topology(1), tc.o)
		require.ErrorIs(t, err, inflight.ErrConfig)
	}
}

// TestGivenUp has checkpoints that fail: each says why, and the next one is as
// good as new.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var causes []string
		j := open(t, spillway.Options{
			Timeout: time.Minute,
			Writer:  writer.Options{MaxBuffered: 1000, SealLinger: -1},
			Observer: inflight.ObserverFunc(func(e inflight.Event) {
				if e.Name == inflight.EventAborted {
					causes = append(causes, e.Err.Error())
				}
			}),
		})
		c := begin(t, j)
		require.ErrorIs(t, c.Captures[a].State("s", inflight.Bytes(make([]byte, 2000))), inflight.ErrOverBudget)
		_, err := c.Commit(t.Context(), format.Unaligned)
		require.ErrorIs(t, err, inflight.ErrOverBudget)

		c = begin(t, j)
		require.NoError(t, c.Captures[a].Output(inflight.Subpartition{}, inflight.Pos{}, inflight.Bytes("abc")))
		require.ErrorIs(t, c.Captures[a].Output(inflight.Subpartition{}, inflight.Pos{Offset: 4}, inflight.Bytes("e")), inflight.ErrOrder)
		finish(t, c.Captures[b])
		_, err = c.Commit(t.Context(), format.Unaligned)
		require.ErrorIs(t, err, inflight.ErrOrder)

		c = begin(t, j) // nobody captures anything
		_, err = c.Commit(t.Context(), format.Unaligned)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		begin(t, j).Abort(t.Context(), fmt.Errorf("%w: a task is not ready", inflight.ErrRecovering))

		require.NoError(t, take(t, j))
		require.NoError(t, j.Coordinator.Err())
		require.Len(t, causes, 4)
		require.Contains(t, causes[0], "over-budget: ")
		require.Contains(t, causes[1], "failed: ")
		require.Contains(t, causes[2], "timeout: ")
		require.Contains(t, causes[3], "recovering: still recovering: a task is not ready")
	})
}
