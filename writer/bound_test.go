package writer

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

// FLINK-16744: more in flight than memory is meant for.
func TestOverBudgetDeclinesTheCheckpoint(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b, MaxBuffered: 100_000, TasksPerFile: 1})
	bufs := newBuffers()
	var captures []*Capture
	for i := range 3 {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		captures = append(captures, start(t, w, 1))
	}
	late, err := p.Writer(task(3))
	require.NoError(t, err)
	require.NoError(t, captures[0].Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 50_000))))
	require.NoError(t, captures[1].Input(input(0), inflight.Pos{}, bufs.of(bytesOf(2, 100))))
	err = captures[1].Input(input(0), inflight.Pos{Offset: 100}, bufs.of(bytesOf(3, 60_000)), bufs.of(bytesOf(4, 60_000)))
	require.ErrorIs(t, err, inflight.ErrOverBudget)
	require.ErrorContains(t, err, "and the limit is 100000 (let the next checkpoint be aligned")
	for _, c := range captures {
		<-c.Done()
		_, err := c.Handle()
		require.ErrorIs(t, err, inflight.ErrOverBudget)
	}
	_, err = late.Start(1, StartOptions{Epoch: 3, Attempt: "a1"})
	require.ErrorIs(t, err, inflight.ErrOverBudget)
	bufs.wait()

	next := start(t, captures[0].w, 2)
	require.NoError(t, next.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(5, 100))))
	finish(t, next)
	handle(t, next)
	require.NoError(t, p.Close())
	require.Zero(t, p.Buffered())
	require.Zero(t, leftovers(t, b))
	bufs.check(t)
}

func TestBoundOfOneSubtask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Options{Backend: hanging(wrap.OpWrite), MaxBufferedPerTask: 1 << 20, BlockSize: 1000})
		bufs := newBuffers()
		var captures []*Capture
		for i := range 2 {
			w, err := p.Writer(task(i))
			require.NoError(t, err)
			captures = append(captures, start(t, w, 1))
		}
		pos := inflight.Pos{}
		for range 10 {
			for _, c := range captures {
				require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(1, 100_000))))
			}
			pos = pos.Advance(100_000, 1)
			synctest.Wait()
		}
		err := captures[0].Input(input(0), pos, bufs.of(bytesOf(1, 100_000)))
		require.ErrorIs(t, err, inflight.ErrOverBudget)
		require.ErrorContains(t, err, "1000000 bytes are held by this subtask, 100000 more came, and the limit is 1048576")
		require.NoError(t, p.Close())
		for _, c := range captures {
			require.Zero(t, c.w.held.Load())
		}
		bufs.check(t)
	})
}

// What a subtask has written no longer counts against its bound.
func TestBoundOfOneSubtaskFollowsTheStore(t *testing.T) {
	p := newPool(t, Options{Backend: mem.New(mem.Options{}), MaxBufferedPerTask: 2 << 20})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	for id := range inflight.CheckpointID(5) {
		c := start(t, w, id)
		require.NoError(t, c.State("s", inflight.Bytes(make([]byte, 1500_000))))
		finish(t, c)
		handle(t, c)
		require.Zero(t, w.held.Load())
	}
}

// A caller that paces captures far more than the bound.
func TestPacedBeyondTheBound(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			const limit, each, tasks, rounds = 8 << 20, 256 << 10, 4, 32
			b := mem.New(mem.Options{HeldUntilFinish: held})
			p := newPool(t, Options{Backend: b, MaxBuffered: limit, TasksPerFile: 2, TargetFileSize: 1 << 30})
			bufs := newBuffers()
			var most atomic.Int64
			var wg sync.WaitGroup
			for i := range tasks {
				w, err := p.Writer(task(i))
				require.NoError(t, err)
				wg.Go(func() {
					c := start(t, w, 1)
					pos := inflight.Pos{}
					for n := range rounds {
						require.NoError(t, p.WaitRoom(t.Context(), tasks*each))
						require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(i*rounds+n, each))))
						pos = pos.Advance(each, 1)
						most.Store(max(most.Load(), p.Buffered()))
					}
					finish(t, c)
					h := handle(t, c)
					require.EqualValues(t, rounds*each, h.InputBytes)
					got := read(t, b, "", h).data[input(0).Address()]
					for n := range rounds {
						require.True(t, bytes.Equal(bytesOf(i*rounds+n, each), got[n]))
					}
				})
			}
			wg.Wait()
			require.LessOrEqual(t, most.Load(), int64(limit)*11/10)
			require.Less(t, len(names(t, b)), 40, "files")
			bufs.check(t)
		})
	}
}

