package catalog

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slept counts pauses instead of sleeping.
func quick(l *Log) *Log {
	l.hooks.pause = func(ctx context.Context, try int) error {
		if try > 100 {
			return errors.New("gave up in a test")
		}
		return ctx.Err()
	}
	return l
}

func openLog(t testing.TB, m *memory, o Options) *Log {
	l, err := Open(m, "job", o)
	require.NoError(t, err)
	return quick(l)
}

// content returns a manifest of one subtask with one file of the checkpoint,
// which it writes, and one section in each of the older files given.
func content(t testing.TB, m *memory, p *Pending, older ...format.FileInfo) *format.Manifest {
	own := format.FileInfo{Name: format.StateFileName(p.ID(), "g0", p.Attempt()), FileID: inflight.FileID{byte(p.ID())}, Size: 5}
	require.NoError(t, writeFile(m, own.Name, "state"))
	return manifestOf(p.ID(), "", append(older, own)...)
}

func writeFile(m *memory, name, data string) error {
	return m.call(context.Background(), op{kind: opCreate, name: "job/" + name, data: []byte(data)}).err
}

func manifestOf(id inflight.CheckpointID, lineage string, files ...format.FileInfo) *format.Manifest {
	m := &format.Manifest{Mode: format.ExactlyOnce, Alignment: format.Aligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "v", Parallelism: 1}}}}
	if lineage != "" {
		m.Topology.Vertices[0].Attributes = map[string]string{"lineage": lineage}
	}
	h := inflight.Handle{Task: inflight.Task{Vertex: "v"}, Checkpoint: id}
	for _, f := range files {
		h.Segments = append(h.Segments, inflight.Segment{File: f.Name, FileID: f.FileID, Offset: 0, Length: 1})
	}
	m.SetHandles([]inflight.Handle{h}, files...)
	return m
}

// commit takes a whole checkpoint.
func commit(t testing.TB, m *memory, c *Coordinator, change ...func(*format.Manifest)) inflight.CheckpointID {
	p, err := c.Begin()
	require.NoError(t, err)
	f := content(t, m, p)
	for _, change := range change {
		change(f)
	}
	require.NoError(t, p.Commit(t.Context(), f))
	return p.ID()
}

func start(t testing.TB, l *Log, o StartOptions) *Coordinator {
	c, err := l.Start(t.Context(), o)
	require.NoError(t, err)
	return c
}

func TestLifeOfAJob(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	_, err := l.Latest(t.Context())
	require.ErrorIs(t, err, inflight.ErrNotExist)

	c := start(t, l, StartOptions{})
	require.Nil(t, c.Base())
	require.EqualValues(t, 0, c.Epoch())
	require.EqualValues(t, 1, commit(t, m, c))
	require.EqualValues(t, 2, commit(t, m, c))
	require.NoError(t, c.Retire(t.Context()))
	require.Equal(t, []string{"job/chk-0000000002/_manifest.json", "job/chk-0000000002/g0-" + c.Attempt() + ".cstate"}, m.names())

	d := start(t, l, StartOptions{})
	require.EqualValues(t, 3, d.Epoch())
	require.EqualValues(t, 2, d.Base().Manifest.ID)
	_, err = c.Begin()
	require.NoError(t, err) // it does not know yet
	require.ErrorIs(t, c.Retire(t.Context()), inflight.ErrFenced)
	_, err = c.Begin()
	require.ErrorIs(t, err, inflight.ErrFenced)

	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, latest.Manifest.ID)
	require.Equal(t, "job/chk-0000000002", latest.Dir)
}
