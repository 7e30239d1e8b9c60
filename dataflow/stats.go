package dataflow

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Stats is how a job gets on. What tasks count is published once a step.
type Stats struct {
	Records map[inflight.Task]uint64 // processed, or emitted by a source
	Fill    float64                  // of the queues of the fullest edge, 0 to 1
	Tasks   []TaskStats
	Edges   []EdgeStats
	Latency LatencyStats
}

// TaskStats is what a task's time went to, since it began, and what it did.
type TaskStats struct {
	Task                      inflight.Task
	Records                   uint64
	Busy, Idle, Backpressured time.Duration
	Overdrafts, Beyond        int // requests that took overdraft buffers, or memory beyond them
}

// EdgeStats is what is in flight on an edge.
type EdgeStats struct {
	Edge     EdgeInfo
	Queued   int64 // bytes in its queues now
	Capacity int64 // bytes that its buffers can hold, without overdraft
}

// LatencyStats is how long marked records took from a source to a sink, of the
// last ones that arrived.
type LatencyStats struct {
	Markers  uint64 // arrived since the job began
	P50, P99 time.Duration
	Max      time.Duration
}

// Stats returns the statistics of the incarnation at work.
func (j *Job) Stats() Stats {
	d := j.deployment()
	if d == nil {
		return Stats{}
	}
	return d.Stats()
}

// Stats returns the statistics of a deployment. It may be called at any time.
func (d *Deployment) Stats() Stats {
	s := Stats{Records: d.Records(), Edges: d.load()}
	for _, e := range s.Edges {
		s.Fill = max(s.Fill, fill(e.Queued, e.Capacity))
	}
	now := d.exec.Now()
	for _, t := range d.tasks {
		ts := TaskStats{Task: t.id, Records: t.shown.Load()}
		ts.Busy, ts.Idle, ts.Backpressured = t.meter.totals(now)
		for _, p := range t.out {
			p.pool.mu.Lock()
			ts.Overdrafts += p.pool.overdrafts
			ts.Beyond += p.pool.beyond
			p.pool.mu.Unlock()
		}
		s.Tasks = append(s.Tasks, ts)
	}
	s.Latency = d.latency.stats()
	return s
}

// Capacity is how many bytes an unaligned checkpoint may capture: what the
// queues of the unaligned edges can hold, without overdraft and partial records.
func (d *Deployment) Capacity() (bytes int64) {
	for i, e := range d.edges {
		if e.Unaligned {
			bytes += d.capacity[i]
		}
	}
	return bytes
}

// Fill is which share of the queues of the fullest edge is in use.
func (d *Deployment) Fill() float64 { return d.Stats().Fill }

func fill(queued, capacity int64) float64 {
	return min(1, float64(queued)/float64(max(capacity, 1)))
}

// load is what is in flight on each edge.
func (d *Deployment) load() []EdgeStats {
	edges := make([]EdgeStats, len(d.edges))
	index := map[[2]any]int{}
	for i, e := range d.edges {
		edges[i] = EdgeStats{Edge: e, Capacity: d.capacity[i]}
		index[[2]any{e.To, e.Gate}] = i
	}
	for _, t := range d.tasks {
		for _, c := range t.in.channels {
			edges[index[[2]any{t.id.Vertex, c.address.Gate}]].Queued += int64(c.queued())
		}
	}
	return edges
}

// meter adds up what a task's time goes to. The task alone turns it.
type meter struct {
	total [3]atomic.Int64
	kind  atomic.Int64
	since atomic.Int64
}

const (
	meterIdle = iota // also before the first step and after the last
	meterBusy
	meterBackpressured
)

// turn books the time up to now, and what comes now.
func (m *meter) turn(now time.Duration, kind int64) {
	m.total[m.kind.Load()].Add(int64(now) - m.since.Load())
	m.since.Store(int64(now))
	m.kind.Store(kind)
}

// totals include the time since the last turn; a turn meanwhile makes them
// inexact for a moment.
func (m *meter) totals(now time.Duration) (busy, idle, backpressured time.Duration) {
	var t [3]time.Duration
	for i := range t {
		t[i] = time.Duration(m.total[i].Load())
	}
	t[m.kind.Load()] += now - time.Duration(m.since.Load())
	return t[meterBusy], t[meterIdle], t[meterBackpressured]
}

// latency keeps the last markers that came to a sink.
type latency struct {
	mu   sync.Mutex
	n    uint64
	last [512]time.Duration
}

func (l *latency) observe(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.n%uint64(len(l.last))] = d
	l.n++
}

func (l *latency) stats() LatencyStats {
	l.mu.Lock()
	s := LatencyStats{Markers: l.n}
	last := slices.Clone(l.last[:min(l.n, uint64(len(l.last)))])
	l.mu.Unlock()
	if len(last) > 0 {
		slices.Sort(last)
		s.P50, s.P99, s.Max = last[len(last)/2], last[len(last)*99/100], last[len(last)-1]
	}
	return s
}
