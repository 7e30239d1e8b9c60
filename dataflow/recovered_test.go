package dataflow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRecoveredCounts crashes the experiment again and again while it recovers:
// what was captured takes the place of what would be emitted or received, so
// what is in flight does not grow.
func TestRecoveredCounts(t *testing.T) {
	for name, o := range map[string]Options{"local": {Unaligned: true}, "credit": {Unaligned: true, Credit: true}} {
		t.Run(name, func(t *testing.T) {
			log := newMemLog()
			var sizes []uint64
			o.Interval = 500 * time.Millisecond
			o.OnCheckpoint = func(r CheckpointResult) {
				require.True(t, r.Completed, r.Reason)
				sizes = append(sizes, r.size(""))
			}
			for incarnation := range 4 {
				exec := NewSeeded(uint64(incarnation))
				exec.Budget = stepBudget
				d, err := Deploy(exec, experiment{keys: 10, recordTime: 5 * time.Millisecond}.graph(), o, log.open(exec), nil)
				require.NoError(t, err)
				log.watch(d)
				d.Start()
				exec.Run(600 * time.Millisecond) // one checkpoint; then it is gone
			}
			require.Empty(t, log.red)
			require.Len(t, sizes, 4)
			for _, n := range sizes {
				require.LessOrEqual(t, float64(n), 1.4*float64(sizes[0]), "%d", sizes) // it was 3 × after the fourth
			}
		})
	}
}
