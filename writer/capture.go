package writer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/sharing"
)

// maxName is the longest name of a vertex or a state that the format takes.
const maxName = 1024

// Capture is what a subtask captures for one checkpoint. Its methods may be
// called by several goroutines at once.
//
// An error of Input, Output, State, Reference, Cuts or a Hold means that the
// capture has failed, and is what Handle answers; only what comes after the
// capture was finished does not fail it any more once it is durable.
type Capture struct {
	w      *Writer
	key    sharing.Key
	o      StartOptions
	begun  time.Time
	done   chan struct{}
	stream *sharing.Stream // decides whether the capture succeeds or fails

	mu         sync.Mutex
	channels   map[inflight.Address]*channel
	spare      []channel // memory for the next ones
	recent     *channel
	inputDone  bool
	outputDone bool
	holds      int // undecided
	finished   bool
	finishedAt time.Time
	cuts       []inflight.Cut
	buffers    int
	over       bool
	overAt     time.Time
	result     sharing.Result
	then       []func()
	told       bool // then was called
}

// channel is the state of one address.
type channel struct {
	addr inflight.Address
	next inflight.Pos
	hold *Hold // undecided
}

func newCapture(w *Writer, key sharing.Key, o StartOptions) *Capture {
	n := w.usual.Load()
	return &Capture{w: w, key: key, o: o, begun: time.Now(), done: make(chan struct{}), channels: make(map[inflight.Address]*channel, n), spare: make([]channel, n)}
}

// Checkpoint returns the id.
func (c *Capture) Checkpoint() inflight.CheckpointID { return c.key.Checkpoint }

// Input captures buffers of an input channel that the barrier overtook. pos is
// the position of the first.
func (c *Capture) Input(ch inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer) error {
	return c.add(ch.Address(), pos, bufs)
}

// Output captures buffers of a subpartition that the barrier overtook. pos is
// the position of the first.
func (c *Capture) Output(sub inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer) error {
	return c.add(sub.Address(), pos, bufs)
}

// State captures operator state. It goes on where the last call for name ended.
func (c *Capture) State(name inflight.StateName, bufs ...inflight.Buffer) error {
	return c.add(name.Address(), inflight.PosUnknown, bufs)
}

func (c *Capture) add(a inflight.Address, pos inflight.Pos, bufs []inflight.Buffer) error {
	c.mu.Lock()
	taken, err := c.take(a, pos, bufs)
	c.mu.Unlock()
	if !taken {
		sharing.Release(bufs)
	}
	return c.verdict(err)
}

// take hands buffers over, and reports whether they are owned now.
func (c *Capture) take(a inflight.Address, pos inflight.Pos, bufs []inflight.Buffer) (taken bool, err error) {
	ch, err := c.channel(a)
	switch {
	case err != nil:
		return false, err
	case ch.hold != nil:
		return ch.hold.queue(pos, bufs)
	case a.Side == inflight.State:
		pos = ch.next
	}
	return c.push(ch, pos, bufs)
}

// Reference captures bytes that lie in an older file, at run.Pos of a: a
// checkpoint during recovery refers to what was not replayed yet. run is as
// format.Encoder.Reference takes it.
func (c *Capture) Reference(a inflight.Address, file format.FileRef, run format.Run) error {
	c.mu.Lock()
	ch, err := c.channel(a)
	switch {
	case err != nil:
	case ch.hold != nil:
		ch.hold.later = append(ch.hold.later, queued{file: file, run: run})
	default:
		err = c.refer(ch, file, run)
	}
	c.mu.Unlock()
	return c.verdict(err)
}

// refusal answers why nothing is taken any more, or nil.
func (c *Capture) refusal() error {
	switch {
	case !c.over:
		return nil
	case c.result.Err != nil:
		return c.result.Err
	case c.w.isClosed():
		return inflight.ErrClosed
	}
	return fmt.Errorf("%w: the capture is done", inflight.ErrOrder)
}

