package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
)

// ReplayLine is one channel: what its index says was captured, and what a
// restore handed over.
type ReplayLine struct {
	Type LineType `json:"type"`
	Place
	Buffers         uint64 `json:"buffers"`
	Bytes           uint64 `json:"bytes"`
	Digest          string `json:"digest"` // CRC-64/NVME
	ReplayedBuffers uint64 `json:"replayed_buffers"`
	ReplayedBytes   uint64 `json:"replayed_bytes"`
	ReplayedDigest  string `json:"replayed_digest"`
	Equal           bool   `json:"equal"`
	Text            string `json:"text,omitempty"` // what differs
}

// Roundtrip is what a restore into memory gave.
type Roundtrip struct {
	Checkpoint CheckpointLine
	Channels   []ReplayLine
	Findings   []inflight.Finding
}

// Roundtrip restores a checkpoint into channels in memory, as an engine of the
// same topology would, and compares what arrives with what was captured: counts,
// digests, positions and order. Payload is not kept.
func (i *Inspector) Roundtrip(ctx context.Context, t *Target) (*Roundtrip, error) {
	if t.Flink {
		return nil, fail("restore", t.Name, fmt.Errorf("%w: only Flink restores a checkpoint of Flink", inflight.ErrUnsupported), "verify checks it; flink convert --to spillway makes one that can be tried here")
	}
	var r *Roundtrip
	err := i.settled(ctx, t, func(job, dir string) (bool, bool, error) {
		c, err := i.openDir(ctx, t, job, dir)
		if err != nil {
			return gone(t, err), false, err
		}
		defer c.Close()
		if r, err = i.roundtrip(ctx, c); err != nil {
			return lacks(nil, err), false, err
		}
		return lacks(r.Findings, nil), false, nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (i *Inspector) roundtrip(ctx context.Context, c *checkpoint) (*Roundtrip, error) {
	i.o.Expect(c.Manifest.FileBytes())
	plan, err := restore.NewPlan(c.Manifest, c.Manifest.Topology, restore.Options{AllowViolations: true})
	if err != nil {
		return nil, err
	}
	r := &Roundtrip{Checkpoint: i.line(ctx, c)}
	for batch := range slices.Chunk(plan.Tasks, replayBatch) {
		if err := r.replay(ctx, c, plan, batch); err != nil {
			return nil, err
		}
	}
	r.Findings = append(r.Findings, c.reread...)
	c.qualify(r.Findings)
	return r, nil
}

// replayBatch is how many subtasks are restored at a time: it bounds indexes,
// goroutines and open files. Neighbours often share files.
const replayBatch = 16

// replay restores some subtasks and compares.
func (r *Roundtrip) replay(ctx context.Context, c *checkpoint, plan *restore.Plan, batch []restore.TaskPlan) error {
	sinks := map[inflight.Task]*memorySink{}
	var o restore.ReplayOptions
	for k := range batch {
		o.Tasks = append(o.Tasks, batch[k].Task)
		sinks[batch[k].Task] = &memorySink{channels: map[inflight.Address]*memoryChannel{}}
	}
	replay, err := restore.NewReplay(ctx, c.Checkpoint, plan, o)
	if err != nil {
		return incomplete(err)
	}
	defer replay.Close()
	if _, err := replay.Run(ctx, func(t inflight.Task) restore.Sink { return sinks[t] }); err != nil {
		return incomplete(err)
	}
	for _, t := range o.Tasks {
		r.compare(t, slices.Collect(replay.Entries(t)), sinks[t])
	}
	return nil
}

// incomplete says that a file that is missing from a checkpoint is a fault of
// the checkpoint, not of who asked for it.
func incomplete(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fail("restore", "", fmt.Errorf("%w: %w", inflight.ErrIncomplete, err), "verify tells what is missing")
	}
	return err
}

// memorySink takes what is restored of one subtask, and remembers what it was.
type memorySink struct {
	channels map[inflight.Address]*memoryChannel
	side     inflight.Side // of the last buffer
	fault    string        // the first thing that came in the wrong order
	done     bool
}

// memoryChannel is what arrived at one address.
type memoryChannel struct {
	buffers, bytes uint64
	digest         format.Digest
	start, end     inflight.Pos
	gaps           int
}

// replayOrder is the order of sides in a replay.
var replayOrder = []inflight.Side{inflight.State, inflight.Output, inflight.Input}

func (s *memorySink) take(a inflight.Address, pos inflight.Pos, p []byte) error {
	if (s.done || slices.Index(replayOrder, a.Side) < slices.Index(replayOrder, s.side)) && s.fault == "" {
		s.fault = fmt.Sprintf("%s came behind its turn", a)
	}
	s.side = a.Side
	c := s.channels[a]
	if c == nil {
		c = &memoryChannel{start: pos, end: pos}
		s.channels[a] = c
	}
	if pos.Known() && c.end.Known() && pos.Offset != c.end.Offset {
		c.gaps++
	}
	c.buffers, c.bytes, c.digest, c.end = c.buffers+1, c.bytes+uint64(len(p)), c.digest.Add(p), pos.Advance(uint64(len(p)), 1)
	return nil
}

// State implements restore.Sink; pieces of state have no position there.
func (s *memorySink) State(_ context.Context, name inflight.StateName, b *reader.Buffer) error {
	return s.take(name.Address(), inflight.PosUnknown, b.Bytes)
}

// Output implements restore.Sink.
func (s *memorySink) Output(_ context.Context, sub inflight.Subpartition, pos inflight.Pos, b *reader.Buffer) error {
	return s.take(sub.Address(), pos, b.Bytes)
}

// Input implements restore.Sink.
func (s *memorySink) Input(_ context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error {
	return s.take(ch.Address(), pos, b.Bytes)
}

// Done implements restore.Sink.
func (s *memorySink) Done(context.Context) error {
	s.done = true
	return nil
}

// compare compares what was captured of a subtask with what arrived.
func (r *Roundtrip) compare(t inflight.Task, captured []reader.Entry, s *memorySink) {
	if !s.done {
		r.differs(t, nil, "the replay did not come to its end")
		return
	}
	if s.fault != "" {
		r.differs(t, nil, s.fault)
	}
	for _, e := range captured {
		got := s.channels[e.Address]
		if got == nil {
			got = &memoryChannel{start: inflight.PosUnknown, end: inflight.PosUnknown}
		}
		delete(s.channels, e.Address)
		if e.Bytes == 0 && got.bytes == 0 {
			continue
		}
		l := ReplayLine{Type: TypeReplay, Place: placeOf(&t, &e.Address), Buffers: e.Buffers, Bytes: e.Bytes, Digest: fmt.Sprintf("%016x", uint64(e.Digest)),
			ReplayedBuffers: got.buffers, ReplayedBytes: got.bytes, ReplayedDigest: fmt.Sprintf("%016x", uint64(got.digest)), Text: difference(&e, got)}
		if l.Equal = l.Text == ""; !l.Equal {
			r.differs(t, &e.Address, l.Text)
		}
		r.Channels = append(r.Channels, l)
	}
	for a := range s.channels {
		r.differs(t, &a, "it was replayed and had not been captured")
	}
}

// difference says what differs; "" is nothing.
func difference(e *reader.Entry, got *memoryChannel) string {
	switch {
	case got.buffers != e.Buffers || got.bytes != e.Bytes:
		return fmt.Sprintf("%d buffers and %d bytes were captured, %d and %d replayed", e.Buffers, e.Bytes, got.buffers, got.bytes)
	case got.digest != e.Digest:
		return "the replayed bytes have another digest"
	case e.Address.Side == inflight.State:
	case got.start != e.Start || got.end != e.End:
		return fmt.Sprintf("captured from %s to %s, replayed from %s to %s", e.Start, e.End, got.start, got.end)
	case got.gaps != e.Gaps:
		return fmt.Sprintf("captured with %d gaps, replayed with %d", e.Gaps, got.gaps)
	}
	return ""
}

// CodeReplay is the code of a channel that was not replayed as it was captured.
const CodeReplay = "replay"

func (r *Roundtrip) differs(t inflight.Task, a *inflight.Address, text string) {
	r.Findings = append(r.Findings, inflight.Finding{Severity: inflight.SeverityError, Code: CodeReplay, Object: r.Checkpoint.Dir, Offset: -1, Task: &t, Address: a, Text: text, Err: inflight.ErrCorrupt})
}

// Lines returns the checkpoint, a ReplayLine for each channel, and what is
// wrong.
func (r *Roundtrip) Lines() []any {
	return appendNotes(appendLines([]any{&r.Checkpoint}, r.Channels), r.Findings, nil)
}

// Failed reports whether anything differs.
func (r *Roundtrip) Failed() bool { return failed(r.Findings) }

// Tables returns a table of channels.
func (r *Roundtrip) Tables() []Table {
	t := Table{Title: r.Checkpoint.title(), Columns: columns("SUBTASK", "ADDRESS", "#BUFFERS", "#BYTES", "DIGEST", "RESULT")}
	equal, bytes := 0, uint64(0)
	for _, l := range r.Channels {
		tone, result := ToneGood, "equal"
		if !l.Equal {
			tone, result = ToneError, l.Text
		} else {
			equal++
		}
		bytes += l.ReplayedBytes
		t.add(tone, l.task(), l.address(), l.ReplayedBuffers, l.ReplayedBytes, l.ReplayedDigest, result)
	}
	t.Note = fmt.Sprintf("%d of %s equal, %s replayed", equal, plural(len(r.Channels), "channel"), size(bytes))
	tables := []Table{t}
	if len(r.Findings) > 0 {
		tables = append(tables, findingTable(r.Findings, nil))
	}
	return tables
}
