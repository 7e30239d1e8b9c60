package monitor

import (
	"slices"
	"time"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

// rates turn what tasks have counted since they began into shares of the time
// since somebody last looked, but not less than a moment.
type rates struct {
	at     time.Time
	before map[inflight.Task]dataflow.TaskStats
	shares []share
}

// moment is the shortest time that shares are computed over: two who look at
// the same time see the same.
const moment = time.Second

// share is what a task did lately.
type share struct {
	Task                      inflight.Task
	Busy, Idle, Backpressured float64 // of the time, 0 to 1
	PerSecond                 float64 // records
}

// look returns what tasks did lately. A task that has begun anew counts from its
// beginning.
func (r *rates) look(now time.Time, tasks []dataflow.TaskStats) []share {
	elapsed := now.Sub(r.at)
	if r.before != nil && elapsed < moment {
		return r.shares
	}
	r.shares = make([]share, 0, len(tasks))
	next := make(map[inflight.Task]dataflow.TaskStats, len(tasks))
	for _, t := range tasks {
		next[t.Task] = t
		was := r.before[t.Task]
		if t.Records < was.Records || t.Busy < was.Busy {
			was = dataflow.TaskStats{}
		}
		s := share{Task: t.Task}
		busy, idle, back := t.Busy-was.Busy, t.Idle-was.Idle, t.Backpressured-was.Backpressured
		if all := float64(busy + idle + back); all > 0 {
			s.Busy, s.Idle, s.Backpressured = float64(busy)/all, float64(idle)/all, float64(back)/all
		}
		if r.before != nil {
			s.PerSecond = float64(t.Records-was.Records) / elapsed.Seconds()
		}
		r.shares = append(r.shares, s)
	}
	r.at, r.before = now, next
	return r.shares
}

// bottleneck is the vertex that holds the job up: a busy one whose senders wait
// for it. "" where nobody waits.
func (o *Options) bottleneck(shares []share) string {
	busy, back := map[string]float64{}, map[string]float64{}
	for _, s := range shares {
		busy[s.Task.Vertex] = max(busy[s.Task.Vertex], s.Busy)
		back[s.Task.Vertex] = max(back[s.Task.Vertex], s.Backpressured)
	}
	const much = 0.5
	for _, v := range slices.Backward(o.Vertices) {
		if busy[v.Name] < much || back[v.Name] >= much {
			continue
		}
		for _, e := range o.Edges {
			if e.To == v.Name && back[e.From] >= much {
				return v.Name
			}
		}
	}
	return ""
}
