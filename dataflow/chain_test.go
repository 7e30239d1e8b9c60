package dataflow

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestChain has a counter with timers behind another counter in one task. States
// of one name are two, and each comes back after a crash.
func TestChain(t *testing.T) {
	twice := FlatMap(func(c *Context, r Record) error { c.Emit(r); c.Emit(r); return nil })
	busy := func(int) Operator { return &simKeyed{busy: time.Millisecond} }
	timers := func(int) Operator { return &chainTimers{} }
	keyed := func(int) Operator { return &simKeyed{} }
	for name, work := range map[string]func(int) Operator{
		"flat":   Chain(twice, busy, timers, keyed),
		"nested": Chain(Chain(twice, Chain(busy)), Chain(timers, keyed)),
	} {
		t.Run(name, func(t *testing.T) { testChain(t, work) })
	}
}

func testChain(t *testing.T, work func(int) Operator) {
	const records = 500
	exec := NewSeeded(3)
	log := newMemLog()
	var seen []byte
	ended := false
	for crash := 0; !ended; crash++ {
		g := numbers(records)
		g.Operator("work", 1, work, From("source", Hash(IntKey)))
		g.Operator("sink", 1, func(int) Operator { return &chainSink{seen: &seen} }, From("work", Global()))
		d, err := Deploy(exec, g, Options{Unaligned: true, Interval: 20 * time.Millisecond, TolerableFailures: -1}, log.open(exec),
			func(err error) { require.NoError(t, err); ended = true })
		require.NoError(t, err)
		var states []inflight.StateName
		for _, s := range d.tasks[1].states {
			states = append(states, s.name)
		}
		require.ElementsMatch(t, []inflight.StateName{"runtime", "1/counts", "2/counts", "2/timers", "3/counts"}, states)
		log.tap(d)
		d.Start()
		limit := time.Minute
		if crash < 3 {
			limit = 150 * time.Millisecond
		}
		exec.Run(exec.Now() + limit)
		exec.Crash()
	}
	require.Empty(t, log.red)
	require.Len(t, seen, records)
	for n, times := range seen {
		require.EqualValues(t, 2, times, "record %d", n)
	}
}

// numbers has a source of n numbers.
func numbers(n int64) *Graph {
	g := NewGraph()
	g.Source("source", 1, func(int) Source {
		return &Generator{Records: n, Body: func(dst []byte, n int64) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }}
	})
	return g
}

// chainTimers holds a record back until event time has passed it.
type chainTimers struct {
	Base
	held   *Keyed[int64]
	timers *Timers
}

func (o *chainTimers) Open(c *Context) (err error) {
	if o.held, err = NewKeyed(c, "counts", Int64); err == nil {
		o.timers, err = NewTimers(c)
	}
	return err
}

func (o *chainTimers) Process(_ *Context, r Record) error {
	k := IntKey(r.Body)
	*o.held.Put(k)++
	o.timers.Set(Timer{Event: true, At: int64(k.Hash), Key: k})
	return nil
}

func (o *chainTimers) Timer(c *Context, timer Timer) error {
	for n := o.held.Put(timer.Key); *n > 0; *n-- {
		c.Emit(Record{Body: timer.Key.Bytes})
	}
	return nil
}

// chainSink counts what comes for each number, as state.
type chainSink struct {
	Base
	counts *Keyed[int64]
	seen   *[]byte
}

func (o *chainSink) Open(c *Context) (err error) {
	o.counts, err = NewKeyed(c, "counts", Int64)
	return err
}

func (o *chainSink) Process(_ *Context, r Record) error { *o.counts.Put(IntKey(r.Body))++; return nil }

func (o *chainSink) Finish(*Context) error {
	for n := range uint32(o.counts.Len()) {
		*o.seen = append(*o.seen, byte(*o.counts.Get(IntKey(binary.BigEndian.AppendUint32(nil, n)))))
	}
	return nil
}

