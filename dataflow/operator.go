package dataflow

import (
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Operator is what one subtask of a vertex does with records. All calls come
// from one goroutine at a time. Embed Base for the calls that are not needed.
type Operator interface {
	// Open is called once, before any record. State is registered here, and is
	// then already what was restored.
	Open(*Context) error
	// Process takes one record. It must not wait: see Context.Busy.
	Process(*Context, Record) error
	// Timer is called for each timer that is due.
	Timer(*Context, Timer) error
	// Watermark is called when event time has moved on to ms, after the timers.
	Watermark(c *Context, ms int64) error
	// Finish is called once in the life of a job, after the last record.
	Finish(*Context) error
	// Prepare is called when a snapshot is about to be taken: a sink hands over
	// what it has. Complete and Abort tell how the checkpoint went; Complete
	// may be missing, and is made good by the one of a later checkpoint.
	Prepare(c *Context, id inflight.CheckpointID) error
	Complete(c *Context, id inflight.CheckpointID) error
	Abort(c *Context, id inflight.CheckpointID) error
	// Close is called once at the end, also after a failure.
	Close() error
}

// Base is an Operator that does nothing.
type Base struct{}

// Open does nothing.
func (Base) Open(*Context) error { return nil }

// Process does nothing.
func (Base) Process(*Context, Record) error { return nil }

// Timer does nothing.
func (Base) Timer(*Context, Timer) error { return nil }

// Watermark does nothing.
func (Base) Watermark(*Context, int64) error { return nil }

// Finish does nothing.
func (Base) Finish(*Context) error { return nil }

// Prepare does nothing.
func (Base) Prepare(*Context, inflight.CheckpointID) error { return nil }

// Complete does nothing.
func (Base) Complete(*Context, inflight.CheckpointID) error { return nil }

// Abort does nothing.
func (Base) Abort(*Context, inflight.CheckpointID) error { return nil }

// Close does nothing.
func (Base) Close() error { return nil }

// Source is what a subtask without inputs does.
type Source interface {
	Open(*Context) error
	// Next emits at most one record. Ready: call again; NoInput: there is
	// nothing before At; Busy: at work until At; Done: the end of the data.
	Next(*Context) (Status, error)
	// Complete tells that a checkpoint is complete.
	Complete(c *Context, id inflight.CheckpointID) error
	Close() error
}

// Positioned is a Source that can tell how many records its position has
// passed, counted on over restores. What it has emitted since the last
// checkpoint is held against that.
type Positioned interface {
	Passed() uint64
}

// Context is what an operator or a source sees of the runtime.
type Context struct {
	Task        inflight.Task
	Parallelism int
	Epoch       inflight.Epoch
	Gate        int // of the record in Process
	// Rand is seeded under a seeded executor.
	Rand    *rand.Rand
	t       *task
	chained bool  // it belongs to a chain
	link    int   // which one of a chain
	next    *link // takes what is emitted; nil: the outputs
}

// Now is the time since the executor began.
func (c *Context) Now() time.Duration { return c.t.exec.Now() }

// Emit sends a record to all outputs, or to the next operator of the chain. It
// never blocks: what does not fit into the buffers overdraws.
func (c *Context) Emit(r Record) {
	if c.next != nil {
		c.next.process(r)
		return
	}
	for _, p := range c.t.out {
		p.emit(r)
	}
}

// EmitTo sends a record to one output.
func (c *Context) EmitTo(partition int, r Record) { c.t.out[partition].emit(r) }

// EmitWatermark says that no record older than ms follows. It is for sources;
// operators pass on the minimum over their channels by themselves.
func (c *Context) EmitWatermark(ms int64) { c.t.forwardWatermark(ms) }

// Idle says whether event time is not to wait for this source any more, since
// nothing is coming. It is for sources; operators are idle when all of their
// channels are.
func (c *Context) Idle(idle bool) { c.t.setIdle(idle) }

// Busy makes the record at hand take d: the task does nothing else meanwhile,
// not even take a barrier, as if the call itself had taken so long. Several calls
// for one record add up, also those of different operators of a chain.
func (c *Context) Busy(d time.Duration) { c.t.busyUntil = max(c.t.busyUntil, c.Now()) + d }

// Register gives a piece of state to the runtime, which restores it now and
// takes it into every snapshot. It is called in Open.
func (c *Context) Register(name inflight.StateName, s State) error {
	return c.t.register(inChain(c.link, name), s)
}

// Watermark is the event time of this task.
func (c *Context) Watermark() int64 { return c.t.watermark }

// Func is a Map or FlatMap: it emits what becomes of r.
type Func func(c *Context, r Record) error

type funcOperator struct {
	Base
	f Func
}

func (o *funcOperator) Process(c *Context, r Record) error { return o.f(c, r) }

// FlatMap makes an operator of a function that emits any number of records.
func FlatMap(f Func) func(subtask int) Operator {
	return func(int) Operator { return &funcOperator{f: f} }
}

// Map makes an operator of a function from body to body. The result may be
// the argument.
func Map(f func(body []byte) ([]byte, error)) func(subtask int) Operator {
	return FlatMap(func(c *Context, r Record) error {
		body, err := f(r.Body)
		if err != nil {
			return err
		}
		r.Body = body
		c.Emit(r)
		return nil
	})
}
