package flink_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/flink"
)

// TestMetadata parses _metadata with many channels beside Flink's own classes, in
// turns: at least five times as fast, in at most three times the room of the file.
func TestMetadata(t *testing.T) {
	defer timed.stop()
	for _, tc := range []struct {
		name    string
		handles int
		merged  bool
		rounds  int
		times   int // of a round, the fastest counts
	}{
		{"10,000 handles", 10_000, false, 3, 20},
		{"10,000 channels, merged", 10_000, true, 3, 20},
		{"1,000,000 handles", 1_000_000, false, 1, 1},
		{"1,000,000 channels, merged", 1_000_000, true, 3, 2},
	} {
		if full() {
			tc.rounds = 7
		}
		path := filepath.Join(t.TempDir(), flink.MetadataName)
		var made struct{ Bytes int64 }
		timed.ask(t, &made, "metadata", map[string]any{"to": path, "handles": tc.handles, "merged": tc.merged})
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, unmerge := range []bool{false, true} {
			if unmerge && !tc.merged {
				continue
			}
			var theirs, ours []time.Duration
			for range tc.rounds {
				theirs = append(theirs, loadByFlink(t, path, tc.times, unmerge, tc.handles))
				ours = append(ours, parseHere(t, raw, tc.times, unmerge, tc.handles))
			}
			f, o := median(theirs), median(ours)
			room := roomOf(t, raw)
			what := tc.name
			if unmerge {
				what += ", taken apart"
			}
			say(t, "_metadata, %-38s %9d bytes: Flink %9.3f ms, we %8.3f ms: %5.1f times as fast, in %.2f times the room of the file",
				what, len(raw), ms(f), ms(o), float64(f)/float64(o), room)
			if full() && !unmerge { // times decide nothing in the short form
				require.GreaterOrEqual(t, float64(f)/float64(o), 5.0, what)
			}
			require.LessOrEqual(t, room, 3.0, what)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median[T time.Duration | float64](list []T) T {
	s := slices.Sorted(slices.Values(list))
	return s[len(s)/2]
}

func loadByFlink(t testing.TB, path string, times int, unmerge bool, channels int) time.Duration {
	var answer struct {
		Nanos    []time.Duration
		Channels int
	}
	timed.ask(t, &answer, "load", map[string]any{"from": path, "rounds": times, "unmerge": unmerge})
	if unmerge {
		require.Equal(t, channels, answer.Channels)
	}
	return slices.Min(answer.Nanos)
}

func parseHere(t testing.TB, raw []byte, times int, unmerge bool, channels int) time.Duration {
	best := time.Duration(1<<63 - 1)
	for range times {
		start := time.Now()
		m, err := flink.Parse(raw)
		require.NoError(t, err)
		n := 0
		if unmerge {
			for i := range m.Operators {
				for k := range m.Operators[i].Subtasks {
					for h := range m.Operators[i].Subtasks[k].Handles() {
						for _, err := range h.Channels() {
							if err != nil {
								t.Fatal(err)
							}
							n++
						}
					}
				}
			}
		}
		best = min(best, time.Since(start))
		require.True(t, !unmerge || n == channels)
	}
	return best
}

// roomOf returns how much the file and its parsed form take, as a multiple of the
// file.
func roomOf(t testing.TB, raw []byte) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m, err := flink.Parse(raw)
	require.NoError(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(m)
	return 1 + float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(len(raw))
}
