package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Job runs a graph on goroutines until its data ends, and again from its last
// checkpoint after a failure.
type Job struct {
	graph *Graph
	opts  Options
	open  func(context.Context) (Store, error)
	exec  *Goroutines

	mu sync.Mutex
	at *Deployment
}

// The back-off between restarts doubles.
const defaultRestartDelay, maxRestartDelay = 100 * time.Millisecond, 30 * time.Second

// permanent reports whether a restart would meet err again, or must not be.
func permanent(err error) bool {
	return slices.ContainsFunc([]error{
		inflight.ErrFenced, inflight.ErrConfig, inflight.ErrMismatch, inflight.ErrRetired, inflight.ErrDamaged,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// NewJob returns a job. open is called for each incarnation: it claims the job
// and says what to restore; nil means that there are no checkpoints.
func NewJob(g *Graph, o Options, open func(context.Context) (Store, error)) *Job {
	return &Job{graph: g, opts: o, open: open, exec: NewGoroutines()}
}

// Run returns when the data has ended, when the job has failed for good, or
// soon after ctx has: then with its error. Another coordinator that has taken
// over is ErrFenced, which is never followed by a restart.
func (j *Job) Run(ctx context.Context) error {
	defer j.exec.Wait()
	delay := cmp.Or(j.opts.RestartDelay, defaultRestartDelay)
	for attempt := 0; ; attempt++ {
		err := j.incarnation(ctx)
		switch {
		case err == nil, ctx.Err() != nil, permanent(err):
			return err
		case j.opts.Restarts >= 0 && attempt >= j.opts.Restarts:
			return fmt.Errorf("given up after %d restarts: %w", attempt, err)
		}
		if j.opts.OnRestart != nil {
			j.opts.OnRestart(attempt+1, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		delay = min(2*delay, maxRestartDelay)
	}
}

// incarnation runs one deployment.
func (j *Job) incarnation(ctx context.Context) error {
	var store Store
	if j.open != nil {
		var err error
		if store, err = j.open(ctx); err != nil {
			return err
		}
	}
	end := make(chan error, 1)
	d, err := Deploy(j.exec, j.graph, j.opts, store, func(err error) { end <- err })
	if err != nil {
		return err
	}
	j.mu.Lock()
	j.at = d
	j.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { d.Stop(ctx.Err()) })
	defer stop()
	d.Start()
	return <-end
}

// Savepoint takes a savepoint, which is always aligned, and waits for it.
func (j *Job) Savepoint(ctx context.Context) (CheckpointResult, error) {
	return j.Trigger(ctx, Request{Savepoint: true})
}

// Trigger takes a checkpoint out of turn, and waits for it.
func (j *Job) Trigger(ctx context.Context, r Request) (CheckpointResult, error) {
	if err := r.check(&j.opts); err != nil {
		return CheckpointResult{}, err
	}
	d := j.deployment()
	if d == nil {
		return CheckpointResult{}, &inflight.Error{Op: r.kind(), Err: inflight.ErrClosed}
	}
	done := make(chan CheckpointResult, 1)
	d.Trigger(r, func(r CheckpointResult) { done <- r })
	select {
	case got := <-done:
		if !got.Completed {
			return got, &inflight.Error{Op: r.kind(), Object: fmt.Sprintf("checkpoint %d", got.ID), Err: fmt.Errorf("%s: %w", got.Reason, got.Cause)}
		}
		return got, nil
	case <-ctx.Done():
		return CheckpointResult{}, ctx.Err()
	}
}

func (j *Job) deployment() *Deployment {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.at
}
