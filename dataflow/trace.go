package dataflow

import (
	"fmt"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Point is one of the places where it shows how a checkpoint goes. The first
// seven are those that docs/semantics.md names, with Flink's function beside
// ours.
type Point string

// The points.
const (
	PointUrgentMail       Point = "urgent mail"       // the trigger reaches a source ahead of its other mail
	PointBarrierAtHead    Point = "barrier at head"   // a task takes a barrier from a channel
	PointHandOver         Point = "hand-over"         // what a barrier overtook goes to the writer
	PointFirstBarrier     Point = "first barrier"     // an unaligned snapshot begins
	PointInputCapture     Point = "input capture"     // what stands in front of the barriers goes to the writer
	PointSwitchUpstream   Point = "switch upstream"   // a queued barrier times out and overtakes
	PointSwitchDownstream Point = "switch downstream" // a task stops waiting for barriers

	PointUnaligned Point = "unaligned" // the first unaligned barrier of a checkpoint has come to a task
	PointFallback  Point = "fallback"  // aligned, since the last checkpoint went over the memory bound

	PointTriggered Point = "triggered" // the coordinator begins
	PointAcked     Point = "acked"     // a subtask's part is durable
	PointCompleted Point = "completed"
	PointFailed    Point = "failed"
	PointSlow      Point = "slow barrier" // an aligned barrier waits behind data
)

// logged reports whether p is what an operator wants to read of.
func (p Point) logged() bool {
	switch p {
	case PointSlow, PointUnaligned, PointSwitchUpstream, PointSwitchDownstream, PointFallback:
		return true
	}
	return false
}

// wants reports whether anybody listens to p.
func (o *Options) wants(p Point) bool { return o.Trace != nil || o.Log != nil && p.logged() }

func (o *Options) say(e TraceEvent) {
	if o.Trace != nil {
		o.Trace(e)
	}
	if o.Log != nil && e.Point.logged() {
		o.Log(e)
	}
}

// TraceEvent is one thing that happened.
type TraceEvent struct {
	At         time.Duration // since the executor began
	Point      Point
	Task       inflight.Task // empty: the coordinator
	Checkpoint inflight.CheckpointID
	Text       string
}

// String returns the event on one line.
func (e TraceEvent) String() string {
	who := "coordinator"
	if e.Task.Vertex != "" {
		who = e.Task.String()
	}
	return fmt.Sprintf("%12.3f ms  %-12s  checkpoint %d  %s: %s", float64(e.At.Microseconds())/1000, who, e.Checkpoint, e.Point, e.Text)
}
