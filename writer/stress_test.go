package writer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

// FLINK-20097 and all other races: subtasks capture checkpoint after checkpoint,
// each channel fed by a goroutine of its own, while others abort, skip, close
// and let the store fail. What ends well must be right.
func TestStress(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			store := mem.New(mem.Options{HeldUntilFinish: held})
			b := wrap.NewFaults(store,
				wrap.Rule{When: every(17, wrap.On(wrap.OpWrite)), Then: wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrUnavailable, errInjected))},
				wrap.Rule{When: every(23, wrap.On(wrap.OpFinish)), Then: wrap.Fail(errInjected)})
			p, err := NewPool(Options{Backend: b, TasksPerFile: 3, SealLinger: 200 * time.Microsecond, TargetFileSize: 200_000, BlockSize: 2000})
			require.NoError(t, err)
			bufs := newBuffers()
			var wg sync.WaitGroup
			good := make([]int, 5)
			for i := range good {
				wg.Go(func() { good[i] = stressTask(t, store, p, bufs, i) })
			}
			wg.Wait()
			for i, n := range good {
				require.Positive(t, n, "captures of subtask %d that ended well", i)
			}
			require.NoError(t, p.Close())
			require.Zero(t, p.Buffered())
			require.Zero(t, leftovers(t, store))
			bufs.check(t)
		})
	}
}

// every chooses each n-th of the calls that p chooses.
func every(n int, p wrap.Predicate) wrap.Predicate {
	seen := 0
	return func(c wrap.Call) bool {
		if !p(c) {
			return false
		}
		seen++
		return seen%n == 0
	}
}

func stressTask(t *testing.T, store *mem.Backend, p *Pool, bufs *buffers, i int) (good int) {
	rng := rand.New(rand.NewPCG(uint64(i), 5))
	w, err := p.Writer(task(i))
	require.NoError(t, err)
	for id := range inflight.CheckpointID(25) {
		fate := rng.IntN(20)
		if fate == 0 {
			w.Skip(id)
			continue
		}
		c := start(t, w, id)
		var feeders sync.WaitGroup
		sizes := make([][]int, 3)
		for ch := range sizes {
			for range rng.IntN(30) {
				sizes[ch] = append(sizes[ch], rng.IntN(4000))
			}
			hold := rng.IntN(2) == 0
			feeders.Go(func() { feed(c, bufs, ch, sizes[ch], hold) })
		}
		switch fate {
		case 1:
			w.Abort(id, nil)
		case 2:
			require.NoError(t, w.Close())
			w, err = p.Writer(task(i))
			require.NoError(t, err)
			w.Skip(id)
		}
		feeders.Wait()
		_, _ = c.FinishInput(), c.FinishOutput() // Handle tells
		if fate == 3 {
			continue // the next start comes while this one may be on its way
		}
		<-c.Done()
		h, err := c.Handle()
		if err != nil {
			continue
		}
		good++
		got := read(t, store, "", h)
		for ch := range sizes {
			checkFed(t, got.data[stressAddress(ch)], sizes[ch], ch)
		}
	}
	require.NoError(t, w.Close())
	return good
}

// stressAddress is an output for channel 2, else an input.
func stressAddress(ch int) inflight.Address {
	if ch == 2 {
		return output(ch).Address()
	}
	return input(ch).Address()
}

// feed hands over the buffers of one channel. The first of an output may be held.
func feed(c *Capture, bufs *buffers, ch int, sizes []int, hold bool) {
	pos := inflight.Pos{Epoch: 3}
	var fill func()
	for n, size := range sizes {
		b, at := bufs.of(bytesOf(ch*100+n, size)), pos
		if size > 0 {
			pos = pos.Advance(uint64(size), 1)
		}
		switch {
		case ch != 2:
			_ = c.Input(input(ch), at, b)
		case n == 0 && hold:
			if h, err := c.HoldOutput(output(ch)); err == nil {
				fill = func() { _ = h.Fill(at, b) }
			} else {
				b.Release()
			}
		default:
			_ = c.Output(output(ch), at, b)
		}
	}
	if fill != nil {
		fill()
	}
}

func checkFed(t *testing.T, got [][]byte, sizes []int, ch int) {
	for n, size := range sizes {
		if size == 0 {
			continue
		}
		require.NotEmpty(t, got)
		require.True(t, bytes.Equal(bytesOf(ch*100+n, size), got[0]), "buffer %d of channel %d", n, ch)
		got = got[1:]
	}
	require.Empty(t, got)
}
