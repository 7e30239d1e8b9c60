package spillway_test

import (
	"context"
	neturl "net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// faults is the store behind faulty://.
var faults *wrap.Faults

func init() {
	backends.Register("faulty", func(context.Context, *neturl.URL) (backends.Backend, error) { return faults, nil })
}

// TestCheckpoints takes checkpoints at three ticks, and a last one.
func TestCheckpoints(t *testing.T) {
	fail := func(err error) { faults.Set(wrap.Rule{When: wrap.On(wrap.OpCreate), Then: wrap.Fail(err)}) }
	for _, tc := range []struct {
		name string
		// before is called before a checkpoint is committed; false: it is not.
		before func(t *testing.T, id inflight.CheckpointID, cancel context.CancelFunc) bool
		ids    []inflight.CheckpointID
		failed int
		err    error
		text   string
	}{
		{name: "all are right", ids: []inflight.CheckpointID{1, 2, 3, 4}},
		{name: "one fails", ids: []inflight.CheckpointID{1, 2, 3, 4}, failed: 1, before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
			if faults.Set(); id == 2 {
				fail(inflight.ErrNoSpace)
			}
			return true
		}},
		{name: "the last one fails twice", ids: []inflight.CheckpointID{1, 2, 3, 4, 5, 6}, failed: 2, before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
			if faults.Set(); id == 4 || id == 5 {
				fail(inflight.ErrUnavailable)
			}
			return true
		}},
		{name: "the last one fails for ever", ids: []inflight.CheckpointID{1, 2, 3, 4, 5, 6, 7, 8}, failed: 5, err: inflight.ErrUnavailable, text: "the last checkpoint could not be committed: ",
			before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
				if id == 4 {
					fail(inflight.ErrUnavailable)
				}
				return true
			}},
		{name: "another try does not help", ids: []inflight.CheckpointID{1, 2, 3, 4}, failed: 1, err: inflight.ErrPermission, text: "the last checkpoint could not be committed: ",
			before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
				if id == 4 {
					fail(inflight.ErrPermission)
				}
				return true
			}},
		{name: "another one takes over", ids: []inflight.CheckpointID{1, 2}, failed: 1, err: inflight.ErrFenced,
			before: func(t *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
				if id == 2 {
					_, err := spillway.Open(t.Context(), "faulty://", "job", topology(1), spillway.Options{})
					require.NoError(t, err)
				}
				return true
			}},
		{name: "an older one begins a file late", ids: []inflight.CheckpointID{1, 2}, failed: 1, err: inflight.ErrUnavailable, text: "start again",
			before: func(t *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool {
				if id == 2 {
					o, err := faults.Create(t.Context(), "job/"+format.StateFileName(9, "g0", "late"), backends.CreateOptions{})
					require.NoError(t, err)
					_, err = o.Finish(t.Context())
					require.NoError(t, err)
				}
				return true
			}},
		{name: "the context ends", ids: []inflight.CheckpointID{1, 2}, failed: 1, err: context.Canceled,
			before: func(_ *testing.T, id inflight.CheckpointID, cancel context.CancelFunc) bool {
				if id == 2 {
					cancel()
				}
				return true
			}},
		{name: "one is not committed", ids: []inflight.CheckpointID{1, 2, 3, 4}, before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool { return id != 2 }},
		{name: "the last one is not committed", ids: []inflight.CheckpointID{1, 2, 3, 4}, err: inflight.ErrOrder, text: "nobody has committed it",
			before: func(_ *testing.T, id inflight.CheckpointID, _ context.CancelFunc) bool { return id != 4 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults = wrap.NewFaults(mem.New(mem.Options{}))
				j, err := spillway.Open(t.Context(), "faulty://", "job", topology(1), spillway.Options{})
				require.NoError(t, err)
				defer j.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tick, done := make(chan time.Time, 3), make(chan struct{})
				for range 3 {
					tick <- time.Time{}
				}
				var ids []inflight.CheckpointID
				failed, last := 0, error(nil)
				for c, err := range j.Checkpoints(ctx, tick, done) {
					require.NoError(t, last)
					if last = err; err != nil {
						require.Nil(t, c)
						continue
					}
					if ids = append(ids, c.ID()); len(ids) == 3 {
						close(done)
					}
					if tc.before != nil && !tc.before(t, c.ID(), cancel) {
						continue
					}
					capture(t, c, "in flight")
					if _, err := c.Commit(ctx, format.Unaligned); err != nil {
						failed++
					}
				}
				require.Equal(t, tc.ids, ids)
				require.Equal(t, tc.failed, failed)
				if tc.err == nil {
					require.NoError(t, last)
				} else {
					require.ErrorIs(t, last, tc.err)
					require.ErrorContains(t, last, tc.text)
				}
			})
		})
	}
}

// TestCheckpointsBreak gives up the one at work when the loop is broken off.
func TestCheckpointsBreak(t *testing.T) {
	j := open(t, spillway.Options{})
	tick := make(chan time.Time, 1)
	tick <- time.Time{}
	for c, err := range j.Checkpoints(t.Context(), tick, nil) {
		require.NoError(t, err)
		require.EqualValues(t, 1, c.ID())
		break
	}
	c := begin(t, j)
	capture(t, c, "in flight")
	_, err := c.Commit(t.Context(), format.Unaligned)
	require.NoError(t, err)
	require.EqualValues(t, 2, c.ID())
}
