package attach

import (
	"context"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// captureWriter is the writer of one subtask. It implements
// dataflow.CaptureWriter.
type captureWriter struct {
	s *store
	w *writer.Writer
}

// Start implements dataflow.CaptureWriter.
func (w *captureWriter) Start(id inflight.CheckpointID, o dataflow.StartOptions) (dataflow.Capture, error) {
	k := w.s.slot(id)
	if k == nil {
		return nil, &inflight.Error{Op: "start", Object: fmt.Sprintf("checkpoint %d of %s", id, w.w.Task()), Err: inflight.ErrAborted}
	}
	c, err := w.start(k, o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (w *captureWriter) start(k *slot, o dataflow.StartOptions) (*capture, error) {
	wc, err := w.w.Start(k.ID(), writer.StartOptions{Epoch: w.s.Epoch(), Attempt: k.pending.Attempt(), StateOnly: !o.ChannelState})
	if err != nil {
		return nil, err
	}
	c := &capture{k: k, c: wc}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	k.captures[w.w.Task()] = c
	k.savepoint = k.savepoint || o.Savepoint
	return c, nil
}

// Abort implements dataflow.CaptureWriter.
func (w *captureWriter) Abort(id inflight.CheckpointID, cause error) { w.w.Abort(id, cause) }

// Close implements dataflow.CaptureWriter.
func (w *captureWriter) Close() error { return w.w.Close() }

// capture implements dataflow.Capture. What goes wrong in a call is the
// capture's error, which Done reports.
type capture struct {
	k *slot
	c *writer.Capture
}

// Input implements dataflow.Capture.
func (c *capture) Input(ch inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer) {
	_ = c.c.Input(ch, pos, bufs...)
}

// Output implements dataflow.Capture.
func (c *capture) Output(sub inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer) {
	_ = c.c.Output(sub, pos, bufs...)
}

// State implements dataflow.Capture.
func (c *capture) State(name inflight.StateName, bufs ...inflight.Buffer) {
	_ = c.c.State(name, bufs...)
}

// Cuts implements dataflow.Capture. In at-least-once mode a receiver has run
// ahead of its barriers: what it has seen then comes again, and is no cut.
func (c *capture) Cuts(cuts ...inflight.Cut) {
	if c.k.s.j.o.Dataflow.AtLeastOnce {
		cuts = slices.DeleteFunc(slices.Clone(cuts), func(c inflight.Cut) bool { return c.Address.Side == inflight.Input })
	}
	_ = c.c.Cuts(cuts...)
}

// HoldOutput implements dataflow.Capture.
func (c *capture) HoldOutput(sub inflight.Subpartition) dataflow.Hold {
	h, err := c.c.HoldOutput(sub)
	if err != nil {
		return lost{}
	}
	return hold{h}
}

// FinishInput implements dataflow.Capture.
func (c *capture) FinishInput() { _ = c.c.FinishInput() }

// FinishOutput implements dataflow.Capture.
func (c *capture) FinishOutput() { _ = c.c.FinishOutput() }

// Done implements dataflow.Capture.
func (c *capture) Done(f func(inflight.Handle, error)) {
	c.c.Then(func() { f(c.result()) })
}

// wait is Done for who may wait.
func (c *capture) wait(ctx context.Context) (inflight.Handle, error) {
	select {
	case <-c.c.Done():
		return c.result()
	case <-ctx.Done():
		return inflight.Handle{}, ctx.Err()
	}
}

// result returns the handle; the slot gets the files for the manifest.
func (c *capture) result() (inflight.Handle, error) {
	h, err := c.c.Handle()
	if err == nil {
		c.k.s.mu.Lock()
		defer c.k.s.mu.Unlock()
		c.k.files = append(c.k.files, c.c.Files()...)
	}
	return h, err
}

// hold implements dataflow.Hold.
type hold struct{ h *writer.Hold }

// Fill implements dataflow.Hold.
func (h hold) Fill(pos inflight.Pos, bufs ...inflight.Buffer) { _ = h.h.Fill(pos, bufs...) }

// Drop implements dataflow.Hold.
func (h hold) Drop(cause error) { h.h.Drop(cause) }

// lost is a hold of a capture that had failed.
type lost struct{}

// Fill implements dataflow.Hold.
func (lost) Fill(_ inflight.Pos, bufs ...inflight.Buffer) {
	for _, b := range bufs {
		b.Release()
	}
}

// Drop implements dataflow.Hold.
func (lost) Drop(error) {}
