package restore

import (
	"context"
	"iter"
	"time"

	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// run replays one subtask.
type run struct {
	r       *Replay
	task    *task
	all     iter.Seq2[*reader.Buffer, error]
	taken   []Channel // of each entry
	total   uint64
	buffers uint64
	bytes   uint64
	begin   time.Time
	told    time.Time
}

// progressEvery is how often an Observer hears of a subtask; how many buffers
// pass before the clock is looked at.
const (
	progressEvery = 200 * time.Millisecond
	clockEvery    = 64
)

func newRun(ctx context.Context, r *Replay, t *task) *run {
	n := &run{r: r, task: t, taken: make([]Channel, 0, t.s.Len())}
	for e := range t.s.Entries() {
		n.taken = append(n.taken, Channel{Task: t.plan.Task, Address: e.Address, Start: e.Start})
		if t.plan.Keeps(e.Address) {
			n.total += e.Bytes
		}
	}
	n.all = t.s.Select(ctx, t.plan.Keeps, inflight.State, inflight.Output, inflight.Input)
	return n
}

// replay hands everything to sink.
func (n *run) replay(ctx context.Context, sink Sink) error {
	n.begin = time.Now()
	n.told = n.begin
	for b, err := range n.all {
		if err != nil {
			return n.fail("restore", err)
		}
		if err := hand(ctx, sink, b); err != nil {
			return n.fail("restore into", err)
		}
		size, ch := uint64(len(b.Bytes)), &n.taken[b.Entry]
		ch.Buffers++
		ch.Bytes += size
		ch.End = b.Pos.Advance(size, 1)
		n.bytes += size
		if n.buffers++; n.buffers%clockEvery == 0 {
			n.progress()
		}
	}
	if err := sink.Done(ctx); err != nil {
		return n.fail("restore into", err)
	}
	n.r.obs.Observe(inflight.Event{Name: inflight.EventReplayDone, Checkpoint: n.r.plan.Checkpoint, Task: n.task.plan.Task,
		Count: int64(n.buffers), Bytes: int64(n.bytes), Total: int64(n.total), Duration: time.Since(n.begin)})
	return nil
}

// hand gives b to the method of its side.
func hand(ctx context.Context, sink Sink, b *reader.Buffer) error {
	switch b.Address.Side {
	case inflight.Input:
		return sink.Input(ctx, b.Address.Input, b.Pos, b)
	case inflight.Output:
		return sink.Output(ctx, b.Address.Output, b.Pos, b)
	}
	return sink.State(ctx, b.Address.State, b)
}

func (n *run) progress() {
	now := time.Now()
	if now.Sub(n.told) < progressEvery {
		return
	}
	n.told = now
	n.r.obs.Observe(inflight.Event{Name: inflight.EventReplayProgress, Checkpoint: n.r.plan.Checkpoint, Task: n.task.plan.Task,
		Count: int64(n.buffers), Bytes: int64(n.bytes), Total: int64(n.total), Duration: now.Sub(n.begin)})
}

// fail names the subtask in an error.
func (n *run) fail(op string, err error) error {
	return &inflight.Error{Op: op, Object: n.task.plan.Task.String(), Err: err}
}

// channels returns what was handed over. The digest is that of the index, which
// what has been read entirely was compared with.
func (n *run) channels() []Channel {
	list, i := n.taken[:0], 0
	for e := range n.task.s.Entries() {
		ch := n.taken[i]
		if ch.Bytes == e.Bytes {
			ch.Digest = e.Digest
		}
		if ch.Buffers > 0 {
			list = append(list, ch)
		}
		i++
	}
	return list
}

// skipped returns what the plan drops of the subtask.
func (n *run) skipped() (list []Channel) {
	for e := range n.task.s.Entries() {
		if !n.task.plan.Keeps(e.Address) && e.Bytes > 0 {
			list = append(list, Channel{Task: n.task.plan.Task, Address: e.Address, Buffers: e.Buffers, Bytes: e.Bytes, Digest: e.Digest, Start: e.Start, End: e.End})
		}
	}
	return list
}