// runChain has n numbers go through an operator, and tells when each record came
// to a sink, and when all had ended.
func runChain(n int64, work func(int) Operator) (came []time.Duration, end time.Duration, err error) {
	exec := NewSeeded(1)
	g := numbers(n)
	g.Operator("work", 1, work, From("source", Global()))
	g.Operator("sink", 1, FlatMap(func(c *Context, r Record) error { came = append(came, c.Now()); return nil }), From("work", Global()))
	d, refused := Deploy(exec, g, Options{}, nil, func(e error) { end, err = exec.Now(), e })
	if refused != nil {
		return nil, 0, refused
	}
	d.Start()
	exec.Run(time.Minute)
	return came, end, err
}

// TestChainNested has chains of chains do as the flat one, however they are put.
func TestChainNested(t *testing.T) {
	twice := FlatMap(func(c *Context, r Record) error { c.Emit(r); c.Emit(r); return nil })
	for name, work := range map[string]func(int) Operator{
		"flat":  Chain(twice, twice, twice),
		"right": Chain(twice, Chain(twice, twice)),
		"left":  Chain(Chain(twice, twice), twice),
		"deep":  Chain(Chain(Chain(twice)), Chain(Chain(twice), twice)),
	} {
		came, _, err := runChain(10, work)
		require.NoError(t, err, name)
		require.Len(t, came, 80, name)
	}
}

// TestChainBusy has a record take as long as all operators say together, and as
// all calls of one do.
func TestChainBusy(t *testing.T) {
	busy := func(calls int) func(int) Operator {
		return FlatMap(func(c *Context, r Record) error {
			for range calls {
				c.Busy(10 * time.Millisecond)
			}
			c.Emit(r)
			return nil
		})
	}
	for name, work := range map[string]func(int) Operator{"chain": Chain(busy(1), busy(1), busy(1)), "one": busy(3)} {
		came, end, err := runChain(10, work)
		require.NoError(t, err, name)
		require.Len(t, came, 10, name)
		// What a busy call emits is sent before it is over.
		require.InDelta(t, 270*time.Millisecond, came[9], float64(5*time.Millisecond), name)
		require.InDelta(t, 300*time.Millisecond, end, float64(5*time.Millisecond), name)
	}
}

// TestStallOfOneThatIsBusy: a stall lasts until its end, not longer because the
// operator takes its time, or is one of several that stall.
func TestStallOfOneThatIsBusy(t *testing.T) {
	busy := FlatMap(func(c *Context, r Record) error { c.Busy(500 * time.Millisecond); c.Emit(r); return nil })
	faults := []Fault{{Task: inflight.Task{Vertex: "work"}, For: 2 * time.Second}}
	stalls := func(i int) Operator { return ScriptedOperator(busy(i), faults) }
	for name, work := range map[string]func(int) Operator{"one": stalls, "chain": Chain(stalls, stalls)} {
		came, _, err := runChain(2, work)
		require.NoError(t, err, name)
		require.Len(t, came, 2, name)
		require.InDelta(t, 2*time.Second, came[1], float64(10*time.Millisecond), name)
	}
}

// chainCalls writes down its calls, and emits in Open and Finish.
type chainCalls struct {
	Base
	name string
	log  *[]string
	fail error // in Open
	lost error // in Disconnect
}

func (o *chainCalls) say(call string) { *o.log = append(*o.log, o.name+" "+call) }

func (o *chainCalls) Open(c *Context) error {
	o.say("open")
	c.Emit(Record{})
	return o.fail
}

func (o *chainCalls) Process(c *Context, r Record) error { o.say("process"); c.Emit(r); return nil }
func (o *chainCalls) Finish(c *Context) error            { o.say("finish"); c.Emit(Record{}); return nil }
func (o *chainCalls) Disconnect() error                  { o.say("disconnect"); return o.lost }
func (o *chainCalls) Close() error                       { o.say("close"); return nil }

