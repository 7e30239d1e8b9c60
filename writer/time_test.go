package writer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

// The tests of this file run in virtual time.

// hanging is a store whose writes hang until they are aborted.
func hanging(ops ...wrap.Op) backends.Backend {
	return wrap.NewFaults(mem.New(mem.Options{}), wrap.Rule{When: wrap.On(ops...), Then: wrap.Hang()})
}

func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(mem.Options{})
		p := newPool(t, Options{Backend: b, SealLinger: 20 * time.Millisecond})
		bufs := newBuffers()
		var captures []*Capture
		for i := range 3 {
			w, err := p.Writer(task(i))
			require.NoError(t, err)
			captures = append(captures, start(t, w, 1))
		}
		begun := time.Now()
		pos := inflight.Pos{}
		for _, c := range captures[:2] {
			require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(1, 100))))
		}
		finish(t, captures[0])
		handle(t, captures[0])
		require.Equal(t, 20*time.Millisecond, time.Since(begun), "the first waits for the others")

		// The second goes on in the next file, which the third shares.
		require.NoError(t, captures[1].Input(input(0), pos.Advance(100, 1), bufs.of(bytesOf(2, 100))))
		require.NoError(t, captures[2].Input(input(0), pos, bufs.of(bytesOf(3, 100))))
		finish(t, captures[1])
		finish(t, captures[2])
		require.Len(t, handle(t, captures[1]).Segments, 2)
		require.Equal(t, 20*time.Millisecond, time.Since(begun), "all have finished: nobody waits")
		require.Equal(t, [][]byte{bytesOf(1, 100), bytesOf(2, 100)}, read(t, b, "", handle(t, captures[1])).data[input(0).Address()])
		require.Equal(t, [][]byte{bytesOf(3, 100)}, read(t, b, "", handle(t, captures[2])).data[input(0).Address()])
		require.Equal(t, captures[1].Files()[1], captures[2].Files()[0])
		require.Len(t, names(t, b), 2)
		bufs.check(t)
	})
}

func TestNobodyWaitsForTheSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Options{Backend: mem.New(mem.Options{})})
		var writers []*Writer
		for i := range 5 {
			w, err := p.Writer(task(i))
			require.NoError(t, err)
			writers = append(writers, w)
		}
		begun := time.Now()
		writers[1].Skip(7)                     // before anybody starts
		require.NoError(t, writers[2].Close()) // gone
		start(t, writers[3], 8)                // ahead
		c := start(t, writers[0], 7)
		require.NoError(t, c.Input(input(0), inflight.Pos{}, inflight.Bytes("x")))
		finish(t, c)
		writers[4].Abort(7, nil) // later
		handle(t, c)
		require.Zero(t, time.Since(begun))
	})
}

func TestCloseWhileTheStoreHangs(t *testing.T) {
	for _, op := range []wrap.Op{wrap.OpCreate, wrap.OpWrite, wrap.OpFinish} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := NewPool(Options{Backend: hanging(op)})
				require.NoError(t, err)
				bufs := newBuffers()
				c := busyCapture(t, p, bufs)
				time.Sleep(time.Minute)
				select {
				case <-c.Done():
					t.Fatal("done while the store hangs")
				default:
				}
				begun := time.Now()
				require.NoError(t, p.Close())
				require.NoError(t, p.Close())
				require.Less(t, time.Since(begun), time.Second)
				<-c.Done()
				_, err = c.Handle()
				require.ErrorIs(t, err, inflight.ErrClosed)
				require.Zero(t, p.Buffered())
				bufs.check(t)
			})
		})
	}
}

// busyCapture is one that has finished, and whose file is on its way.
func busyCapture(t *testing.T, p *Pool, bufs *buffers) *Capture {
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 1)
	pos := inflight.Pos{}
	for i := range 100 {
		require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(i, 30_000))))
		pos = pos.Advance(30_000, 1)
	}
	finish(t, c)
	return c
}

func TestAbortWhileTheStoreHangs(t *testing.T) {
	for _, op := range []wrap.Op{wrap.OpCreate, wrap.OpWrite, wrap.OpFinish} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := hanging(op)
				p := newPool(t, Options{Backend: b})
				bufs := newBuffers()
				c := busyCapture(t, p, bufs)
				synctest.Wait()
				begun := time.Now()
				c.w.Abort(1, nil)
				<-c.Done()
				require.Zero(t, time.Since(begun))
				synctest.Wait() // the file's goroutine drops the object
				bufs.check(t)
				require.Zero(t, p.Buffered())
				require.Zero(t, leftovers(t, b))
			})
		})
	}
}

// A store that lets go of nothing cannot keep Close.
func TestCloseWhileNothingHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		b := wrap.NewFaults(mem.New(mem.Options{}), wrap.Rule{When: wrap.On(wrap.OpWrite), Then: wrap.Before(func(wrap.Call) { <-stuck })})
		p, err := NewPool(Options{Backend: b})
		require.NoError(t, err)
		bufs := newBuffers()
		c := busyCapture(t, p, bufs)
		synctest.Wait()
		begun := time.Now()
		require.ErrorIs(t, p.Close(), inflight.ErrTimeout)
		require.Less(t, time.Since(begun), time.Second)
		<-c.Done()
		close(stuck)
		synctest.Wait()
		bufs.check(t)
	})
}

// A pool of two buffers does not stall while the store does.
func TestTwoBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Options{Backend: hanging(wrap.OpWrite)})
		free := make(chan []byte, 2)
		free <- make([]byte, 32<<10)
		free <- make([]byte, 32<<10)
		w, err := p.Writer(task(0))
		require.NoError(t, err)
		c := start(t, w, 1)
		begun := time.Now()
		pos := inflight.Pos{}
		for range 2000 { // 64 MiB
			b := <-free
			require.NoError(t, c.Input(input(0), pos, &lent{b, free}))
			pos = pos.Advance(uint64(len(b)), 1)
		}
		require.Less(t, time.Since(begun), time.Second)
		w.Abort(1, nil)
		<-free
		<-free
	})
}

// lent is a buffer that goes back to a pool.
type lent struct {
	data []byte
	to   chan []byte
}

func (l *lent) Bytes() []byte { return l.data }
func (l *lent) Release()      { l.to <- l.data }

func TestWaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Options{Backend: hanging(wrap.OpWrite), MaxBuffered: 4 << 20})
		bufs := newBuffers()
		c := busyCapture(t, p, bufs)
		require.NoError(t, p.WaitRoom(t.Context(), 1<<20))
		require.ErrorIs(t, p.WaitRoom(t.Context(), 5<<20), inflight.ErrOverBudget)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.WaitRoom(ctx, 2<<20), context.DeadlineExceeded)
		go func() {
			time.Sleep(time.Hour)
			c.w.Abort(1, nil)
		}()
		require.NoError(t, p.WaitRoom(t.Context(), 4<<20))
		require.EqualValues(t, 4<<20, p.Room())
		ended := make(chan error)
		second := busyCapture2(t, p, bufs)
		go func() { ended <- p.WaitRoom(t.Context(), 4<<20) }()
		synctest.Wait()
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-ended, inflight.ErrClosed)
		<-second.Done()
		bufs.check(t)
	})
}

func busyCapture2(t *testing.T, p *Pool, bufs *buffers) *Capture {
	w, err := p.Writer(task(1))
	require.NoError(t, err)
	c := start(t, w, 2)
	require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 100))))
	return c
}
