package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

func TestRoundTrip(t *testing.T) {
	b := local.New(t.TempDir())
	bufs := newBuffers()
	p := newPool(t, Options{Backend: b, Job: "job"})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 7)
	pos := inflight.Pos{Epoch: 3, Offset: 100, Seq: 4}
	require.NoError(t, c.Input(input(2), pos, bufs.of(bytesOf(1, 1000)), bufs.of(nil), bufs.of(bytesOf(2, 500))))
	require.NoError(t, c.Input(input(2), pos.Advance(1500, 2), bufs.of(bytesOf(3, 10))))
	require.NoError(t, c.Output(output(0), inflight.PosUnknown, bufs.of(bytesOf(4, 70000))))
	require.NoError(t, c.State("counts", bufs.of([]byte("a=1")), bufs.of([]byte("b=2"))))
	require.NoError(t, c.State("counts", bufs.of([]byte("c=3"))))
	cut := inflight.Cut{Address: input(2).Address(), Epoch: 3, Bytes: 100, Records: 9, RecordsKnown: true}
	require.NoError(t, c.Cuts(cut))
	finish(t, c)
	h := handle(t, c)
	require.Equal(t, inflight.Handle{Task: task(0), Checkpoint: 7, Segments: h.Segments, InputBytes: 1510, OutputBytes: 70000, StateBytes: 9}, h)
	got := read(t, b, "job", h)
	require.Equal(t, map[inflight.Address][][]byte{
		input(2).Address():                     {bytesOf(1, 1000), bytesOf(2, 500), bytesOf(3, 10)},
		output(0).Address():                    {bytesOf(4, 70000)},
		inflight.StateName("counts").Address(): {[]byte("a=1"), []byte("b=2"), []byte("c=3")},
	}, got.data)
	require.Equal(t, pos, got.pos[input(2).Address()])
	require.Equal(t, map[inflight.Address]inflight.Cut{input(2).Address(): cut}, got.cuts)
	require.Len(t, c.Files(), 1)
	require.Equal(t, []string{"job/" + c.Files()[0].Name}, names(t, b))
	require.Zero(t, p.Buffered())
	bufs.check(t)
}

func TestEmptyCaptureMakesNoFile(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 1)
	bufs := newBuffers()
	require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(nil)))
	require.NoError(t, c.Cuts())
	finish(t, c)
	require.Equal(t, inflight.Handle{Task: task(0), Checkpoint: 1}, handle(t, c))
	require.Empty(t, c.Files())
	require.Empty(t, names(t, b))
	bufs.check(t)
}

// Then calls whether Done is still to come or was before.
func TestThen(t *testing.T) {
	p := newPool(t, Options{Backend: mem.New(mem.Options{})})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 1)
	calls := make(chan string, 2)
	c.Then(func() {
		_, err := c.Handle()
		calls <- fmt.Sprint("before: ", err)
	})
	require.Empty(t, calls)
	require.NoError(t, c.State("counts", newBuffers().of(bytesOf(1, 10))))
	finish(t, c)
	require.Equal(t, "before: <nil>", <-calls)
	handle(t, c)
	c.Then(func() { calls <- "after" })
	require.Len(t, calls, 1)
}

// What nothing was in flight of is proven too: cuts alone make a section, beside
// those of the group, or a file of their own.
func TestCutsWithoutBytes(t *testing.T) {
	b, bufs := mem.New(mem.Options{}), newBuffers()
	p := newPool(t, Options{Backend: b, SealLinger: time.Hour})
	var captures []*Capture
	for i := range 3 {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		captures = append(captures, start(t, w, 1))
	}
	cut := inflight.Cut{Address: input(0).Address(), Epoch: 3, Bytes: 77, Records: 7, RecordsKnown: true}
	require.NoError(t, captures[0].Cuts(cut))
	finish(t, captures[0])
	require.NoError(t, captures[1].Input(input(1), inflight.Pos{}, bufs.of(bytesOf(1, 10))))
	finish(t, captures[1])
	finish(t, captures[2])
	require.Empty(t, handle(t, captures[2]).Segments)
	h := handle(t, captures[0])
	require.Len(t, h.Segments, 1)
	require.Zero(t, h.PersistedBytes()+h.StateBytes)
	got := read(t, b, "", h)
	require.Empty(t, got.data)
	require.Equal(t, map[inflight.Address]inflight.Cut{cut.Address: cut}, got.cuts)
	require.Len(t, handle(t, captures[1]).Segments, 1)
	require.Equal(t, captures[1].Files(), captures[0].Files())
	require.Len(t, names(t, b), 1)
	bufs.check(t)
}

