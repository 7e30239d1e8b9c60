package wrap_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/mem"
	. "github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	for name, around := range map[string]func(backends.Backend) backends.Backend{
		"observe": func(b backends.Backend) backends.Backend { return Observe(b, inflight.Discard) },
		"retry":   func(b backends.Backend) backends.Backend { return Retry(b, RetryOptions{}) },
		"throttle": func(b backends.Backend) backends.Backend {
			return Throttle(b, Limits{RequestsPerSecond: 1e6, BytesPerSecond: 1e12})
		},
		"faults": func(b backends.Backend) backends.Backend { return NewFaults(b) },
	} {
		for flavour, opt := range map[string]mem.Options{"tree": {}, "object store": {ObjectStore: true, HeldUntilFinish: true}} {
			t.Run(name+"/"+flavour, func(t *testing.T) {
				backendtest.Run(t, func(*testing.T) backends.Backend { return around(mem.New(opt)) }, backendtest.Options{})
			})
		}
	}
}

func put(ctx context.Context, b backends.Backend, name, data string) error {
	o, err := b.Create(ctx, name, backends.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := o.Write([]byte(data)); err != nil {
		return errors.Join(err, o.Abort(ctx))
	}
	_, err = o.Finish(ctx)
	return err
}

func collect[T any](seq iter.Seq2[T, error]) (all []T, err error) {
	for v, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// exercise makes every kind of call once, and returns the errors by kind.
func exercise(ctx context.Context, b backends.Backend) map[Op]error {
	errs := map[Op]error{}
	o, err := b.Create(ctx, "d/x", backends.CreateOptions{})
	if errs[OpCreate] = err; err == nil {
		_, errs[OpWrite] = o.Write([]byte("0123456789"))
		_, errs[OpFinish] = o.Finish(ctx)
	}
	o, err = b.Create(ctx, "d/y", backends.CreateOptions{})
	if err == nil {
		left, err := collect(b.Leftovers(ctx, ""))
		errs[OpLeftovers] = err
		for _, l := range left {
			errs[OpRemoveLeftover] = l.Remove(ctx)
		}
		errs[OpAbort] = o.Abort(ctx)
	} else {
		_, errs[OpLeftovers] = collect(b.Leftovers(ctx, ""))
	}
	s, err := b.Open(ctx, "d/x")
	if errs[OpOpen] = err; err == nil {
		errs[OpReadAt] = s.ReadAt(ctx, make([]byte, 4), 2)
		r, err := s.Stream(ctx, 3, -1)
		if errs[OpStream] = err; err == nil {
			_, errs[OpStreamRead] = io.ReadAll(r)
			r.Close()
		}
		s.Close()
	}
	_, errs[OpStat] = b.Stat(ctx, "d/x")
	_, errs[OpList] = collect(b.List(ctx, "d"))
	_, errs[OpChildren] = collect(b.Children(ctx, "d"))
	errs[OpSyncNames] = b.SyncNames(ctx, "d")
	_, errs[OpSpace] = b.Space(ctx)
	errs[OpRemove] = b.Remove(ctx, "d/x")
	errs[OpRemoveAll] = b.RemoveAll(ctx, "d")
	return errs
}

func TestAs(t *testing.T) {
	m := mem.New(mem.Options{})
	f := NewFaults(m)
	b := ReadOnly(Observe(Retry(Throttle(f, Limits{}), RetryOptions{}), inflight.Discard))
	got, ok := As[*mem.Backend](b)
	require.True(t, ok)
	require.Same(t, m, got)
	faults, ok := As[*Faults](b)
	require.True(t, ok)
	require.Same(t, f, faults)
	_, ok = As[interface{ Nobody() }](b)
	require.False(t, ok)
	require.Equal(t, m.Capabilities(), b.Capabilities())
	require.Equal(t, m.URL(), b.URL())
}

func TestObserve(t *testing.T) {
	seen := map[Op]inflight.Event{}
	clock := mem.New(mem.Options{})
	b := Observe(clock, inflight.ObserverFunc(func(e inflight.Event) {
		require.Equal(t, inflight.EventRequest, e.Name)
		require.EqualValues(t, 1, e.Count)
		require.GreaterOrEqual(t, e.Duration, time.Duration(0))
		seen[Op(e.Object)] = e
	}))
	errs := exercise(t.Context(), b)
	for op, err := range errs {
		if op == OpStreamRead {
			require.NotContains(t, seen, op, "reads of a stream are not told one by one")
			continue
		}
		require.Contains(t, seen, op)
		require.Equal(t, err, seen[op].Err, op)
	}
	for op, want := range map[Op]int64{OpWrite: 10, OpReadAt: 4, OpStream: 7, OpList: 0} {
		require.Equal(t, want, seen[op].Bytes, op)
	}
	_, err := b.Open(t.Context(), "nothing")
	require.ErrorIs(t, seen[OpOpen].Err, inflight.ErrNotExist)
	require.Equal(t, err, seen[OpOpen].Err)
}

func TestObserveSeesAStreamFail(t *testing.T) {
	var seen []inflight.Event
	f := NewFaults(mem.New(mem.Options{}))
	b := Observe(f, inflight.ObserverFunc(func(e inflight.Event) { seen = append(seen, e) }))
	require.NoError(t, put(t.Context(), b, "x", "x"))
	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	r, err := s.Stream(t.Context(), 0, -1)
	require.NoError(t, err)
	f.Set(Rule{On(OpStreamRead), Fail(inflight.ErrTimeout)})
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, inflight.ErrTimeout)
	last := seen[len(seen)-1]
	require.Equal(t, string(OpStreamRead), last.Object)
	require.ErrorIs(t, last.Err, inflight.ErrTimeout)
}

func TestReadOnly(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	require.NoError(t, put(ctx, m, "d/x", "0123456789"))
	_, err := m.Create(ctx, "d/unfinished", backends.CreateOptions{})
	require.NoError(t, err)
	b := ReadOnly(m)
	errs := exercise(ctx, b)
	for op, err := range errs {
		switch op {
		case OpCreate, OpRemove, OpRemoveAll:
			require.ErrorIs(t, err, inflight.ErrReadOnly, op)
			require.ErrorContains(t, err, "opened for reading only")
		case OpSpace:
		default:
			require.NoError(t, err, op)
		}
	}
	left, err := collect(b.Leftovers(ctx, ""))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.ErrorIs(t, left[0].Remove(ctx), inflight.ErrReadOnly)
	infos, err := collect(m.List(ctx, ""))
	require.NoError(t, err)
	require.Len(t, infos, 1, "nothing was changed")
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, m := t.Context(), mem.New(mem.Options{})
		require.NoError(t, put(ctx, m, "d/x", "0123456789"))
		for _, op := range []Op{OpOpen, OpStat, OpList, OpChildren, OpRemove} {
			f := NewFaults(m, Rule{And(On(op), Not(Nth(3, On(op)))), Fail(inflight.ErrUnavailable)})
			start := time.Now()
			err := exercise(ctx, Retry(f, RetryOptions{Attempts: 3}))[op]
			require.NoError(t, err, op)
			took := time.Since(start)
			require.GreaterOrEqual(t, took, 75*time.Millisecond, "half of 50 ms and of 100 ms")
			require.LessOrEqual(t, took, 150*time.Millisecond)

			f = NewFaults(m, Rule{And(On(op), Not(Nth(3, On(op)))), Fail(inflight.ErrUnavailable)})
			require.ErrorIs(t, exercise(ctx, Retry(f, RetryOptions{Attempts: 2}))[op], inflight.ErrUnavailable, op)
			f = NewFaults(m, Rule{Nth(1, On(op)), Fail(inflight.ErrPermission)})
			require.ErrorIs(t, exercise(ctx, Retry(f, RetryOptions{}))[op], inflight.ErrPermission, "%s: that will not help", op)
		}
		for op, err := range exercise(ctx, Retry(NewFaults(m, Rule{Always(), Fail(inflight.ErrUnavailable)}), RetryOptions{Attempts: 50})) {
			require.Error(t, err, op) // also after minutes
		}
		for _, op := range []Op{OpCreate, OpWrite, OpFinish, OpReadAt, OpStream, OpRemoveAll, OpSyncNames, OpLeftovers} {
			f := NewFaults(m, Rule{Nth(1, On(op)), Fail(inflight.ErrUnavailable)})
			require.ErrorIs(t, exercise(ctx, Retry(f, RetryOptions{}))[op], inflight.ErrUnavailable, "%s is not repeated", op)
		}
	})
}

func TestRetryGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaults(mem.New(mem.Options{}), Rule{Always(), Fail(inflight.ErrUnavailable)})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := Retry(f, RetryOptions{First: time.Hour, Longest: time.Hour}).Stat(ctx, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "unavailable", "and says why it was waiting")
		require.False(t, inflight.Retryable(err))
		require.Equal(t, 1, f.Ops())

		f.Set(Rule{Always(), Fail(context.Canceled)})
		_, err = Retry(f, RetryOptions{}).Stat(t.Context(), "x")
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, f.Ops(), "the end of a context is permanent")
	})
}

// brokenList fails once, behind two names.
type brokenList struct {
	backends.Backend
	lists int
}

func (b *brokenList) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		b.lists++
		n := 0
		for info, err := range b.Backend.List(ctx, prefix) {
			if n++; b.lists == 1 && n == 3 {
				yield(backends.Info{}, &inflight.Error{Op: "list", Err: inflight.ErrTimeout})
				return
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

func TestRetryGoesOnWithAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &brokenList{Backend: mem.New(mem.Options{})}
		for _, name := range []string{"a", "b", "c", "d"} {
			require.NoError(t, put(t.Context(), b, name, ""))
		}
		infos, err := collect(Retry(b, RetryOptions{}).List(t.Context(), ""))
		require.NoError(t, err)
		var names string
		for _, info := range infos {
			names += info.Name
		}
		require.Equal(t, "abcd", names)
		require.Equal(t, 2, b.lists)
	})
}

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		took := func(limits Limits, f func(b backends.Backend)) time.Duration {
			start := time.Now()
			f(Throttle(mem.New(mem.Options{}), limits))
			return time.Since(start).Round(10 * time.Millisecond)
		}
		require.Equal(t, 1900*time.Millisecond, took(Limits{RequestsPerSecond: 10}, func(b backends.Backend) {
			for range 20 {
				_, _ = b.Stat(ctx, "x")
			}
		}))
		require.Equal(t, 3*time.Second, took(Limits{BytesPerSecond: 1 << 20}, func(b backends.Backend) {
			require.NoError(t, put(ctx, b, "x", string(make([]byte, 2<<20)))) // one second: 1 MiB is free
			s, err := b.Open(ctx, "x")
			require.NoError(t, err)
			require.NoError(t, s.ReadAt(ctx, make([]byte, 1<<20), 0))
			r, err := s.Stream(ctx, 1<<20, -1)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, r)
			require.NoError(t, err)
			require.EqualValues(t, 1<<20, n)
		}))
		require.Zero(t, took(Limits{}, func(b backends.Backend) { exercise(ctx, b) }))
	})
}

func TestThrottleEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Throttle(mem.New(mem.Options{}), Limits{RequestsPerSecond: 0.001, BytesPerSecond: 1})
		o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Stat(ctx, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		wrote := make(chan error)
		go func() { _, err := o.Write(make([]byte, 2<<20)); wrote <- err }()
		synctest.Wait()
		require.NoError(t, o.Abort(ctx), "Abort does not wait")
		require.ErrorIs(t, <-wrote, inflight.ErrClosed)
	})
}

func TestFaults(t *testing.T) {
	ctx := t.Context()
	run := func(rules ...Rule) (*mem.Backend, map[Op]error) {
		m := mem.New(mem.Options{})
		return m, exercise(ctx, NewFaults(m, rules...))
	}
	_, clean := run()
	for op := range clean {
		_, errs := run(Rule{On(op), Fail(inflight.ErrUnavailable)})
		require.ErrorIs(t, errs[op], inflight.ErrUnavailable, op)
		typed, ok := errors.AsType[*inflight.Error](errs[op])
		require.True(t, ok)
		require.Equal(t, string(op), typed.Op)
		_, errs = run(Rule{And(On(op), NameHas("nobody")), Fail(inflight.ErrUnavailable)})
		require.Equal(t, clean, errs, op)
		_, errs = run(Rule{On(op), LoseAnswer()})
		require.ErrorIs(t, errs[op], inflight.ErrOutcomeUnknown, op)
	}
	_, errs := run(Rule{NameHas("d/y"), Fail(inflight.ErrAuth)}, Rule{Or(On(OpStat), On(OpList)), Fail(inflight.ErrTimeout)})
	require.NoError(t, errs[OpCreate])
	require.ErrorIs(t, errs[OpStat], inflight.ErrTimeout)
	require.ErrorIs(t, errs[OpList], inflight.ErrTimeout)
	_, errs = run(Rule{FromOp(5), Fail(inflight.ErrTimeout)})
	require.NoError(t, errs[OpFinish])
	require.ErrorIs(t, errs[OpList], inflight.ErrTimeout)
	require.ErrorIs(t, errs[OpRemoveAll], inflight.ErrTimeout)
}

