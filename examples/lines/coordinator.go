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

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
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

// pipeline is the job at work.
type pipeline struct {
	settings
	job   *spillway.Job
	tasks []*task       // in the order of the topology
	left  atomic.Int64  // records in flight, and the source
	done  chan struct{} // closed when nothing is left
}

// run runs the job. With an error comes the exit code: 1 if the job failed, 2 if
// it could not start.
func run(ctx context.Context, s settings) (int, error) {
	file, err := s.open()
	if err != nil {
		return 2, err
	}
	defer file.Close()
	job, err := spillway.Open(ctx, s.store, "lines", topology, s.options)
	if err != nil {
		return 2, err
	}
	defer job.Close()
	p := build(s, job)
	// All is restored before anything runs: it fits into memory.
	restored, err := job.Restore(ctx, p.restore)
	if err != nil {
		return 2, err
	}
	p.say("%v", restored)
	p.tasks[0].source = bufio.NewReader(io.NewSectionReader(file, int64(p.tasks[0].state["bytes"]), math.MaxInt64))
	return 1, p.work(ctx)
}

// build makes the tasks, and connects each with all of the next vertex.
func build(s settings, job *spillway.Job) *pipeline {
	p, upstream := &pipeline{settings: s, job: job, done: make(chan struct{})}, []*task(nil)
	p.left.Store(1)
	for _, v := range topology.Vertices {
		tasks := make([]*task, v.Parallelism)
		for i := range tasks {
			t := &task{pipeline: p, id: inflight.Task{Vertex: v.ID, Subtask: i}, state: counts{}, cuts: map[inflight.Address]*inflight.Cut{},
				inbox: make(chan message, inboxSize+max(1, len(upstream))), slots: make(chan struct{}, inboxSize)}
			for _, up := range upstream {
				up.out = append(up.out, t)
				from, to := inflight.Subpartition{Subpartition: i}.Address(), inflight.InputChannel{Channel: up.id.Subtask}.Address()
				up.cuts[from], t.cuts[to] = &inflight.Cut{Address: from, RecordsKnown: true}, &inflight.Cut{Address: to, RecordsKnown: true}
			}
			tasks[i] = t
		}
		p.tasks, upstream = append(p.tasks, tasks...), tasks
	}
	return p
}

// work runs the tasks and takes checkpoints: each is a barrier through the
// pipeline, and is committed when all that it overtook is durable. The output is
// written only after the last one: who has been superseded must not write it.
func (p *pipeline) work(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	for _, t := range p.tasks {
		running.Go(func() { stop(t.run(ctx)) })
	}
	for c, err := range p.job.Checkpoints(ctx, p.tick(p.interval), p.done) {
		if err != nil {
			return err
		}
		p.tasks[0].inbox <- message{barrier: c}
		_, _ = c.Commit(ctx, format.Unaligned) // one that fails costs nothing but itself
		p.say("%v", c)
	}
	return p.write(p.tasks[len(p.tasks)-1].state)
}

// restore makes positions go on where they were, and returns what takes back the
// records that were in flight.
func (p *pipeline) restore(id inflight.Task, entries []reader.Entry) func(*reader.Buffer) error {
	t := p.tasks[slices.IndexFunc(p.tasks, func(t *task) bool { return t.id == id })]
	for _, e := range entries {
		if cut := t.cuts[e.Address]; cut != nil {
			*cut = e.Cut
		}
	}
	return func(b *reader.Buffer) error {
		m := message{ch: b.Address.Input, sub: b.Address.Output, pos: b.Pos, bytes: bytes.Clone(b.Bytes)}
		switch {
		case b.Address == stateAddress:
			return t.state.set(b.Bytes)
		case t.cuts[b.Address] == nil || len(b.Bytes) < 4 || len(t.pending) == inboxSize:
			return fmt.Errorf("%w: %d bytes of %v, which no checkpoint of this program has", inflight.ErrMismatch, len(b.Bytes), b.Address)
		case b.Address.Side == inflight.Output:
			m.ch.Channel = t.id.Subtask
			t.queue = append(t.queue, m)
		default:
			t.slots <- struct{}{}
			t.pending = append(t.pending, m)
		}
		p.left.Add(1)
		return nil
	}
}
