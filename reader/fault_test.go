package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
)

var errInjected = errors.New("injected")

// readAll opens and reads every handle of c. What it has read up to an error
// must be right.
func readAll(ctx context.Context, t require.TestingT, r *Reader, c *statetest.Checkpoint) error {
	for _, h := range c.Handles {
		s, err := r.Subtask(ctx, h)
		if err != nil {
			return err
		}
		err = readRight(ctx, t, s, c)
		s.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func readRight(ctx context.Context, t require.TestingT, s *Subtask, c *statetest.Checkpoint) error {
	next := map[statetest.Key]int{}
	for b, err := range s.Buffers(ctx) {
		if err != nil {
			return err
		}
		k := statetest.Key{Task: b.Task, Address: b.Address}
		require.Less(t, next[k], len(c.Want[k]))
		want := c.Want[k][next[k]]
		require.True(t, want.Pos == b.Pos && bytes.Equal(want.Data, b.Bytes), "wrong data")
		next[k]++
	}
	for k, want := range wantOf(c, s.Task) {
		require.Len(t, want, next[k])
	}
	return nil
}

// idle checks that nothing is held any more.
func idle(t require.TestingT, r *Reader, b *statetest.Backend) {
	require.Zero(t, r.pool.held.Load())
	require.Empty(t, r.files)
	require.Empty(t, r.spans)
	require.Empty(t, r.slots)
	now, _ := b.Opened()
	require.Zero(t, now)
}

// aFew yields up to ten numbers of the reads that it takes to read c, from a
// random one on.
func aFew(t *rapid.T, b *statetest.Backend, o Options, c *statetest.Checkpoint) iter.Seq[int] {
	b.After = nil
	b.Reset()
	r := Open(b, "job", o)
	require.NoError(t, readAll(t.Context(), t, r, c))
	require.NoError(t, r.Close())
	n := len(b.Reads())
	step := n/10 + 1
	first := rapid.IntRange(0, step-1).Draw(t, "first")
	return func(yield func(int) bool) {
		for k := first; k < n && yield(k); k += step {
		}
	}
}

// TestEveryReadFails makes single reads fail: an error, and nothing held;
// or all right, where it was tried again.
func TestEveryReadFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: statetest.Tasks(t), Tiny: true})
		o := drawOptions(t)
		for k := range aFew(t, b, o, c) {
			var mu sync.Mutex
			n := 0
			b.After = func(statetest.Read, []byte) error {
				mu.Lock()
				defer mu.Unlock()
				if n++; n == k+1 {
					return errInjected
				}
				return nil
			}
			r := Open(b, "job", o)
			err := readAll(t.Context(), t, r, c)
			if err != nil {
				require.ErrorIs(t, err, errInjected)
			}
			idle(t, r, b)
			require.NoError(t, r.Close())
		}
	})
}

// TestTransient flips a byte of single reads, once: the data is right, and
// the flip is reported if it was in anything that is needed.
func TestTransient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: statetest.Tasks(t), Tiny: true})
		o := drawOptions(t)
		o.ReadSize, o.Gap, o.ReadAhead, o.Memory = 1, 1, -1, 0 // every read is a block or a section: nothing is read in vain
		reported := 0
		o.Report = func(f inflight.Finding) {
			require.Equal(t, CodeTransient, f.Code)
			require.ErrorIs(t, f.Err, inflight.ErrCorrupt)
			reported++
		}
		at := rapid.IntRange(0, 1<<20).Draw(t, "byte")
		for k := range aFew(t, b, o, c) {
			var mu sync.Mutex
			n := 0
			b.After = func(_ statetest.Read, p []byte) error {
				mu.Lock()
				defer mu.Unlock()
				if n++; n == k+1 {
					p[at%len(p)] ^= 4
				}
				return nil
			}
			r := Open(b, "job", o)
			reported = 0
			require.NoError(t, readAll(t.Context(), t, r, c))
			require.Equal(t, 1, reported)
			idle(t, r, b)
			require.NoError(t, r.Close())
		}
	})
}

