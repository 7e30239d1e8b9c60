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

	PointTriggered Point = "triggered" // the coordinator begins
	PointAcked     Point = "acked"     // a subtask's part is durable
	PointCompleted Point = "completed"
	PointFailed    Point = "failed"
	PointSlow      Point = "slow barrier" // an aligned barrier waits behind data
)

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
