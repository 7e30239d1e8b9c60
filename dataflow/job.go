package dataflow

import (
	"context"
	"errors"
	"fmt"
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

// maxRestartDelay bounds the back-off between restarts.
const maxRestartDelay = 30 * time.Second

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
	delay := j.opts.RestartDelay
	for attempt := 0; ; attempt++ {
		err := j.incarnation(ctx)
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, inflight.ErrFenced), errors.Is(err, inflight.ErrConfig), errors.Is(err, inflight.ErrMismatch):
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
	d := j.deployment()
	if d == nil {
		return CheckpointResult{}, &inflight.Error{Op: "savepoint", Err: inflight.ErrClosed}
	}
	done := make(chan CheckpointResult, 1)
	d.Savepoint(func(r CheckpointResult) { done <- r })
	select {
	case r := <-done:
		if !r.Completed {
			return r, &inflight.Error{Op: "savepoint", Object: fmt.Sprintf("checkpoint %d", r.ID), Err: fmt.Errorf("%s: %w", r.Reason, r.Cause)}
		}
		return r, nil
	case <-ctx.Done():
		return CheckpointResult{}, ctx.Err()
	}
}

// Stats is how a job gets on.
type Stats struct {
	Records map[inflight.Task]uint64 // processed, or emitted by a source
	Fill    float64                  // of the output buffers, 0 to 1
}

// Stats returns the statistics of the incarnation at work.
func (j *Job) Stats() Stats {
	d := j.deployment()
	if d == nil {
		return Stats{}
	}
	return Stats{d.Records(), d.Fill()}
}

func (j *Job) deployment() *Deployment {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.at
}

// Fill is which share of the output buffers is in use.
func (d *Deployment) Fill() float64 {
	used, size := 0, 0
	for _, t := range d.tasks {
		for _, p := range t.out {
			used += min(p.pool.out(), p.pool.size)
			size += p.pool.size
		}
	}
	return float64(used) / float64(max(size, 1))
}
