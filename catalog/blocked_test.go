//go:build unix

package catalog

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestBlockedSlot has something that is no file where an entry belongs: it can
// neither be read nor filled, and whoever comes there says so.
func TestBlockedSlot(t *testing.T) {
	for name, block := range map[string]func(path string) error{
		"folder":         func(path string) error { return os.Mkdir(path, 0o700) },
		"folder, filled": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
		"pipe":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"device":         func(path string) error { return os.Symlink("/dev/zero", path) },
		"link to itself": func(path string) error { return os.Symlink(path, path) },
	} {
		for _, id := range []inflight.CheckpointID{2, 99} {
			t.Run(fmt.Sprint(name, ", ", id), func(t *testing.T) {
				dir := t.TempDir()
				b, err := backends.Open(t.Context(), dir)
				require.NoError(t, err)
				defer b.Close()
				l, err := Open(b, "job", Options{})
				require.NoError(t, err)
				start(t, l, StartOptions{})
				start(t, l, StartOptions{})
				slot := filepath.Join("job", format.CheckpointDir(id))
				require.NoError(t, os.MkdirAll(filepath.Join(dir, slot), 0o700))
				require.NoError(t, block(filepath.Join(dir, slot, format.ManifestName)))

				slots, err := l.List(t.Context())
				require.NoError(t, err)
				last := slots[len(slots)-1]
				require.Equal(t, id, last.ID)
				require.Equal(t, StateDamaged, last.State)
				require.Equal(t, CodeSlotDamaged, last.Findings[0].Code)

				_, err = l.Start(t.Context(), StartOptions{})
				require.ErrorIs(t, err, inflight.ErrDamaged)
				require.ErrorContains(t, err, "(remove "+slot+"/_manifest.json: ")
				_, err = l.GC(t.Context(), GCOptions{Fence: true})
				require.ErrorIs(t, err, inflight.ErrDamaged)

				require.NoError(t, os.RemoveAll(filepath.Join(dir, slot)))
				start(t, l, StartOptions{})
			})
		}
	}
}