// channel returns the state of a, if more may be captured for it.
func (c *Capture) channel(a inflight.Address) (*channel, error) {
	if err := c.refusal(); err != nil {
		return nil, err
	}
	if a.Side == inflight.Input && c.inputDone || a.Side == inflight.Output && c.outputDone || c.inputDone && c.outputDone {
		return nil, fmt.Errorf("%w: %s was finished before", inflight.ErrOrder, a)
	}
	if c.recent != nil && c.recent.addr == a {
		return c.recent, nil
	}
	ch := c.channels[a]
	if ch == nil {
		if err := checkAddress(a); err != nil {
			return nil, err
		}
		if c.o.StateOnly && a.Side != inflight.State {
			return nil, fmt.Errorf("%w: %s in an aligned checkpoint or savepoint, which has no channel state", inflight.ErrConfig, a)
		}
		if len(c.spare) == 0 {
			c.spare = make([]channel, 8)
		}
		ch, c.spare = &c.spare[0], c.spare[1:]
		ch.addr, ch.next = a, inflight.PosUnknown
		if a.Side == inflight.State {
			ch.next = inflight.Pos{Epoch: c.key.Epoch}
		}
		c.channels[a] = ch
	}
	c.recent = ch
	return ch, nil
}

func checkAddress(a inflight.Address) error {
	if a.Side < inflight.Input || a.Side > inflight.State || len(a.State) > maxName ||
		min(a.Input.Gate, a.Input.Channel, a.Output.Partition, a.Output.Subpartition) < 0 {
		return fmt.Errorf("%w: no address: %s", inflight.ErrConfig, a)
	}
	return nil
}

// push is take for a channel without a hold.
func (c *Capture) push(ch *channel, pos inflight.Pos, bufs []inflight.Buffer) (taken bool, err error) {
	if !continues(ch.next, pos) {
		if !slices.ContainsFunc(bufs, func(b inflight.Buffer) bool { return len(b.Bytes()) > 0 }) {
			return false, nil
		}
		return false, fmt.Errorf("%w: %s is at %s, and buffers from %s on came", inflight.ErrOrder, ch.addr, ch.next, pos)
	}
	n, end, err := c.stream.Push(ch.addr, pos, bufs...)
	if n > 0 {
		ch.next = end
		c.buffers += n
	}
	return n > 0, err
}

func (c *Capture) refer(ch *channel, file format.FileRef, run format.Run) error {
	if run.Length == 0 || run.Length > format.MaxBlock || run.Pieces <= 0 {
		return fmt.Errorf("%w: a reference of %d bytes in %d pieces", inflight.ErrConfig, run.Length, run.Pieces)
	}
	if !continues(ch.next, run.Pos) {
		return fmt.Errorf("%w: %s is at %s, and a reference from %s on came", inflight.ErrOrder, ch.addr, ch.next, run.Pos)
	}
	ch.next = run.End()
	c.buffers += run.Buffers()
	return c.stream.Refer(ch.addr, file, run)
}

// continues reports whether pos can follow on next. Seq is for people, and state
// of this epoch may go on with a reference to state of an older one.
func continues(next, pos inflight.Pos) bool {
	return !next.Known() || !pos.Known() || next.Offset == pos.Offset
}

// Cuts records where connections stood when the subtask was snapshotted: what
// it had consumed of an input channel, what it had emitted into a subpartition.
// The last cut of an address counts. A capture with cuts has a section, even
// where nothing was in flight: the proof needs them.
func (c *Capture) Cuts(cuts ...inflight.Cut) error {
	c.mu.Lock()
	err := c.checkCuts(cuts)
	if err == nil {
		c.cuts = append(c.cuts, cuts...)
	}
	c.mu.Unlock()
	return c.verdict(err)
}

func (c *Capture) checkCuts(cuts []inflight.Cut) error {
	if err := c.refusal(); err != nil {
		return err
	}
	if c.inputDone && c.outputDone {
		return fmt.Errorf("%w: cuts came after the capture was finished", inflight.ErrOrder)
	}
	for _, cut := range cuts {
		if cut.Address.Side == inflight.State {
			return fmt.Errorf("%w: a cut of %s, which is no connection", inflight.ErrConfig, cut.Address)
		}
		if err := checkAddress(cut.Address); err != nil {
			return err
		}
	}
	return nil
}

