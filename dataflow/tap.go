package dataflow

import "github.com/spillway-io/spillway/inflight"

// Connection is what an edge makes of two subtasks.
type Connection struct {
	From, To        inflight.Task
	Partition, Gate int // of From, of To
}

// Tap has f called with all bytes that senders publish, on each connection in
// order; offset is where p begins. It is for tests, and called before Start.
func (d *Deployment) Tap(f func(c Connection, offset uint64, p []byte)) {
	for _, t := range d.tasks {
		for _, ch := range t.in.channels {
			c := Connection{To: t.id, From: inflight.Task{Subtask: ch.address.Channel}, Partition: ch.up.part.index, Gate: ch.address.Gate}
			for _, e := range d.edges {
				if e.To == t.id.Vertex && e.Gate == c.Gate {
					c.From.Vertex = e.From
				}
			}
			s := ch.up
			s.tap = func(p []byte) { f(c, s.published-uint64(len(p)), p) }
		}
	}
}
