package dataflow

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation of this seed only, with a trace")
	seedsFlag = flag.Int("seeds", 300, "how many seeds TestSimulation runs")
)

// simulate runs one seed over a memLog and returns it with the result.
func simulate(seed uint64, adjust func(*SimulationPlan)) (SimulationResult, *memLog) {
	log := newMemLog()
	res := Simulation{Seed: seed, Adjust: adjust,
		Open:     func(s *Seeded) (Store, error) { return log.open(s), nil },
		Deployed: log.tap,
	}.Run()
	return res, log
}

func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		res, log := simulate(*seedFlag, func(p *SimulationPlan) {
			p.Options.Trace = func(e TraceEvent) { t.Log(e) }
		})
		t.Log(res, log.red)
		require.False(t, res.Bad())
		require.Empty(t, log.red)
		return
	}
	var sum SimulationResult
	proven := 0
	for seed := range uint64(*seedsFlag / scarce) {
		res, log := simulate(seed+1, nil)
		sum.Steps += res.Steps
		sum.Checkpoints += res.Checkpoints
		sum.Unaligned += res.Unaligned
		sum.Failed += res.Failed
		sum.Crashes += res.Crashes
		sum.Restored += res.Restored
		proven += log.proven
		if res.Plan.Options.Timeout >= 10*time.Second && res.TimedOut > 0 {
			t.Fatalf("seed %d: %d checkpoints timed out, though no message was lost\n%s", seed+1, res.TimedOut, res)
		}
		if res.Bad() || len(log.red) > 0 {
			t.Fatalf("go test ./dataflow -run TestSimulation -seed %d\n%s\n%v", seed+1, res, log.red[:min(len(log.red), 5)])
		}
	}
	t.Logf("%s; proven %d, restored %d", sum, proven, sum.Restored)
}

// TestReplay has the same seed give the same run, step by step.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 30/scarce; seed++ {
		var runs [2][]string
		for i := range runs {
			res, _ := simulate(seed, func(p *SimulationPlan) {
				p.Options.Trace = func(e TraceEvent) { runs[i] = append(runs[i], e.String()) }
			})
			runs[i] = append(runs[i], res.String())
		}
		require.Equal(t, runs[0], runs[1], "seed %d", seed)
	}
}

var wideFlag = flag.Bool("wide", false, "run 200 seeds of each kind in TestNoDeadlock")
