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
	code, err := 2, parse(flag.CommandLine)
	if err == nil {
		code, err = run(context.Background())
	}
	if err != nil {
		say("%v", err)
	}
	os.Exit(code)
}

const usage = "usage: lines --store URL --input FILE --output FILE [--restore latest] [--interval D] [--sleep D]"

// parse takes the arguments.
func parse(f *flag.FlagSet) error {
	f.Init("lines", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	switch err := f.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(os.Stdout)
		fmt.Println(usage)
		f.PrintDefaults()
		os.Exit(0)
	case err != nil:
		return fmt.Errorf("%w: see -h", err)
	case f.NArg() > 0:
		return fmt.Errorf("unknown argument %q: see -h", f.Arg(0))
	}
	return nil
}

// check tries what the end will need: the input can be read again from any
// place, the output can be written.
func check() error {
	if *input == "" || *output == "" || min(*interval, *sleep) < 0 {
		return errors.New(usage)
	}
	if info, err := os.Stat(*input); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: the input must be a regular file", *input)
	}
	if info, err := os.Stat(*output); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: the output must be a regular file", *output)
	}
	defer os.Remove(temporary())
	return os.WriteFile(temporary(), nil, 0o644)
}

// say logs one line.
func say(format string, args ...any) {
	log.Print(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// run runs the job. It returns the exit code: 1 if the job failed, 2 if it could
// not start.
func run(ctx context.Context) (int, error) {
	wish, known := map[string]catalog.BaseWish{"latest": catalog.BaseLatest, "nothing": catalog.BaseFresh}[*base]
	if !known {
		return 2, errors.New(usage)
	}
	if err := check(); err != nil {
		return 2, err
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

// lastTries is how often the last checkpoint is tried where that may help.
const lastTries = 5

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
	tick := time.Tick(*interval)
	for done := false; !done; {
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

func temporary() string { return fmt.Sprintf("%s.%d", *output, os.Getpid()) }

// write writes the counts, sorted, to the output, which appears at once.
func (c counts) write() error {
	var text []byte
	for _, word := range slices.Sorted(maps.Keys(c))[1:] { // the first is none
		text = fmt.Appendf(text, "%s\t%d\n", word, c[word])
	}
	err := os.WriteFile(temporary(), text, 0o644)
	if err == nil {
		err = os.Rename(temporary(), *output)
	}
	if err != nil {
		_ = os.Remove(temporary()) // or there is none
	}
	return err
}
