package restore

import (
	"context"
	"time"

	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// run replays one subtask.
type run struct {
	r       *Replay
	task    *task
	all     *reader.Selection
	taken   []taken   // of each entry
	result  []Channel // of those with any
	total   uint64
	buffers uint64
	bytes   uint64
	begin   time.Time
	told    time.Time
}

// taken is what was handed over of an entry.
type taken struct {
	buffers, bytes uint64
	end            inflight.Pos
}

// progressEvery is how often an Observer hears of a subtask; how many buffers
// pass before the clock is looked at.
const (
	progressEvery = 200 * time.Millisecond
	clockEvery    = 64
)

// newRun plans the run, so that what several of them share is read once if all
// are planned before the first one begins.
func newRun(r *Replay, t *task) *run {
	n := &run{r: r, task: t, taken: make([]taken, t.s.Len())}
	h, keep := &t.plan.Handle, t.plan.Keeps
	n.total = h.InputBytes + h.OutputBytes + h.StateBytes
	if len(t.plan.drop) == 0 {
		keep = nil
	} else {
		for e := range t.s.Entries() {
			if !keep(e.Address) {
				n.total -= e.Bytes
			}
		}
	}
	n.all = t.s.Selection(keep, inflight.State, inflight.Output, inflight.Input)
	return n
}

// replay hands everything to sink.
func (n *run) replay(ctx context.Context, sink Sink) error {
	n.begin = time.Now()
	n.told = n.begin
	for b, err := range n.all.Batches(ctx) {
		if err != nil {
			return n.fail("restore", err)
		}
		if err := n.hand(ctx, sink, b); err != nil {
			return n.fail("restore into", err)
		}
	}
	if err := sink.Done(ctx); err != nil {
		return n.fail("restore into", err)
	}
	n.observe(inflight.EventReplayDone, time.Since(n.begin))
	return nil
}

// hand gives each buffer of b to the method of its side.
func (n *run) hand(ctx context.Context, sink Sink, b *reader.Batch) (err error) {
	buffers, bytes := n.buffers, n.bytes
	for b.Next() {
		switch b.Address.Side {
		case inflight.Input:
			err = sink.Input(ctx, b.Address.Input, b.Pos, &b.Buffer)
		case inflight.Output:
			err = sink.Output(ctx, b.Address.Output, b.Pos, &b.Buffer)
		default:
			err = sink.State(ctx, b.Address.State, &b.Buffer)
		}
		if err != nil {
			break
		}
		n.bytes += uint64(len(b.Bytes))
		if n.buffers++; n.buffers%clockEvery == 0 {
			n.progress()
		}
	}
	if n.buffers > buffers {
		t := &n.taken[b.Entry]
		t.buffers += n.buffers - buffers
		t.bytes += n.bytes - bytes
		if t.end = b.Pos; err == nil {
			t.end = b.Pos.Advance(uint64(len(b.Bytes)), 1)
		}
	}
	return err
}

func (n *run) progress() {
	if n.r.obs == nil { // the clock is not for free
		return
	}
	if now := time.Now(); now.Sub(n.told) >= progressEvery {
		n.told = now
		n.observe(inflight.EventReplayProgress, now.Sub(n.begin))
	}
}

func (n *run) observe(name inflight.EventName, took time.Duration) {
	if n.r.obs != nil {
		n.r.obs.Observe(inflight.Event{Name: name, Checkpoint: n.r.plan.Checkpoint, Task: n.task.plan.Task,
			Count: int64(n.buffers), Bytes: int64(n.bytes), Total: int64(n.total), Duration: took})
	}
}

// fail names the subtask in an error.
func (n *run) fail(op string, err error) error {
	return &inflight.Error{Op: op, Object: n.task.plan.Task.String(), Err: err}
}

// channels adds what was handed over to list. The digest is that of the index,
// which what has been read entirely was compared with.
func (n *run) channels(list []Channel) []Channel {
	i := 0
	for e := range n.task.s.Entries() {
		if t := &n.taken[i]; t.buffers > 0 {
			ch := Channel{Task: n.task.plan.Task, Address: e.Address, Buffers: t.buffers, Bytes: t.bytes, Start: e.Start, End: t.end}
			if t.bytes == e.Bytes {
				ch.Digest = e.Digest
			}
			list = append(list, ch)
		}
		i++
	}
	return list
}

// skipped adds what the plan drops of the subtask to list.
func (n *run) skipped(list []Channel) []Channel {
	if len(n.task.plan.drop) == 0 {
		return list
	}
	for e := range n.task.s.Entries() {
		if !n.task.plan.Keeps(e.Address) && e.Bytes > 0 {
			list = append(list, Channel{Task: n.task.plan.Task, Address: e.Address, Buffers: e.Buffers, Bytes: e.Bytes, Digest: e.Digest, Start: e.Start, End: e.End})
		}
	}
	return list
}
