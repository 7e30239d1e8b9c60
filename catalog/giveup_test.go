package catalog

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestGiveUp gives a checkpoint up without I/O: the next one can begin at once,
// and Abort or the next commit fills the slot.
func TestGiveUp(t *testing.T) {
	for _, aborts := range []bool{true, false} {
		m := newMemory()
		l := openLog(t, m, Options{})
		c := start(t, l, StartOptions{})
		p, err := c.Begin()
		require.NoError(t, err)
		_, err = c.Begin()
		require.ErrorIs(t, err, inflight.ErrOrder)
		p.GiveUp(format.Cause{Kind: format.CauseDeclined, Reason: "over-budget"})
		_, err = l.Load(t.Context(), p.ID())
		require.ErrorIs(t, err, fs.ErrNotExist, "its slot is open")
		q, err := c.Begin()
		require.NoError(t, err)
		if aborts {
			committed, err := p.Abort(t.Context(), format.Cause{Reason: "another"})
			require.NoError(t, err)
			require.False(t, committed)
		}
		require.ErrorIs(t, p.Commit(t.Context(), content(t, m, p)), inflight.ErrAborted)
		require.NoError(t, q.Commit(t.Context(), content(t, m, q)))
		got, err := l.readSlot(t.Context(), p.ID())
		require.NoError(t, err)
		require.Equal(t, format.KindAborted, got.Kind)
		require.Equal(t, "over-budget", got.Cause.Reason)
	}
}

// TestSuperseded tells a coordinator that another one has taken over from one that
// has only met a directory above its own.
func TestSuperseded(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	c := start(t, l, StartOptions{})
	commit(t, m, c)
	require.NoError(t, writeFile(m, format.StateFileName(9, "g0", "late"), "state"))
	p, err := c.Begin()
	require.NoError(t, err)
	fenced := p.Commit(t.Context(), content(t, m, p))
	require.ErrorIs(t, fenced, inflight.ErrFenced)
	superseded, err := c.Superseded(t.Context())
	require.NoError(t, err)
	require.False(t, superseded)
	again := c.Judge(t.Context(), c.Err())
	require.True(t, inflight.Retryable(again))
	require.NotErrorIs(t, again, inflight.ErrFenced)
	require.ErrorContains(t, again, "start again")
	d := start(t, l, StartOptions{})
	require.GreaterOrEqual(t, d.Epoch(), inflight.Epoch(9))
	superseded, err = c.Superseded(t.Context())
	require.NoError(t, err)
	require.True(t, superseded)
	require.Equal(t, fenced, c.Judge(t.Context(), fenced))
	require.NoError(t, c.Judge(t.Context(), nil))
	superseded, err = d.Superseded(t.Context())
	require.NoError(t, err)
	require.False(t, superseded)
}

// TestBeginDuringCheck begins a checkpoint, and a file of it, while the check of an
// id that was given up is about to list the names: that is not another coordinator.
func TestBeginDuringCheck(t *testing.T) {
	m := newMemory()
	stage := newGateway(func(op) bool { return false })
	c := start(t, openLog(t, m.via(func(o op) fault { return stage.hook(o) }), Options{}), StartOptions{})
	p, err := c.Begin()
	require.NoError(t, err)
	stage = newGateway(afterFill(p.ID()))
	p.GiveUp(format.Cause{Reason: "timeout"})
	aborted := make(chan error)
	go func() {
		_, err := p.Abort(t.Context(), format.Cause{})
		aborted <- err
	}()
	<-stage.stopped
	q, err := c.Begin()
	require.NoError(t, err)
	f := content(t, m, q)
	close(stage.released)
	require.NoError(t, <-aborted)
	require.NoError(t, q.Commit(t.Context(), f))
}
