package dataflow

import (
	"encoding/binary"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

// encoded returns what a picture hands over, in one piece.
func encoded(f Frozen) (all []byte) {
	f.Encode(func(p []byte) { all = append(all, p...) })
	return all
}

func contents(s *Keyed[int64]) map[string]int64 {
	m := map[string]int64{}
	s.each(func(key string, v *int64) { m[key] = *v })
	return m
}

// TestKeyedState compares keyed state with a map, and each picture with the map
// of its moment, though it is encoded much later. Hashes collide often.
func TestKeyedState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Keyed[int64]{codec: Int64, root: &node[int64]{}}
		model := map[string]int64{}
		type picture struct {
			f    Frozen
			want map[string]int64
		}
		var pictures []picture
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := rapid.IntRange(0, 60).Draw(t, "key")
			k := Key{fmt.Appendf(nil, "k%d", n), int32(n % 20)}
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				pictures = append(pictures, picture{s.Freeze(), maps.Clone(model)})
			case 1, 2:
				v := s.Get(k)
				want, ok := model[string(k.Bytes)]
				require.Equal(t, ok, v != nil)
				if ok {
					require.Equal(t, want, *v)
				}
			default:
				*s.Put(k) += int64(n)
				model[string(k.Bytes)] += int64(n)
			}
		}
		require.Equal(t, model, contents(s))
		require.Equal(t, len(model), s.Len())
		for _, p := range pictures {
			back := &Keyed[int64]{codec: Int64, root: &node[int64]{}}
			require.NoError(t, back.Restore(encoded(p.f)))
			require.Equal(t, p.want, contents(back))
		}
	})
}

func TestKeyedStateRefuses(t *testing.T) {
	s := &Keyed[int64]{codec: Int64, root: &node[int64]{}}
	*s.Put(Key{[]byte("key"), 7}) = 9
	whole := encoded(s.Freeze())
	for n := 1; n < len(whole); n++ {
		back := &Keyed[int64]{codec: Int64, root: &node[int64]{}}
		require.ErrorIs(t, back.Restore(whole[:n]), inflight.ErrCorrupt, "cut at %d", n)
	}
}

func BenchmarkKeyedPut(b *testing.B) {
	s := &Keyed[int64]{codec: Int64, root: &node[int64]{}}
	var k [4]byte
	i := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		i++
		binary.BigEndian.PutUint32(k[:], i%1000)
		*s.Put(IntKey(k[:]))++
	}
}

func TestTimers(t *testing.T) {
	s, err := NewTimers(&Context{t: &task{}})
	require.NoError(t, err)
	key := func(s string) Key { return StringKey([]byte(s)) }
	s.Set(Timer{Event: true, At: 20, Key: key("b")})
	s.Set(Timer{Event: true, At: 10, Key: key("z")})
	s.Set(Timer{Event: true, At: 10, Key: key("a")})
	s.Set(Timer{Event: true, At: 10, Key: key("a")}) // once
	s.Set(Timer{At: 5, Key: key("clock")})
	s.Set(Timer{At: 6, Key: key("deleted")})
	s.Delete(Timer{At: 6, Key: key("deleted")})
	require.Equal(t, 4, s.Len())

	// A restored one fires the same.
	restored := &task{restored: map[inflight.StateName][]byte{"timers": encoded(s.Freeze())}}
	back, err := NewTimers(&Context{t: restored})
	require.NoError(t, err)
	for _, s := range []*Timers{s, back} {
		var fired []string
		for _, at := range [][2]int64{{9, 4}, {10, 4}, {10, 5}, {20, 9}} {
			for {
				timer, ok := s.due(at[0], at[1])
				if !ok {
					break
				}
				fired = append(fired, fmt.Sprintf("%s@%v", timer.Key.Bytes, at))
			}
		}
		require.Equal(t, []string{"a@[10 4]", "z@[10 4]", "clock@[10 5]", "b@[20 9]"}, fired)
		require.Zero(t, s.Len())
	}
	require.ErrorIs(t, back.Restore([]byte{1, 2}), inflight.ErrCorrupt)
}

// TestTimersWaitForABarrier has 10,000 timers due when the barrier comes: the
// snapshot is taken among them, and the others fire after a restore.
func TestTimersWaitForABarrier(t *testing.T) {
	const n = 10_000
	exec := NewSeeded(1)
	log := newMemLog()
	fired := 0
	var atSnapshot []int
	build := func() *Graph {
		g := NewGraph()
		g.Source("source", 1, func(int) Source { return &timerSource{n: n} })
		g.Operator("timers", 1, func(int) Operator { return &timerOperator{fired: &fired, at: &atSnapshot} }, From("source", Hash(IntKey)))
		return g
	}
	o := Options{Unaligned: true, Interval: 10 * time.Millisecond, BufferSize: 512, TolerableFailures: -1}
	ended := false
	d, err := Deploy(exec, build(), o, log.open(exec), func(error) { ended = true })
	require.NoError(t, err)
	d.Start()
	for !ended && (len(atSnapshot) == 0 || atSnapshot[len(atSnapshot)-1] == 0) {
		exec.Run(exec.Now() + time.Millisecond)
	}
	k := atSnapshot[len(atSnapshot)-1]
	require.Positive(t, k)
	require.Less(t, k, n, "in the middle of the timers")
	exec.Run(exec.Now() + 8*time.Millisecond) // it becomes complete
	require.Equal(t, 1+len(atSnapshot)-1, int(log.committed.ID), "and nothing else")
	exec.Crash()

	fired = 0
	d, err = Deploy(exec, build(), o, log.open(exec), func(error) { ended = true })
	require.NoError(t, err)
	d.Start()
	exec.Run(exec.Now() + time.Minute)
	require.True(t, ended)
	require.Equal(t, n-k, fired, "those that had not fired, each once")
}

type timerSource struct {
	n  int
	at *Value[int64]
}

func (s *timerSource) Open(c *Context) (err error) {
	s.at, err = NewValue(c, "at", Int64, 0)
	return err
}

func (s *timerSource) Next(c *Context) (Status, error) {
	switch {
	case s.at.V < int64(s.n):
		c.Emit(Record{Body: binary.BigEndian.AppendUint32(nil, uint32(s.at.V))})
	case s.at.V == int64(s.n):
		c.EmitWatermark(1)
	default:
		return Status{Why: Done}, nil
	}
	s.at.V++
	return Status{}, nil
}

func (s *timerSource) Complete(*Context, inflight.CheckpointID) error { return nil }
func (s *timerSource) Close() error                                   { return nil }

type timerOperator struct {
	Base
	timers *Timers
	fired  *int
	at     *[]int
}

func (o *timerOperator) Open(c *Context) (err error) {
	o.timers, err = NewTimers(c)
	return err
}

func (o *timerOperator) Process(_ *Context, r Record) error {
	o.timers.Set(Timer{Event: true, At: 1, Key: IntKey(append([]byte(nil), r.Body...))})
	return nil
}

func (o *timerOperator) Timer(*Context, Timer) error {
	*o.fired++
	return nil
}

func (o *timerOperator) Prepare(*Context, inflight.CheckpointID) error {
	*o.at = append(*o.at, *o.fired)
	return nil
}
