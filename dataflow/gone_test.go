package dataflow

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// goneFaults are the faults of a source that stalls at one time, and is gone from
// another on, both in ms; it is back after 60.
func goneFaults(stall, from int) []Fault {
	task := inflight.Task{Vertex: "source"}
	at := func(ms int) (time.Duration, time.Duration) {
		return time.Duration(ms) * time.Millisecond, time.Duration(60-ms) * time.Millisecond
	}
	s, g := Fault{Task: task}, Fault{Task: task, Gone: true}
	s.At, s.For = at(stall)
	g.At, g.For = at(from)
	return []Fault{s, g}
}

// reasons are the results, where the word of a task downstream may have been
// faster than that of the source.
func reasons(s *scene) (results []string) {
	for _, r := range s.results {
		results = append(results, strings.Replace(r, "upstream", "source-gone", 1))
	}
	return results
}

// TestSourceGone has checkpoints at 10, 20, … ms, and a source that is gone at
// some of them.
func TestSourceGone(t *testing.T) {
	for _, o := range []Options{{Unaligned: true}, {}, {Credit: true, Unaligned: true}} {
		o.TolerableFailures = -1
		how := "aligned"
		if o.Unaligned {
			how = "unaligned"
		}
		all := func(gone string) []string {
			return []string{"1 " + how, "2 " + how, "3 " + gone, "4 " + gone, "5 " + gone, "6 " + how}
		}
		partial := func(s *scene) (ids []int) {
			for _, r := range s.all {
				if r.Partial() {
					ids = append(ids, int(r.ID))
				}
			}
			return ids
		}

		s := newScene(t, o, newMemLog(), goneFaults(15, 25)...)
		s.run(85 * time.Millisecond)
		require.Equal(t, all("source-gone"), reasons(s)[:6], "it may not be missing")
		require.Empty(t, partial(s))
		require.Empty(t, s.log.red)

		o.AllowWithoutSource = true
		s = newScene(t, o, newMemLog(), goneFaults(15, 25)...)
		s.run(85 * time.Millisecond)
		require.Equal(t, all(how), s.results[:6], "it has emitted nothing since checkpoint 2")
		require.Equal(t, []int{3, 4, 5}, partial(s))
		require.Empty(t, s.log.red, "the proof holds")

		s = newScene(t, o, newMemLog(), goneFaults(25, 25)...)
		s.run(85 * time.Millisecond)
		require.Equal(t, all("source-gone"), reasons(s)[:6], "it has emitted records since checkpoint 2")
		require.True(t, slices.ContainsFunc(s.all, func(r CheckpointResult) bool {
			return errors.Is(r.Cause, ErrSourceGone) && strings.Contains(r.Cause.Error(), "has emitted records since its last checkpoint")
		}))

		// A restore from a partial checkpoint goes on as if nothing had been.
		log := newMemLog()
		s = newScene(t, o, log, goneFaults(15, 25)...)
		s.run(45 * time.Millisecond)
		require.Equal(t, []int{3, 4}, partial(s))
		s.d.Stop(nil)
		s.run(time.Millisecond)
		heir := newScene(t, o, log, goneFaults(0, 0)...)
		heir.run(25 * time.Millisecond)
		require.NotEmpty(t, heir.all)
		require.Len(t, partial(heir), len(heir.all), "nothing was emitted since the one that was restored: %v", heir.results)
		require.Empty(t, log.red)
	}
}
