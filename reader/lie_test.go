package reader

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

// TestLies reads references that are intact and wrong: each checksum is right,
// and what they point at is something else.
func TestLies(t *testing.T) {
	task, other := inflight.Task{Vertex: "count"}, inflight.Task{Vertex: "count", Subtask: 1}
	a, b2 := inflight.InputChannel{Channel: 0}.Address(), inflight.InputChannel{Channel: 1}.Address()
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	old := newFile(t, b, 6, format.EncoderOptions{BlockSize: 300, LargestBlock: 600})
	for i := range 4 { // 20 bytes each: positions 0, 20, 40, 60
		old.append(task, a, uint64(20*i), bytes.Repeat([]byte{byte(i)}, 20))
	}
	old.append(other, a, 0, bytes.Repeat([]byte{9}, 80))
	old.append(task, b2, 0, bytes.Repeat([]byte{8}, 80))
	old.append(task, a, 80, bytes.Repeat([]byte{7}, 1000)) // continues
	h := old.close()[0]
	r := Open(b, "job", Options{})
	defer r.Close()
	s, err := r.Subtask(t.Context(), h)
	require.NoError(t, err)
	defer s.Close()
	whole, err := s.Rest(t.Context(), a, 0)
	require.NoError(t, err)
	require.Len(t, whole, 4)
	digest := func(from, to int) (d format.Digest) {
		for i := from; i < to; i++ {
			d = d.Add(bytes.Repeat([]byte{byte(i)}, 20))
		}
		return d
	}
	first := whole[0]
	first.Run.Digest = digest(0, 4)

	// refer writes a checkpoint with these references, reads it, and returns
	// what it got before an error.
	id := inflight.CheckpointID(7)
	refer := func(t *testing.T, to inflight.Task, addr inflight.Address, refs ...Reference) (got []byte, err error) {
		id++
		w := newFile(t, b, id, format.EncoderOptions{})
		for _, ref := range refs {
			require.NoError(t, w.e.Reference(w.member(to), addr, ref.File, ref.Run))
		}
		s, err := r.Subtask(t.Context(), w.close()[0])
		if err != nil {
			return nil, err
		}
		defer s.Close()
		for b, err := range s.Buffers(t.Context()) {
			if err != nil {
				return got, err
			}
			got = append(got, b.Bytes[0])
		}
		return got, nil
	}
	got, err := refer(t, task, a, first)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2, 3}, got)
	got, err = refer(t, task, a, whole...)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2, 3, 7}, got)

	for _, tc := range []struct {
		name string
		to   inflight.Task
		addr inflight.Address
		lie  func(r *Reference)
		err  error
	}{
		{name: "another subtask", to: other, addr: a, lie: func(*Reference) {}},
		{name: "another channel", to: task, addr: b2, lie: func(*Reference) {}},
		{name: "position", lie: func(r *Reference) { r.Run.Pos.Offset++ }},
		{name: "epoch", lie: func(r *Reference) { r.Run.Pos.Epoch++ }},
		{name: "no position", lie: func(r *Reference) { r.Run.Pos = inflight.PosUnknown }},
		{name: "fewer pieces", lie: func(r *Reference) { r.Run.Pieces-- }},
		{name: "more pieces", lie: func(r *Reference) { r.Run.Pieces++ }},
		{name: "shorter", lie: func(r *Reference) { r.Run.Length-- }},
		{name: "longer", lie: func(r *Reference) { r.Run.Length++ }},
		{name: "within a buffer", lie: func(r *Reference) { r.Run.Target.Offset++; r.Run.Length -= 20; r.Run.Pieces-- }},
		{name: "behind the end", lie: func(r *Reference) { r.Run.Target.Offset = 100000 }},
		{name: "another run", lie: func(r *Reference) { r.Run.Target.Offset = 80 }},
		{name: "digest", lie: func(r *Reference) { r.Run.Digest++ }},
		{name: "another block", lie: func(r *Reference) {
			r.Run.Target.BlockOffset, r.Run.Target.Stored = whole[1].Run.Target.BlockOffset, whole[1].Run.Target.Stored
		}},
		{name: "within a block", lie: func(r *Reference) { r.Run.Target.BlockOffset += 4 }},
		{name: "size of the block", lie: func(r *Reference) { r.Run.Target.Stored-- }},
		{name: "not a data block", lie: func(r *Reference) {
			r.Run.Target.BlockOffset, r.Run.Target.Stored = h.Segments[0].Offset, uint32(h.Segments[0].Length)
		}},
		{name: "behind the file", lie: func(r *Reference) { r.Run.Target.BlockOffset = 1 << 40 }, err: inflight.ErrTorn},
		{name: "half a buffer at the end", lie: func(r *Reference) { r.Run.Flags |= format.RunTail }},
		{name: "half a buffer at the start", lie: func(r *Reference) { r.Run.Flags |= format.RunHead }},
		{name: "another file", lie: func(r *Reference) { r.File.FileID[0]++ }, err: inflight.ErrForeign},
		{name: "no file", lie: func(r *Reference) { r.File.Name = format.StateFileName(6, "g7", "x") }, err: inflight.ErrNotExist},
		{name: "outside", lie: func(r *Reference) { r.File.Name = "../../etc/passwd" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lie := first
			tc.lie(&lie)
			to, addr := task, a
			if tc.to.Vertex != "" {
				to, addr = tc.to, tc.addr
			}
			got, err := refer(t, to, addr, lie)
			if tc.err == nil {
				tc.err = inflight.ErrCorrupt
			}
			require.ErrorIs(t, err, tc.err)
			require.Empty(t, got)
		})
	}
	t.Run("out of order", func(t *testing.T) {
		_, err := refer(t, task, a, whole[1], whole[2], whole[3], whole[0])
		require.ErrorIs(t, err, inflight.ErrCorrupt)
	})
}

// TestLiesLarge: digests are joined where runs are large; a wrong one is found
// as well, before the bytes are delivered.
func TestLiesLarge(t *testing.T) {
	task, a := inflight.Task{Vertex: "count"}, inflight.InputChannel{}.Address()
	for _, full := range []bool{false, true} {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		old := newFile(t, b, 6, format.EncoderOptions{BlockSize: 10000})
		for i := range 4 {
			old.append(task, a, uint64(9000*i), bytes.Repeat([]byte{byte(i)}, 9000))
		}
		r := Open(b, "job", Options{Digests: full})
		s, err := r.Subtask(t.Context(), old.close()[0])
		require.NoError(t, err)
		for lie, want := range []int{4, 3} {
			refs, err := s.Rest(t.Context(), a, 0)
			require.NoError(t, err)
			w := newFile(t, b, inflight.CheckpointID(7+lie), format.EncoderOptions{})
			for _, ref := range refs {
				ref.Run.Digest ^= format.Digest(lie)
				require.NoError(t, w.e.Reference(w.member(task), a, ref.File, ref.Run))
			}
			next, err := r.Subtask(t.Context(), w.close()[0])
			require.NoError(t, err)
			n := 0
			for _, e := range next.Buffers(t.Context()) {
				if err = e; err == nil {
					n++
				}
			}
			require.Equal(t, want, n)
			require.Equal(t, lie == 1, errors.Is(err, inflight.ErrCorrupt))
			next.Close()
		}
		s.Close()
		require.NoError(t, r.Close())
	}
}
