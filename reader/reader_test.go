package reader

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collect reads everything of s by iteration, side by side.
func collect(t statetest.T, s *Subtask, sides ...inflight.Side) map[statetest.Key][]statetest.Buf {
	got := map[statetest.Key][]statetest.Buf{}
	rank := 0
	for b, err := range s.Buffers(t.(interface{ Context() context.Context }).Context(), sides...) {
		require.NoError(t, err)
		if len(sides) > 0 {
			at := slices.Index(sides, b.Address.Side)
			require.GreaterOrEqual(t, at, rank)
			rank = at
		}
		k := statetest.Key{Task: b.Task, Address: b.Address}
		got[k] = append(got[k], statetest.Buf{Pos: b.Pos, Data: bytes.Clone(b.Bytes)})
	}
	return got
}

func wantOf(c *statetest.Checkpoint, task inflight.Task) map[statetest.Key][]statetest.Buf {
	want := map[statetest.Key][]statetest.Buf{}
	for k, b := range c.Want {
		if k.Task == task {
			want[k] = b
		}
	}
	return want
}

func drawOptions(t *rapid.T) Options {
	o := Options{
		ReadSize:  rapid.SampledFrom([]int{0, 1, 300, 5000}).Draw(t, "read size"),
		Gap:       rapid.SampledFrom([]int{0, 1, 200}).Draw(t, "gap"),
		ReadAhead: rapid.SampledFrom([]int64{0, 100, 1 << 20}).Draw(t, "read ahead"),
		Memory:    rapid.SampledFrom([]int64{0, 1, 20000}).Draw(t, "memory"),
		OpenFiles: rapid.SampledFrom([]int{0, 1}).Draw(t, "open files"),
		Digests:   rapid.Bool().Draw(t, "digests"),
	}
	return o
}

// TestRoundTrip reads back random layouts, with references to an older
// checkpoint, by handle alone.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		tasks := statetest.Tasks(t)
		old := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: tasks})
		r := Open(b, "job", drawOptions(t))
		rests := roundTrip(t, r, old)
		next := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 4, Tasks: tasks, Rests: rests})
		roundTrip(t, r, next)
		require.Zero(t, r.pool.held.Load())
		require.Empty(t, r.files)
		require.NoError(t, r.Close())
		now, _ := b.Opened()
		require.Zero(t, now)
	})
}

// roundTrip reads c, and refers to what is behind a random place of each
// address.
func roundTrip(t *rapid.T, r *Reader, c *statetest.Checkpoint) map[statetest.Key]statetest.Rest {
	rests := map[statetest.Key]statetest.Rest{}
	var subtasks []*Subtask
	for _, h := range c.Handles {
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		defer s.Close()
		subtasks = append(subtasks, s)
	}
	for i, s := range subtasks {
		sides := rapid.SampledFrom([][]inflight.Side{nil, {inflight.State, inflight.Output, inflight.Input}}).Draw(t, "sides")
		want := wantOf(c, c.Handles[i].Task)
		require.Equal(t, want, collect(t, s, sides...))
		for e := range s.Entries() {
			k := statetest.Key{Task: s.Task, Address: e.Address}
			bufs := want[k]
			require.EqualValues(t, len(bufs), e.Buffers)
			skip := rapid.IntRange(0, len(bufs)).Draw(t, "skip")
			after := uint64(0)
			for _, b := range bufs[:skip] {
				after += uint64(len(b.Data))
			}
			refs, err := s.Rest(t.Context(), e.Address, after)
			require.NoError(t, err)
			require.Equal(t, skip == len(bufs), len(refs) == 0)
			if len(refs) > 0 {
				rest := statetest.Rest{Queued: bufs[rapid.IntRange(0, skip).Draw(t, "used"):skip]}
				for _, ref := range refs {
					rest.References = append(rest.References, statetest.Reference(ref))
				}
				rest.Want = bufs[skip:]
				rests[k] = rest
				if len(bufs[skip].Data) > 1 {
					_, err = s.Rest(t.Context(), e.Address, after+1)
					require.ErrorIs(t, err, inflight.ErrOrder)
				}
			}
		}
	}
	return rests
}

// TestBatches reads a selection twice, the second time not all of each batch.
func TestBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: statetest.Tasks(t)})
		r := Open(b, "job", drawOptions(t))
		for _, h := range c.Handles {
			s, err := r.Subtask(t.Context(), h)
			require.NoError(t, err)
			all := s.Selection(nil)
			var batches [][]statetest.Buf
			for b, err := range all.Batches(t.Context()) {
				require.NoError(t, err)
				batches = append(batches, take(b, -1))
			}
			i := 0
			for b, err := range all.Batches(t.Context()) {
				require.NoError(t, err)
				n := rapid.IntRange(0, len(batches[i])).Draw(t, "taken")
				require.Equal(t, batches[i][:n], take(b, n))
				i++
			}
			require.Len(t, batches, i)
			s.Close()
		}
		require.Zero(t, r.pool.held.Load())
		require.NoError(t, r.Close())
	})
}

