package reader

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

// TestMemory reads many subtasks side by side, of large and of small files:
// what is held stays under the bound, plus one block for each subtask.
func TestMemory(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	var hs []inflight.Handle
	for i := range 40 { // 40 small files, 80 KB each
		w := newFile(t, b, inflight.CheckpointID(i+1), format.EncoderOptions{BlockSize: 4000})
		for k := range 20 {
			w.append(inflight.Task{Vertex: "small", Subtask: i}, inflight.InputChannel{}.Address(), uint64(4000*k), bytes.Repeat([]byte{byte(k)}, 4000))
		}
		hs = append(hs, w.close()...)
	}
	w := newFile(t, b, 100, format.EncoderOptions{BlockSize: 4000})
	for i := range 40 * 50 { // 50 blocks each, mixed
		w.append(inflight.Task{Vertex: "large", Subtask: i % 40}, inflight.InputChannel{}.Address(), uint64(4000*(i/40)), bytes.Repeat([]byte{byte(i)}, 4000))
	}
	hs = append(hs, w.close()...)

	const bound, block = 400_000, 8192
	r := Open(b, "job", Options{Memory: bound, ReadSize: 100_000, ReadAhead: 100_000})
	var subtasks []*Subtask
	for _, h := range hs {
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		require.LessOrEqual(t, r.pool.held.Load(), int64(bound))
		subtasks = append(subtasks, s)
	}
	var wg, all sync.WaitGroup
	all.Add(len(subtasks))
	for _, s := range subtasks {
		buffers := s.Buffers(t.Context())
		wg.Go(func() {
			first := true
			for b, err := range buffers {
				require.NoError(t, err)
				require.Len(t, b.Bytes, 4000)
				if first { // each holds a block at the same time
					first = false
					all.Done()
					all.Wait()
				}
				// Reads of full size that several goroutines begin at once may
				// pass the bound together.
				require.LessOrEqual(t, r.pool.held.Load(), int64(bound+len(subtasks)*block+4*131072))
			}
		})
	}
	wg.Wait()
	for _, s := range subtasks {
		s.Close()
	}
	idle(t, r, b)
}

// TestAllocations counts what one buffer more costs: nothing.
func TestAllocations(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	read := func(n int) float64 {
		w := newFile(t, b, inflight.CheckpointID(n), format.EncoderOptions{})
		for i := range n {
			w.append(inflight.Task{Vertex: "count"}, inflight.InputChannel{}.Address(), uint64(20*i), make([]byte, 20))
		}
		r := Open(b, "job", Options{})
		defer r.Close()
		s, err := r.Subtask(t.Context(), w.close()[0])
		require.NoError(t, err)
		defer s.Close()
		got := 0
		allocs := testing.AllocsPerRun(20, func() {
			got = 0
			for b, err := range s.Buffers(t.Context()) {
				if err == nil && len(b.Bytes) == 20 {
					got++
				}
			}
		})
		require.Equal(t, n, got)
		return allocs
	}
	few, many := read(10), read(10000)
	require.Less(t, many-few, 10.0)
}

// TestReadAhead reads from a store where each request takes 30 ms: with reads
// ahead they overlap.
func TestReadAhead(t *testing.T) {
	for _, tc := range []struct {
		ahead int64
		want  time.Duration
	}{{-1, 8 * 30 * time.Millisecond}, {300_000, 3 * 30 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			b := &statetest.Backend{Backend: mem.New(mem.Options{}), Remote: true}
			w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 10_000})
			for i := range 80 {
				w.append(inflight.Task{Vertex: "count"}, inflight.InputChannel{}.Address(), uint64(9000*i), make([]byte, 9000))
			}
			h := w.close()[0]
			r := Open(b, "job", Options{ReadSize: 100_000, ReadAhead: tc.ahead})
			defer r.Close()
			s, err := r.Subtask(t.Context(), h)
			require.NoError(t, err)
			defer s.Close()
			b.After = func(statetest.Read, []byte) error {
				time.Sleep(30 * time.Millisecond)
				return nil
			}
			begin := time.Now()
			for _, err := range s.Buffers(t.Context()) {
				require.NoError(t, err)
			}
			require.Equal(t, tc.want, time.Since(begin))

			// Breaking off while reads are under way waits for them, and leaves
			// nothing behind.
			for _, err := range s.Buffers(t.Context()) {
				require.NoError(t, err)
				break
			}
			s.Close()
			idle(t, r, b)
		})
	}
}
