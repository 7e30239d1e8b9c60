package sharing_test

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/sharing"
)

// A plan answers what happened with what is to be done.
func ExamplePlan() {
	a, b := inflight.Task{Vertex: "count", Subtask: 0}, inflight.Task{Vertex: "count", Subtask: 1}
	p := sharing.NewPlan(a, b)
	for _, e := range []sharing.Event{
		{Kind: sharing.Started, Task: a}, {Kind: sharing.HasBytes, Task: a}, {Kind: sharing.Finished, Task: a}, {Kind: sharing.Skipped, Task: b},
	} {
		fmt.Println(p.On(e))
	}
	// Output:
	// []
	// [open 1 join 1 count/0]
	// [linger 1]
	// [seal 1]
}
