package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// manifest is what a coordinator knows when all subtasks have acknowledged: here
// of one subtask that had nothing to capture.
func manifest(id inflight.CheckpointID) *format.Manifest {
	m := &format.Manifest{Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "count", Parallelism: 1}}}}
	m.SetHandles([]inflight.Handle{{Task: inflight.Task{Vertex: "count"}, Checkpoint: id}}) // and what Capture.Files says
	return m
}

// A coordinator claims the job, commits, and retires what is no longer kept.
func Example() {
	ctx := context.Background()
	jobs, err := catalog.Open(mem.New(mem.Options{}), "words", catalog.Options{Retained: 1})
	if err != nil {
		log.Fatal(err)
	}
	c, err := jobs.Start(ctx, catalog.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("epoch", c.Epoch(), "base", c.Base())
	for range 2 {
		p, err := c.Begin()
		if err != nil {
			log.Fatal(err)
		}
		// … the subtasks capture, the files of p.ID() carry p.Attempt() …
		if err := p.Commit(ctx, manifest(p.ID())); err != nil {
			log.Fatal(err)
		}
		// … notify …
		if err := c.Retire(ctx); err != nil {
			log.Fatal(err)
		}
	}
	p, err := c.Begin()
	if err != nil {
		log.Fatal(err)
	}
	_, err = p.Abort(ctx, format.Cause{Kind: format.CauseDeclined, Reason: "over-budget"})
	fmt.Println("given up:", err)

	slots, err := jobs.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range slots {
		fmt.Println(s.ID, s.Kind, s.State)
	}
	// Output:
	// epoch 0 base <nil>
	// given up: <nil>
	// 2 checkpoint completed
	// 3 checkpoint declined
}

// A coordinator that was paused while another one took over learns it at its
// next commit. It must end: notify, delete and roll back nothing.
func ExampleLog_Start() {
	ctx := context.Background()
	jobs, err := catalog.Open(mem.New(mem.Options{}), "words", catalog.Options{})
	if err != nil {
		log.Fatal(err)
	}
	paused, err := jobs.Start(ctx, catalog.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	p, err := paused.Begin()
	if err != nil {
		log.Fatal(err)
	}

	heir, err := jobs.Start(ctx, catalog.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("epochs", paused.Epoch(), heir.Epoch())

	err = p.Commit(ctx, manifest(p.ID()))
	fmt.Println("fenced:", errors.Is(err, inflight.ErrFenced))
	// Output:
	// epochs 0 1
	// fenced: true
}

// gc says what it would delete, and why.
func ExampleLog_GC() {
	ctx := context.Background()
	jobs, err := catalog.Open(mem.New(mem.Options{}), "words", catalog.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if _, err := jobs.Start(ctx, catalog.StartOptions{}); err != nil {
			log.Fatal(err)
		}
	}
	plan, err := jobs.GC(ctx, catalog.GCOptions{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, i := range plan.Items {
		fmt.Println(i.Name, i.Class, i.Delete)
	}
	// Output:
	// words/chk-0000000000/_manifest.json retired true
	// words/chk-0000000001/_manifest.json kept false
}