func TestFaultBeforeAndAfter(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	f := NewFaults(m)
	for fault, applied := range map[string]bool{"fail": false, "lose": true} {
		f.Set(Rule{On(OpFinish, OpRemove), map[string]Fault{"fail": Fail(inflight.ErrUnavailable), "lose": LoseAnswer()}[fault]})
		require.Error(t, put(ctx, f, "x", "x"))
		_, err := m.Stat(ctx, "x")
		require.Equal(t, applied, err == nil, fault)
		left, err := collect(m.Leftovers(ctx, ""))
		require.NoError(t, err)
		require.Empty(t, left, "Finish ends the object in any case")
		require.NoError(t, put(ctx, m, "x", "x"))
		require.Error(t, f.Remove(ctx, "x"))
		_, err = m.Stat(ctx, "x")
		require.Equal(t, !applied, err == nil, fault)
	}
	f.Set(Rule{On(OpCreate), LoseAnswer()})
	_, err := f.Create(ctx, "y", backends.CreateOptions{})
	require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
	left, err := collect(m.Leftovers(ctx, ""))
	require.NoError(t, err)
	require.Empty(t, left, "what the caller did not get is dropped")
}

func TestPartialWrite(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	f := NewFaults(m, Rule{Nth(2, On(OpWrite)), Partial(3, inflight.ErrNoSpace)})
	o, err := f.Create(ctx, "x", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write([]byte("01234"))
	require.NoError(t, err)
	n, err := o.Write([]byte("56789"))
	require.ErrorIs(t, err, inflight.ErrNoSpace)
	require.Equal(t, 3, n)
	_, again := o.Write([]byte("x"))
	require.Equal(t, err, again, "it stays failed")
	back := make([]byte, 8)
	_, errBack := o.(io.ReaderAt).ReadAt(back, 0)
	require.NoError(t, errBack)
	require.Equal(t, "01234567", string(back), "what was taken can be read back")
	_, again = o.Finish(ctx)
	require.Equal(t, err, again)
	_, err = m.Stat(ctx, "x")
	require.ErrorIs(t, err, inflight.ErrNotExist)
	left, err := collect(m.Leftovers(ctx, ""))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New(mem.Options{})
		require.NoError(t, put(t.Context(), m, "d/x", "x"))
		f := NewFaults(m, Rule{Not(On(OpCreate, OpWrite, OpAbort, OpOpen)), Hang()})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		for op, err := range exercise(ctx, f) {
			switch op {
			case OpCreate, OpWrite, OpOpen, OpAbort:
			default:
				require.ErrorIs(t, err, context.DeadlineExceeded, op)
			}
		}
		require.Equal(t, time.Second, time.Since(start))

		f.Set(Rule{On(OpWrite, OpFinish), Hang()})
		o, err := f.Create(t.Context(), "y", backends.CreateOptions{})
		require.NoError(t, err)
		hung := make(chan error)
		go func() { _, err := o.Write([]byte("y")); hung <- err }()
		synctest.Wait()
		require.NoError(t, o.Abort(t.Context()))
		require.ErrorIs(t, <-hung, inflight.ErrClosed)

		o, err = f.Create(t.Context(), "z", backends.CreateOptions{})
		require.NoError(t, err)
		go func() { _, err := o.Finish(t.Context()); hung <- err }()
		synctest.Wait()
		require.NoError(t, o.Abort(t.Context()))
		require.ErrorIs(t, <-hung, inflight.ErrClosed)
		infos, err := collect(m.List(t.Context(), ""))
		require.NoError(t, err)
		require.Len(t, infos, 1)
	})
}

