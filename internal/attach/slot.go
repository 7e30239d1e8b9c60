package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// slot is a checkpoint that has been begun. It implements dataflow.Slot.
type slot struct {
	s        *store
	pending  *catalog.Pending
	begun    time.Time
	decision string // why it went as it did

	// Guarded by store.mu.
	captures  map[inflight.Task]*capture
	files     []format.FileInfo // of captures that are durable
	savepoint bool

	// Of who runs on store.commits.
	settled bool // the slot is filled, or need not be filled now
	acks    []dataflow.Ack
	acked   time.Time
}

// ID implements dataflow.Slot.
func (k *slot) ID() inflight.CheckpointID { return k.pending.ID() }

// Commit implements dataflow.Slot.
func (k *slot) Commit(c dataflow.Completed, done func(dataflow.Committed, error)) {
	acked := time.Now()
	if !k.s.commits.do(func() {
		k.acks, k.acked = c.Acks, acked
		k.commit(c, done)
	}) {
		done(dataflow.Committed{}, &inflight.Error{Op: "commit", Object: fmt.Sprintf("checkpoint %d", k.ID()), Err: inflight.ErrClosed})
	}
}

func (k *slot) commit(c dataflow.Completed, done func(dataflow.Committed, error)) {
	err := k.decide(c)
	k.forget()
	committed := k.pending.Checkpoint()
	if err != nil || committed == nil {
		done(dataflow.Committed{}, err)
		return
	}
	size := committed.SizeBytes()
	stats := k.stats(catalog.StateCompleted, "")
	stats.complete(committed, size)
	k.s.keep(stats)
	done(dataflow.Committed{Bytes: size, Files: len(committed.Manifest.Files)}, nil)
}

// decide fills the slot: with the checkpoint, or, with an error, with an aborted
// entry. Where it cannot be known what the slot holds, it goes on asking as long
// as the incarnation lives: a sink must neither commit nor roll back before.
func (k *slot) decide(c dataflow.Completed) error {
	ctx, cancel := context.WithTimeout(k.s.life, k.s.j.o.Dataflow.Timeout)
	defer cancel()
	m, err := k.manifest(ctx, c)
	if err == nil {
		err = k.s.check.check(ctx, m, c.Acks, k.s.bound())
	}
	if check := k.s.j.o.BeforeCommit; err == nil && check != nil {
		err = check(ctx, m, c.Acks)
	}
	if err == nil {
		err = k.pending.Commit(ctx, m)
	}
	if err == nil {
		k.s.check.accept(k.ID())
		return nil
	}
	reason := dataflow.ReasonCommit
	if errors.Is(err, dataflow.ErrCheckFailed) {
		reason = dataflow.ReasonCheck
	}
	cause := causeOf(reason, err)
	for try := 0; ; try++ {
		committed, abortErr := k.pending.Abort(k.s.life, cause)
		switch {
		case committed:
			k.s.check.accept(k.ID())
			return nil
		case abortErr == nil:
			k.settled = true
			return err
		case isOver(abortErr):
			return k.s.judge(abortErr)
		case !errors.Is(err, inflight.ErrOutcomeUnknown):
			return err // it is not the checkpoint: nothing of that was sent
		}
		if !sleep(k.s.life, min(100*time.Millisecond<<min(try, 10), 5*time.Second)) {
			return err
		}
	}
}

