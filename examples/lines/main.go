// Command lines counts the words of a file, slowly, and survives kill -9. It is
// a small stream processor of goroutines and channels that keeps its checkpoints
// with Spillway, as any engine would: pipeline.go moves records and barriers,
// this file is the coordinator.
//
//	read ──▶ split ×2 ──▶ count ×2 ──▶ output
//
// The output has a line word<TAB>count for each word, sorted, as
// LC_ALL=C tr -s '[:space:]' '\n' <FILE | grep . | LC_ALL=C sort | uniq -c counts.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

var (
	store    = flag.String("store", "", "directory or `URL` of the checkpoints")
	input    = flag.String("input", "", "`FILE` to count the words of")
	output   = flag.String("output", "", "`FILE` to write the counts to")
	base     = flag.String("restore", "nothing", "go on from the `latest` checkpoint")
	interval = flag.Duration("interval", 200*time.Millisecond, "from one checkpoint to the next")
	sleep    = flag.Duration("sleep", time.Millisecond, "how long it takes to count a word")

	// Tests watch through these.
	options   spillway.Options
	newBuffer = func(b []byte) inflight.Buffer { return inflight.Bytes(b) }
)

const records = "length-prefixed" // by a big-endian int32: the inspector can count them

var topology = &format.Topology{
	Vertices: []format.Vertex{{ID: "read", Parallelism: 1}, {ID: "split", Parallelism: 2}, {ID: "count", Parallelism: 2}, {ID: "output", Parallelism: 1}},
	Edges: []format.Edge{
		{From: "read", To: "split", Partitioner: "rebalance", Serializer: records},
		{From: "split", To: "count", Partitioner: "hash", Serializer: records},
		{From: "count", To: "output", Partitioner: "hash", Serializer: records},
	},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("lines: ")
	flag.Parse()
	code, err := run(context.Background())
	if err != nil {
		say("%v", err)
	}
	os.Exit(code)
}

// say logs one line.
func say(format string, args ...any) {
	log.Print(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// run runs the job. It returns the exit code: 1 if the job failed, 2 if it could
// not start.
func run(ctx context.Context) (int, error) {
	wish, known := map[string]catalog.BaseWish{"latest": catalog.BaseLatest, "nothing": catalog.BaseFresh}[*base]
	if !known || *output == "" {
		return 2, errors.New("usage: lines --store URL --input FILE --output FILE [--restore latest]")
	}
	o := options
	o.Start.Base = wish
	file, err := os.Open(*input)
	if err != nil {
		return 2, err
	}
	defer file.Close()
	job, err := spillway.Open(ctx, *store, "lines", topology, o)
	if err != nil {
		return 2, err
	}
	defer job.Close()
	tasks := build(job.Coordinator.Epoch())
	// All is restored before anything runs: it fits into memory.
	restored, err := job.Restore(ctx, func(id inflight.Task, entries []reader.Entry) func(*reader.Buffer) error {
		return tasks[slices.IndexFunc(tasks, func(t *task) bool { return t.id == id })].restore(entries)
	})
	switch {
	case err != nil:
		return 2, err
	case restored == nil:
		say("nothing to restore: starting afresh")
	default:
		say("checkpoint %d restored: %d bytes", restored.Checkpoint, restored.Bytes)
	}
	tasks[0].source = bufio.NewReader(io.NewSectionReader(file, int64(tasks[0].state["bytes"]), math.MaxInt64))
	if err := work(ctx, job, tasks); err != nil {
		return 1, err
	}
	return 0, nil
}

// build makes the tasks, and connects each with all of the next vertex.
func build(epoch inflight.Epoch) (all []*task) {
	left, done, upstream := new(atomic.Int64), make(chan struct{}), []*task(nil)
	left.Add(1)
	for _, v := range topology.Vertices {
		tasks := make([]*task, v.Parallelism)
		for i := range tasks {
			t := &task{id: inflight.Task{Vertex: v.ID, Subtask: i}, epoch: epoch, state: counts{"": 1}, left: left, done: done,
				inbox: make(chan message, inboxSize+max(1, len(upstream))), slots: make(chan struct{}, inboxSize), taken: make(chan struct{}, 1)}
			for _, up := range upstream {
				up.out = append(up.out, t)
				up.emitted = append(up.emitted, inflight.Cut{Address: inflight.Subpartition{Subpartition: i}.Address(), RecordsKnown: true})
				t.consumed = append(t.consumed, inflight.Cut{Address: inflight.InputChannel{Channel: up.id.Subtask}.Address(), RecordsKnown: true})
			}
			tasks[i] = t
		}
		all, upstream = append(all, tasks...), tasks
	}
	return all
}

// work runs the tasks and takes checkpoints. The last one comes at the end: who
// has been superseded must not write the output.
func work(ctx context.Context, job *spillway.Job, tasks []*task) error {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	for _, t := range tasks {
		running.Go(func() { stop(t.run(ctx)) })
	}
	tick := time.Tick(*interval)
	for done := false; !done; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
		case <-tasks[0].done:
			done = true
		}
		if err := checkpoint(ctx, job, tasks); err != nil {
			return err
		}
	}
	return tasks[len(tasks)-1].state.write(*output)
}

// checkpoint sends a barrier through the pipeline, and commits when all that it
// overtook is durable. If the store fails, the job goes on without.
func checkpoint(ctx context.Context, job *spillway.Job, tasks []*task) error {
	begun := time.Now()
	c, err := job.Begin(ctx)
	if err != nil {
		return err
	}
	tasks[0].inbox <- message{barrier: c}
	for _, t := range tasks {
		select {
		case <-t.taken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	done, err := c.Commit(ctx, format.Unaligned)
	if err != nil {
		say("checkpoint %d failed: %v", c.ID(), err)
		return job.Coordinator.Err()
	}
	say("checkpoint %d: captured %d bytes in flight in %v", c.ID(), done.Manifest.PersistedBytes(), time.Since(begun).Round(time.Millisecond))
	return nil
}

// restore makes positions go on where they were, and returns what takes back the
// records that were in flight.
func (t *task) restore(entries []reader.Entry) func(*reader.Buffer) error {
	for _, e := range entries {
		switch e.Address.Side {
		case inflight.Input:
			t.consumed[e.Address.Input.Channel] = e.Cut
		case inflight.Output:
			t.emitted[e.Address.Output.Subpartition] = e.Cut
		}
	}
	return func(b *reader.Buffer) error {
		switch a := b.Address; a.Side {
		case inflight.State:
			t.state.set(b.Bytes)
		case inflight.Output:
			t.left.Add(1)
			t.queue = append(t.queue, message{from: t.id.Subtask, to: a.Output.Subpartition, pos: b.Pos, bytes: bytes.Clone(b.Bytes)})
		case inflight.Input:
			t.left.Add(1)
			t.slots <- struct{}{}
			t.pending = append(t.pending, message{from: a.Input.Channel, to: t.id.Subtask, pos: b.Pos, bytes: bytes.Clone(b.Bytes)})
		}
		return nil
	}
}

// write writes the counts, sorted, to a file that appears at once.
func (c counts) write(name string) error {
	var text []byte
	for _, word := range slices.Sorted(maps.Keys(c))[1:] { // the first is none
		text = fmt.Appendf(text, "%s\t%d\n", word, c[word])
	}
	tmp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
