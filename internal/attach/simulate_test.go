package attach

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation of this seed only, with a trace")
	seedsFlag = flag.Int("seeds", seedsByDefault(), "how many seeds TestSimulation runs")
	firstFlag = flag.Int("first", 1, "the first of them")
	shardFlag = flag.Int("shard", -1, "run every n-th seed only, from this one on, n being the number of processors")
)

// seedsByDefault is how many seeds are run. make crash sets SPILLWAY_CRASH, make
// test SPILLWAY_SEEDS.
func seedsByDefault() int {
	n, err := strconv.Atoi(os.Getenv("SPILLWAY_SEEDS"))
	if err != nil {
		n = 200
	}
	if os.Getenv("SPILLWAY_CRASH") != "" {
		n = 100_000
	}
	return max(n/scarce, 1)
}

// simulate runs a seed over the real format, in a bubble of its own.
func simulate(t *testing.T, seed uint64, adjust func(*dataflow.SimulationPlan), prepare func(*world)) (res dataflow.SimulationResult, w *world) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed) // names of files
		w = newWorld(t, seed)
		if prepare != nil {
			prepare(w)
		}
		res = dataflow.Simulation{Seed: seed, Limit: w.limit, Open: w.open, Zombie: w.zombie, Again: inflight.Retryable,
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
	switch {
	case *seedFlag != 0:
		res, w := simulate(t, *seedFlag, func(p *dataflow.SimulationPlan) {
			p.Options.Trace = func(e dataflow.TraceEvent) { t.Log(e) }
		}, func(w *world) { w.noted = func(s string) { t.Log(s) } })
		t.Log(res)
		require.Empty(t, w.red)
		require.False(t, res.Bad())
	case *shardFlag >= 0:
		shard(t)
	default:
		simulateAll(t)
	}
}

// TestSeedsThatFailed runs seeds that have shown a fault.
func TestSeedsThatFailed(t *testing.T) {
	for _, seed := range []uint64{
		29218, // who had acknowledged and ended was restored as one that runs
		46981, // fenced by what a superseded coordinator had begun late
	} {
		res, w := simulate(t, seed, nil, nil)
		require.Empty(t, w.red, seed)
		require.False(t, res.Bad(), "%d: %s", seed, res)
	}
}

// simulateAll runs all seeds, in as many processes as there are processors: what
// is random in names of files comes from the seed too, and is global.
func simulateAll(t *testing.T) {
	var wg sync.WaitGroup
	var all tallies
	for i := range runtime.NumCPU() {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-test.timeout=0", fmt.Sprint("-seeds=", *seedsFlag), fmt.Sprint("-first=", *firstFlag), fmt.Sprint("-shard=", i))
			if scarce == 1 { // each has a processor; the race detector wants more
				cmd.Env = append(cmd.Environ(), "GOMAXPROCS=1")
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			all.add(out)
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %+v", *seedsFlag, &all.tally)
	if *seedsFlag >= 100 {
		require.Positive(t, all.Fenced)
		require.Positive(t, all.Unaligned)
	}
	require.GreaterOrEqual(t, all.Proven, all.Checkpoints)
}

// shard runs a part of the seeds, and prints the tally as JSON.
func shard(t *testing.T) {
	var sum tally
	for n := *shardFlag; n < *seedsFlag; n += runtime.NumCPU() {
		seed := uint64(n + *firstFlag)
		res, w := simulate(t, seed, nil, nil)
		if res.Bad() || len(w.red) > 0 {
			t.Fatalf("go test ./internal/attach -run TestSimulation -seed %d\n%s\n%v", seed, res, w.red[:min(len(w.red), 5)])
		}
		sum.plus(tally{res.Steps, res.Checkpoints, res.Unaligned, res.Failed, res.Crashes, res.Restored, res.Fenced, w.proven})
	}
	line, err := json.Marshal(sum)
	require.NoError(t, err)
	fmt.Println(string(line))
}

// tally sums results up.
type tally struct {
	Steps, Checkpoints, Unaligned, Failed, Crashes, Restored, Fenced, Proven int
}

func (a *tally) plus(b tally) {
	a.Steps += b.Steps
	a.Checkpoints += b.Checkpoints
	a.Unaligned += b.Unaligned
	a.Failed += b.Failed
	a.Crashes += b.Crashes
	a.Restored += b.Restored
	a.Fenced += b.Fenced
	a.Proven += b.Proven
}

// tallies is what the processes have printed.
type tallies struct {
	mu sync.Mutex
	tally
}

func (a *tallies) add(out []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range bytes.Lines(out) {
		var b tally
		if json.Unmarshal(line, &b) == nil {
			a.plus(b)
		}
	}
}

// TestReplay has the same seed give the same run, step by step.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= max(30/scarce, 3); seed++ {
		var runs [2][]string
		for i := range runs {
			res, w := simulate(t, seed, func(p *dataflow.SimulationPlan) {
				p.Options.Trace = func(e dataflow.TraceEvent) { runs[i] = append(runs[i], unnamed(e.String())) }
			}, func(w *world) { w.noted = func(s string) { runs[i] = append(runs[i], unnamed(s)) } })
			runs[i] = append(runs[i], res.String(), fmt.Sprint(w.proven))
		}
		require.Equal(t, runs[0], runs[1], "seed %d", seed)
	}
}

var random = regexp.MustCompile(`[0-9a-f]{16}`)

// unnamed takes out what is random of file names.
func unnamed(s string) string { return random.ReplaceAllString(s, "…") }
