package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

var toWrite = wrap.On(wrap.OpCreate, wrap.OpWrite, wrap.OpFinish)

// events collects what the pool observes.
type events struct {
	mu  sync.Mutex
	all []inflight.Event
}

func (e *events) Observe(ev inflight.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(name inflight.EventName) (list []inflight.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Name == name {
			list = append(list, ev)
		}
	}
	return list
}

// faultRun captures with three subtasks, which fill several files, on a store
// with a fault. It returns what became of the captures.
func faultRun(t *testing.T, store backends.Backend, b backends.Backend) (failed []error, seen *events) {
	seen = &events{}
	p, err := NewPool(Options{Backend: b, TasksPerFile: 2, TargetFileSize: 100_000, SealLinger: -1, BlockSize: 10_000, Observer: seen, Memory: format.NewPool(1)})
	require.NoError(t, err)
	bufs := newBuffers()
	const buffers, size = 8, 20_000 // the pool makes steps of 64 KiB
	var captures []*Capture
	for i := range 3 {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		captures = append(captures, start(t, w, 1))
	}
	pos := inflight.Pos{}
	for n := range buffers {
		for i, c := range captures {
			_ = c.Input(input(0), pos, bufs.of(bytesOf(100*i+n, size))) // Handle tells
		}
		pos = pos.Advance(size, 1)
	}
	for _, c := range captures {
		_, _ = c.FinishInput(), c.FinishOutput()
	}
	for i, c := range captures {
		<-c.Done()
		h, err := c.Handle()
		failed = append(failed, err)
		if err != nil {
			continue
		}
		got := read(t, store, "", h).data[input(0).Address()]
		require.Len(t, got, buffers)
		for n := range buffers {
			require.True(t, bytes.Equal(bytesOf(100*i+n, size), got[n]))
		}
	}
	require.NoError(t, p.Close())
	require.Zero(t, p.Buffered())
	require.Zero(t, leftovers(t, store))
	bufs.check(t)
	return failed, seen
}

// FLINK-24667: every error of the store, at each operation, reaches the captures
// that have bytes in the file, or is made good; and no other capture.
func TestFaultAtEachOperation(t *testing.T) {
	stores := map[string]mem.Options{
		"directory":    {},
		"object store": {ObjectStore: true, HeldUntilFinish: true},
	}
	faults := map[string]wrap.Fault{
		"unavailable": wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrUnavailable, errInjected)),
		"no space":    wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrNoSpace, errInjected)),
		"partial":     wrap.Partial(777, errInjected),
		"after":       wrap.FailAfter(errInjected),
		"unknown":     wrap.FailAfter(fmt.Errorf("%w: %w", inflight.ErrOutcomeUnknown, errInjected)),
	}
	for name, o := range stores {
		for fault, then := range faults {
			t.Run(name+"/"+fault, func(t *testing.T) {
				k := 1
				for ; ; k++ {
					store := mem.New(o)
					var struck wrap.Call
					b := wrap.NewFaults(store, wrap.Rule{When: func(c wrap.Call) bool { return nth(&struck, k, c) }, Then: then})
					failed, seen := faultRun(t, store, b)
					if struck.Op == "" {
						require.Empty(t, slices.DeleteFunc(failed, func(err error) bool { return err == nil }))
						break
					}
					checkFault(t, struck, fault, o.HeldUntilFinish, failed, seen)
				}
				require.Greater(t, k, 10)
			})
		}
	}
}

// nth chooses the k-th call that writes, and remembers it.
func nth(struck *wrap.Call, k int, c wrap.Call) bool {
	if !toWrite(c) || struck.Op != "" {
		return false
	}
	if struck.N++; struck.N < k {
		return false
	}
	*struck = c
	return true
}

func checkFault(t *testing.T, struck wrap.Call, fault string, held bool, failed []error, seen *events) {
	retried, lost := seen.of(inflight.EventFileRetried), seen.of(inflight.EventFileFailed)
	require.Len(t, append(retried, lost...), 1, "an error of the store is made good, or makes the file fail")
	good := fault != "no space" && (held || struck.Op != wrap.OpFinish)
	n := 0
	for _, err := range failed {
		if err != nil {
			require.ErrorIs(t, err, errInjected)
			n++
		}
	}
	if good {
		require.Len(t, retried, 1, "%s, %s", struck.Op, fault)
		require.Zero(t, n)
		return
	}
	require.Len(t, lost, 1, "%s, %s", struck.Op, fault)
	require.ErrorIs(t, lost[0].Err, errInjected)
	require.Positive(t, n)
	require.Less(t, n, 3, "the other file's subtask does not suffer")
}

// A store that stays away is not asked for ever.
func TestStoreStaysAway(t *testing.T) {
	for _, op := range []wrap.Op{wrap.OpCreate, wrap.OpWrite, wrap.OpFinish} {
		for _, held := range []bool{false, true} {
			store := mem.New(mem.Options{HeldUntilFinish: held})
			b := wrap.NewFaults(store, wrap.Rule{When: wrap.On(op), Then: wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrUnavailable, errInjected))})
			failed, _ := faultRun(t, store, b)
			for _, err := range failed {
				require.ErrorIs(t, err, errInjected)
				require.True(t, inflight.Retryable(err))
			}
			require.Empty(t, names(t, store))
		}
	}
}

