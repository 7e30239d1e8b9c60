package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// onFill applies a fault to the n-th fill of a slot (from 0).
func onFill(id inflight.CheckpointID, n int, f fault) func(op) fault {
	seen := 0
	return func(o op) fault {
		if !isFill(id)(o) {
			return fault{}
		}
		seen++
		if seen-1 == n {
			return f
		}
		return fault{}
	}
}

func TestLostAnswers(t *testing.T) {
	lost := fault{err: errLost}
	late := fault{err: errLost, late: true}
	never := fault{err: errLost, before: true}
	for name, f := range map[string]fault{"lost": lost, "late": late, "never arrived": never, "twice": {double: true}} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			m.hook = onFill(0, 0, f)
			c := start(t, openLog(t, m, Options{}), StartOptions{})
			m.hook = onFill(1, 0, f)
			require.EqualValues(t, 1, commit(t, m, c))
			m.deliver()
			p, err := c.Begin()
			require.NoError(t, err)
			content(t, m, p)
			m.hook = onFill(2, 0, f)
			committed, err := p.Abort(t.Context(), format.Cause{Kind: format.CauseFailed, Reason: "test"})
			require.NoError(t, err)
			require.False(t, committed)
			m.deliver()
			require.EqualValues(t, 3, commit(t, m, c))
			require.NoError(t, c.Retire(t.Context()))
			m.deliver()
			slots, err := openLog(t, m, Options{}).List(t.Context())
			require.NoError(t, err)
			require.Equal(t, "3 checkpoint completed", kinds(slots)[len(slots)-1])
			whole(t, m)
		})
	}
}

// TestUndecided ends the context while a commit is undecided.
func TestUndecided(t *testing.T) {
	undecided := func(t *testing.T, f fault) (*memory, *Coordinator, *Pending, *format.Manifest) {
		m := newMemory()
		c := start(t, openLog(t, m, Options{}), StartOptions{})
		p, err := c.Begin()
		require.NoError(t, err)
		file := content(t, m, p)
		ctx, cancel := context.WithCancel(t.Context())
		m.hook = func(o op) fault {
			if isFill(1)(o) {
				cancel()
				return f
			}
			return fault{}
		}
		err = p.Commit(ctx, file)
		require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.Canceled)
		m.hook = nil
		require.Contains(t, m.names(), "job/"+file.Files[0].Name, "no file is deleted while undecided")
		_, err = c.Begin()
		require.ErrorIs(t, err, inflight.ErrOrder)
		return m, c, p, file
	}
	lost, late, never := fault{err: errLost}, fault{err: errLost, late: true}, fault{err: context.Canceled, before: true}
	t.Run("lost, commit again", func(t *testing.T) {
		m, _, p, file := undecided(t, lost)
		require.NoError(t, p.Commit(t.Context(), file))
		whole(t, m)
	})
	t.Run("lost, abort finds it committed", func(t *testing.T) {
		m, c, p, file := undecided(t, lost)
		committed, err := p.Abort(t.Context(), format.Cause{Reason: "timeout"})
		require.NoError(t, err)
		require.True(t, committed)
		require.NoError(t, p.Commit(t.Context(), file))
		require.EqualValues(t, 1, c.tip.ID)
		require.Contains(t, m.names(), "job/"+file.Files[0].Name)
		whole(t, m)
	})
	t.Run("late, abort wins", func(t *testing.T) {
		m, _, p, file := undecided(t, late)
		committed, err := p.Abort(t.Context(), format.Cause{Reason: "timeout"})
		require.NoError(t, err)
		require.False(t, committed)
		require.NotContains(t, m.names(), "job/"+file.Files[0].Name)
		m.deliver()
		whole(t, m)
	})
	t.Run("late, arrives before the abort", func(t *testing.T) {
		m, _, p, _ := undecided(t, late)
		m.deliver()
		committed, err := p.Abort(t.Context(), format.Cause{Reason: "timeout"})
		require.NoError(t, err)
		require.True(t, committed)
		whole(t, m)
	})
	t.Run("never, given up, settled by the next commit", func(t *testing.T) {
		m, c, p, _ := undecided(t, never)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.Abort(ctx, format.Cause{Reason: "timeout"})
		require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
		require.EqualValues(t, 2, commit(t, m, c))
		slots, err := openLog(t, m, Options{}).List(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"0 claim ", "1 checkpoint aborted", "2 checkpoint completed"}, kinds(slots))
		whole(t, m)
	})
	t.Run("lost, given up, found committed by the next commit", func(t *testing.T) {
		m, c, p, _ := undecided(t, lost)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.Abort(ctx, format.Cause{Reason: "timeout"})
		require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
		require.EqualValues(t, 2, commit(t, m, c))
		require.NoError(t, c.Retire(t.Context()))
		whole(t, m)
	})
	t.Run("another has taken the slot", func(t *testing.T) {
		m, c, p, file := undecided(t, late)
		commit(t, m, start(t, openLog(t, m, Options{}), StartOptions{}))
		require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrFenced)
		require.ErrorIs(t, c.Err(), inflight.ErrFenced)
		require.Contains(t, m.names(), "job/"+file.Files[0].Name, "a fenced coordinator deletes nothing")
		whole(t, m)
	})
}