// TestChainOrder has the last operator open before the first one emits, and
// closes only what it has opened.
func TestChainOrder(t *testing.T) {
	var log []string
	calls := func(name string, fail error) func(int) Operator {
		return func(int) Operator { return &chainCalls{name: name, log: &log, fail: fail} }
	}
	came, _, err := runChain(0, Chain(calls("a", nil), calls("b", nil), calls("c", nil)))
	require.NoError(t, err)
	require.Len(t, came, 6)
	require.Equal(t, []string{"c open", "b open", "c process", "a open", "b process", "c process",
		"a finish", "b process", "c process", "b finish", "c process", "c finish", "c close", "b close", "a close"}, log)

	broken := errors.New("broken")
	log = nil
	_, _, err = runChain(0, Chain(calls("a", nil), calls("b", broken), calls("c", nil)))
	require.ErrorIs(t, err, broken)
	require.Equal(t, []string{"c open", "b open", "c process", "c close", "b close"}, log)
}

// TestChainObeysAScript has a disconnect come to the operators of a chain that
// can lose their connection, once each.
func TestChainObeysAScript(t *testing.T) {
	pass := FlatMap(func(c *Context, r Record) error { c.Emit(r); return nil })
	faults := []Fault{{Task: inflight.Task{Vertex: "work"}, Disconnect: true, For: time.Second}}
	run := func(fail error) (lost int, err error) {
		var log []string
		sink := func(int) Operator { return &chainCalls{name: "sink", log: &log} }
		other := func(int) Operator { return &chainCalls{name: "other", log: &log, lost: fail} }
		_, _, err = runChain(3, func(i int) Operator { return ScriptedOperator(Chain(other, pass, sink)(i), faults) })
		for _, l := range log {
			if l == "other disconnect" || l == "sink disconnect" {
				lost++
			}
		}
		return lost, err
	}
	lost, err := run(nil)
	require.NoError(t, err)
	require.Equal(t, 2, lost)
	broken := errors.New("broken")
	lost, err = run(broken)
	require.ErrorIs(t, err, broken)
	require.Equal(t, 2, lost, "one that fails does not keep it from the others")
}

// TestChainRefuses has errors of later operators end the job, and says what a
// chain cannot have.
func TestChainRefuses(t *testing.T) {
	broken := errors.New("broken")
	pass := FlatMap(func(c *Context, r Record) error { c.Emit(r); return nil })
	fails := FlatMap(func(*Context, Record) error { return broken })
	withTimers := func(int) Operator { return &chainTimers{} }
	run := func(operators ...func(int) Operator) error {
		_, _, err := runChain(3, Chain(operators...))
		return err
	}
	require.NoError(t, run(pass, withTimers, pass))
	require.ErrorIs(t, run(pass, pass, fails), broken)
	require.ErrorIs(t, run(withTimers, fails), broken, "from a timer")
	err := run(withTimers, pass, withTimers)
	require.ErrorIs(t, err, inflight.ErrConfig)
	require.ErrorContains(t, err, "two operators of a chain have timers")
	for _, empty := range [][]func(int) Operator{nil, {Chain()}, {pass, Chain()}, {Chain(), pass}} {
		err = run(empty...)
		require.ErrorIs(t, err, inflight.ErrConfig)
		require.ErrorContains(t, err, "open work/0: a chain has no operators")
	}
	wrapped := func(i int) Operator { return ScriptedOperator(Chain(pass, pass)(i), nil) }
	require.NoError(t, run(func(i int) Operator { return Chain(pass, pass)(i) }))
	for _, nested := range [][]func(int) Operator{{wrapped}, {wrapped, pass}, {pass, wrapped}} {
		err = run(nested...)
		require.ErrorIs(t, err, inflight.ErrConfig)
		require.ErrorContains(t, err, "a chain in a chain is wrapped in another operator")
	}
}
