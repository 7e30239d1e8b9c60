package dataflow

import (
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/inflight"
)

// Over the network a receiver has buffers of its own, and a sender may send
// only as many as were granted: the credit. Each channel has exclusive
// buffers; a gate has floating ones for channels whose backlog is larger.
// Events need no credit: a barrier passes a sender that has none.
//
// In one process the network is an actor that copies bytes. Messages about
// credit and backlog are calls.

// creditGate is what the channels of one gate share.
type creditGate struct {
	exclusive int
	bytes     int // of a buffer

	mu       sync.Mutex
	floating int // floating buffers that nobody has
	waiting  []*conn
	free     []*segment
}

// conn is one connection over the network, on the receiver's side.
type conn struct {
	gate *creditGate
	net  *network
	up   *subpartition
	ch   *channel
	// recovering: what was captured here stands in the place of what would be
	// received, and no credit is given. Else each crash during a recovery would
	// leave more in flight than the one before.
	recovering atomic.Bool

	// Guarded by gate.mu.
	credit   int // buffers granted and not used
	floats   int // of these, how many are floating
	required int // wanted: backlog + exclusive; with nothing to send, none
	waits    bool

	// Guarded by net.mu.
	listed, urgent bool

	mu        sync.Mutex
	prio, q   ring
	seq       uint32 // of the next entry
	barrier   uint32 // of the newest barrier
	persister persister
}

func newConn(g *creditGate, n *network, up *subpartition, ch *channel) *conn {
	c := &conn{gate: g, net: n, up: up, ch: ch, credit: g.exclusive, persister: newPersister(ch.address)}
	up.notify = func(prio bool) { n.enqueue(c, prio) }
	return c
}

// announce tells the receiver the sender's backlog. It takes floating buffers
// for it, or gets in line; with nothing to send, it gives them back.
func (c *conn) announce(backlog int) {
	g := c.gate
	if c.recovering.Load() {
		backlog = 0
	}
	g.mu.Lock()
	if c.required = 0; backlog > 0 {
		c.required = backlog + g.exclusive
	}
	var woken []*conn
	if backlog == 0 && c.floats > 0 {
		n := min(c.floats, c.credit)
		c.floats, c.credit, g.floating = c.floats-n, c.credit-n, g.floating+n
		woken = g.offer()
	} else if c.credit < c.required && !c.waits {
		c.waits = true
		g.waiting = append(g.waiting, c)
		woken = g.offer()
	}
	g.mu.Unlock()
	c.wake(woken)
}

// offer gives free floating buffers to those in line, one at a time in turn.
// It returns who got some. The gate is locked.
func (g *creditGate) offer() (got []*conn) {
	for g.floating > 0 && len(g.waiting) > 0 {
		c := g.waiting[0]
		g.waiting = g.waiting[:copy(g.waiting, g.waiting[1:])]
		if c.waits = false; c.credit >= c.required {
			continue
		}
		g.floating--
		c.credit++
		c.floats++
		got = append(got, c)
		if c.credit < c.required {
			c.waits = true
			g.waiting = append(g.waiting, c)
		}
	}
	return got
}

func (c *conn) wake(got []*conn) {
	for _, w := range got {
		w.net.enqueue(w, false)
	}
}

// take uses one credit and returns a buffer with the bytes of v.
func (c *conn) take(v view) view {
	g := c.gate
	g.mu.Lock()
	var s *segment
	if n := len(g.free); n > 0 {
		s, g.free = g.free[n-1], g.free[:n-1]
	}
	home := recycler((*exclusiveHome)(c))
	c.credit--
	if c.floats > 0 {
		c.floats--
		home = (*floatingHome)(c)
	}
	g.mu.Unlock()
	if s == nil {
		s = &segment{b: make([]byte, g.bytes)}
	}
	s.home, s.epoch = home, v.seg.epoch
	s.refs.Store(1)
	return view{s, 0, copy(s.b, v.bytes())}
}

// exclusiveHome takes back an exclusive buffer: it is a new credit. If there
// are more than required by then, a floating one is given back, and its giver
// looks again: the backlog that it knows is old.
type exclusiveHome conn

func (h *exclusiveHome) recycle(s *segment) {
	c, g := (*conn)(h), h.gate
	g.mu.Lock()
	g.free = append(g.free, s)
	c.credit++
	var woken []*conn
	if c.credit > c.required && c.floats > 0 {
		c.credit, c.floats, g.floating = c.credit-1, c.floats-1, g.floating+1
		woken = g.offer()
	}
	g.mu.Unlock()
	c.wake(append(woken, c))
}

// floatingHome takes back a floating buffer, for whoever is first in line.
type floatingHome conn

func (h *floatingHome) recycle(s *segment) {
	c, g := (*conn)(h), h.gate
	g.mu.Lock()
	g.free = append(g.free, s)
	g.floating++
	woken := g.offer()
	g.mu.Unlock()
	c.wake(append(woken, c))
}