func TestFailedFillSendsNothing(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{}), StartOptions{})
	p, err := c.Begin()
	require.NoError(t, err)
	file := content(t, m, p)
	m.hook = onFill(1, 0, fault{err: inflight.ErrNoSpace, before: true})
	require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrNoSpace)
	require.NoError(t, p.Commit(t.Context(), file), "it may be tried again")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err = c.Begin()
	require.NoError(t, err)
	file = content(t, m, p)
	err = p.Commit(ctx, file)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, inflight.ErrOutcomeUnknown)
	whole(t, m)
}

// TestHiddenRepetition is a driver that sends twice on its own and reports what
// the second one got.
func TestHiddenRepetition(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{}), StartOptions{})
	m.hook = onFill(1, 0, fault{err: fs.ErrExist})
	require.EqualValues(t, 1, commit(t, m, c))

	p, err := c.Begin()
	require.NoError(t, err)
	file := content(t, m, p)
	exists := onFill(2, 0, fault{err: fs.ErrExist})
	m.hook = func(o op) fault {
		if o.kind == opRead {
			return fault{err: inflight.ErrPermission, before: true}
		}
		return exists(o)
	}
	require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrOutcomeUnknown)
	m.hook = nil
	committed, err := p.Abort(t.Context(), format.Cause{Reason: "timeout"})
	require.NoError(t, err)
	require.True(t, committed)
	require.Contains(t, m.names(), "job/"+file.Files[0].Name)
	whole(t, m)
}

// TestSweptTemporary is a store whose temporaries can be deleted by another
// coordinator's sweep while they are written.
func TestSweptTemporary(t *testing.T) {
	swept := fault{err: fs.ErrNotExist, before: true}
	m := newMemory()
	a := start(t, openLog(t, m, Options{}), StartOptions{})
	p, err := a.Begin()
	require.NoError(t, err)
	file := content(t, m, p)
	m.hook = onFill(1, 0, swept)
	require.ErrorIs(t, p.Commit(t.Context(), file), fs.ErrNotExist)
	require.NoError(t, p.Commit(t.Context(), file), "nobody else filled it")

	// A start that is overtaken while it writes looks again.
	overtaken := false
	l := openLog(t, m.via(func(o op) fault {
		if !isFill(2)(o) || overtaken {
			return fault{}
		}
		overtaken = true
		start(t, openLog(t, m, Options{}), StartOptions{})
		return swept
	}), Options{})
	c := start(t, l, StartOptions{})
	require.True(t, overtaken)
	require.EqualValues(t, 3, c.Epoch())

	// A coordinator that is overtaken is over.
	p, err = a.Begin()
	require.NoError(t, err)
	file = content(t, m, p)
	m.hook = onFill(2, 0, swept)
	require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrFenced)
	whole(t, m)
}

func TestCheckIsRepeatedUntilItAnswers(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{}), StartOptions{})
	failures := 3
	m.hook = func(o op) fault {
		if o.kind == opChildren && failures > 0 {
			failures--
			return fault{err: inflight.ErrUnavailable, before: true}
		}
		return fault{}
	}
	commit(t, m, c)
	require.Zero(t, failures)

	// Where it is refused, the slot is filled and the outcome not known.
	p, err := c.Begin()
	require.NoError(t, err)
	file := content(t, m, p)
	m.hook = func(o op) fault {
		if o.kind == opChildren {
			return fault{err: inflight.ErrPermission, before: true}
		}
		return fault{}
	}
	require.ErrorIs(t, p.Commit(t.Context(), file), inflight.ErrOutcomeUnknown)
	m.hook = nil
	require.NoError(t, p.Commit(t.Context(), file))
	whole(t, m)
}

