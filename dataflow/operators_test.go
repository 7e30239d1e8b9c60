package dataflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestBigRecords sends records of 1 byte to 1 MB through buffers of 32 KiB,
// with unaligned checkpoints that cut them anywhere, and crashes.
func TestBigRecords(t *testing.T) {
	sizes := []int{1, 100, 32<<10 - lengthBytes - 1, 32 << 10, 1, 1 << 20, 5, 100_000}
	body := func(n int64) []byte {
		b := bytes.Repeat([]byte{byte(n)}, sizes[n%int64(len(sizes))])
		return b
	}
	const records = 40
	for _, o := range []Options{{}, {Credit: true}, {Credit: true, OutputBuffers: 2, ExclusiveBuffers: 1, FloatingBuffers: 1, OverdraftBuffers: -1}} {
		o.Unaligned, o.Interval, o.TolerableFailures = true, 3*time.Millisecond, -1
		log := newMemLog()
		exec := NewSeeded(4)
		var seen []int64
		ended, unaligned := false, uint64(0)
		for crash := 0; !ended; crash++ {
			g := NewGraph()
			g.Source("source", 1, func(int) Source {
				return &Generator{Records: records, Body: func(dst []byte, n int64) []byte { return append(dst, body(n)...) }}
			})
			g.Operator("sink", 1, func(int) Operator { return &bigSink{t: t, body: body, seen: &seen} }, From("source", Global()))
			o.OnCheckpoint = func(r CheckpointResult) { unaligned += r.size("") }
			d, err := Deploy(exec, g, o, log.open(exec), func(err error) { require.NoError(t, err); ended = true })
			require.NoError(t, err)
			log.tap(d)
			d.Start()
			limit := time.Minute
			if crash < 3 {
				limit = 20 * time.Millisecond
			}
			exec.Run(exec.Now() + limit)
			exec.Crash()
		}
		require.Empty(t, log.red)
		require.Positive(t, unaligned)
		require.Equal(t, int64(records), seen[len(seen)-1])
	}
}

// bigSink checks that records come in order, and are whole.
type bigSink struct {
	Base
	t    *testing.T
	body func(int64) []byte
	at   *Value[int64]
	seen *[]int64
}

func (s *bigSink) Open(c *Context) (err error) {
	s.at, err = NewValue(c, "at", Int64, 0)
	return err
}

func (s *bigSink) Process(c *Context, r Record) error {
	require.True(s.t, bytes.Equal(s.body(s.at.V), r.Body), "record %d", s.at.V)
	s.at.V++
	*s.seen = append(*s.seen, s.at.V)
	c.Busy(time.Millisecond)
	return nil
}

// TestConnect has an operator that tells its inputs apart by their gate: it
// enriches records of one with what came last on the other.
func TestConnect(t *testing.T) {
	exec := NewSeeded(2)
	g := NewGraph()
	one := func(text string, n int64) func(int) Source {
		return func(int) Source {
			return &Generator{Records: n, Pause: time.Millisecond, Body: func(dst []byte, n int64) []byte { return fmt.Appendf(dst, "%s%d", text, n) }}
		}
	}
	g.Source("rates", 1, one("r", 3))
	g.Source("orders", 2, one("o", 3))
	perGate := map[int]int{}
	g.Operator("join", 1, FlatMap(func(c *Context, r Record) error {
		perGate[c.Gate]++
		require.Equal(t, map[int]byte{0: 'r', 1: 'o', 2: 'o'}[c.Gate], r.Body[0])
		return nil
	}), From("rates", Broadcast()), From("orders", Hash(LineKey)), From("orders", Rebalance()))
	ended := false
	d, err := Deploy(exec, g, Options{}, nil, func(err error) { ended = err == nil })
	require.NoError(t, err)
	d.Start()
	exec.Run(time.Minute)
	require.True(t, ended)
	require.Equal(t, map[int]int{0: 3, 1: 6, 2: 6}, perGate)
	for _, s := range d.Stats().Tasks {
		require.Less(t, s.Busy, time.Second, "a task that has ended is idle")
	}
}