// What idle files have not handed over does not keep a waiter for ever.
func TestIdleFilesGiveWay(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b, MaxBuffered: 1 << 20, TasksPerFile: 1})
	var captures []*Capture
	for i := range 3 {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		c := start(t, w, 1)
		captures = append(captures, c)
		require.NoError(t, c.State("s", inflight.Bytes(make([]byte, 100_000*(i+1)))))
	}
	require.NoError(t, p.WaitRoom(t.Context(), 700_000)) // one must go, and the largest is enough
	finish(t, captures[0])
	finish(t, captures[1])
	require.Len(t, handle(t, captures[0]).Segments, 1)
	require.Len(t, handle(t, captures[1]).Segments, 1)
	require.NoError(t, captures[2].State("s", inflight.Bytes("more")))
	finish(t, captures[2])
	h := handle(t, captures[2])
	require.Len(t, h.Segments, 2)
	require.EqualValues(t, 300_004, h.StateBytes)
	read(t, b, "", h)
}

// Blocks beyond half of the bound go to the spill directory and come back.
func TestSpill(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			dir := t.TempDir()
			gate := make(chan struct{})
			store := mem.New(mem.Options{HeldUntilFinish: held})
			b := wrap.NewFaults(store, wrap.Rule{When: wrap.Nth(1, wrap.On(wrap.OpWrite)), Then: wrap.Before(func(wrap.Call) { <-gate })})
			spilled := make(chan int64, 10_000)
			p := newPool(t, Options{Backend: b, MaxBuffered: 4 << 20, SpillDir: dir, Observer: inflight.ObserverFunc(func(e inflight.Event) {
				if e.Name == inflight.EventSpilled {
					require.NoError(t, e.Err)
					spilled <- e.Bytes
				}
			})})
			w, err := p.Writer(task(0))
			require.NoError(t, err)
			bufs := newBuffers()
			c := start(t, w, 1)
			pos := inflight.Pos{}
			const n, size = 300, 64 << 10
			for i := range n { // 18 MiB
				for p.Room() < size { // somebody is spilling: each spilled chunk makes room
					<-spilled
				}
				require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(i, size))))
				pos = pos.Advance(size, 1)
			}
			bufs.wait()
			close(gate)
			finish(t, c)
			got := read(t, store, "", handle(t, c)).data[input(0).Address()]
			require.Len(t, got, n)
			for i := range n {
				require.True(t, bytes.Equal(bytesOf(i, size), got[i]))
			}
			require.NoError(t, p.Close())
			require.Zero(t, p.Buffered())
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
			bufs.check(t)
		})
	}
}

// A spill directory that cannot be used leaves things as they were without.
func TestSpillFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Options{Backend: hanging(wrap.OpWrite), MaxBuffered: 4 << 20, SpillDir: t.TempDir() + "/missing"})
		w, err := p.Writer(task(0))
		require.NoError(t, err)
		bufs := newBuffers()
		c := start(t, w, 1)
		pos := inflight.Pos{}
		for err == nil {
			err = c.Input(input(0), pos, bufs.of(bytesOf(1, 64<<10)))
			pos = pos.Advance(64<<10, 1)
			synctest.Wait()
		}
		require.ErrorIs(t, err, inflight.ErrOverBudget)
		require.Greater(t, pos.Offset, uint64(3<<20))
		require.NoError(t, p.Close())
		bufs.check(t)
	})
}

// A call allocates nothing for its buffers, once there are slabs.
func TestCaptureAllocatesNothingPerBuffer(t *testing.T) {
	if raceEnabled {
		return // make test runs it without -race, which allocates
	}
	p := newPool(t, Options{Backend: local.New(t.TempDir()), MaxBuffered: 1 << 30, BlockSize: 64 << 10})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	const each = 20_000
	data := make([]byte, 200)
	one := make([]inflight.Buffer, each)
	for i := range one {
		one[i] = &resident{data}
	}
	id := inflight.CheckpointID(0)
	allocs := testing.AllocsPerRun(5, func() {
		id++
		c, err := w.Start(id, StartOptions{})
		require.NoError(t, err)
		pos := inflight.Pos{}
		for _, b := range one[:each/2] { // one by one
			_ = c.Input(input(0), pos, b)
			pos = pos.Advance(200, 1)
		}
		_ = c.Output(output(0), inflight.Pos{}, one[:each/2]...) // at once
		finish(t, c)
		handle(t, c)
	})
	require.Less(t, allocs/each, 0.02, "%.0f allocations for %d buffers", allocs, each)
}