// scenario is a job with two incarnations, which does what an engine would do
// about errors. It returns the last checkpoint that was notified.
func scenario(t *testing.T, m *memory) (notified inflight.CheckpointID) {
	for range 2 {
		var c *Coordinator
		for c == nil {
			c, _ = openLog(t, m, Options{Retained: 2}).Start(t.Context(), StartOptions{})
		}
		if b := c.Base(); notified > 0 {
			require.NotNil(t, b)
			require.GreaterOrEqual(t, b.Manifest.ID, notified, "a restart goes on from what was notified")
		}
		c.ReplayDone()
		for range 3 {
			p, err := c.Begin()
			require.NoError(t, err)
			own := format.FileInfo{Name: format.StateFileName(p.ID(), "g", p.Attempt()), Size: 1}
			if err := writeFile(m, own.Name, "x"); err == nil {
				err = p.Commit(t.Context(), manifestOf(p.ID(), "", own))
				if err == nil {
					notified = p.ID()
					_ = c.Retire(t.Context())
					continue
				}
			}
			if committed, err := p.Abort(t.Context(), format.Cause{Kind: format.CauseFailed, Reason: "test"}); err == nil && committed {
				notified = p.ID()
			}
		}
	}
	return notified
}

// TestErrorAtEveryOperation injects one error at every k-th operation of the
// store, of every kind.
func TestErrorAtEveryOperation(t *testing.T) {
	for name, f := range map[string]fault{
		"unavailable, not done": {err: inflight.ErrUnavailable, before: true},
		"refused, not done":     {err: inflight.ErrPermission, before: true},
		"no space":              {err: inflight.ErrNoSpace, before: true},
		"done, answer lost":     {err: errLost},
		"late, no answer":       {err: errLost, late: true},
		"not done, no answer":   {err: errLost, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, runs := 0, 0
			for hit := true; hit; k++ {
				hit = false
				m := newMemory()
				n := 0
				m.hook = func(o op) fault {
					n++
					if n-1 != k {
						return fault{}
					}
					hit = true
					if f.late && o.kind != opCreate {
						return fault{err: inflight.ErrTimeout, before: true}
					}
					return f
				}
				notified := scenario(t, m)
				m.hook = nil
				require.GreaterOrEqual(t, notified, inflight.CheckpointID(4), "op %d", k)
				latest, err := openLog(t, m, Options{}).Latest(t.Context())
				require.NoError(t, err)
				require.GreaterOrEqual(t, latest.Manifest.ID, notified)
				whole(t, m)
				runs++
			}
			t.Logf("%d operations, %d runs", k-1, runs)
			require.Greater(t, runs, 40)
		})
	}
}

// TestPowerCutAtEveryOperation cuts the power before every k-th operation of a
// store whose names must be synced, with all, some and none of the unsynced
// names lost, and restarts.
func TestPowerCutAtEveryOperation(t *testing.T) {
	rounds := 3
	if os.Getenv("SPILLWAY_CRASH") != "" {
		rounds = 100
	}
	for _, objectStore := range []bool{false, true} {
		t.Run(fmt.Sprintf("object store %v", objectStore), func(t *testing.T) {
			runs := 0
			for k := 0; ; k++ {
				cut := false
				for seed := range rounds {
					notified, store := runUntil(t, k, objectStore)
					if store == nil {
						continue
					}
					cut = true
					runs++
					rng := rand.New(rand.NewPCG(uint64(seed), uint64(k)))
					survivor := store.CrashClone(rng, mem.CrashConfig{Names: []float64{0, 1, 0.5}[min(seed, 2)], Leftovers: 0.5})
					restartsAt(t, survivor, notified, k, seed)
				}
				if !cut {
					break
				}
			}
			t.Logf("%d power cuts", runs)
			require.Greater(t, runs, 50)
		})
	}
}

var errCut = errors.New("power cut")

// runUntil runs two incarnations until the k-th operation; nil: it came to its
// end before.
func runUntil(t *testing.T, k int, objectStore bool) (notified inflight.CheckpointID, cut *mem.Backend) {
	store := mem.New(mem.Options{ObjectStore: objectStore})
	b := &cutting{Backend: store, at: k}
	ctx := t.Context()
	for range 2 {
		l := openLog(t, b, Options{})
		c, err := l.Start(ctx, StartOptions{})
		if err != nil {
			return notified, b.store()
		}
		c.ReplayDone()
		for range 3 {
			p, err := c.Begin()
			if err != nil {
				return notified, b.store()
			}
			own := format.FileInfo{Name: format.StateFileName(p.ID(), "g", p.Attempt()), Size: 5}
			if err := writeObject(ctx, b, l.path(own.Name)); err != nil {
				return notified, b.store()
			}
			if err := p.Commit(ctx, manifestOf(p.ID(), "", own)); err != nil {
				return notified, b.store()
			}
			notified = p.ID()
			if err := c.Retire(ctx); err != nil {
				return notified, b.store()
			}
		}
	}
	return notified, nil
}

