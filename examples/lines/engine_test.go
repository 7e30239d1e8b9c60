package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/enginetest"
	"github.com/spillway-io/spillway/inflight"
)

// engine has the pipeline do the jobs of the conformance kit: their records are
// words, and what comes out is how often each was counted.
type engine struct{}

// TestConformance runs the kit.
func TestConformance(t *testing.T) {
	o := enginetest.Options{Name: "lines", Modes: []enginetest.Mode{enginetest.Unaligned}, Sources: 1, Records: 200, BufferSize: 512, Rounds: 4, VirtualTime: true}
	if thorough {
		o.Rounds = 200
	}
	enginetest.Run(t, engine{}, o)
}

func (e engine) Run(ctx context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return e.start(ctx, j, "nothing")
}

func (e engine) Restore(ctx context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return e.start(ctx, j, "latest")
}

// instance is a run of the pipeline.
type instance struct {
	tick    chan time.Time
	results chan result // of checkpoints
	stop    context.CancelFunc
	ended   chan struct{}
	err     error
}

type result struct {
	id  inflight.CheckpointID
	err error
}

func (e engine) start(ctx context.Context, j *enginetest.Job, base string) (enginetest.Instance, error) {
	if count := &topology.Vertices[2]; count.Parallelism != j.Parallelism {
		count.Parallelism = j.Parallelism
	}
	in := &instance{tick: make(chan time.Time), results: make(chan result, 1), ended: make(chan struct{})}
	begun := make(chan struct{})
	s := standard
	s.store, s.base, s.sleep, s.options.Timeout = j.Store, base, j.Sleep, j.Timeout
	s.input, s.output = filepath.Join(j.Dir, "input"), filepath.Join(j.Dir, "output")
	s.tick = func(time.Duration) <-chan time.Time { return in.tick }
	s.say = func(format string, args ...any) {
		switch {
		case strings.Contains(format, "restore"):
			close(begun)
		case strings.Contains(format, "failed"):
			in.result(result{err: args[1].(error)})
		default:
			in.result(result{id: args[0].(inflight.CheckpointID)})
		}
	}
	if err := os.WriteFile(s.input, []byte(strings.Join(j.Sources[0], " \n")), 0o600); err != nil {
		return nil, err
	}
	ctx, in.stop = context.WithCancel(ctx)
	go func() {
		defer close(in.ended)
		defer in.stop()
		_, in.err = run(ctx, s)
	}()
	select {
	case <-begun:
		return in, nil
	case <-in.ended:
	}
	if in.err != nil {
		return nil, in.err
	}
	return in, nil // it was soon over
}

// result keeps the newest result.
func (in *instance) result(r result) {
	select {
	case <-in.results:
	default:
	}
	in.results <- r
}

func (in *instance) Trigger(ctx context.Context) (inflight.CheckpointID, error) {
	select {
	case in.tick <- time.Time{}:
	case <-in.ended:
		return 0, in.over()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case r := <-in.results:
		return r.id, r.err
	case <-in.ended:
		return 0, in.over()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (in *instance) over() error {
	if in.err == nil {
		return enginetest.ErrFinished
	}
	return fmt.Errorf("the run has ended: %w", in.err)
}

func (in *instance) Stop(ctx context.Context) error {
	select {
	case <-in.ended:
		return in.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *instance) Crash() {
	in.stop()
	<-in.ended
}

func (engine) Output(_ context.Context, j *enginetest.Job) (enginetest.Output, error) {
	text, err := os.ReadFile(filepath.Join(j.Dir, "output"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	out := enginetest.Output{Counts: map[string]int{}}
	for line := range strings.Lines(string(text)) {
		word, n, _ := strings.Cut(strings.TrimSpace(line), "\t")
		out.Counts[word], _ = strconv.Atoi(n)
	}
	return out, err
}
