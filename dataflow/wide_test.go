package dataflow

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNoDeadlock runs all-to-all jobs whose pools are far smaller than what
// they connect: 16×16×16 with two output buffers, and gates with hardly any.
func TestNoDeadlock(t *testing.T) {
	seeds := uint64(max(1, 2/scarce))
	if *wideFlag {
		seeds = 200
	}
	for _, mode := range []string{"aligned", "unaligned", "mixed"} {
		for _, gate := range [][2]int{{0, 0}, {-1, 2}, {1, -1}} {
			for _, overdraft := range []int{-1, 20} {
				t.Run(fmt.Sprintf("%s/exclusive %d floating %d/overdraft %d", mode, gate[0], gate[1], overdraft), func(t *testing.T) {
					for seed := uint64(1); seed <= seeds; seed++ {
						res, log := simulate(seed, func(p *SimulationPlan) {
							widen(p, mode, gate, overdraft)
						})
						require.False(t, res.Bad(), "seed %d: %s", seed, res)
						require.Empty(t, log.red)
						require.Positive(t, res.Checkpoints)
					}
				})
			}
		}
	}
}

// widen replaces the plan by a source, a keyed vertex and a sink of 16 subtasks
// each.
func widen(p *SimulationPlan, mode string, gate [2]int, overdraft int) {
	p.Records, p.MaxBody = 12, 60
	p.Crashes = p.Crashes[:min(len(p.Crashes), 1)]
	o := &p.Options
	o.OutputBuffers, o.OverdraftBuffers, o.PerSubpartition = 2, overdraft, 10
	o.Credit = gate != [2]int{}
	if o.Credit {
		o.ExclusiveBuffers, o.FloatingBuffers = gate[0], gate[1]
	}
	o.BufferSize = 64
	o.Interval, o.Timeout = 3*time.Millisecond, 200*time.Millisecond
	o.Unaligned, o.AlignedTimeout = mode != "aligned", 0
	if mode == "mixed" {
		o.AlignedTimeout = 2 * time.Millisecond
	}
	p.Vertices = []SimulationVertex{
		{Name: "source", Kind: "source", Parallelism: 16},
		{Name: "keyed", Kind: "keyed", Parallelism: 16, Inputs: []Input{From("source", Hash(simKey))}},
		{Name: "sink", Kind: "sink", Parallelism: 16, Inputs: []Input{From("keyed", Rebalance())}},
	}
}
