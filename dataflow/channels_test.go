package dataflow

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// fakeCapture writes down what it is given.
type fakeCapture struct {
	Capture
	in, out  []string
	holds    []*fakeHold
	finished int // inputs
}

func (c *fakeCapture) FinishInput() { c.finished++ }

func (c *fakeCapture) Input(_ inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.in = append(c.in, text(pos, bufs))
}

func (c *fakeCapture) Output(_ inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.out = append(c.out, text(pos, bufs))
}

func (c *fakeCapture) HoldOutput(inflight.Subpartition) Hold {
	c.holds = append(c.holds, &fakeHold{})
	return c.holds[len(c.holds)-1]
}

type fakeHold struct{ got string }

func (h *fakeHold) Fill(pos inflight.Pos, bufs ...inflight.Buffer) {
	h.got += "filled " + text(pos, bufs)
}
func (h *fakeHold) Drop(cause error) { h.got += "dropped: " + cause.Error() }

// text is the position and the letters of captured buffers.
func text(pos inflight.Pos, bufs []inflight.Buffer) string {
	s := pos.String()
	for _, b := range bufs {
		s += " " + string(b.Bytes())
		b.Release()
	}
	return s
}

// line is a subpartition of four-byte buffers with a reader that does nothing.
func line(t *testing.T) (*partition, *subpartition, *[]bool) {
	var notified []bool
	p := &partition{unaligned: true, full: new(bool), pool: newPool(1, 10, 10, 20, 4, 7), selector: func([]byte) int { return 0 }}
	p.pool.owner = wakeFunc(func() {})
	s := &subpartition{part: p, notify: func(prio bool) { notified = append(notified, prio) }}
	p.subs = []*subpartition{s}
	t.Cleanup(func() {
		s.close()
		require.Zero(t, p.pool.out(), "buffers that did not come home")
	})
	return p, s, &notified
}

// drainText reads everything that may be read.
func drainText(s *subpartition) (out []string) {
	for {
		e, ok, _, _ := s.poll(1 << 30)
		if !ok {
			return out
		}
		if e.isData() {
			out = append(out, string(e.bytes()))
			e.free()
		} else {
			out = append(out, "<"+e.ev.String()+">")
		}
	}
}