// TestProcessingTimersAfterACrash has timers of processing time that were set
// before a crash fire after it, once and not early.
func TestProcessingTimersAfterACrash(t *testing.T) {
	exec := NewSeeded(1)
	log := newMemLog()
	fired := map[uint32]time.Duration{}
	deploy := func() {
		g := NewGraph()
		g.Source("source", 1, func(int) Source {
			return &Generator{Records: -1, Pause: 10 * time.Millisecond, Body: func(dst []byte, n int64) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }}
		})
		g.Operator("late", 1, func(int) Operator { return &lateOperator{fired: fired} }, From("source", Hash(IntKey)))
		d, err := Deploy(exec, g, Options{Unaligned: true, Interval: 100 * time.Millisecond, TolerableFailures: -1}, log.open(exec), nil)
		require.NoError(t, err)
		d.Start()
	}
	deploy()
	exec.Run(time.Second)
	require.Empty(t, fired)
	exec.Crash()
	deploy()
	exec.Run(3 * time.Second)
	for n := range uint32(80) { // set before the last checkpoint
		require.InDelta(t, 2000+10*n, fired[n].Milliseconds(), 15, "timer %d", n)
	}
}

// lateOperator sets a timer two seconds after each record.
type lateOperator struct {
	Base
	timers *Timers
	fired  map[uint32]time.Duration
}

func (o *lateOperator) Open(c *Context) (err error) {
	o.timers, err = NewTimers(c)
	return err
}

func (o *lateOperator) Process(c *Context, r Record) error {
	o.timers.Set(Timer{At: (c.Now() + 2*time.Second).Milliseconds(), Key: IntKey(r.Body)})
	return nil
}

func (o *lateOperator) Timer(c *Context, timer Timer) error {
	n := binary.BigEndian.Uint32(timer.Key.Bytes)
	if _, twice := o.fired[n]; twice {
		return fmt.Errorf("timer %d fires twice: %w", n, inflight.ErrOrder)
	}
	o.fired[n] = c.Now()
	return nil
}

// idleSource says that it is idle, becomes active for a late record, and ends.
type idleSource struct {
	timerSource
	step int
}

func (s *idleSource) Next(c *Context) (Status, error) {
	s.step++
	switch s.step {
	case 1:
		c.Idle(true)
		c.Idle(true) // once
		return Status{Why: NoInput, At: 100 * time.Millisecond}, nil
	case 2:
		c.Idle(false)
		c.Emit(Record{Body: []byte("late")})
		c.EmitWatermark(40)
		return Status{Why: NoInput, At: 200 * time.Millisecond}, nil
	}
	return Status{Why: Done}, nil
}

// TestIdle has event time not wait for an idle source, also behind another
// operator; one that comes back does not turn it back.
func TestIdle(t *testing.T) {
	exec := NewSeeded(2)
	g := NewGraph()
	g.Source("idle", 1, func(int) Source { return &idleSource{} })
	pass := FlatMap(func(c *Context, r Record) error { c.EmitTo(0, r); return nil })
	g.Operator("pass", 2, pass, From("idle", Broadcast()))
	g.Source("busy", 1, func(int) Source {
		n := int64(0)
		return &funcSource{next: func(c *Context) Status {
			if n++; n > 10 {
				return Status{Why: NoInput, At: time.Second}
			}
			c.EmitWatermark(10 * n)
			return Status{}
		}}
	})
	var reached []string
	g.Operator("sink", 1, func(int) Operator { return &watermarkSink{reached: &reached} }, From("pass", Rebalance()), From("busy", Global()))
	d, err := Deploy(exec, g, Options{}, nil, nil)
	require.NoError(t, err)
	d.Start()
	exec.Run(90 * time.Millisecond)
	require.Equal(t, "100", reached[len(reached)-1], "before the idle one is back")
	exec.Run(190 * time.Millisecond)
	require.Equal(t, []string{"100", "late", "late"}, reached[len(reached)-3:], "40 turns nothing back")
	d.Stop(inflight.ErrClosed)
	exec.Run(time.Minute)
}

// funcSource is a source of one function.
type funcSource struct {
	timerSource
	next func(*Context) Status
}

func (s *funcSource) Next(c *Context) (Status, error) { return s.next(c), nil }

// watermarkSink writes down what comes to it.
type watermarkSink struct {
	Base
	reached *[]string
}

func (s *watermarkSink) Process(_ *Context, r Record) error {
	*s.reached = append(*s.reached, string(r.Body))
	return nil
}

func (s *watermarkSink) Watermark(c *Context, ms int64) error {
	if c.Watermark() != ms {
		return fmt.Errorf("the watermark is %d, not %d: %w", c.Watermark(), ms, inflight.ErrOrder)
	}
	*s.reached = append(*s.reached, fmt.Sprint(ms))
	return nil
}
