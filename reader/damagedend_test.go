package reader

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

// TestDamagedEnd looks at a file in which the block with the end of a continued
// buffer is damaged: the buffers in the intact block behind it are all shown.
func TestDamagedEnd(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 512, LargestBlock: 4096})
	task := inflight.Task{Vertex: "v"}
	in := inflight.InputChannel{}.Address()
	w.append(task, in, 0, bytes.Repeat([]byte{1}, 3500)) // over two blocks
	off := uint64(3500)
	for range 10 {
		w.append(task, in, off, bytes.Repeat([]byte{2}, 45))
		off += 45
	}
	h := w.close()[0]
	r := Open(b, "job", Options{})
	s, err := r.Subtask(t.Context(), h)
	require.NoError(t, err)
	s.lay()
	bad := s.extents[1].block.ref
	require.NotZero(t, s.extents[1].Flags&format.RunHead)
	s.Close()
	r.Close()
	p := statetest.Get(t, b, "job/"+w.name)
	p[bad.Offset+int64(bad.Stored)/2] ^= 1
	statetest.Put(t, b, "job/"+w.name, p)
	r = Open(b, "job", Options{})
	defer r.Close()
	f, err := r.File(t.Context(), w.name)
	require.NoError(t, err)
	s, err = f.Subtask(task)
	require.NoError(t, err)
	defer s.Close()
	var sizes []int
	for b, err := range s.Buffers(t.Context()) {
		require.NoError(t, err)
		sizes = append(sizes, len(b.Bytes))
	}
	require.Equal(t, slices.Repeat([]int{45}, 9), sizes) // the first of ten lies in the damaged block
}
