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
	const records = 500
	exec := NewSeeded(3)
	log := newMemLog()
	var seen []byte
	ended := false
	for crash := 0; !ended; crash++ {
		g := NewGraph()
		g.Source("source", 1, func(int) Source {
			return &Generator{Records: records, Body: func(dst []byte, n int64) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }}
		})
		g.Operator("work", 1, Chain(
			FlatMap(func(c *Context, r Record) error { c.Emit(r); c.Emit(r); return nil }),
			func(int) Operator { return &simKeyed{busy: time.Millisecond} },
			func(int) Operator { return &chainTimers{} },
			func(int) Operator { return &simKeyed{} },
		), From("source", Hash(IntKey)))
		g.Operator("sink", 1, func(int) Operator { return &chainSink{seen: &seen} }, From("work", Global()))
		d, err := Deploy(exec, g, Options{Unaligned: true, Interval: 20 * time.Millisecond, TolerableFailures: -1}, log.open(exec),
			func(err error) { require.NoError(t, err); ended = true })
		require.NoError(t, err)
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

// TestChainRefuses has errors of later operators end the job, and says what a
// chain cannot have.
func TestChainRefuses(t *testing.T) {
	broken := errors.New("broken")
	pass := FlatMap(func(c *Context, r Record) error { c.Emit(r); return nil })
	fails := FlatMap(func(*Context, Record) error { return broken })
	withTimers := func(int) Operator { return &chainTimers{} }
	run := func(operators ...func(int) Operator) (err error) {
		exec := NewSeeded(1)
		g := NewGraph()
		g.Source("source", 1, func(int) Source {
			return &Generator{Records: 3, Body: func(dst []byte, n int64) []byte { return append(dst, 0, 0, 0, byte(n)) }}
		})
		g.Operator("work", 1, Chain(operators...), From("source", Global()))
		d, refused := Deploy(exec, g, Options{}, nil, func(e error) { err = e })
		if refused != nil {
			return refused
		}
		d.Start()
		exec.Run(time.Minute)
		return err
	}
	require.NoError(t, run(pass, withTimers, pass))
	require.ErrorIs(t, run(pass, pass, fails), broken)
	require.ErrorIs(t, run(withTimers, fails), broken, "from a timer")
	err := run(withTimers, pass, withTimers)
	require.ErrorIs(t, err, inflight.ErrConfig)
	require.ErrorContains(t, err, "two operators of a chain have timers")
}
