package attach

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation of this seed only, with a trace")
	seedsFlag = flag.Int("seeds", 2000, "how many seeds TestSimulation runs")
)

// simulate runs a seed over the real format, in a bubble of its own.
func simulate(t *testing.T, seed uint64, adjust func(*dataflow.SimulationPlan), prepare func(*world)) (res dataflow.SimulationResult, w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed)
		if prepare != nil {
			prepare(w)
		}
		res = dataflow.Simulation{Seed: seed, Limit: 3 * time.Minute, Open: w.open, Zombie: w.zombie, Again: inflight.Retryable,
			Adjust: func(p *dataflow.SimulationPlan) {
				if adjust != nil {
					adjust(p)
				}
				w.plan(p)
			},
			Deployed: func(d *dataflow.Deployment) { d.Tap(w.newest.emitted) },
		}.Run()
		w.finish()
	})
	return res, w
}

// plan learns what the seed has chosen.
func (w *world) plan(p *dataflow.SimulationPlan) {
	w.graph = dataflow.NewGraph()
	for _, v := range p.Vertices {
		if v.Kind == "source" {
			w.graph.Source(v.Name, v.Parallelism, nil)
		} else {
			w.graph.Operator(v.Name, v.Parallelism, nil, v.Inputs...)
		}
	}
	w.opt.Dataflow = p.Options
	w.topology = Topology(w.graph, p.Options)
}

func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		res, w := simulate(t, *seedFlag, func(p *dataflow.SimulationPlan) {
			p.Options.Trace = func(e dataflow.TraceEvent) { t.Log(e) }
		}, nil)
		t.Log(res, w.red)
		require.False(t, res.Bad())
		require.Empty(t, w.red)
		return
	}
	var all tally
	for i := range uint64(shards) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for seed := 1 + i; seed <= uint64(*seedsFlag/scarce); seed += shards {
				res, w := simulate(t, seed, nil, nil)
				all.add(res, w)
				if res.Bad() || len(w.red) > 0 {
					t.Fatalf("go test ./internal/attach -run TestSimulation -seed %d\n%s\n%v", seed, res, w.red[:min(len(w.red), 5)])
				}
			}
		})
	}
	t.Cleanup(func() { t.Log(&all) })
}

// shards are how many simulations run at a time.
const shards = 4

// tally sums results up.
type tally struct {
	mu     sync.Mutex
	sum    dataflow.SimulationResult
	proven int
}

func (a *tally) add(r dataflow.SimulationResult, w *world) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.sum
	s.Steps += r.Steps
	s.Checkpoints += r.Checkpoints
	s.Unaligned += r.Unaligned
	s.Failed += r.Failed
	s.Crashes += r.Crashes
	s.Restored += r.Restored
	s.Fenced += r.Fenced
	a.proven += w.proven
}

func (a *tally) String() string {
	return fmt.Sprintf("%s; proven %d, restored %d, fenced %d", a.sum, a.proven, a.sum.Restored, a.sum.Fenced)
}
