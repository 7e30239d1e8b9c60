package catalog

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	_ "github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestOnLocalDisk goes through the life of a job in a directory, with 20
// coordinators that race for it in between.
func TestOnLocalDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	b, err := backends.Open(t.Context(), dir)
	require.NoError(t, err)
	defer b.Close()
	l, err := Open(b, "job", Options{})
	require.NoError(t, err)

	take := func(c *Coordinator) error {
		p, err := c.Begin()
		if err != nil {
			return err
		}
		own := format.FileInfo{Name: format.StateFileName(p.ID(), "g0", p.Attempt()), Size: 5}
		err = writeObject(t.Context(), b, l.path(own.Name))
		if err == nil {
			err = p.Commit(t.Context(), manifestOf(p.ID(), "", own))
		}
		if err != nil {
			// A successor may have swept the temporary of the file or of the entry.
			if _, err = p.Abort(t.Context(), format.Cause{Kind: format.CauseFailed, Reason: "test", Text: err.Error()}); err != nil {
				return err
			}
		}
		return c.Retire(t.Context())
	}
	c := start(t, l, StartOptions{})
	require.NoError(t, take(c))
	require.NoError(t, take(c))

	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			d, err := l.Start(t.Context(), StartOptions{})
			for err == nil {
				d.ReplayDone()
				if err = take(d); d.Epoch() > 12 {
					break
				}
			}
			require.True(t, err == nil || isAny(err, inflight.ErrFenced, fs.ErrNotExist), "%v", err)
		})
	}
	wg.Wait()
	require.Error(t, take(c))

	_, err = l.GC(t.Context(), GCOptions{Fence: true})
	require.NoError(t, err)
	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	slots, err := l.List(context.Background())
	require.NoError(t, err)
	require.Equal(t, latest.Manifest.ID, slots[0].ID)
	require.Len(t, slots, 2, "the checkpoint and the claim of gc")
	require.Equal(t, SlotClaim, slots[1].Kind)
	require.Empty(t, slots[0].Findings)
	require.False(t, slots[0].Modified.IsZero())
	entries, err := os.ReadDir(filepath.Join(dir, "job"))
	require.NoError(t, err)
	require.Len(t, entries, 2, "empty folders go too")
}