// small writes a small checkpoint with everything in it: continued buffers, a
// continued subtask, a reference, a gap.
func small(t *testing.T, b *statetest.Backend, codec format.Codec) *statetest.Checkpoint {
	task, other := inflight.Task{Vertex: "count", Subtask: 1}, inflight.Task{Vertex: "src"}
	in, out, state := inflight.InputChannel{Gate: 0, Channel: 2}.Address(), inflight.Subpartition{Partition: 1}.Address(), inflight.StateName("counts").Address()
	c := &statetest.Checkpoint{ID: 7, Want: map[statetest.Key][]statetest.Buf{}}
	put := func(w *fileWriter, task inflight.Task, a inflight.Address, offset uint64, n int) {
		p := bytes.Repeat([]byte{byte(n), byte(offset)}, n)[:n]
		k := statetest.Key{Task: task, Address: a}
		c.Want[k] = append(c.Want[k], statetest.Buf{Pos: inflight.Pos{Offset: offset, Seq: w.seq[k]}, Data: p})
		w.append(task, a, offset, p)
	}
	o := format.EncoderOptions{BlockSize: 100, LargestBlock: 200, PageSize: 100, Codec: codec}
	old := newFile(t, b, 6, o)
	old.append(task, out, 0, bytes.Repeat([]byte{1}, 40))
	old.append(task, out, 40, bytes.Repeat([]byte{2}, 30))
	old.append(task, out, 70, bytes.Repeat([]byte{3}, 170))
	r := Open(b, "job", Options{})
	defer r.Close()
	s, err := r.Subtask(t.Context(), old.close()[0])
	require.NoError(t, err)
	defer s.Close()
	for _, err := range s.Buffers(t.Context()) {
		require.NoError(t, err)
	}
	refs, err := s.Rest(t.Context(), out, 40)
	require.NoError(t, err)

	w := newFile(t, b, 7, o)
	put(w, task, in, 8192, 60)
	put(w, other, in, 5, 60)
	for _, ref := range refs {
		require.NoError(t, w.e.Reference(w.member(task), out, ref.File, ref.Run))
	}
	c.Want[statetest.Key{Task: task, Address: out}] = []statetest.Buf{{Pos: inflight.Pos{Offset: 40, Seq: 1}, Data: bytes.Repeat([]byte{2}, 30)}, {Pos: inflight.Pos{Offset: 70, Seq: 2}, Data: bytes.Repeat([]byte{3}, 170)}}
	w.seq[statetest.Key{Task: task, Address: out}] = 3
	put(w, task, in, 8252, 350)
	put(w, task, state, 0, 20)
	put(w, task, in, 9000, 30)
	require.NoError(t, w.e.Complete(w.members[other]))
	require.NoError(t, w.e.Continue(w.members[task]))
	info, err := w.e.Close()
	require.NoError(t, err)
	statetest.Put(t, b, "job/"+w.name, w.buf.Bytes())
	c.Handles, c.Files = append(c.Handles, w.e.Handle(w.members[other])), append(c.Files, info)

	next := newFile(t, b, 7, o)
	next.name = format.StateFileName(7, "g1", "abc")
	next.e, err = format.NewEncoder(next.buf, next.name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, o)
	require.NoError(t, err)
	m, err := next.e.Begin(task, w.e.Carry(w.members[task]))
	require.NoError(t, err)
	next.members[task], next.order, next.seq = m, []inflight.Task{task}, w.seq
	put(next, task, in, 9030, 50)
	put(next, task, out, 240, 50)
	c.Handles = append(c.Handles, next.close()...)
	c.Files = append(c.Files, next.info)
	return c
}

