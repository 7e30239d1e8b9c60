package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// Tests watch through these.
var (
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

// run runs the job. It returns the exit code: 1 if the job failed, 2 if it could
// not start.
func run(ctx context.Context) (int, error) {
	file, err := check()
	if err != nil {
		return 2, err
	}
	defer file.Close()
	o := options
	o.Start.Base = wishes[*base]
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

// work runs the tasks and takes checkpoints. If the store fails, the job goes on
// without; but the last one comes at the end, and the output is written only
// after it: who has been superseded must not write it.
func work(ctx context.Context, job *spillway.Job, tasks []*task) error {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	for _, t := range tasks {
		running.Go(func() { stop(t.run(ctx)) })
	}
	for tick, done := time.Tick(*interval), false; !done; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
		case <-tasks[0].done:
			done = true
		}
		err := checkpoint(ctx, job, tasks)
		for try := 1; done && try < lastTries && inflight.Retryable(err) && job.Coordinator.Err() == nil; try++ {
			time.Sleep(*interval)
			err = checkpoint(ctx, job, tasks)
		}
		switch fenced := job.Coordinator.Err(); {
		case fenced != nil:
			return fenced
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done && err != nil:
			return fmt.Errorf("the last checkpoint could not be committed: %w: the output was not written; free space and run again with --restore latest", err)
		}
	}
	return tasks[len(tasks)-1].state.write()
}

// checkpoint sends a barrier through the pipeline, and commits when all that it
// overtook is durable.
func checkpoint(ctx context.Context, job *spillway.Job, tasks []*task) error {
	begun := time.Now()
	c, err := job.Begin(ctx)
	if err != nil {
		say("no checkpoint: %v", err)
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
		return err
	}
	say("checkpoint %d: captured %d bytes in flight in %v", c.ID(), done.Manifest.PersistedBytes(), time.Since(begun).Round(time.Millisecond))
	return nil
}

// restore makes positions go on where they were, and returns what takes back the
// records that were in flight.
func (t *task) restore(entries []reader.Entry) func(*reader.Buffer) error {
	for _, e := range entries {
		for _, cuts := range [][]inflight.Cut{t.consumed, t.emitted} {
			if i := slices.IndexFunc(cuts, func(c inflight.Cut) bool { return c.Address == e.Address }); i >= 0 {
				cuts[i] = e.Cut
			}
		}
	}
	return func(b *reader.Buffer) error {
		a := b.Address
		if a == stateAddress {
			return t.state.set(b.Bytes)
		}
		known := slices.ContainsFunc(slices.Concat(t.consumed, t.emitted), func(c inflight.Cut) bool { return c.Address == a })
		if !known || len(b.Bytes) < 4 || len(t.pending) == inboxSize {
			return fmt.Errorf("%w: %d bytes of %v, which no checkpoint of this program has", inflight.ErrMismatch, len(b.Bytes), a)
		}
		t.left.Add(1)
		m := message{from: t.id.Subtask, to: a.Output.Subpartition, pos: b.Pos, bytes: bytes.Clone(b.Bytes)}
		if a.Side == inflight.Output {
			t.queue = append(t.queue, m)
			return nil
		}
		m.from, m.to = a.Input.Channel, t.id.Subtask
		t.slots <- struct{}{}
		t.pending = append(t.pending, m)
		return nil
	}
}