// isOver reports whether err ends the coordinator.
func isOver(err error) bool {
	return errors.Is(err, inflight.ErrFenced) || errors.Is(err, inflight.ErrDamaged)
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// manifest makes the manifest, after what is missing of it is durable: where
// the connections of finished subtasks stood.
func (k *slot) manifest(ctx context.Context, c dataflow.Completed) (*format.Manifest, error) {
	handles := make(map[inflight.Task]inflight.Handle, len(c.Acks)+len(c.Finished))
	for _, a := range c.Acks {
		handles[a.Task] = a.Handle
	}
	late := make([]*capture, len(c.Finished))
	for i, f := range c.Finished {
		var err error
		if late[i], err = k.captureFinished(f); err != nil {
			return nil, err
		}
	}
	finished := make(map[inflight.Task]bool, len(late))
	for _, l := range late {
		h, err := l.wait(ctx)
		if err != nil {
			return nil, err
		}
		handles[h.Task], finished[h.Task] = h, true
	}
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: k.s.j.o.Name, ID: k.ID(), Mode: format.ExactlyOnce, Alignment: alignment(c.Acks), Savepoint: c.Savepoint, Partial: dataflow.CheckpointResult{Acks: c.Acks}.Partial(), Topology: k.s.j.topology}
	if k.s.j.o.Dataflow.AtLeastOnce {
		m.Mode = format.AtLeastOnce
	}
	var ordered []inflight.Handle
	for _, v := range m.Topology.Vertices {
		for i := range v.Parallelism {
			t := inflight.Task{Vertex: v.ID, Subtask: i}
			if h, ok := handles[t]; ok {
				ordered = append(ordered, h)
			}
			if finished[t] {
				m.Finished = append(m.Finished, t)
			}
		}
	}
	k.s.mu.Lock()
	k.s.finished = c.Finished
	files := slices.Clone(k.files)
	k.s.mu.Unlock()
	m.SetHandles(ordered, files...)
	return m, nil
}

func alignment(acks []dataflow.Ack) format.Alignment {
	return format.Alignment(dataflow.CheckpointResult{Acks: acks}.Alignment())
}

// captureFinished captures what a finished subtask ended with, its cuts, unless
// that is under way.
func (k *slot) captureFinished(f dataflow.Finished) (*capture, error) {
	k.s.mu.Lock()
	c := k.captures[f.Task]
	k.s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	w := k.s.writer(f.Task)
	if w == nil {
		return nil, &inflight.Error{Op: "capture", Object: f.Task.String(), Err: fmt.Errorf("%w: it has no writer", inflight.ErrIncomplete)}
	}
	c, err := w.start(k, dataflow.StartOptions{})
	if err != nil {
		return nil, err
	}
	c.Cuts(f.Cuts...)
	c.FinishInput()
	c.FinishOutput()
	return c, nil
}

// Abort implements dataflow.Slot.
func (k *slot) Abort(r dataflow.Reason, cause error) {
	k.forget()
	k.s.mu.Lock()
	writers := slices.Clone(k.s.writers)
	k.s.mu.Unlock()
	for _, w := range writers {
		w.w.Abort(k.ID(), cause)
	}
	why := causeOf(r, cause)
	k.pending.GiveUp(why)
	ended := time.Now()
	k.s.commits.do(func() {
		if !k.settled {
			ctx, cancel := context.WithTimeout(k.s.life, abortTime)
			defer cancel()
			_, err := k.pending.Abort(ctx, why)
			k.settled = k.s.judge(err) == nil
		}
		if k.settled { // else its directory may be another's
			stats := k.stats(catalog.State(why.Kind), why.Reason)
			stats.DurationMS = ms(ended.Sub(k.begun))
			k.s.keep(stats)
		}
	})
}

// abortTime bounds an abort, behind which the next commit waits: it fills the
// slot itself where the abort could not.
const abortTime = 30 * time.Second

// forget takes the slot off the list of those that captures are begun for.
func (k *slot) forget() {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	delete(k.s.slots, k.ID())
}

// causeOf says why a checkpoint is given up.
func causeOf(r dataflow.Reason, cause error) format.Cause {
	c := format.Cause{Kind: format.CauseFailed, Reason: string(r)}
	if cause != nil {
		c.Text = cause.Error()
	}
	switch r {
	case dataflow.ReasonTimeout, dataflow.ReasonSubsumed, dataflow.ReasonAborted, dataflow.ReasonTaskStopped:
		c.Kind = format.CauseAborted
	case dataflow.ReasonUpstream, dataflow.ReasonNotReady, dataflow.ReasonOverBudget:
		c.Kind = format.CauseDeclined
	}
	return c
}
