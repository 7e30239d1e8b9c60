package attach

import (
	"context"
	"slices"
	"time"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
)

// restore reads the base, for Store.Restore to hand out.
func (s *store) restore(ctx context.Context) error {
	base := s.coord.Base()
	if base == nil {
		return nil
	}
	begin := time.Now()
	plan, err := restore.NewPlan(base.Manifest, s.j.topology, s.j.o.Restore)
	if err != nil {
		return err
	}
	info := RestoreInfo{Checkpoint: plan.Checkpoint, Savepoint: base.Manifest.Savepoint, Partial: base.Manifest.Partial, Dropped: plan.Dropped, Fresh: plan.Fresh}
	if err := s.replay(ctx, s.j.reader.At(base.Manifest, base.Dir), plan, &info); err != nil {
		return s.j.log.Unreadable(ctx, base, err)
	}
	if base.Manifest.Mode == format.AtLeastOnce {
		s.joinCuts()
	}
	for i := range plan.Tasks {
		if t := &plan.Tasks[i]; t.Finished {
			r := s.restored[t.Task]
			r.Finished = true
			s.finished = append(s.finished, dataflow.Finished{Task: t.Task, Cuts: r.Cuts})
		}
	}
	info.Duration = time.Since(begin)
	if s.j.o.OnRestore != nil {
		s.j.o.OnRestore(info)
	}
	return nil
}

// replay hands all state of c to sinks that keep it.
func (s *store) replay(ctx context.Context, c *reader.Checkpoint, plan *restore.Plan, info *RestoreInfo) error {
	r, err := restore.NewReplay(ctx, c, plan, restore.ReplayOptions{Observer: s.j.o.Observer})
	if err != nil {
		return err
	}
	defer r.Close()
	state := make(map[inflight.Task][]reader.Entry, len(plan.Tasks))
	sinks := make(map[inflight.Task]*sink, len(plan.Tasks))
	s.restored = make(map[inflight.Task]*dataflow.Restored, len(plan.Tasks))
	for i := range plan.Tasks {
		t := plan.Tasks[i].Task
		if slices.Contains(plan.Fresh, t.Vertex) {
			sinks[t] = newSink(nil)
			continue
		}
		state[t] = slices.Collect(r.Entries(t))
		sinks[t] = newSink(state[t])
		s.restored[t] = &sinks[t].Restored
	}
	if _, err := r.Run(ctx, func(t inflight.Task) restore.Sink { return sinks[t] }); err != nil {
		return err
	}
	s.check.base(c.Manifest, state)
	for _, k := range sinks {
		info.Buffers += uint64(len(k.Restored.Input) + len(k.Restored.Output))
		info.Bytes += k.bytes
		for _, p := range k.Restored.State {
			info.StateBytes += uint64(len(p))
		}
	}
	return nil
}

// sink keeps what is restored of one subtask. It implements restore.Sink.
type sink struct {
	dataflow.Restored
	bytes uint64
	room  []byte // for them, at once
}

func newSink(entries []reader.Entry) *sink {
	k := &sink{Restored: dataflow.Restored{State: map[inflight.StateName][]byte{}}}
	for _, e := range entries {
		if e.HasCut {
			k.Cuts = append(k.Cuts, e.Cut)
		}
		if e.Address.Side == inflight.State {
			k.Restored.State[e.Address.State] = make([]byte, 0, e.Bytes)
		} else {
			k.bytes += e.Bytes
		}
	}
	k.room = make([]byte, 0, k.bytes)
	return k
}

// State implements restore.Sink.
func (k *sink) State(_ context.Context, name inflight.StateName, b *reader.Buffer) error {
	k.Restored.State[name] = append(k.Restored.State[name], b.Bytes...)
	return nil
}

// Output implements restore.Sink.
func (k *sink) Output(_ context.Context, sub inflight.Subpartition, pos inflight.Pos, b *reader.Buffer) error {
	k.Restored.Output = append(k.Restored.Output, k.data(sub.Address(), pos, b))
	return nil
}

// Input implements restore.Sink.
func (k *sink) Input(_ context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error {
	k.Restored.Input = append(k.Restored.Input, k.data(ch.Address(), pos, b))
	return nil
}

// Done implements restore.Sink.
func (k *sink) Done(context.Context) error { return nil }

func (k *sink) data(a inflight.Address, pos inflight.Pos, b *reader.Buffer) dataflow.RestoredData {
	at := len(k.room)
	k.room = append(k.room, b.Bytes...)
	return dataflow.RestoredData{Address: a, Pos: pos, Bytes: k.room[at:len(k.room):len(k.room)]}
}

// joinCuts gives receivers the cuts that a checkpoint in at-least-once mode does
// not have: it has no channel state, so they consumed what was emitted.
func (s *store) joinCuts() {
	for t, up := range s.restored {
		for _, cut := range up.Cuts {
			if cut.Address.Side != inflight.Output {
				continue
			}
			i := slices.IndexFunc(s.j.topology.Edges, func(e format.Edge) bool {
				return e.From == t.Vertex && e.Partition == cut.Address.Output.Partition
			})
			if i < 0 {
				continue
			}
			e := &s.j.topology.Edges[i]
			down := s.restored[inflight.Task{Vertex: e.To, Subtask: cut.Address.Output.Subpartition}]
			if down == nil {
				continue
			}
			cut.Address = inflight.InputChannel{Gate: e.Gate, Channel: t.Subtask}.Address()
			down.Cuts = append(down.Cuts, cut)
		}
	}
}