// The rows of flink-format §8.8, the output side.
func TestOutputTable(t *testing.T) {
	unaligned := barrier{id: 3, alignment: Unaligned, timeout: never}
	timeoutable := barrier{id: 3, alignment: Aligned, timeout: time.Second}

	t.Run("add priority barrier: what is behind it is captured, and still sent", func(t *testing.T) {
		p, s, notified := line(t)
		s.write([]byte("abcdefgh"))
		s.write([]byte("ij")) // the unfinished last one, up to what is written
		c := &fakeCapture{}
		require.Equal(t, uint64(10), p.barrier(unaligned, c))
		require.Equal(t, []string{"7/0#0 abcd efgh ij"}, c.out)
		require.True(t, (*notified)[len(*notified)-1], "with priority")
		s.write([]byte("kl"))
		s.flush()
		require.Equal(t, []string{"<barrier 3 (unaligned)>", "abcd", "efgh", "ij", "kl"}, drainText(s))
	})
	t.Run("add priority barrier while blocked: it passes", func(t *testing.T) {
		p, s, _ := line(t)
		p.event(&event{kind: evBarrier, b: barrier{id: 2, alignment: Aligned, timeout: never}})
		s.write([]byte("ab"))
		s.flush()
		require.Equal(t, []string{"<barrier 2 (aligned)>"}, drainText(s))
		p.barrier(unaligned, &fakeCapture{})
		require.Equal(t, []string{"<barrier 3 (unaligned)>"}, drainText(s), "and nothing else does")
		s.resume()
		require.Equal(t, []string{"ab"}, drainText(s))
	})
	t.Run("add timeoutable barrier, polled by the reader: nothing overtaken", func(t *testing.T) {
		p, s, _ := line(t)
		s.write([]byte("abcdef"))
		c := &fakeCapture{}
		p.barrier(timeoutable, c)
		s.write([]byte("gh"))
		s.flush()
		require.Equal(t, []string{"abcd", "ef", "<barrier 3 (aligned)>"}, drainText(s))
		require.Equal(t, "filled 7/6#0", c.holds[0].got)
		require.Empty(t, p.timeout(3), "output timer, the hold is not open: nothing")
		s.resume()
		require.Equal(t, []string{"gh"}, drainText(s))
	})
	t.Run("output timer: the barrier jumps the queue, what it overtakes fills the hold", func(t *testing.T) {
		p, s, _ := line(t)
		s.write([]byte("abcdef"))
		require.Equal(t, []string{"abcd"}, drainText(s))
		c := &fakeCapture{}
		p.barrier(timeoutable, c)
		s.write([]byte("gh"))
		s.flush()
		require.Empty(t, p.timeout(2), "another id")
		late := p.timeout(3)
		require.Len(t, late, 1)
		late[0].fill()
		require.Equal(t, "filled 7/4#0 ef", c.holds[0].got)
		require.Equal(t, []string{"<barrier 3 (unaligned)>", "ef", "gh"}, drainText(s))
	})
	t.Run("an older hold fails when a new barrier comes", func(t *testing.T) {
		p, _, _ := line(t)
		c := &fakeCapture{}
		p.barrier(timeoutable, c)
		next := timeoutable
		next.id = 4
		p.barrier(next, c)
		require.Equal(t, "dropped: subsumed", c.holds[0].got)
	})
	t.Run("abort and release", func(t *testing.T) {
		p, s, _ := line(t)
		c := &fakeCapture{}
		p.barrier(timeoutable, c)
		p.abort(2, errors.New("other"))
		require.Empty(t, c.holds[0].got)
		p.abort(3, errors.New("given up"))
		require.Equal(t, "dropped: given up", c.holds[0].got)
		next := timeoutable
		next.id = 4
		p.barrier(next, c)
		s.close()
		require.Equal(t, "dropped: closed", c.holds[1].got)
	})
	t.Run("an edge that may hold no channel state: forced aligned", func(t *testing.T) {
		p, s, _ := line(t)
		p.unaligned = false
		s.write([]byte("ab"))
		c := &fakeCapture{}
		p.barrier(unaligned, c)
		p.barrier(timeoutable, c)
		require.Empty(t, c.out)
		require.Empty(t, c.holds)
		require.Equal(t, []string{"ab", "<barrier 3 (forced-aligned)>"}, drainText(s))
		require.Equal(t, Unaligned, unaligned.forced().supported().alignment)
		require.Equal(t, timeoutable, timeoutable.forced().supported())
	})
}

// The rows of flink-format §8.7, the persister.
func TestPersisterTable(t *testing.T) {
	c := &fakeCapture{}
	s := &snapshot{capture: c, missing: 9}
	data := func(p *persister) int {
		before := len(c.in)
		p.data(view{heapSegment([]byte("x"), 0), 0, 1})
		return len(c.in) - before
	}
	start := func(p *persister, id inflight.CheckpointID) bool {
		pending, err := p.start(id, s)
		require.NoError(t, err)
		return pending
	}
	subsumed := func(p *persister, id inflight.CheckpointID) {
		_, err := p.start(id, s)
		require.ErrorIs(t, err, inflight.ErrSubsumed)
	}
	p := newPersister(inflight.InputChannel{})
	require.Zero(t, data(&p), "completed: nothing")
	require.True(t, start(&p, 5))
	require.Equal(t, 1, data(&p), "pending: captured")
	require.False(t, p.barrier(4), "a smaller barrier is ignored")
	require.Equal(t, 1, data(&p))
	require.True(t, p.barrier(5))
	require.Equal(t, 8, s.missing, "the snapshot is told")
	require.Zero(t, data(&p), "received: nothing")
	require.False(t, start(&p, 5), "the barrier was faster")
	require.Equal(t, persistReceived, p.state)
	subsumed(&p, 4)
	p.stop(4)
	require.Equal(t, persistReceived, p.state, "an older stop is ignored")
	p.stop(5)
	require.Equal(t, persistCompleted, p.state)
	require.False(t, p.barrier(5), "completed: only a newer barrier counts")
	require.True(t, start(&p, 6))
	require.True(t, p.barrier(7), "a newer barrier while pending")
	require.Equal(t, 8, s.missing, "6 will never be whole")
	subsumed(&p, 6)
	require.True(t, start(&p, 8), "received, and a newer start: pending")
	require.Equal(t, 1, data(&p))
	require.Equal(t, uint64(3), s.late.Load())
}

