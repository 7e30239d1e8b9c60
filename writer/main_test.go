package writer

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) {
	if os.Getenv("SPILLWAY_CRASH") != "" {
		_ = flag.Set("rapid.checks", "20000") // an explicit flag comes later
	}
	goleak.VerifyTestMain(m)
}

// buffers makes buffers and counts what becomes of them.
type buffers struct {
	made, released atomic.Int64
	twice          atomic.Int64
	mu             sync.Mutex
	freed          sync.Cond
}

func newBuffers() *buffers {
	b := &buffers{}
	b.freed.L = &b.mu
	return b
}

// buffer is an inflight.Buffer that must be released once.
type buffer struct {
	of   *buffers
	data []byte
	gone atomic.Bool
}

func (b *buffers) of(data []byte) *buffer {
	b.made.Add(1)
	return &buffer{of: b, data: bytes.Clone(data)}
}

func (b *buffer) Bytes() []byte {
	if b.gone.Load() {
		b.of.twice.Add(1)
	}
	return b.data
}

// Release spoils the bytes, as a pool would that lends them again.
func (b *buffer) Release() {
	if b.gone.Swap(true) {
		b.of.twice.Add(1)
		return
	}
	for i := range min(len(b.data), 4096) {
		b.data[i] = 0xDD
	}
	b.of.mu.Lock()
	b.of.released.Add(1)
	b.of.freed.Broadcast()
	b.of.mu.Unlock()
}

// wait waits until all buffers are released.
func (b *buffers) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.released.Load() < b.made.Load() {
		b.freed.Wait()
	}
}

// check demands that each buffer was released once.
func (b *buffers) check(t require.TestingT) {
	require.Equal(t, b.made.Load(), b.released.Load(), "buffers released")
	require.Zero(t, b.twice.Load(), "buffers used after their release, or released twice")
}

// resident is a buffer that is retained over all rounds.
type resident struct{ data []byte }

func (r *resident) Bytes() []byte { return r.data }
func (r *resident) Release()      {}

// source is a backends.Source as an io.ReaderAt.
type source struct {
	ctx context.Context
	backends.Source
}

func (s source) ReadAt(p []byte, off int64) (int, error) {
	if err := s.Source.ReadAt(s.ctx, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// captured is what can be read back of a capture.
type captured struct {
	data map[inflight.Address][][]byte
	pos  map[inflight.Address]inflight.Pos // of the first byte
	cuts map[inflight.Address]inflight.Cut
}

// read reads everything that h points to, and checks it.
func read(t require.TestingT, b backends.Backend, job string, h inflight.Handle) captured {
	got := captured{map[inflight.Address][][]byte{}, map[inflight.Address]inflight.Pos{}, map[inflight.Address]inflight.Cut{}}
	digests := map[inflight.Address]format.Digest{}
	next := map[inflight.Address]inflight.Pos{}
	for i, seg := range h.Segments {
		name := seg.File
		if job != "" {
			name = job + "/" + name
		}
		src, err := b.Open(context.Background(), name)
		require.NoError(t, err)
		file := make([]byte, src.Info().Size)
		require.NoError(t, src.ReadAt(context.Background(), file, 0))
		r := source{context.Background(), src}
		trailer, err := format.ReadTrailer(r, int64(len(file)))
		require.NoError(t, err)
		require.Equal(t, seg.FileID, trailer.FileID)
		s, err := format.ReadSection(r, seg)
		require.NoError(t, err)
		require.NoError(t, src.Close())
		require.Equal(t, h.Task, s.Task)
		require.Equal(t, h.Checkpoint, s.Checkpoint)
		require.Equal(t, h.Segments[:i], append([]inflight.Segment{}, s.Prior...))
		if i == len(h.Segments)-1 {
			require.Equal(t, format.StatusComplete, s.Status)
		} else {
			require.Equal(t, format.StatusContinued, s.Status)
		}
		for _, e := range s.Entries {
			a := e.Address
			for _, x := range e.Extents {
				if x.Flags&format.RunReference != 0 {
					continue
				}
				require.Zero(t, x.Flags&format.RunGap, "a gap in %s", a)
				ref := s.Blocks[x.Block]
				block, _, err := format.DecodeBlock(file[ref.Offset:ref.Offset+int64(ref.Stored)], seg.FileID, ref.Offset, nil)
				require.NoError(t, err)
				var table format.Table
				require.NoError(t, block.ReadTable(&table))
				for _, run := range table.Runs {
					if run.Offset != int(x.Offset) || run.Address != a || table.Members[run.Member] != s.Task || run.Flags&format.RunReference != 0 {
						continue
					}
					if _, ok := got.pos[a]; !ok {
						got.pos[a] = run.Pos
					} else if next[a].Known() && run.Pos.Known() {
						require.Equal(t, next[a].Offset, run.Pos.Offset, "position within %s", a)
					}
					next[a] = run.End()
					at := run.Offset
					for k := range run.Pieces {
						p := block.Data[at : at+run.PieceLength(k)]
						at += len(p)
						if k == 0 && run.Flags&format.RunHead != 0 {
							last := &got.data[a][len(got.data[a])-1]
							*last = append(*last, p...)
						} else {
							got.data[a] = append(got.data[a], bytes.Clone(p))
						}
					}
					digests[a] = digests[a].Join(run.Digest, run.Length)
				}
			}
			if cut, ok := e.Cut(); ok {
				got.cuts[a] = cut
			}
			if i == len(h.Segments)-1 {
				require.Equal(t, digests[a], e.Digest, "digest of %s", a)
				require.EqualValues(t, len(got.data[a]), e.Buffers, "buffers of %s", a)
			}
		}
	}
	return got
}

// names lists what lies on b.
func names(t require.TestingT, b backends.Backend) (names []string) {
	for info, err := range b.List(context.Background(), "") {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	return names
}

// leftovers counts what unfinished writers have left on b.
func leftovers(t require.TestingT, b backends.Backend) (n int) {
	for _, err := range b.Leftovers(context.Background(), "") {
		require.NoError(t, err)
		n++
	}
	return n
}

func task(n int) inflight.Task { return inflight.Task{Vertex: "count", Subtask: n} }

func input(n int) inflight.InputChannel { return inflight.InputChannel{Channel: n} }

func output(n int) inflight.Subpartition { return inflight.Subpartition{Subpartition: n} }

// bytesOf makes n bytes that differ from seed to seed.
func bytesOf(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
	return b
}

func newPool(t testing.TB, o Options) *Pool {
	p, err := NewPool(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func start(t require.TestingT, w *Writer, id inflight.CheckpointID) *Capture {
	c, err := w.Start(id, StartOptions{Epoch: 3, Attempt: "a1"})
	require.NoError(t, err, fmt.Sprint(id))
	return c
}

func finish(t require.TestingT, c *Capture) {
	require.NoError(t, c.FinishInput())
	require.NoError(t, c.FinishOutput())
}

func handle(t require.TestingT, c *Capture) inflight.Handle {
	<-c.Done()
	h, err := c.Handle()
	require.NoError(t, err)
	return h
}