// The answer to the first Finish is lost, and the object is there when the
// second one comes.
func TestLostAnswerThenExists(t *testing.T) {
	store := mem.New(mem.Options{HeldUntilFinish: true})
	b := wrap.NewFaults(store,
		wrap.Rule{When: wrap.Nth(1, wrap.On(wrap.OpFinish)), Then: wrap.LoseAnswer()},
		wrap.Rule{When: wrap.Nth(1, wrap.On(wrap.OpFinish)), Then: wrap.Fail(inflight.ErrExist)}, // counts from the second on
	)
	seen := &events{}
	bufs := newBuffers()
	c := busyCapture(t, newPool(t, Options{Backend: b, Observer: seen}), bufs)
	read(t, store, "", handle(t, c))
	require.Len(t, seen.of(inflight.EventFileRetried), 1)
	bufs.check(t)
}

// A late failure after a late success: what appears under the name is the same.
func TestDelayedCreateDoesNoHarm(t *testing.T) {
	store := mem.New(mem.Options{ObjectStore: true, HeldUntilFinish: true})
	first := true
	store.SetFate(func(mem.Request) mem.Fate {
		if first {
			first = false
			return mem.Delay
		}
		return mem.Apply
	})
	p := newPool(t, Options{Backend: store})
	bufs := newBuffers()
	c := busyCapture(t, p, bufs)
	h := handle(t, c)
	before := read(t, store, "", h)
	for _, r := range store.InFlight() {
		require.True(t, store.Release(r.ID))
	}
	require.Equal(t, before, read(t, store, "", h))
}

// A real directory: reading back, and a folder that goes away.
func TestLocalFailures(t *testing.T) {
	t.Run("write", func(t *testing.T) {
		store := local.New(t.TempDir())
		b := wrap.NewFaults(store, wrap.Rule{When: wrap.Nth(5, wrap.On(wrap.OpWrite)), Then: wrap.Partial(1000, errInjected)})
		failed, seen := faultRun(t, store, b)
		require.Equal(t, make([]error, 3), failed)
		require.Len(t, seen.of(inflight.EventFileRetried), 1)
	})
	t.Run("no folder", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chk-0000000001"), nil, 0o600)) // where the folder should be
		failed, _ := faultRun(t, local.New(dir), local.New(dir))
		for _, err := range failed {
			var e *inflight.Error
			require.ErrorAs(t, err, &e)
			require.ErrorContains(t, err, filepath.Join(dir, "chk-0000000001"))
		}
	})
}

// A subtask that starts after the file of its checkpoint has failed gets a fresh
// one. In Flink its start kills the writer.
func TestStartAfterTheFileFailed(t *testing.T) {
	store := mem.New(mem.Options{})
	b := wrap.NewFaults(store, wrap.Rule{When: wrap.Nth(1, wrap.On(wrap.OpFinish)), Then: wrap.Fail(errInjected)})
	p := newPool(t, Options{Backend: b, SealLinger: -1})
	bufs := newBuffers()
	first, err := p.Writer(task(0))
	require.NoError(t, err)
	second, err := p.Writer(task(1))
	require.NoError(t, err)
	c := start(t, first, 1)
	require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))))
	finish(t, c)
	<-c.Done()
	_, err = c.Handle()
	require.ErrorIs(t, err, errInjected)
	d := start(t, second, 1)
	require.NoError(t, d.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(2, 10))))
	finish(t, d)
	require.Equal(t, [][]byte{bytesOf(2, 10)}, read(t, store, "", handle(t, d)).data[input(0).Address()])
	bufs.check(t)
}

// What a file holds that failed late takes those down that had gone on in the
// next one.
func TestEarlierFileFails(t *testing.T) {
	store := mem.New(mem.Options{})
	gate := make(chan struct{})
	b := wrap.NewFaults(store, wrap.Rule{When: wrap.Nth(1, wrap.On(wrap.OpFinish)), Then: func() wrap.Fault {
		fail := wrap.Fail(errInjected)
		return wrap.Fault(func(ctx context.Context, f *wrap.Faults, c *wrap.Call, do func() error) error {
			<-gate
			return fail(ctx, f, c, do)
		})
	}()})
	p := newPool(t, Options{Backend: b, TargetFileSize: 10_000, BlockSize: 1000})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	bufs := newBuffers()
	c := start(t, w, 1)
	pos := inflight.Pos{}
	for i := range 4 { // the chunk that fills the first file comes at 256 KiB
		require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(i, 100_000))))
		pos = pos.Advance(100_000, 1)
	}
	finish(t, c)
	bufs.wait()
	close(gate)
	<-c.Done()
	_, err = c.Handle()
	require.True(t, errors.Is(err, errInjected))
	require.NoError(t, p.Close())
	bufs.check(t)
	require.Zero(t, leftovers(t, store))
}
