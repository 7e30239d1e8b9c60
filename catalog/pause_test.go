package catalog

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// gateway stops a coordinator at an op, as SIGSTOP would.
type gateway struct {
	at       func(o op) bool
	once     sync.Once
	stopped  chan struct{}
	released chan struct{}
}

func newGateway(at func(o op) bool) *gateway {
	return &gateway{at: at, stopped: make(chan struct{}), released: make(chan struct{})}
}

func (g *gateway) hook(o op) fault {
	if g.at(o) {
		g.once.Do(func() {
			close(g.stopped)
			<-g.released
		})
	}
	return fault{}
}

func isFill(id inflight.CheckpointID) func(op) bool {
	return func(o op) bool {
		return o.kind == opCreate && o.name == "job/"+format.CheckpointDir(id)+"/"+format.ManifestName
	}
}

// afterFill is the check: the first listing of names after the fill of id.
func afterFill(id inflight.CheckpointID) func(op) bool {
	filled := false
	return func(o op) bool {
		filled = filled || isFill(id)(o)
		return filled && o.kind == opChildren
	}
}

// TestPausedCoordinator stops a coordinator at a moment, lets another one start,
// commit and retire, and lets the first go on: it must end fenced, and the
// second must not notice.
func TestPausedCoordinator(t *testing.T) {
	// Each first coordinator has committed 1 and works on 2.
	for name, tc := range map[string]struct {
		at func(o op) bool
		// base is what the second one restores.
		base inflight.CheckpointID
	}{
		"before the fill":    {isFill(2), 1},
		"after the fill":     {afterFill(2), 2},
		"while retiring":     {func(o op) bool { return o.kind == opRemove }, 2},
		"while it reads":     {func(o op) bool { return o.kind == opRead }, 2},
		"before the listing": {func(o op) bool { return o.kind == opList && o.name == "job/chk-" }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			stage := newGateway(func(op) bool { return false })
			a := start(t, openLog(t, m.via(func(o op) fault { return stage.hook(o) }), Options{}), StartOptions{})
			commit(t, m, a)
			stage = newGateway(tc.at)

			var notified bool
			result := make(chan error)
			go func() {
				p, err := a.Begin()
				if err == nil {
					err = p.Commit(t.Context(), content(t, m, p))
				}
				if err == nil {
					notified = true
					err = a.Retire(t.Context())
				}
				result <- err
			}()
			<-stage.stopped
			secondRuns(t, m, tc.base)
			close(stage.released)
			err := <-result
			if notified {
				require.EqualValues(t, 2, tc.base, "what was notified is what the second one restored")
			} else {
				require.ErrorIs(t, err, inflight.ErrFenced)
			}
			firstIsOver(t, m, a)
		})
	}
}

// TestPausedBetweenCalls stops the first coordinator outside of the library.
func TestPausedBetweenCalls(t *testing.T) {
	t.Run("after the check", func(t *testing.T) {
		m := newMemory()
		a := start(t, openLog(t, m, Options{}), StartOptions{})
		commit(t, m, a)
		secondRuns(t, m, 1)
		require.ErrorIs(t, a.Retire(t.Context()), inflight.ErrFenced)
		firstIsOver(t, m, a)
	})
	t.Run("before it restores", func(t *testing.T) {
		m := newMemory()
		commit(t, m, start(t, openLog(t, m, Options{}), StartOptions{}))
		a := start(t, openLog(t, m, Options{}), StartOptions{})
		secondRuns(t, m, 1)
		firstIsOver(t, m, a)
	})
	t.Run("before it aborts", func(t *testing.T) {
		m := newMemory()
		a := start(t, openLog(t, m, Options{}), StartOptions{})
		commit(t, m, a)
		p, err := a.Begin()
		require.NoError(t, err)
		content(t, m, p)
		secondRuns(t, m, 1)
		_, err = p.Abort(t.Context(), format.Cause{Reason: "late"})
		require.ErrorIs(t, err, inflight.ErrFenced)
		firstIsOver(t, m, a)
	})
}

