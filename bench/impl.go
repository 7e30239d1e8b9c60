package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// The driver touches the toolkit here and in metadata.go, nowhere else.

const (
	vertex  = "v" // the only one of a cell
	attempt = "bench"
	epoch   = 3 // the id of the coordinator's claim
)

// A capturer captures and restores the checkpoints of one cell, as the tasks and
// the coordinator of an engine would.
type capturer struct {
	cell
	load    *load
	dir     string
	store   *local.Backend
	pool    *writer.Pool
	writers []*writer.Writer
	cuts    [][]inflight.Cut
	sinks   []*sink

	id       inflight.CheckpointID // of the last checkpoint
	captured []*writer.Capture
}

// newCapturer returns a capturer of c, whose payload is l, with a directory of
// its own below dir.
func newCapturer(dir string, c cell, l *load) (*capturer, error) {
	job, err := os.MkdirTemp(dir, "job-")
	if err != nil {
		return nil, err
	}
	p := &capturer{cell: c, load: l, dir: job, store: local.New(job), id: epoch, captured: make([]*writer.Capture, c.S)}
	// Nothing may be declined, and the number of files is the cell's.
	big := int64(c.bytes()) + 256<<20
	p.pool, err = writer.NewPool(writer.Options{Backend: p.store, TasksPerFile: c.Max, MaxBuffered: big, TargetFileSize: big})
	for sub := 0; sub < c.S && err == nil; sub++ {
		var w *writer.Writer
		w, err = p.pool.Writer(inflight.Task{Vertex: vertex, Subtask: sub})
		p.writers = append(p.writers, w)
		p.cuts = append(p.cuts, c.cuts(sub))
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// pos is where the captured bytes of a channel begin: somewhere in a stream that
// has run for a while.
func pos(sub, ch int) inflight.Pos {
	n := uint64(sub*1000 + ch*10 + 7)
	return inflight.Pos{Epoch: epoch, Offset: n * 65537, Seq: n * 3}
}

// cuts are the cuts of a subtask: what was consumed of its input ends where the
// captured bytes begin, what it emitted ends where they do.
func (c cell) cuts(sub int) (cuts []inflight.Cut) {
	for ch := range c.I {
		at := pos(sub, ch)
		cuts = append(cuts, inflight.Cut{Address: inflight.InputChannel{Channel: ch}.Address(), Epoch: at.Epoch, Bytes: at.Offset, Records: at.Seq, RecordsKnown: true})
	}
	for ch := range c.O {
		at := pos(sub, ch).Advance(uint64(c.B*c.Size), c.B)
		cuts = append(cuts, inflight.Cut{Address: inflight.Subpartition{Subpartition: ch}.Address(), Epoch: at.Epoch, Bytes: at.Offset, Records: at.Seq, RecordsKnown: true})
	}
	return cuts
}

// begin makes ready for the next checkpoint; it is not timed.
func (p *capturer) begin() error {
	p.id++
	return os.Mkdir(filepath.Join(p.dir, format.CheckpointDir(p.id)), 0o700)
}

// capture hands over all buffers of one subtask and returns when they are
// durable. The subtasks of a checkpoint capture at the same time.
func (p *capturer) capture(sub int) error {
	c, err := p.writers[sub].Start(p.id, writer.StartOptions{Epoch: epoch, Attempt: attempt})
	if err != nil {
		return err
	}
	err = c.Cuts(p.cuts[sub]...)
	for ch := 0; ch < p.I && err == nil; ch++ {
		err = c.Input(inflight.InputChannel{Channel: ch}, pos(sub, ch), p.load.retain(sub, payload.Input, ch)...)
	}
	for ch := 0; ch < p.O && err == nil; ch++ {
		err = c.Output(inflight.Subpartition{Subpartition: ch}, pos(sub, ch), p.load.retain(sub, payload.Output, ch)...)
	}
	if err == nil {
		err = errors.Join(c.FinishOutput(), c.FinishInput())
	}
	if err != nil {
		return err
	}
	<-c.Done()
	p.captured[sub] = c
	_, err = c.Handle()
	return err
}

// manifest returns what the coordinator would commit of the last checkpoint.
func (p *capturer) manifest() (*format.Manifest, error) {
	m := &format.Manifest{Kind: format.KindCheckpoint, ID: p.id, Attempt: attempt, Epoch: epoch, Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: vertex, Parallelism: p.S}}}}
	var handles []inflight.Handle
	var files []format.FileInfo
	for _, c := range p.captured {
		h, err := c.Handle()
		if err != nil {
			return nil, err
		}
		handles = append(handles, h)
		files = append(files, c.Files()...)
	}
	m.SetHandles(handles, files...)
	return m, nil
}

// files returns the files of a checkpoint.
func (p *capturer) files(m *format.Manifest) (names []string) {
	for _, f := range m.Files {
		names = append(names, filepath.Join(p.dir, f.Name))
	}
	return names
}

// restore gives the buffers of checkpoint m to the sinks of its subtasks, at
// the same time, verified.
func (p *capturer) restore(ctx context.Context, m *format.Manifest, sinks []*sink) error {
	plan, err := restore.NewPlan(m, m.Topology, restore.Options{})
	if err != nil {
		return err
	}
	r := reader.Open(p.store, "", reader.Options{})
	defer r.Close()
	replay, err := restore.NewReplay(ctx, r.At(m, format.CheckpointDir(m.ID)), plan, restore.ReplayOptions{})
	if err != nil {
		return err
	}
	defer replay.Close()
	res, err := replay.Run(ctx, func(t inflight.Task) restore.Sink { return sinks[t.Subtask] })
	if err == nil && res.Bytes != uint64(p.bytes()) {
		err = fmt.Errorf("%d bytes were restored of %d", res.Bytes, p.bytes())
	}
	return err
}

// drop deletes the last checkpoint; it is not timed.
func (p *capturer) drop(ctx context.Context) error {
	return p.store.RemoveAll(ctx, format.CheckpointDir(p.id))
}

// Close ends the writers and removes the directory.
func (p *capturer) Close() error {
	var err error
	if p.pool != nil {
		err = p.pool.Close()
	}
	return errors.Join(err, p.store.Close(), os.RemoveAll(p.dir))
}
