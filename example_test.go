package spillway_test

import (
	"context"
	"fmt"
	"log"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// A whole life: take charge of a job, capture what a barrier overtook, commit.
//
//nolint:errcheck // Commit says what went wrong with a capture
func Example() {
	ctx, task := context.Background(), inflight.Task{Vertex: "count", Subtask: 0}
	topology := &format.Topology{Vertices: []format.Vertex{{ID: "count", Parallelism: 1}}}
	job, err := spillway.Open(ctx, "mem://example", "words", topology, spillway.Options{}) // or s3://…, or a directory
	if err != nil {
		log.Fatal(err)
	}
	defer job.Close()
	checkpoint, _ := job.Begin(ctx)
	capture := checkpoint.Captures[task]
	capture.Input(inflight.InputChannel{Gate: 0, Channel: 2}, inflight.Pos{Offset: 8192}, inflight.Bytes("in flight"))
	capture.FinishInput()
	capture.FinishOutput()
	done, err := checkpoint.Commit(ctx, format.Unaligned)
	fmt.Println(done.Manifest, "holds", done.Manifest.PersistedBytes(), "bytes in flight:", err)
	// Output: checkpoint 1 holds 9 bytes in flight: <nil>
}
