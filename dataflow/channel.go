package dataflow

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// channel is the receiving end of a connection. A local one takes the sender's
// buffers themselves, out of its queue; they count in the sender's pool until
// they are consumed. One over the network has a conn between, with buffers of
// its own.
type channel struct {
	address inflight.InputChannel
	index   int // among all channels of the task
	in      *inputs
	up      *subpartition
	conn    *conn // nil: local

	inReady, inPrio bool // listed there; guarded by in.mu

	local persister // guarded by up.mu; with a conn, that has one

	// The task's alone.
	recovered ring // what was captured, ahead of everything live
	d         deserializer
	received  uint64 // bytes taken in since the job began
	records   uint64 // elements processed since the job began
	watermark int64
	idle      bool
	dataEnded bool // no record follows
	ended     bool // nothing follows
}

// poll returns the next entry: an event with priority, what was recovered,
// live data. A barrier with priority overtakes what was recovered, too.
func (c *channel) poll() (e entry, ok bool) {
	e, ok, more := c.pollLive(c.recovered.n > 0)
	if !ok && c.recovered.n > 0 {
		e, ok, more = c.recovered.pop(), true, true
		if c.recovered.n == 0 && c.conn != nil {
			c.conn.recovered()
		}
	}
	if more || c.recovered.n > 0 {
		c.in.enqueue(c, false)
	}
	if ok && e.isData() {
		c.received += uint64(e.len())
	}
	return e, ok
}

// pollPriority returns the next event with priority.
func (c *channel) pollPriority() (ev *event, ok bool) {
	e, ok, more := c.pollLive(true)
	if more || c.recovered.n > 0 {
		c.in.enqueue(c, false)
	}
	return e.ev, ok
}

// pollLive asks the queue that the sender or the network fills.
func (c *channel) pollLive(prioOnly bool) (e entry, ok, more bool) {
	if c.conn != nil {
		return c.conn.poll(prioOnly)
	}
	if prioOnly && !c.up.hasPrio() {
		return e, false, true
	}
	e, ok, more, _ = c.up.poll(1 << 30)
	return e, ok, more
}

// consumed is how many bytes the operator has seen.
func (c *channel) consumed() uint64 { return c.received - uint64(c.d.rest()) }

// start begins an unaligned checkpoint: what stands here in front of the
// barrier is captured now, what arrives until the barrier when it does.
func (c *channel) start(id inflight.CheckpointID, s *snapshot) (captured uint64, err error) {
	if c.conn != nil {
		return c.conn.start(id, s)
	}
	c.up.mu.Lock()
	pending, err := c.local.start(id, s)
	c.up.mu.Unlock()
	if err != nil {
		return 0, err
	}
	captured = c.capture(s.capture, nil)
	if !pending {
		s.barrierCame()
	}
	return captured, nil
}

// capture hands over the rest of the deserializer, what is recovered and not
// yet taken, and queued, in this order.
func (c *channel) capture(to Capture, queued []view) uint64 {
	at := c.consumed()
	vs := c.d.lend()
	vs = append(vs, c.recovered.views(c.recovered.n)...)
	vs = append(vs, queued...)
	captureRuns(vs, at, func(pos inflight.Pos, bufs ...inflight.Buffer) { to.Input(c.address, pos, bufs...) })
	return size(vs)
}

// stop ends the capture of a checkpoint.
func (c *channel) stop(id inflight.CheckpointID) {
	if c.conn != nil {
		c.conn.stop(id)
		return
	}
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	c.local.stop(id)
}

// resume lets the sender go on behind an aligned barrier.
func (c *channel) resume() { c.up.resume() }

// prioritise moves an announced barrier, if it is still queued, to the front.
func (c *channel) prioritise(seq uint32) {
	if c.conn != nil {
		c.conn.prioritise(seq)
	}
}

// queued is how much data stands in the queues of the connection.
func (c *channel) queued() (n uint64) {
	if c.conn != nil {
		c.conn.mu.Lock()
		n = c.conn.q.bytes()
		c.conn.mu.Unlock()
	}
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	return n + c.up.q.bytes()
}

// inFront is how many bytes stand in front of the barrier of a checkpoint, or
// of whatever comes next, on this connection.
func (c *channel) inFront(id inflight.CheckpointID) uint64 {
	n := uint64(c.d.rest()) + c.recovered.bytes()
	if c.conn != nil {
		c.conn.mu.Lock()
		n += c.conn.q.bytes()
		c.conn.mu.Unlock()
	}
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	at := c.up.find(id)
	if at < 0 {
		at = c.up.q.n
	}
	for i := range at {
		n += uint64(c.up.q.at(i).len())
	}
	return n
}

// cut is what was consumed of the connection.
func (c *channel) cut(epoch inflight.Epoch) inflight.Cut {
	return inflight.Cut{Address: c.address.Address(), Epoch: epoch, Bytes: c.consumed(), Records: c.records, RecordsKnown: true}
}

// String returns for example "gate 0 channel 2".
func (c *channel) String() string { return fmt.Sprint(c.address.Address()) }

func (c *channel) close() {
	c.d.drop()
	c.recovered.clear()
	if c.conn != nil {
		c.conn.close()
	}
}