// credit is a connection over the network of four-byte buffers.
func credit(t *testing.T, exclusive, floating int) (*partition, *subpartition, *channel, *network) {
	p, s, _ := line(t)
	net := &network{owner: wakeFunc(func() {})}
	in := &inputs{owner: wakeFunc(func() {})}
	ch := &channel{in: in, up: s, local: newPersister(inflight.InputChannel{})}
	ch.conn = newConn(&creditGate{exclusive: exclusive, floating: floating, bytes: 4}, net, s, ch)
	return p, s, ch, net
}

func move(n *network) {
	for range 1000 {
		if n.Step(1).Why != Ready {
			return
		}
	}
	panic("the network never rests")
}

// The rules of flink-format §9 about credit.
func TestCredits(t *testing.T) {
	t.Run("exclusive and floating bound what is in flight; events need none", func(t *testing.T) {
		p, s, ch, net := credit(t, 2, 3)
		s.write([]byte("aaaabbbbccccddddeeeeffffgggg"))
		move(net)
		require.Equal(t, 5, ch.conn.q.n, "2 exclusive + 3 floating")
		require.Equal(t, 2, s.q.n)
		p.barrier(barrier{id: 1, alignment: Unaligned, timeout: never}, &fakeCapture{})
		move(net)
		require.Equal(t, 1, ch.conn.prio.n, "the barrier passes a sender without credit")
		ch.pollPriority()
		for _, want := range []string{"aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff", "gggg"} {
			e, ok := ch.poll()
			require.True(t, ok)
			require.Equal(t, want, string(e.bytes()))
			e.free()
			move(net)
		}
		require.Equal(t, 2, ch.conn.credit, "nothing to send: the floating ones are given back")
		require.Equal(t, 3, ch.conn.gate.floating)
	})
	t.Run("no exclusive buffers: the backlog is announced without data", func(t *testing.T) {
		_, s, ch, net := credit(t, 0, 1)
		s.write([]byte("aaaabbbb"))
		move(net)
		require.Equal(t, 1, ch.conn.q.n)
		e, _ := ch.poll()
		e.free()
		move(net)
		e, ok := ch.poll()
		require.True(t, ok)
		require.Equal(t, "bbbb", string(e.bytes()))
		e.free()
		move(net)
		require.Equal(t, 1, ch.conn.gate.floating)
	})
	t.Run("a blocked channel gives its floating buffers back", func(t *testing.T) {
		p, s, ch, net := credit(t, 0, 2)
		s.write([]byte("aaaa"))
		p.event(&event{kind: evBarrier, b: barrier{id: 1, alignment: Aligned, timeout: never}})
		s.write([]byte("bbbbcccc"))
		move(net)
		require.True(t, s.blocked)
		require.Equal(t, 1, ch.conn.gate.floating, "one holds data, the other is given back")
		e, _ := ch.poll()
		e.free()
		move(net)
		require.Equal(t, 2, ch.conn.gate.floating)
		require.Equal(t, 2, s.q.n)
		s.resume()
		move(net)
		require.Zero(t, s.q.n)
		ch.close()
	})
}

// TestNetworkCapture shows what a network channel captures around its barrier:
// what is queued in front of it, not what came behind it before the task looked.
func TestNetworkCapture(t *testing.T) {
	p, s, ch, net := credit(t, 8, 0)
	s.write([]byte("aaaabbbb"))
	move(net)
	out := &fakeCapture{}
	p.barrier(barrier{id: 1, alignment: Unaligned, timeout: never}, out)
	s.write([]byte("cccc"))
	move(net)
	require.Empty(t, out.out, "all had left")
	in := &fakeCapture{}
	first, second := &snapshot{capture: in, missing: 9}, &snapshot{capture: in, missing: 9}
	_, err := ch.start(1, first)
	require.NoError(t, err)
	require.Equal(t, []string{"7/0#0 aaaa bbbb"}, in.in)

	// Nothing has come of the next one yet: all that is here, and what arrives
	// until its barrier does.
	ch.stop(1)
	require.Equal(t, 8, first.missing, "the barrier was here")
	_, err = ch.start(2, second)
	require.NoError(t, err)
	s.write([]byte("dddd"))
	move(net)
	p.barrier(barrier{id: 2, alignment: Unaligned, timeout: never}, out)
	s.write([]byte("eeee"))
	move(net)
	require.Equal(t, []string{"7/0#0 aaaa bbbb cccc", "7/12#0 dddd"}, in.in[1:])
	require.Equal(t, uint64(4), second.late.Load())
	require.Equal(t, 8, second.missing)

	// An aligned barrier that may time out is announced, and moved on demand.
	p.barrier(barrier{id: 3, alignment: Aligned, timeout: time.Second}, out)
	move(net)
	require.Equal(t, "filled 7/20#0", out.holds[0].got, "it has left the sender")
	for range 2 {
		ch.pollPriority()
	}
	ev, ok := ch.pollPriority()
	require.True(t, ok)
	require.Equal(t, evAnnounce, ev.kind)
	ch.prioritise(ev.seq)
	ev, ok = ch.pollPriority()
	require.True(t, ok)
	require.Equal(t, "barrier 3 (aligned)", ev.String(), "only its place changes")
	ch.prioritise(ev.seq) // taken already: nothing
	ch.close()
}

