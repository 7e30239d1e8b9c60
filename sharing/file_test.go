package sharing

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// testHub returns a hub over a store with a fault, and a group of n subtasks.
func testHub(t *testing.T, o mem.Options, limit int64, rules ...wrap.Rule) (*Hub, *Group) {
	h := NewHub(Options{
		Backend: wrap.NewFaults(mem.New(o), rules...), Linger: 20 * time.Millisecond, Target: 64 << 20, PerTask: limit, SpillDir: t.TempDir(),
		Encoder: format.EncoderOptions{Pool: format.NewPool(8 << 20)}, Observer: inflight.Discard, Budget: NewBudget(limit),
	})
	return h, h.NewGroup(0)
}

// ended collects the results of streams.
type ended chan Result

func (e ended) done(r Result) { e <- r }

// push pushes n buffers of one channel, from the k-th on.
func push(s *Stream, k, n, size int) error {
	for ; n > 0; n-- {
		pos := inflight.Pos{Offset: uint64(k * size), Seq: uint64(k)}
		if _, _, err := s.Push(inflight.InputChannel{}.Address(), pos, inflight.Bytes(make([]byte, size))); err != nil {
			return err
		}
		k++
	}
	return nil
}

// TestNothingIsLeft demands that all that is counted comes back to zero, whatever
// becomes of a file.
func TestNothingIsLeft(t *testing.T) {
	type outcome struct {
		name  string
		rules []wrap.Rule
		act   func(*Group, *Stream)
		fails bool
	}
	slow := wrap.Rule{When: wrap.Nth(2, wrap.On(wrap.OpWrite)), Then: wrap.Before(func(wrap.Call) { time.Sleep(time.Second) })} //lint:sleep virtual time
	outcomes := []outcome{
		{name: "durable", rules: []wrap.Rule{slow}, act: func(_ *Group, s *Stream) { s.End(nil) }},
		{name: "cancelled", rules: []wrap.Rule{slow}, act: func(_ *Group, s *Stream) { s.Cancel(inflight.ErrAborted) }, fails: true},
		{name: "hangs", rules: []wrap.Rule{{When: wrap.On(wrap.OpFinish), Then: wrap.Hang()}}, act: func(_ *Group, s *Stream) {
			s.End(nil)
			time.Sleep(time.Minute) //lint:sleep virtual time
			s.Cancel(inflight.ErrAborted)
		}, fails: true},
		{name: "fails", rules: []wrap.Rule{slow, {When: wrap.On(wrap.OpFinish), Then: wrap.Fail(inflight.ErrNoSpace)}}, act: func(_ *Group, s *Stream) { s.End(nil) }, fails: true},
		{name: "left", rules: []wrap.Rule{slow}, act: func(g *Group, s *Stream) {
			s.Cancel(inflight.ErrClosed)
			g.Leave(s.task)
		}, fails: true},
	}
	for _, held := range []bool{false, true} {
		for _, o := range outcomes {
			t.Run(fmt.Sprintf("held=%v/%s", held, o.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h, g := testHub(t, mem.Options{HeldUntilFinish: held}, 4<<20, o.rules...)
					task := inflight.Task{Vertex: "v"}
					g.Join(task)
					var bytes atomic.Int64
					results := make(ended, 1)
					s := g.Start(task, Key{Checkpoint: 1, Attempt: "a"}, &bytes, results.done)
					for k := range 100 { // 6.4 MB: some of it is spilled
						require.NoError(t, push(s, k, 1, 64_000))
						synctest.Wait()
						time.Sleep(time.Millisecond)
					}
					require.Positive(t, bytes.Load())
					o.act(g, s)
					r := <-results
					require.Equal(t, o.fails, r.Err != nil, "%v", r.Err)
					require.True(t, h.Wait(time.Minute))
					require.Zero(t, h.budget.Used())
					require.Zero(t, h.ahead.Load())
					require.Zero(t, bytes.Load())
					require.Zero(t, h.Encoder.Pool.InUse())
					require.Empty(t, h.files)
					require.Empty(t, g.sessions)
					require.Empty(t, results)
					require.ErrorIs(t, push(s, 100, 1, 10), map[bool]error{true: r.Err, false: inflight.ErrOrder}[o.fails])
				})
			})
		}
	}
}

// TestCutsNeedAFile: a stream that has where its connections stood has a section
// for it; one that has nothing is done at once, and holds no file up.
func TestCutsNeedAFile(t *testing.T) {
	h, g := testHub(t, mem.Options{}, 1<<20)
	tasks := []inflight.Task{{Vertex: "v"}, {Vertex: "v", Subtask: 1}}
	for _, task := range tasks {
		g.Join(task)
	}
	results := make(ended, 2)
	for _, task := range tasks {
		s := g.Start(task, Key{Checkpoint: 1, Attempt: "a"}, nil, results.done)
		var cuts []inflight.Cut
		if task.Subtask > 0 {
			cuts = append(cuts, inflight.Cut{Address: inflight.InputChannel{}.Address(), Bytes: 7})
		}
		s.End(cuts)
	}
	empty, cut := <-results, <-results
	require.NoError(t, empty.Err)
	require.Empty(t, empty.Files)
	require.Equal(t, inflight.Handle{Task: tasks[0], Checkpoint: 1}, empty.Handle)
	require.NoError(t, cut.Err)
	require.Len(t, cut.Files, 1)
	require.Len(t, cut.Handle.Segments, 1)
	require.True(t, h.Wait(time.Minute))
	require.Zero(t, h.budget.Used())
	require.Empty(t, g.sessions)
}

// TestFileNames: a file's name holds its group, a part of its id, and the
// attempt; it is taken apart by format.StateFileAttempt.
func TestFileNames(t *testing.T) {
	h, g := testHub(t, mem.Options{}, 1<<20)
	task := inflight.Task{Vertex: "v"}
	g.Join(task)
	seen := map[string]bool{}
	for id := range inflight.CheckpointID(3) {
		results := make(ended, 1)
		s := g.Start(task, Key{Checkpoint: id, Attempt: "a1"}, nil, results.done)
		require.NoError(t, push(s, 0, 1, 10))
		s.End(nil)
		r := <-results
		require.NoError(t, r.Err)
		name := r.Files[0].Name
		require.Regexp(t, fmt.Sprintf(`^chk-%010d/g0\.%s-a1\.cstate$`, id, r.Files[0].FileID.String()[:16]), name)
		require.False(t, seen[name])
		seen[name] = true
		_, base, err := format.SplitFileName(name)
		require.NoError(t, err)
		attempt, ok := format.StateFileAttempt(base)
		require.True(t, ok)
		require.Equal(t, "a1", attempt)
	}
	require.True(t, h.Wait(time.Minute))
}
