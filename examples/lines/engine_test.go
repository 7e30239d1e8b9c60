package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/enginetest"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/restore"
)

// engine has the pipeline do the jobs of the conformance kit: their records are
// words, and what comes out is how often each was counted.
type engine struct{}

// TestConformance runs the kit on pipelines in this process, with faults of the
// store.
func TestConformance(t *testing.T) {
	o := enginetest.Options{Name: "lines", Modes: []enginetest.Mode{enginetest.Unaligned}, Sources: 1, Records: 200, BufferSize: 512, Rounds: 4, VirtualTime: true}
	if thorough {
		o.Rounds = 200
	}
	enginetest.Run(t, engine{}, o)
}

func (e engine) Run(ctx context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return e.start(ctx, j, "none")
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
	s.store, s.sleep, s.options.Timeout = j.Store, j.Sleep, j.Timeout
	if err := s.options.Start.Base.UnmarshalText([]byte(base)); err != nil {
		return nil, err
	}
	s.input, s.output = filepath.Join(j.Dir, "input"), filepath.Join(j.Dir, "output")
	s.tick = func(time.Duration) <-chan time.Time { return in.tick }
	s.say = func(_ string, args ...any) {
		switch about := args[0].(type) {
		case *restore.Result:
			close(begun)
		case *spillway.Checkpoint:
			in.result(result{id: about.ID(), err: about.Err()})
		}
	}
	if err := writeInput(j); err != nil {
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

// writeInput makes a file of the records.
func writeInput(j *enginetest.Job) error {
	return os.WriteFile(filepath.Join(j.Dir, "input"), []byte(strings.Join(j.Sources[0], " \n")), 0o600)
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
		return in.next(ctx)
	case <-in.ended:
		return 0, in.over()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// next waits for the next result.
func (in *instance) next(ctx context.Context) (inflight.CheckpointID, error) {
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

// programs has the program do the same in processes of its own, where a crash is
// kill -9.
type programs struct{ engine }

// TestConformanceKill runs the kit on processes.
func TestConformanceKill(t *testing.T) {
	o := enginetest.Options{Name: "lines", Modes: []enginetest.Mode{enginetest.Unaligned}, Sources: 1, BufferSize: 512, Rounds: 1, Processes: true}
	if thorough {
		o.Rounds = 50
	}
	for r := range enginetest.Each(t.Context(), programs{}, o) {
		if r.Skipped == "" {
			t.Logf("%s: %s", r.Name, r.Tally)
		}
		require.NoError(t, r.Err, r.About)
	}
}

func (p programs) Run(_ context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return p.start(j, "none")
}

func (p programs) Restore(_ context.Context, j *enginetest.Job) (enginetest.Instance, error) {
	return p.start(j, "latest")
}

// process is the program at work. It takes checkpoints of its own accord; to
// trigger one is to wait for one.
type process struct {
	instance
	cmd *exec.Cmd
}

func (programs) start(j *enginetest.Job, base string) (enginetest.Instance, error) {
	if err := writeInput(j); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{instance: instance{results: make(chan result, 1), ended: make(chan struct{})}}
	p.cmd = exec.Command(exe, "--store", j.Store, "--input", filepath.Join(j.Dir, "input"), "--output", filepath.Join(j.Dir, "output"), "--restore", base, "--interval", "5ms", "--sleep", j.Sleep.String())
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	begun, last := make(chan struct{}), ""
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			last = lines.Text()
			var id inflight.CheckpointID
			switch _, err := fmt.Sscanf(last, "lines: checkpoint %d: captured", &id); {
			case err == nil:
				p.result(result{id: id})
			case strings.Contains(last, "restore"):
				close(begun)
			}
		}
		switch err := p.cmd.Wait(); {
		case strings.Contains(last, "fenced"):
			p.err = fmt.Errorf("%w: %s", inflight.ErrFenced, last)
		case strings.Contains(last, "start again"):
			p.err = fmt.Errorf("%w: %s", inflight.ErrUnavailable, last)
		case err != nil:
			p.err = fmt.Errorf("%w: %s", err, last)
		}
	}()
	select {
	case <-begun:
		return p, nil
	case <-p.ended:
		return nil, p.err
	}
}

func (p *process) Trigger(ctx context.Context) (inflight.CheckpointID, error) {
	select {
	case <-p.results: // one from before
	default:
	}
	return p.next(ctx)
}

func (p *process) Crash() {
	_ = p.cmd.Process.Kill() // or it has ended
	<-p.ended
}