// A checkpoint during recovery refers to what was not replayed yet.
func TestReference(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	bufs := newBuffers()
	old := start(t, w, 1)
	pos := inflight.Pos{Epoch: 3, Offset: 50, Seq: 2}
	require.NoError(t, old.Output(output(1), pos, bufs.of(bytesOf(1, 100)), bufs.of(bytesOf(2, 200))))
	finish(t, old)
	base := handle(t, old).Segments[0]

	src, err := b.Open(t.Context(), base.File)
	require.NoError(t, err)
	section, err := format.ReadSection(source{t.Context(), src}, base)
	require.NoError(t, err)
	require.NoError(t, src.Close())
	x, e := section.Entries[0].Extents[0], section.Entries[0]
	ref := section.Blocks[x.Block]
	run := format.Run{Pos: x.Pos, Pieces: x.Pieces, Length: uint64(x.Length), Digest: e.Digest, Target: format.Target{BlockOffset: ref.Offset, Stored: ref.Stored, Offset: x.Offset}}
	file := format.FileRef{Name: base.File, FileID: base.FileID}

	c := start(t, w, 2)
	h, err := c.HoldOutput(output(2))
	require.NoError(t, err)
	require.NoError(t, c.Reference(output(1).Address(), file, run))
	require.NoError(t, c.Output(output(1), run.End(), bufs.of(bytesOf(3, 30))))
	behind := run
	behind.Pos = inflight.Pos{Epoch: 3, Offset: 7}
	require.NoError(t, c.Reference(output(2).Address(), file, behind)) // behind the hold
	require.NoError(t, h.Fill(inflight.Pos{Epoch: 3, Offset: 5}, bufs.of([]byte("ab"))))
	finish(t, c)
	got := handle(t, c)
	require.EqualValues(t, 300+30+2+300, got.OutputBytes)
	src, err = b.Open(t.Context(), got.Segments[0].File)
	require.NoError(t, err)
	section, err = format.ReadSection(source{t.Context(), src}, got.Segments[0])
	require.NoError(t, err)
	require.NoError(t, src.Close())
	require.Equal(t, []format.FileRef{file}, section.Files)
	require.Len(t, section.Entries, 2)
	for _, e := range section.Entries {
		require.Len(t, e.Extents, 2)
		require.EqualValues(t, 3, e.Buffers)
		for _, x := range e.Extents {
			require.Zero(t, x.Flags&format.RunGap)
		}
	}
	// References that are wrong fail the capture.
	for name, bad := range map[string]format.Run{
		"empty":    {Pos: pos},
		"too long": {Pos: pos, Length: 5 << 20, Pieces: 1},
		"gap":      {Pos: pos.Advance(1, 0), Length: 10, Pieces: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, w, inflight.CheckpointID(w.seen))
			require.NoError(t, c.Output(output(1), inflight.Pos{Offset: 49}, bufs.of([]byte("x"))))
			require.Error(t, c.Reference(output(1).Address(), file, bad))
			<-c.Done()
		})
	}
	bufs.wait()
	bufs.check(t)
}

// State that was not replayed yet is of an older epoch than what the engine
// captures of it itself.
func TestReferenceToStateOfAnOlderEpoch(t *testing.T) {
	_, w, bufs := oneWriter(t)
	name := inflight.StateName("counts")
	file := format.FileRef{Name: format.StateFileName(0, "g0", "a0"), FileID: inflight.NewFileID()}
	for queued := range 2 {
		c := start(t, w, inflight.CheckpointID(1+queued))
		pos := inflight.Pos{Epoch: 1}
		for range queued {
			require.NoError(t, c.State(name, bufs.of([]byte("a=1"))))
			pos = pos.Advance(3, 1)
		}
		run := format.Run{Pos: pos, Pieces: 1, Length: 10, Target: format.Target{BlockOffset: 100, Stored: 200}}
		require.NoError(t, c.Reference(name.Address(), file, run))
		require.NoError(t, c.State(name, bufs.of([]byte("b=2"))))
		finish(t, c)
		h := handle(t, c)
		require.EqualValues(t, 3*queued+10+3, h.StateBytes)
		require.Equal(t, []format.FileRef{file}, h.References)
	}
	bufs.wait()
	bufs.check(t)
}