// TestDamage flips every byte of, and cuts at every place, files that a
// checkpoint needs: what is delivered is right, and otherwise there is a typed
// error.
func TestDamage(t *testing.T) {
	for _, codec := range []format.Codec{format.CodecNone, format.CodecS2} {
		t.Run(codec.String(), func(t *testing.T) {
			b := &statetest.Backend{Backend: mem.New(mem.Options{})}
			c := small(t, b, codec)
			check := func(name string, p []byte, what string) (failed bool) {
				statetest.Put(t, b, name, p)
				r := Open(b, "job", Options{ReadSize: 500, Gap: 1})
				err := readAll(t.Context(), t, r, c)
				require.True(t, err == nil || inflight.IsCorruption(err) || errors.Is(err, inflight.ErrUnknownVersion), "%s: %v", what, err)
				idle(t, r, b)
				require.NoError(t, r.Close())
				return err != nil
			}
			for _, file := range []string{"job/" + format.StateFileName(6, "g0", "abc"), "job/" + format.StateFileName(7, "g0", "abc"), "job/" + format.StateFileName(7, "g1", "abc")} {
				whole := statetest.Get(t, b, file)
				failed := 0
				for i := 0; i < len(whole); i += damageStep {
					bad := bytes.Clone(whole)
					bad[i] ^= 1 << (i % 8)
					if check(file, bad, fmt.Sprintf("%s flipped at %d", file, i)) {
						failed++
					}
					check(file, whole[:i], fmt.Sprintf("%s cut at %d", file, i))
				}
				require.Greater(t, failed, len(whole)/damageStep/4)
				require.False(t, check(file, whole, "whole"))
			}
		})
	}
}

// TestScattered reads 5,000 extents of 1 KB that lie between those of another
// subtask.
func TestScattered(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 1024})
	task, other := inflight.Task{Vertex: "count"}, inflight.Task{Vertex: "count", Subtask: 1}
	for i := range 5000 {
		p := bytes.Repeat([]byte{byte(i)}, 1024)
		w.append(task, inflight.InputChannel{Channel: i % 10}.Address(), uint64(i/10*1024), p)
		w.append(other, inflight.InputChannel{Channel: i % 10}.Address(), uint64(i/10*1024), p)
	}
	h := w.close()[0]
	r := Open(b, "job", Options{})
	defer r.Close()
	s, err := r.Subtask(t.Context(), h)
	require.NoError(t, err)
	defer s.Close()
	n := 0
	for b, err := range s.Buffers(t.Context(), inflight.State, inflight.Output, inflight.Input) {
		require.NoError(t, err)
		require.Len(t, b.Bytes, 1024)
		n++
	}
	require.Equal(t, 5000, n)
	require.Len(t, s.extents, 5000)
	require.LessOrEqual(t, len(b.Reads()), 20)
}

// TestShared restores subtasks that share files, at once: no byte of a block is
// read twice.
func TestShared(t *testing.T) {
	for _, ahead := range []int64{-1, 1 << 20} {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 4096})
		for i := range 4000 {
			w.append(inflight.Task{Vertex: "count", Subtask: i % 20}, inflight.InputChannel{Channel: i % 7}.Address(), uint64(i/140*1000), bytes.Repeat([]byte{byte(i)}, 1000))
		}
		hs := w.close()
		r := Open(b, "job", Options{ReadAhead: ahead})
		var subtasks []*Subtask
		for _, h := range hs {
			s, err := r.Subtask(t.Context(), h)
			require.NoError(t, err)
			subtasks = append(subtasks, s)
		}
		b.Reset()
		var wg sync.WaitGroup
		var seqs []func()
		for _, s := range subtasks {
			all := s.Buffers(t.Context())
			seqs = append(seqs, func() {
				for _, err := range all {
					require.NoError(t, err)
				}
			})
		}
		for _, read := range seqs {
			wg.Go(read)
		}
		wg.Wait()
		reads := b.Reads()
		slices.SortFunc(reads, func(a, b statetest.Read) int { return int(a.Offset - b.Offset) })
		for i := range reads[1:] {
			require.LessOrEqual(t, reads[i].Offset+int64(reads[i].Length), reads[i+1].Offset)
		}
		for _, s := range subtasks {
			s.Close()
		}
		idle(t, r, b)
		require.NoError(t, r.Close())
	}
}