// TestLocalCapture shows that a local channel's barrier has come as soon as its
// sender has put it in front: the input part is whole, though the task may be
// busy with a record. What is taken before that is captured, what after is not.
func TestLocalCapture(t *testing.T) {
	for _, switched := range []bool{false, true} {
		p, s, _ := line(t)
		ch := &channel{in: &inputs{owner: wakeFunc(func() {})}, up: s, local: newPersister(inflight.InputChannel{})}
		s.reader = &ch.local
		s.write([]byte("aaaabbbbcccc"))
		in := &fakeCapture{}
		snap := &snapshot{capture: in, clock: func() time.Duration { return 9 }, first: 2, missing: 2}
		captured, err := ch.start(1, snap)
		require.NoError(t, err)
		require.Zero(t, captured, "what is queued is the sender's to capture")
		snap.barrierCame() // another channel's
		e, ok := ch.poll()
		require.True(t, ok)
		require.Equal(t, "aaaa", string(e.bytes()))
		e.free()
		require.Equal(t, []string{"7/0#0 aaaa"}, in.in)
		require.Zero(t, in.finished)
		out := &fakeCapture{}
		if switched {
			p.barrier(barrier{id: 1, alignment: Aligned, timeout: time.Second, passage: &passage{}}, out)
			require.Zero(t, in.finished, "it stands behind data")
			for _, o := range p.timeout(1) {
				o.fill()
			}
		} else {
			p.barrier(barrier{id: 1, alignment: Unaligned, timeout: never, passage: &passage{}}, out)
		}
		require.Equal(t, 1, in.finished)
		require.Equal(t, time.Duration(7), snap.ack.Alignment)
		require.Equal(t, uint64(4), snap.late.Load())
		require.Equal(t, []string{"<barrier 1 (unaligned)>", "bbbb", "cccc", "<end of overtaken data>"}, drainText(s))
		require.Len(t, in.in, 1, "the rest is in the sender's part")
		ch.stop(1)
		snap.inputDone()
		require.Equal(t, 1, in.finished, "once")
	}
}

// TestPassage follows overtaken data until it is consumed.
func TestPassage(t *testing.T) {
	b := barrier{id: 1, passage: &passage{}}
	first, second := b.mark(), b.mark()
	require.Equal(t, 3*time.Second, b.passage.took(3*time.Second), "nothing is known yet but that it takes longer")
	second.b.passage.pass(time.Second)
	first.b.passage.pass(500 * time.Millisecond)
	require.Equal(t, time.Second, b.passage.took(3*time.Second))
}

// TestPool has the rules of availability and overdraft.
func TestPool(t *testing.T) {
	woken := 0
	p := newPool(3, 4, 2, 1, 4, 0)
	p.owner = wakeFunc(func() { woken++ })
	require.True(t, p.avail.Load())
	a, b := p.request(0), p.request(0)
	require.False(t, p.avail.Load(), "a subpartition at its limit")
	a.release()
	require.True(t, p.avail.Load())
	require.Equal(t, 1, woken)
	c, d, e := p.request(1), p.request(1), p.request(2)
	require.False(t, p.avail.Load())
	f := p.request(2) // overdraft
	require.Zero(t, p.beyond)
	g := p.request(2) // beyond it: counted
	require.Equal(t, 1, p.beyond)
	for _, s := range []*segment{b, c, d} {
		s.release()
	}
	require.Equal(t, 4, woken, "woken though not available: perhaps only open buffers are out")
	for _, s := range []*segment{e, f, g} {
		s.release()
	}
	require.True(t, p.avail.Load())
	require.Len(t, p.free, 5, "what was beyond is not kept")
}
