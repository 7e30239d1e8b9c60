// Package monitor shows an operator a running job: metrics, the checkpoints as
// JSON, and a live page. It looks at counters that the runtime keeps anyway,
// when somebody asks; no record ever waits for it.
package monitor

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// Options say what is shown.
type Options struct {
	Job, Store string
	Vertices   []dataflow.VertexInfo
	Edges      []dataflow.EdgeInfo
	Stats      func() dataflow.Stats // how the job gets on
	Bound      int64                 // of max-buffered-data, in bytes
}

// kept is how many checkpoints are remembered.
const kept = 500

// deviationOf is of how many sizes the deviation is computed.
const deviationOf = 20

// Monitor keeps what is shown. Its methods may be called by several goroutines
// at once.
type Monitor struct {
	o       Options
	begun   time.Time
	metrics *metrics

	mu          sync.Mutex
	checkpoints []entry // newest last
	counts      map[string]int
	completed   time.Time // when the last one was; zero: none
	restore     any       // the line of the last restore
	rates       rates
}

// entry is a checkpoint: what happened, without acknowledgements, and the line
// that says so. The brief one leaves the subtasks out, of which there may be many.
type entry struct {
	result      dataflow.CheckpointResult
	line, brief any
	at          time.Time
}

// New returns a monitor of a job.
func New(o Options) *Monitor {
	m := &Monitor{o: o, begun: time.Now(), counts: map[string]int{}}
	m.metrics = newMetrics(m)
	return m
}

// Checkpoint takes in how a checkpoint went. line is what docs/json.md has of
// it, brief the same without subtasks, state its state there.
func (m *Monitor) Checkpoint(r dataflow.CheckpointResult, state string, line, brief any) {
	m.metrics.checkpoint(r, state)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[state]++
	if r.Completed {
		m.completed = time.Now()
	}
	r.Acks = nil
	m.checkpoints = append(m.checkpoints, entry{r, line, brief, time.Now()})
	if n := len(m.checkpoints); n > kept {
		m.checkpoints = slices.Delete(m.checkpoints, 0, n-kept)
	}
}

// Restored takes in what was restored, as docs/json.md has it.
func (m *Monitor) Restored(line any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restore = line
}

// Restarted counts a restart of the job.
func (m *Monitor) Restarted() { m.metrics.restarts.Inc() }

// FellBack counts a checkpoint that is aligned since the last one went over the
// memory bound.
func (m *Monitor) FellBack() { m.metrics.fallbacks.Inc() }

// Accounted takes in the account of a checkpoint: what was captured on each edge.
func (m *Monitor) Accounted(_ inflight.CheckpointID, flows []reader.Flow) { m.metrics.accounted(flows) }

// Observe implements inflight.Observer.
func (m *Monitor) Observe(e inflight.Event) { m.metrics.observe(&e) }

// deviation is σ/mean of the sizes of the last checkpoints; NaN where there are
// less than two. The lock is held.
func (m *Monitor) deviation() float64 {
	var sizes []float64
	for _, e := range slices.Backward(m.checkpoints) {
		if e.result.Completed && len(sizes) < deviationOf {
			sizes = append(sizes, float64(e.result.Committed.Bytes))
		}
	}
	if len(sizes) < 2 {
		return math.NaN()
	}
	mean, variance := 0.0, 0.0
	for _, s := range sizes {
		mean += s / float64(len(sizes))
	}
	for _, s := range sizes {
		variance += (s - mean) * (s - mean) / float64(len(sizes))
	}
	return math.Sqrt(variance) / mean
}

// successRate is the share of those that completed; NaN before the first. The
// lock is held.
func (m *Monitor) successRate() float64 {
	all := 0
	for _, n := range m.counts {
		all += n
	}
	if all == 0 {
		return math.NaN()
	}
	return float64(m.counts["completed"]) / float64(all)
}