// FinishInput says that no more input comes. It is idempotent.
func (c *Capture) FinishInput() error { return c.finish(&c.inputDone) }

// FinishOutput says that no more output comes, apart from holds. It is
// idempotent.
func (c *Capture) FinishOutput() error { return c.finish(&c.outputDone) }

func (c *Capture) finish(side *bool) error {
	c.mu.Lock()
	if c.over {
		defer c.mu.Unlock()
		return c.result.Err
	}
	*side = true
	last := c.settle()
	c.mu.Unlock()
	if last {
		c.stream.End(c.cuts)
	}
	return nil
}

// settle reports whether the capture has just been finished.
func (c *Capture) settle() bool {
	if c.finished || !c.inputDone || !c.outputDone || c.holds > 0 {
		return false
	}
	c.finished, c.finishedAt = true, time.Now()
	return true
}

func (c *Capture) isFinished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finished
}

// verdict makes the capture fail when a call went wrong. When it exceeded the
// bound on memory, the checkpoint is declined in the whole process.
func (c *Capture) verdict(err error) error {
	if err == nil {
		return nil
	}
	if over, fresh := err.(*sharing.OverBudgetError); fresh {
		c.w.pool.decline(c.key, over)
	}
	c.stream.Cancel(err) // does nothing if the call went wrong because the capture had failed
	<-c.done
	if _, failed := c.Handle(); failed != nil {
		return failed
	}
	return c.w.fail("capture", c.key.Checkpoint, err)
}

// ended is told by the stream what became of it.
func (c *Capture) ended(r sharing.Result) {
	c.w.forget(c)
	c.mu.Lock()
	c.over, c.result, c.overAt = true, r, time.Now()
	var holds []*Hold
	for _, ch := range c.channels {
		if ch.hold != nil {
			holds = append(holds, ch.hold)
		}
	}
	n := c.buffers
	c.w.usual.Store(int64(len(c.channels)))
	c.mu.Unlock()
	for _, h := range holds {
		h.giveUp()
	}
	h := r.Handle
	c.w.pool.o.Observer.Observe(inflight.Event{
		Name: inflight.EventCaptureDone, Checkpoint: c.key.Checkpoint, Task: c.w.task, Count: int64(n),
		Bytes: int64(h.InputBytes + h.OutputBytes + h.StateBytes), Duration: c.overAt.Sub(c.begun), Err: r.Err,
	})
	close(c.done)
	c.mu.Lock()
	then := c.then
	c.then, c.told = nil, true
	c.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// Done is closed when the capture is durable, or has failed.
func (c *Capture) Done() <-chan struct{} { return c.done }

// Then calls f once Done is closed: at once if it is, otherwise on the goroutine
// that closes it, which f must not hold up.
func (c *Capture) Then(f func()) {
	c.mu.Lock()
	told := c.told
	if !told {
		c.then = append(c.then, f)
	}
	c.mu.Unlock()
	if told {
		f()
	}
}

// Handle returns where the captured state lies, or why there is none. It can be
// asked again; before Done it answers ErrIncomplete.
func (c *Capture) Handle() (inflight.Handle, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		return inflight.Handle{}, c.w.fail("capture", c.key.Checkpoint, fmt.Errorf("%w: it is not done", inflight.ErrIncomplete))
	}
	h := c.result.Handle
	h.Segments, h.References = slices.Clone(h.Segments), slices.Clone(h.References)
	return h, c.result.Err
}

// Times returns when the capture was started, when its subtask had finished it,
// and when it was durable or had failed. What has not come is zero.
func (c *Capture) Times() (started, finished, done time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun, c.finishedAt, c.overAt
}

// Files returns the files that hold bytes of the capture, in order, once it is
// durable. Several subtasks name the same ones.
func (c *Capture) Files() []format.FileInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.result.Files)
}