// secondRuns starts another coordinator, commits twice and retires.
func secondRuns(t *testing.T, m *memory, base inflight.CheckpointID) {
	b := start(t, openLog(t, m, Options{}), StartOptions{})
	require.Equal(t, base, b.Base().Manifest.ID)
	commit(t, m, b)
	b.ReplayDone()
	commit(t, m, b)
	require.NoError(t, b.Retire(t.Context()))
}

// firstIsOver makes sure that a can do nothing more, and that what the second
// one committed is whole.
func firstIsOver(t *testing.T, m *memory, a *Coordinator) {
	l := openLog(t, m, Options{})
	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, a.Attempt(), latest.Manifest.Attempt)
	for _, f := range latest.Manifest.Files {
		require.Contains(t, m.names(), "job/"+f.Name)
	}
	if a.Err() == nil {
		p, err := a.Begin()
		require.NoError(t, err)
		require.ErrorIs(t, p.Commit(t.Context(), content(t, m, p)), inflight.ErrFenced)
	}
	require.ErrorIs(t, a.Err(), inflight.ErrFenced)
	before := m.names()
	_, err = a.Begin()
	require.ErrorIs(t, err, inflight.ErrFenced)
	require.ErrorIs(t, a.Retire(t.Context()), inflight.ErrFenced)
	require.ErrorIs(t, a.WriteStats(t.Context(), &format.CheckpointStats{ID: 2}), inflight.ErrFenced)
	require.Equal(t, before, m.names(), "a fenced coordinator deletes nothing")
	whole(t, m)
}

// TestRacingCoordinators starts 20 at once, each of which commits as long as it
// can: what was notified must be one chain.
func TestRacingCoordinators(t *testing.T) {
	m := newMemory()
	var mu sync.Mutex
	var notified []*format.Manifest
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l := openLog(t, m, Options{})
			c, err := l.Start(t.Context(), StartOptions{})
			if err != nil {
				require.ErrorIs(t, err, inflight.ErrFenced)
				return
			}
			line := ""
			if c.Base() != nil {
				line = lineage(c.Base().Manifest)
			}
			c.ReplayDone()
			for range 5 {
				p, err := c.Begin()
				if err != nil {
					require.ErrorIs(t, err, inflight.ErrFenced)
					return
				}
				own := format.FileInfo{Name: format.StateFileName(p.ID(), "g", p.Attempt()), Size: 1}
				require.NoError(t, writeFile(m, own.Name, "x"))
				line += fmt.Sprintf("/%s.%d", p.Attempt(), p.ID())
				f := manifestOf(p.ID(), line, own)
				switch err := p.Commit(t.Context(), f); {
				case err == nil:
					mu.Lock()
					notified = append(notified, c.tip)
					mu.Unlock()
					if err := c.Retire(t.Context()); err != nil {
						require.ErrorIs(t, err, inflight.ErrFenced)
						return
					}
				default:
					require.True(t, isEnd(err), "%v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d checkpoints were notified", len(notified))
	require.NotEmpty(t, notified)
	longest := ""
	for _, n := range notified {
		if len(lineage(n)) > len(longest) {
			longest = lineage(n)
		}
	}
	for _, n := range notified {
		require.True(t, continues(longest, lineage(n)), "%q and %q: a fork", longest, lineage(n))
	}
	latest, err := openLog(t, m, Options{}).Latest(t.Context())
	require.NoError(t, err)
	require.True(t, continues(lineage(latest.Manifest), longest))
	whole(t, m)
}

// isEnd reports whether err ends a coordinator that another one has superseded:
// its files may be gone before it learns of it.
func isEnd(err error) bool {
	return isAny(err, inflight.ErrFenced, inflight.ErrIncomplete)
}

// TestStartPassesPendingDirectories makes sure that directories which a dead
// coordinator left above the top do not keep the next one out.
func TestStartPassesPendingDirectories(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{MaxConcurrent: 4}), StartOptions{})
	base := commit(t, m, c)
	for range 4 {
		p, err := c.Begin()
		require.NoError(t, err)
		content(t, m, p)
	}
	l := openLog(t, m, Options{})
	d := start(t, l, StartOptions{})
	require.Equal(t, base, d.Base().Manifest.ID)
	require.EqualValues(t, 5, d.Epoch(), "above all that was pending")
	require.Equal(t, []inflight.CheckpointID{2, 3, 4, 5}, d.Unfilled(), "some have a claim by now")
	d.ReplayDone()
	commit(t, m, d)
	require.NoError(t, d.Retire(t.Context()))
	require.Len(t, m.names(), 2)
	whole(t, m)
}