func TestWrongAddresses(t *testing.T) {
	_, w, bufs := oneWriter(t)
	long := inflight.StateName(make([]byte, 2000))
	for name, call := range map[string]func(*Capture) error{
		"gate": func(c *Capture) error {
			return c.Input(inflight.InputChannel{Gate: -1}, inflight.Pos{}, bufs.of([]byte("x")))
		},
		"subpartition": func(c *Capture) error { return c.Output(output(-1), inflight.Pos{}, bufs.of([]byte("x"))) },
		"state":        func(c *Capture) error { return c.State(long, bufs.of([]byte("x"))) },
		"cut":          func(c *Capture) error { return c.Cuts(inflight.Cut{Address: input(-1).Address()}) },
		"cut of state": func(c *Capture) error { return c.Cuts(inflight.Cut{Address: inflight.StateName("s").Address()}) },
		"no side": func(c *Capture) error {
			return c.Reference(inflight.Address{}, format.FileRef{}, format.Run{Length: 1, Pieces: 1})
		},
		"hold": func(c *Capture) error { _, err := c.HoldOutput(output(-1)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, w, inflight.CheckpointID(w.seen))
			require.NoError(t, c.State("s", bufs.of([]byte("x"))))
			require.ErrorIs(t, call(c), inflight.ErrConfig)
			<-c.Done()
		})
	}
	bufs.wait()
	bufs.check(t)
}

func TestOptions(t *testing.T) {
	b := mem.New(mem.Options{})
	for name, o := range map[string]Options{
		"no backend":    {},
		"tasks":         {Backend: b, TasksPerFile: -1},
		"target":        {Backend: b, TargetFileSize: -1},
		"bound":         {Backend: b, MaxBuffered: -1},
		"bound of task": {Backend: b, MaxBufferedPerTask: -1},
		"block":         {Backend: b, BlockSize: 1 << 30},
		"job":           {Backend: b, Job: "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewPool(o)
			require.ErrorIs(t, err, inflight.ErrConfig)
			var e *inflight.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Mend)
		})
	}
	p := newPool(t, Options{Backend: b})
	require.EqualValues(t, DefaultMaxBuffered, p.Room())
	_, err := p.Writer(inflight.Task{Subtask: -1})
	require.ErrorIs(t, err, inflight.ErrConfig)
	w, err := p.Writer(task(4))
	require.NoError(t, err)
	require.Equal(t, task(4), w.Task())
	for _, attempt := range []string{"a/b", "a-b", "a b", string(make([]byte, 300))} {
		_, err = w.Start(1, StartOptions{Attempt: attempt})
		require.ErrorIs(t, err, inflight.ErrConfig, attempt)
	}
	_, err = w.Start(format.MaxCheckpointID+1, StartOptions{})
	require.ErrorIs(t, err, inflight.ErrConfig)
	c, err := w.Start(1, StartOptions{}) // a wrong call does not use the id up
	require.NoError(t, err)
	require.EqualValues(t, 1, c.Checkpoint())
	require.NoError(t, p.Close())
	_, err = p.Writer(task(5))
	require.ErrorIs(t, err, inflight.ErrClosed)
}

// Compression is for stores behind a network.
func TestCodecAuto(t *testing.T) {
	for _, remote := range []bool{false, true} {
		b := mem.New(mem.Options{ObjectStore: remote})
		p := newPool(t, Options{Backend: b, Codec: format.CodecAuto})
		w, err := p.Writer(task(0))
		require.NoError(t, err)
		c := start(t, w, 1)
		require.NoError(t, c.State("s", inflight.Bytes(make([]byte, 200_000))))
		finish(t, c)
		read(t, b, "", handle(t, c))
		require.Equal(t, remote, c.Files()[0].Size < 20_000)
	}
}

// What the observer is told.
func TestEvents(t *testing.T) {
	seen := &events{}
	p := newPool(t, Options{Backend: mem.New(mem.Options{}), Observer: seen})
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 7)
	require.NoError(t, c.Input(input(0), inflight.Pos{}, inflight.Bytes("abc"), inflight.Bytes("de")))
	finish(t, c)
	handle(t, c)
	sealed, done := seen.of(inflight.EventFileSealed), seen.of(inflight.EventCaptureDone)
	require.Len(t, sealed, 1)
	require.Equal(t, c.Files()[0].Name, sealed[0].Object)
	require.Equal(t, c.Files()[0].Size, sealed[0].Bytes)
	require.Len(t, done, 1)
	require.Equal(t, inflight.Event{Name: inflight.EventCaptureDone, Checkpoint: 7, Task: task(0), Count: 2, Bytes: 5, Duration: done[0].Duration}, done[0])
	w.Abort(8, nil)
	d := start(t, w, 9)
	w.Abort(9, nil)
	<-d.Done()
	require.ErrorIs(t, seen.of(inflight.EventCaptureDone)[1].Err, inflight.ErrAborted)
}