// TestCancel ends the context of one subtask while another one waits for the
// same read.
func TestCancel(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	w := newFile(t, b, 7, format.EncoderOptions{BlockSize: 100000})
	tasks := []inflight.Task{{Vertex: "count"}, {Vertex: "count", Subtask: 1}}
	for i := range 40 {
		w.append(tasks[i%2], inflight.InputChannel{}.Address(), uint64(i/2*100), bytes.Repeat([]byte{byte(i)}, 100))
	}
	hs := w.close()
	r := Open(b, "job", Options{ReadSize: 1})
	ctx, cancel := context.WithCancel(t.Context())
	s0, err := r.Subtask(ctx, hs[0])
	require.NoError(t, err)
	s1, err := r.Subtask(t.Context(), hs[1])
	require.NoError(t, err)
	reading, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.After = func(statetest.Read, []byte) (err error) {
		once.Do(func() {
			close(reading)
			<-goOn
			err = ctx.Err()
		})
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, err := range s0.Buffers(ctx) {
			require.ErrorIs(t, err, context.Canceled)
		}
	})
	<-reading
	n := 0
	wg.Go(func() {
		for _, err := range s1.Buffers(t.Context()) {
			require.NoError(t, err)
			n++
		}
	})
	cancel()
	close(goOn)
	wg.Wait()
	require.Equal(t, 20, n)
	s0.Close()
	s1.Close()
	idle(t, r, b)
}

// TestOpenFilesInUse: a read that would open one file more waits for another one
// to end, as long as its context lasts.
func TestOpenFilesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		var hs []inflight.Handle
		for i := range 20 {
			w := newFile(t, b, inflight.CheckpointID(i+1), format.EncoderOptions{})
			w.append(inflight.Task{Vertex: "count", Subtask: i}, inflight.InputChannel{}.Address(), 0, []byte{1, 2, 3})
			hs = append(hs, w.close()...)
		}
		r := Open(b, "job", Options{OpenFiles: 3})
		defer r.Close()
		goOn := make(chan struct{})
		b.After = func(statetest.Read, []byte) error { <-goOn; return nil }
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				s, err := r.Subtask(t.Context(), hs[i])
				require.NoError(t, err)
				defer s.Close()
				n := 0
				for _, err := range s.Buffers(t.Context()) {
					require.NoError(t, err)
					n++
				}
				require.Equal(t, 1, n)
			})
		}
		synctest.Wait()
		now, _ := b.Opened()
		require.Equal(t, 3, now)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Subtask(ctx, hs[19])
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = r.File(ctx, hs[19].Segments[0].File)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(goOn)
		wg.Wait()
		idle(t, r, b)
		_, most := b.Opened()
		require.Equal(t, 3, most)
	})
}

// TestOpenFiles keeps few files open, and goes on when the process may open no
// more.
func TestOpenFiles(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	var hs []inflight.Handle
	for i := range 20 {
		w := newFile(t, b, inflight.CheckpointID(i+1), format.EncoderOptions{})
		w.append(inflight.Task{Vertex: "count", Subtask: i}, inflight.InputChannel{}.Address(), 0, []byte{1, 2, 3})
		hs = append(hs, w.close()...)
	}
	r := Open(b, "job", Options{OpenFiles: 3})
	defer r.Close()
	var subtasks []*Subtask
	for _, h := range hs {
		s, err := r.Subtask(t.Context(), h)
		require.NoError(t, err)
		defer s.Close()
		subtasks = append(subtasks, s)
	}
	for _, s := range subtasks {
		for _, err := range s.Buffers(t.Context()) {
			require.NoError(t, err)
		}
	}
	_, most := b.Opened()
	require.LessOrEqual(t, most, 3)
}
