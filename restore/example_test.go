package restore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

var topology = &format.Topology{
	Vertices: []format.Vertex{{ID: "read", Parallelism: 1}, {ID: "count", Parallelism: 1}},
	Edges:    []format.Edge{{From: "read", To: "count", Partitioner: "hash"}},
}

// words opens the job that has the checkpoint to be restored.
func words(ctx context.Context, store string) *spillway.Job {
	job, err := spillway.Open(ctx, store, "words", topology, spillway.Options{})
	check(err)
	c, err := job.Begin(ctx)
	check(err)
	up, down := c.Captures[inflight.Task{Vertex: "read"}], c.Captures[inflight.Task{Vertex: "count"}]
	check(up.Output(inflight.Subpartition{}, inflight.Pos{Offset: 111, Seq: 1}, inflight.Bytes("not sent.")))
	check(down.Input(inflight.InputChannel{}, inflight.Pos{Offset: 100}, inflight.Bytes("not counted")))
	check(down.State("counts", inflight.Bytes("word=1")))
	for _, c := range []*writer.Capture{up, down} {
		check(c.FinishInput())
		check(c.FinishOutput())
	}
	_, err = c.Commit(ctx, format.Unaligned)
	check(err)
	check(job.Close())
	job, err = spillway.Open(ctx, store, "words", topology, spillway.Options{})
	check(err)
	return job
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// task is a subtask of some engine. As a restore.Sink it takes back what it had:
// its state, what it had emitted, and what it had received.
type task struct{ name string }

func (t task) State(_ context.Context, name inflight.StateName, b *reader.Buffer) error {
	fmt.Printf("%s: state %s %q\n", t.name, name, b.Bytes)
	return nil
}

func (t task) Output(_ context.Context, sub inflight.Subpartition, _ inflight.Pos, b *reader.Buffer) error {
	fmt.Printf("%s: to subtask %d %q\n", t.name, sub.Subpartition, b.Bytes)
	return nil
}

func (t task) Input(_ context.Context, ch inflight.InputChannel, _ inflight.Pos, b *reader.Buffer) error {
	fmt.Printf("%s: from subtask %d %q\n", t.name, ch.Channel, b.Bytes)
	return nil
}

// Done says that live data may come.
func (t task) Done(context.Context) error { return nil }

// A plan says what goes where, before anything is read; a replay does it.
func Example() {
	ctx := context.Background()
	job := words(ctx, "mem://restore-example")
	defer job.Close()
	base := job.Coordinator.Base()

	plan, err := restore.NewPlan(base.Manifest, topology, restore.Options{})
	check(err)
	replay, err := restore.NewReplay(ctx, job.Reader.At(base.Manifest, base.Dir), plan, restore.ReplayOptions{})
	check(err)
	defer replay.Close()
	result, err := replay.Run(ctx, func(t inflight.Task) restore.Sink { return task{t.String()} })
	check(err)
	job.Coordinator.ReplayDone() // the base need not be kept for us any longer
	fmt.Println(result.Buffers, "buffers,", result.Bytes, "bytes")
	// Unordered output:
	// read/0: to subtask 0 "not sent."
	// count/0: state counts "word=1"
	// count/0: from subtask 0 "not counted"
	// 3 buffers, 26 bytes
}

// What does not fit is refused, and what would have to be given up is named.
func ExampleNewPlan() {
	ctx := context.Background()
	job := words(ctx, "mem://plan-example")
	defer job.Close()
	changed := &format.Topology{Vertices: topology.Vertices[1:]}

	_, err := restore.NewPlan(job.Coordinator.Base().Manifest, changed, restore.Options{})
	fmt.Println(err)
	plan, err := restore.NewPlan(job.Coordinator.Base().Manifest, changed, restore.Options{AllowDropped: []restore.Scope{{Vertex: "read"}}})
	check(err)
	for _, d := range plan.Dropped {
		fmt.Println("dropped:", d.Scope)
	}
	// Output:
	// plan restore checkpoint 1: does not fit: vertex read is not in the job any more; edge read:0 → count:0 is not in the job any more (change it back, or allow to drop: vertex read, edge read:0 → count:0)
	// dropped: vertex read
}