func (c *conn) hasCredit() int {
	if c.recovering.Load() {
		return 0
	}
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	return c.credit
}

// recovered says that all that was captured has been taken.
func (c *conn) recovered() {
	c.recovering.Store(false)
	c.net.enqueue(c, false)
}

// transfer moves one entry from the sender to the receiver. It reports whether
// there is more that may be sent.
func (c *conn) transfer() (more bool) {
	credit := c.hasCredit()
	e, ok, more, backlog := c.up.poll(credit)
	if ok && e.isData() {
		sent := c.take(e.view)
		e.seg.release()
		e = entry{view: sent}
	}
	if ok {
		c.arrive(e)
	}
	c.announce(backlog)
	return more
}

// arrive books an entry at the receiver and queues it.
func (c *conn) arrive(e entry) {
	c.mu.Lock()
	e.seq = c.seq
	c.seq++
	prio := false
	switch {
	case e.isData():
		c.persister.data(e.view)
		c.q.push(e)
	case e.ev.kind == evBarrier:
		if c.persister.barrier(e.ev.b.id) {
			c.barrier = e.seq
		}
		if prio = e.ev.b.alignment == Unaligned; prio {
			c.prio.push(e)
			break
		}
		if prio = e.ev.b.timeoutable(); prio {
			c.prio.push(entry{ev: &event{kind: evAnnounce, b: e.ev.b, seq: e.seq}, seq: e.seq})
		}
		c.q.push(e)
	default:
		c.q.push(e)
	}
	c.mu.Unlock()
	c.ch.in.enqueue(c.ch, prio)
}

func (c *conn) poll(prioOnly bool) (e entry, ok, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.prio.n > 0:
		e, ok = c.prio.pop(), true
	case c.q.n > 0 && !prioOnly:
		e, ok = c.q.pop(), true
	}
	return e, ok, c.prio.n+c.q.n > 0
}

// start captures what is queued in front of the barrier: everything, if that
// has not come yet.
func (c *conn) start(id inflight.CheckpointID, s *snapshot) (captured uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	came := c.persister.state == persistReceived && c.persister.last == int64(id)
	pending, err := c.persister.start(id, s)
	if err != nil {
		return 0, err
	}
	n := 0
	for n < c.q.n && (!came || int32(c.q.at(n).seq-c.barrier) < 0) {
		n++
	}
	captured = c.ch.capture(s.capture, c.q.views(n))
	if !pending {
		s.barrierCame()
	}
	return captured, nil
}

func (c *conn) stop(id inflight.CheckpointID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.persister.stop(id)
}

// prioritise moves the barrier numbered seq, if it is still queued, to the
// front. The barrier itself stays what it is: the sender is blocked behind it.
func (c *conn) prioritise(seq uint32) {
	c.mu.Lock()
	found := false
	for i := range c.q.n {
		if e := c.q.at(i); e.seq == seq && !e.isData() {
			c.prio.push(c.q.remove(i))
			found = true
			break
		}
	}
	c.mu.Unlock()
	if found {
		c.ch.in.enqueue(c.ch, true)
	}
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.q.clear()
	c.prio.clear()
}

// network is the actor that moves entries of all connections over the network.
type network struct {
	owner Waker

	mu            sync.Mutex
	ready, urgent []*conn // urgent: with an event that has priority
	done          bool
}

func (n *network) enqueue(c *conn, prio bool) {
	n.mu.Lock()
	queue, listed := &n.ready, &c.listed
	if prio {
		queue, listed = &n.urgent, &c.urgent
	}
	fresh := !*listed
	if fresh {
		*listed = true
		*queue = append(*queue, c)
	}
	n.mu.Unlock()
	if fresh {
		n.owner.Wake()
	}
}

func (n *network) next() (c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.done:
	case len(n.urgent) > 0:
		c = n.urgent[0]
		n.urgent = n.urgent[:copy(n.urgent, n.urgent[1:])]
		c.urgent = false
	case len(n.ready) > 0:
		c = n.ready[0]
		n.ready = n.ready[:copy(n.ready, n.ready[1:])]
		c.listed = false
	}
	return c
}

// Step implements Actor: it moves up to budget entries, of the connections in
// turn.
func (n *network) Step(budget int) Status {
	for range budget {
		c := n.next()
		if c == nil {
			break
		}
		if c.transfer() {
			n.enqueue(c, false)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.done:
		return Status{Why: Done}
	case len(n.ready)+len(n.urgent) > 0:
		return Status{Why: Ready}
	}
	return Status{Why: NoInput}
}

func (n *network) stop() {
	n.mu.Lock()
	n.done = true
	n.mu.Unlock()
	n.owner.Wake()
}