// TestKillAtEveryOp is the loop that users of Faults write.
func TestKillAtEveryOp(t *testing.T) {
	ctx := t.Context()
	f := NewFaults(mem.New(mem.Options{}))
	exercise(ctx, f)
	ops := f.Ops()
	require.Equal(t, 19, ops)
	for n := 1; n <= ops; n++ {
		for _, kill := range []Fault{Kill(), KillAfter()} {
			m := mem.New(mem.Options{})
			f := NewFaults(m, Rule{AtOp(n), kill})
			exercise(ctx, f)
			require.True(t, f.Killed())
			require.Equal(t, n, f.Ops(), "nothing counts after death")
			before := m.Snapshot().Fingerprint()
			for op, err := range exercise(ctx, f) {
				require.ErrorIs(t, err, ErrKilled, op)
			}
			require.NoError(t, f.Close())
			require.Equal(t, before, m.Snapshot().Fingerprint(), "nothing is touched after death")
		}
	}
}

func TestKilledWriterLeavesItsTemporary(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	require.ErrorIs(t, put(ctx, NewFaults(m, Rule{On(OpFinish), Kill()}), "x", "x"), ErrKilled)
	left, err := collect(m.Leftovers(ctx, ""))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.ErrorIs(t, put(ctx, NewFaults(m, Rule{On(OpFinish), KillAfter()}), "y", "y"), ErrKilled)
	_, err = m.Stat(ctx, "y")
	require.NoError(t, err)
}

func TestRemoveCountsEachName(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, put(ctx, m, name, name))
	}
	f := NewFaults(m, Rule{AtOp(2), Kill()})
	err := f.Remove(ctx, "a", "b", "c")
	require.ErrorIs(t, err, ErrKilled)
	infos, err := collect(m.List(ctx, ""))
	require.NoError(t, err)
	require.Len(t, infos, 2)
}

func TestBefore(t *testing.T) {
	ctx, m := t.Context(), mem.New(mem.Options{})
	var calls []Call
	f := NewFaults(m, Rule{On(OpFinish), Before(func(c Call) {
		calls = append(calls, c)
		require.NoError(t, put(ctx, m, "x", "other"))
	})})
	o, err := f.Create(ctx, "x", backends.CreateOptions{Exclusive: true})
	require.NoError(t, err)
	_, err = o.Finish(ctx)
	require.ErrorIs(t, err, inflight.ErrExist, "somebody was first")
	require.Len(t, calls, 1)
	require.Equal(t, 2, calls[0].N)
	require.Equal(t, "x", calls[0].Name)
}
