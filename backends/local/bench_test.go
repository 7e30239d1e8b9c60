package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
)

const (
	benchSize = 32 << 20
	benchStep = 1 << 20
)

// BenchmarkWrite writes 32 MiB in steps of 1 MiB, and finishes.
func BenchmarkWrite(b *testing.B) {
	for name, exclusive := range map[string]bool{"plain": false, "exclusive": true} {
		b.Run(name, func(b *testing.B) {
			store := New(b.TempDir())
			defer store.Close()
			step := make([]byte, benchStep)
			b.SetBytes(benchSize)
			for b.Loop() {
				o, err := store.Create(b.Context(), "d/x", backends.CreateOptions{Exclusive: exclusive})
				require.NoError(b, err)
				for range benchSize / benchStep {
					_, err = o.Write(step)
					require.NoError(b, err)
				}
				_, err = o.Finish(b.Context())
				require.NoError(b, err)
				b.StopTimer()
				require.NoError(b, store.Remove(b.Context(), "d/x"))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkPlainFile is what BenchmarkWrite is compared with: the same bytes,
// written and synced.
func BenchmarkPlainFile(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x")
	step := make([]byte, benchStep)
	b.SetBytes(benchSize)
	for b.Loop() {
		f, err := os.Create(path)
		require.NoError(b, err)
		for range benchSize / benchStep {
			_, err = f.Write(step)
			require.NoError(b, err)
		}
		require.NoError(b, f.Sync())
		require.NoError(b, f.Close())
		b.StopTimer()
		require.NoError(b, os.Remove(path))
		b.StartTimer()
	}
}