// restartsAt makes sure that the survivor of a power cut goes on from what was
// notified, with all its files, and that gc leaves nothing behind.
func restartsAt(t *testing.T, b *mem.Backend, notified inflight.CheckpointID, k, seed int) {
	l := openLog(t, b, Options{})
	c, err := l.Start(t.Context(), StartOptions{})
	require.NoError(t, err, "op %d seed %d", k, seed)
	if notified > 0 {
		require.NotNil(t, c.Base(), "op %d seed %d: notified %d", k, seed, notified)
		require.GreaterOrEqual(t, c.Base().Manifest.ID, notified, "op %d seed %d", k, seed)
	}
	refs := map[string]bool{}
	if c.Base() != nil {
		for _, f := range c.Base().Manifest.Files {
			_, err := b.Stat(t.Context(), l.path(f.Name))
			require.NoError(t, err, "op %d seed %d", k, seed)
			refs[l.path(f.Name)] = true
		}
	}
	_, err = l.GC(t.Context(), GCOptions{Fence: true})
	require.NoError(t, err)
	for i, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		if _, isState := format.StateFileAttempt(i.Name); isState {
			require.True(t, refs[i.Name], "op %d seed %d: %s is left", k, seed, i.Name)
		}
	}
}

func TestRetireStopsBeforeDataWhenAnEntryStays(t *testing.T) {
	m := newMemory()
	c := start(t, openLog(t, m, Options{}), StartOptions{})
	commit(t, m, c)
	commit(t, m, c)
	m.hook = func(o op) fault {
		if o.kind == opRemove && o.name == "job/chk-0000000001/_manifest.json" {
			return fault{err: inflight.ErrPermission, before: true}
		}
		return fault{}
	}
	require.ErrorIs(t, c.Retire(t.Context()), inflight.ErrPermission)
	require.Contains(t, m.names(), "job/"+format.StateFileName(1, "g0", c.Attempt()))
	m.hook = nil
	require.NoError(t, c.Retire(t.Context()))
	require.NotContains(t, m.names(), "job/"+format.StateFileName(1, "g0", c.Attempt()))
	whole(t, m)
}

// TestFencedOnFullDisk: who can write nothing learns that it is superseded, by
// what it can list, whether the other one has ended or only begun.
func TestFencedOnFullDisk(t *testing.T) {
	full := func(o op) fault {
		if o.kind == opCreate {
			return fault{err: inflight.ErrNoSpace, before: true}
		}
		return fault{}
	}
	for name, successor := range map[string]func(m *memory){
		"claimed":   func(m *memory) { start(t, openLog(t, m, Options{}), StartOptions{}) },
		"committed": func(m *memory) { commit(t, m, start(t, openLog(t, m, Options{}), StartOptions{})) },
		"pending":   func(m *memory) { m.objects["job/chk-0000000009/g9-x.cstate"] = []byte("x") },
	} {
		for _, end := range []string{"commit", "abort", "abort a second one"} {
			t.Run(name+", "+end, func(t *testing.T) {
				m := newMemory()
				c := start(t, openLog(t, m, Options{}), StartOptions{})
				commit(t, m, c)
				p, err := c.Begin()
				require.NoError(t, err)
				file := content(t, m, p)
				if end == "abort a second one" {
					m.hook = full
					_, err = p.Abort(t.Context(), format.Cause{Reason: "test"})
					require.ErrorIs(t, err, inflight.ErrNoSpace)
					require.NoError(t, c.Err())
					p, err = c.Begin()
					require.NoError(t, err)
				}
				m.hook = nil
				successor(m)
				m.hook = full
				if end == "commit" {
					err = p.Commit(t.Context(), file)
				} else {
					_, err = p.Abort(t.Context(), format.Cause{Reason: "test"})
				}
				require.ErrorIs(t, err, inflight.ErrFenced)
				require.ErrorIs(t, c.Err(), inflight.ErrFenced)
			})
		}
	}
}