// TestManifestGone has checkpoints whose manifests were deleted.
func TestManifestGone(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{Retained: 2}), StartOptions{})
	commit(t, m, c)
	last := commit(t, m, c)
	require.NoError(t, c.Retire(t.Context()))
	remove := func(id inflight.CheckpointID) { delete(m.objects, fmt.Sprintf("job/chk-%010d/_manifest.json", id)) }
	remove(last)
	d := start(t, openLog(t, m, Options{}), StartOptions{})
	require.Equal(t, last-1, d.Base().Manifest.ID)
	require.Equal(t, []inflight.CheckpointID{last}, d.Unfilled())
	require.Empty(t, start(t, openLog(t, m, Options{}), StartOptions{}).Unfilled(), "its slot is a claim now")

	// There is no other one.
	for name := range m.objects {
		if strings.HasSuffix(name, "_manifest.json") {
			delete(m.objects, name)
		}
	}
	fresh := start(t, openLog(t, m, Options{}), StartOptions{})
	require.Nil(t, fresh.Base())
	require.Equal(t, []inflight.CheckpointID{last - 1, last}, fresh.Unfilled())
	require.Empty(t, start(t, openLog(t, newMemory(), Options{}), StartOptions{}).Unfilled())

	// Not every slot below it can be filled.
	m = newMemory()
	m.objects["job/chk-0000000500/g0-x.cstate"] = []byte("x")
	_, err := openLog(t, m, Options{}).Start(t.Context(), StartOptions{})
	require.ErrorIs(t, err, inflight.ErrDamaged)
	require.ErrorContains(t, err, "chk-0000000500: damaged manifest: it has files and no manifest")
	require.ErrorContains(t, err, "(put its manifest back, or delete the directory job/chk-0000000500)")
}

func TestSyncOrder(t *testing.T) {
	var ops []string
	m := newMemory()
	note := func(o op) fault {
		if o.kind == opCreate || o.kind == opSync {
			ops = append(ops, fmt.Sprintf("%v %s", []string{opCreate: "create", opSync: "sync"}[o.kind], path.Base(o.name)))
		}
		return fault{}
	}
	l := openLog(t, m.via(note), Options{})
	commit(t, m, start(t, l, StartOptions{}))
	require.Equal(t, []string{"create _manifest.json", "sync chk-0000000001", "create _manifest.json"}, ops)
	ops = nil
	start(t, l, StartOptions{})
	require.Equal(t, []string{"sync chk-0000000001", "create _manifest.json"}, ops, "the base is made durable before the claim")

	// A slot that was found filled by reading is synced too.
	ops = nil
	lose := func(o op) fault {
		note(o)
		if o.kind == opCreate && len(ops) == 1 {
			return fault{err: errLost}
		}
		return fault{}
	}
	start(t, openLog(t, newMemory().via(lose), Options{}), StartOptions{})
	require.Equal(t, []string{"create _manifest.json", "sync chk-0000000000"}, ops)
}

var _ backends.Backend = (*opStore)(nil)
