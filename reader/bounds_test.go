package reader

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
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

// halting is a backend whose streams halt after some bytes until they may go on.
type halting struct {
	*statetest.Backend
	after int
	goOn  chan struct{}
}

type haltingSource struct {
	backends.Source
	h *halting
}

// Open opens an object.
func (h *halting) Open(ctx context.Context, name string) (backends.Source, error) {
	src, err := h.Backend.Open(ctx, name)
	return haltingSource{src, h}, err
}

// Stream halts.
func (s haltingSource) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	body, err := s.Source.Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	rest := io.MultiReader(io.LimitReader(body, int64(s.h.after)), waiting{s.h.goOn}, body)
	return struct {
		io.Reader
		io.Closer
	}{rest, body}, nil
}

type waiting struct{ c chan struct{} }

func (w waiting) Read([]byte) (int, error) {
	<-w.c
	return 0, io.EOF
}

// TestArriving: what has arrived of a long request is handed on before the rest.
func TestArriving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &halting{&statetest.Backend{Backend: mem.New(mem.Options{}), Remote: true}, 1 << 20, make(chan struct{})}
		w := newFile(t, b.Backend, 7, format.EncoderOptions{})
		for i := range 200 {
			w.append(inflight.Task{Vertex: "count"}, inflight.InputChannel{}.Address(), uint64(i<<16), make([]byte, 1<<16))
		}
		h := w.close()[0]
		r := Open(b, "job", Options{})
		defer r.Close()
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		defer s.Close()
		b.Reset()
		n := 0
		for _, err := range s.Buffers(t.Context()) {
			require.NoError(t, err)
			if n++; n == 8 {
				require.Len(t, b.Reads(), 1)
				close(b.goOn)
			}
		}
		require.Equal(t, 200, n)
		require.Len(t, b.Reads(), 1, "12.5 MiB")
	})
}

// TestFewRequests: eight subtasks that are read at once share the memory, so that
// each has long requests, and no byte is fetched twice.
func TestFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{}), Remote: true}
		w := newFile(t, b, 7, format.EncoderOptions{})
		for i := range 8 * 36 { // 9 MiB each
			w.append(inflight.Task{Vertex: "count", Subtask: i / 36}, inflight.InputChannel{}.Address(), uint64(i%36<<18), make([]byte, 1<<18))
		}
		const memory = 32 << 20 // 4 MiB each
		r := Open(b, "job", Options{Memory: memory, Gap: 1})
		defer r.Close()
		var reads []func()
		for _, h := range w.close() {
			s, err := r.Subtask(t.Context(), h)
			require.NoError(t, err)
			defer s.Close()
			all := s.Buffers(t.Context())
			reads = append(reads, func() {
				for _, err := range all {
					require.NoError(t, err)
				}
			})
		}
		b.Reset()
		b.After = func(statetest.Read, []byte) error {
			require.LessOrEqual(t, r.pool.held.Load(), int64(memory))
			time.Sleep(30 * time.Millisecond)
			return nil
		}
		var wg sync.WaitGroup
		for _, read := range reads {
			wg.Go(read)
		}
		wg.Wait()
		bytes := 0
		for _, read := range b.Reads() {
			bytes += read.Length
		}
		t.Logf("%d requests for %d bytes", len(b.Reads()), bytes)
		require.LessOrEqual(t, len(b.Reads()), 8*3)
		require.Less(t, bytes, 8*9_500_000)
	})
}

// TestClasses: memory goes back to where it came from, and is as long as it must be.
func TestClasses(t *testing.T) {
	for _, n := range []int{1, 4096, 4097, 256 << 10, 257 << 10, 300 << 10, 512 << 10, 512<<10 + 1, pieceSize, pieceSize + 1, 1 << 20, 3 << 20} {
		class, size := classOf(n)
		require.GreaterOrEqual(t, size, n)
		back, same := classOf(size)
		require.Equal(t, class, back, n)
		require.Equal(t, size, same)
	}
}

// TestSections: the sections of a subtask that goes on in several files are read
// at once where each read takes a while.
func TestSections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{}), Remote: true}
		h := small(t, b, format.CodecNone).Handles[1]
		require.Len(t, h.Segments, 2)
		r := Open(b, "job", Options{})
		defer r.Close()
		b.After = func(statetest.Read, []byte) error {
			time.Sleep(30 * time.Millisecond)
			return nil
		}
		begin := time.Now()
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		defer s.Close()
		require.Equal(t, 30*time.Millisecond, time.Since(begin))
	})
}