// take returns the first n buffers of b, or all.
func take(b *Batch, n int) []statetest.Buf {
	bufs := []statetest.Buf{}
	for len(bufs) != n && b.Next() {
		bufs = append(bufs, statetest.Buf{Pos: b.Pos, Data: bytes.Clone(b.Bytes)})
	}
	return bufs
}

func TestBuffers(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 100})
	task := inflight.Task{Vertex: "count", Subtask: 1}
	in, out := inflight.InputChannel{Gate: 0, Channel: 2}.Address(), inflight.Subpartition{Partition: 1}.Address()
	w.append(task, in, 8192, bytes.Repeat([]byte{1}, 60))
	w.append(task, out, 0, bytes.Repeat([]byte{2}, 60))
	w.append(task, in, 8252, bytes.Repeat([]byte{3}, 30))
	w.append(task, in, 9000, bytes.Repeat([]byte{4}, 30))
	h := w.close()[0]
	r := Open(b, "job", Options{ReadSize: 1})
	defer r.Close()
	s, err := r.Subtask(t.Context(), h)
	require.NoError(t, err)
	defer s.Close()

	var got []Buffer
	for b, err := range s.Buffers(t.Context()) {
		require.NoError(t, err)
		file := statetest.Get(t, w.b, "job/"+b.File)
		require.Equal(t, b.Bytes, file[b.Offset:][:len(b.Bytes)])
		c := *b
		c.Bytes, c.Offset, c.mem = []byte{b.Bytes[0], byte(len(b.Bytes))}, 0, nil
		got = append(got, c)
	}
	name := h.Segments[0].File
	require.Equal(t, []Buffer{
		{Task: task, Address: in, Pos: inflight.Pos{Offset: 8192}, File: name, Bytes: []byte{1, 60}},
		{Task: task, Address: out, Entry: 1, File: name, Bytes: []byte{2, 60}},
		{Task: task, Address: in, Pos: inflight.Pos{Offset: 8252, Seq: 1}, File: name, Bytes: []byte{3, 30}},
		{Task: task, Address: in, Pos: inflight.Pos{Offset: 9000, Seq: 2}, Gap: true, File: name, Bytes: []byte{4, 30}},
	}, got)

	// A break releases; a retained buffer outlives the reader.
	var kept inflight.Buffer
	for b, err := range s.Buffers(t.Context(), inflight.Output) {
		require.NoError(t, err)
		kept = b.Retain()
		break
	}
	e, ok := s.Entry(in)
	require.True(t, ok)
	require.Equal(t, 1, e.Gaps)
	s.Close()
	require.NoError(t, r.Close())
	require.Equal(t, bytes.Repeat([]byte{2}, 60), kept.Bytes())
	require.NotZero(t, r.pool.held.Load())
	kept.Release()
	require.Zero(t, r.pool.held.Load())
	for _, err := range s.Buffers(t.Context()) {
		require.ErrorIs(t, err, inflight.ErrClosed)
	}
	_, err = r.Subtask(t.Context(), h)
	require.ErrorIs(t, err, inflight.ErrClosed)
}

// newFile helps to write one file by hand.
type fileWriter struct {
	t       *testing.T
	b       *statetest.Backend
	e       *format.Encoder
	buf     *bytes.Buffer
	name    string
	members map[inflight.Task]format.Member
	order   []inflight.Task
	seq     map[statetest.Key]uint64
	info    format.FileInfo
}

func newFile(t *testing.T, b *statetest.Backend, id inflight.CheckpointID, o format.EncoderOptions) *fileWriter {
	w := &fileWriter{t: t, b: b, buf: &bytes.Buffer{}, name: format.StateFileName(id, "g0", "abc"), members: map[inflight.Task]format.Member{}, seq: map[statetest.Key]uint64{}}
	var err error
	w.e, err = format.NewEncoder(w.buf, w.name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: id}, o)
	require.NoError(t, err)
	return w
}

func (w *fileWriter) member(task inflight.Task) format.Member {
	m, ok := w.members[task]
	if !ok {
		var err error
		m, err = w.e.Begin(task, nil)
		require.NoError(w.t, err)
		w.members[task] = m
		w.order = append(w.order, task)
	}
	return m
}

func (w *fileWriter) append(task inflight.Task, a inflight.Address, offset uint64, p []byte) {
	k := statetest.Key{Task: task, Address: a}
	require.NoError(w.t, w.e.Append(w.member(task), a, inflight.Pos{Offset: offset, Seq: w.seq[k]}, p))
	w.seq[k]++
}

func (w *fileWriter) close() (hs []inflight.Handle) {
	for _, task := range w.order {
		require.NoError(w.t, w.e.Complete(w.members[task]))
	}
	var err error
	w.info, err = w.e.Close()
	require.NoError(w.t, err)
	statetest.Put(w.t, w.b, "job/"+w.name, w.buf.Bytes())
	for _, task := range w.order {
		hs = append(hs, w.e.Handle(w.members[task]))
	}
	return hs
}
