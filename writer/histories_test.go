package writer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// The tests of this file are histories that have hurt users of Apache Flink, by
// the number of the issue, as far as they concern who captures.

func oneWriter(t *testing.T) (*mem.Backend, *Writer, *buffers) {
	b := mem.New(mem.Options{})
	w, err := newPool(t, Options{Backend: b}).Writer(task(0))
	require.NoError(t, err)
	return b, w, newBuffers()
}

// FLINK-20645: a buffer is missing in the middle.
func TestMissingBufferIsNoticed(t *testing.T) {
	_, w, bufs := oneWriter(t)
	c := start(t, w, 1)
	pos := inflight.Pos{Epoch: 3}
	for i := range 3 {
		require.NoError(t, c.Input(input(0), pos, bufs.of(bytesOf(i, 10))))
		pos = pos.Advance(10, 1)
	}
	err := c.Input(input(0), pos.Advance(10, 1), bufs.of(bytesOf(5, 10)), bufs.of(bytesOf(6, 10)))
	require.ErrorIs(t, err, inflight.ErrOrder)
	require.ErrorContains(t, err, "gate 0 channel 0 is at 3/30#3, and buffers from 3/40#4 on came")
	<-c.Done()
	_, failed := c.Handle()
	require.Equal(t, err, failed)
	bufs.wait()
	bufs.check(t)
}

// FLINK-20654, 21104: checkpoint 5 is declined while its barrier and the one of
// 6 are on their way.
func TestOldAndNewBarrierAfterDecline(t *testing.T) {
	b, w, bufs := oneWriter(t)
	five := start(t, w, 5)
	require.NoError(t, five.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))))
	six := start(t, w, 6)
	require.ErrorIs(t, five.Input(input(1), inflight.Pos{}, bufs.of(bytesOf(2, 10))), inflight.ErrSubsumed)
	require.NoError(t, six.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(3, 10))))
	w.Abort(5, errors.New("declined"))
	require.NoError(t, six.Input(input(1), inflight.Pos{}, bufs.of(bytesOf(4, 10))))
	finish(t, six)
	got := read(t, b, "", handle(t, six))
	require.Equal(t, map[inflight.Address][][]byte{input(0).Address(): {bytesOf(3, 10)}, input(1).Address(): {bytesOf(4, 10)}}, got.data)
	_, err := five.Handle()
	require.ErrorIs(t, err, inflight.ErrSubsumed)
	bufs.wait()
	bufs.check(t)
}

// FLINK-18139, 17552: data only in the last channel of the second gate.
func TestTwoGates(t *testing.T) {
	b, w, bufs := oneWriter(t)
	c := start(t, w, 1)
	last := inflight.InputChannel{Gate: 1, Channel: 2}
	require.NoError(t, c.Input(last, inflight.Pos{}, bufs.of(bytesOf(1, 10))))
	require.NoError(t, c.Input(inflight.InputChannel{Gate: 0, Channel: 2}, inflight.Pos{}))
	finish(t, c)
	require.Equal(t, map[inflight.Address][][]byte{last.Address(): {bytesOf(1, 10)}}, read(t, b, "", handle(t, c)).data)
}

// FLINK-17994: an older trigger comes after a newer one.
func TestOlderStartIsSubsumed(t *testing.T) {
	_, w, _ := oneWriter(t)
	two := start(t, w, 2)
	for _, id := range []inflight.CheckpointID{1, 2} {
		_, err := w.Start(id, StartOptions{})
		require.ErrorIs(t, err, inflight.ErrSubsumed)
	}
	finish(t, two)
	handle(t, two)
}

// FLINK-17869, 17218: abort races with start; thousands of starts without an end.
func TestAbortBeforeStart(t *testing.T) {
	_, w, bufs := oneWriter(t)
	w.Abort(9, nil)
	w.Abort(9, nil)
	_, err := w.Start(9, StartOptions{})
	require.ErrorIs(t, err, inflight.ErrAborted)
	_, err = w.Start(8, StartOptions{})
	require.ErrorIs(t, err, inflight.ErrSubsumed)
	var last *Capture
	for id := range inflight.CheckpointID(1000) {
		last = start(t, w, 10+id)
		require.NoError(t, last.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 100))))
		require.Len(t, w.live, 1)
	}
	finish(t, last)
	handle(t, last)
	require.Empty(t, w.live)
	bufs.wait()
	bufs.check(t)
}

// FLINK-28474: a result that never fails after an abort.
func TestAbortEndsTheWaiting(t *testing.T) {
	_, w, _ := oneWriter(t)
	c := start(t, w, 1)
	w.Abort(1, errors.New("timed out"))
	<-c.Done()
	_, err := c.Handle()
	require.ErrorIs(t, err, inflight.ErrAborted)
	require.EqualError(t, err, "capture checkpoint 1 of count/0: aborted: timed out")
}

// FLINK-38804: a buffer arrives while the writer is being closed.
func TestBuffersAfterClose(t *testing.T) {
	_, w, bufs := oneWriter(t)
	c := start(t, w, 1)
	sent := make(chan error)
	go func() {
		pos := inflight.Pos{}
		var err error
		for err == nil {
			err = c.Input(input(0), pos, bufs.of(bytesOf(1, 10)))
			pos = pos.Advance(10, 1)
		}
		sent <- err
	}()
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-sent, inflight.ErrClosed)
	require.ErrorIs(t, c.Output(output(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))), inflight.ErrClosed)
	require.ErrorIs(t, c.FinishInput(), inflight.ErrClosed)
	_, err := w.Start(2, StartOptions{})
	require.ErrorIs(t, err, inflight.ErrClosed)
	bufs.wait()
	bufs.check(t)
}

// FLINK-18050, 17440, 40345: an error in the middle of a batch.
func TestEachBufferOfABatchIsReleasedOnce(t *testing.T) {
	b := mem.New(mem.Options{})
	w, err := newPool(t, Options{Backend: b, MaxBuffered: 1000}).Writer(task(0))
	require.NoError(t, err)
	bufs := newBuffers()
	c := start(t, w, 1)
	err = c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 400)), bufs.of(nil), bufs.of(bytesOf(2, 400)), bufs.of(bytesOf(3, 400)))
	require.ErrorIs(t, err, inflight.ErrOverBudget)
	bufs.wait()
	bufs.check(t)
}

// FLINK-18136, 18403: channel state of a savepoint.
func TestNoChannelStateInSavepoints(t *testing.T) {
	b, w, bufs := oneWriter(t)
	c, err := w.Start(1, StartOptions{StateOnly: true})
	require.NoError(t, err)
	require.NoError(t, c.State("counts", bufs.of([]byte("a=1"))))
	require.NoError(t, c.Cuts(inflight.Cut{Address: input(0).Address()}))
	finish(t, c)
	require.EqualValues(t, 3, handle(t, c).StateBytes)
	require.Len(t, names(t, b), 1)

	c, err = w.Start(2, StartOptions{StateOnly: true})
	require.NoError(t, err)
	require.ErrorIs(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))), inflight.ErrConfig)
	bufs.wait()
	bufs.check(t)
}

// FLINK-20331, 22638: obsolete, given up and failed are three answers.
func TestThreeAnswers(t *testing.T) {
	_, w, _ := oneWriter(t)
	one := start(t, w, 1)
	two := start(t, w, 2)
	w.Abort(2, nil)
	three := start(t, w, 3)
	h, err := three.HoldOutput(output(0))
	require.NoError(t, err)
	lost := errors.New("the barrier was lost")
	h.Drop(lost)
	for c, want := range map[*Capture]error{one: inflight.ErrSubsumed, two: inflight.ErrAborted, three: lost} {
		<-c.Done()
		_, err := c.Handle()
		require.ErrorIs(t, err, want)
	}
}

// Flink kills the writer of all subtasks when data comes after finishInput.
func TestDataAfterFinish(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b})
	bufs := newBuffers()
	bad, err := p.Writer(task(0))
	require.NoError(t, err)
	good, err := p.Writer(task(1))
	require.NoError(t, err)
	c, d := start(t, bad, 1), start(t, good, 1)
	require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))))
	require.NoError(t, d.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(2, 10))))
	require.NoError(t, c.FinishInput())
	require.NoError(t, c.FinishInput())
	require.ErrorIs(t, c.Input(input(0), inflight.Pos{Offset: 10}, bufs.of(bytesOf(3, 10))), inflight.ErrOrder)
	require.ErrorIs(t, c.FinishOutput(), inflight.ErrOrder)
	finish(t, d)
	require.Equal(t, map[inflight.Address][][]byte{input(0).Address(): {bytesOf(2, 10)}}, read(t, b, "", handle(t, d)).data)
	next := start(t, bad, 2)
	finish(t, next)
	handle(t, next)
	bufs.wait()
	bufs.check(t)
}

// FLINK-26803: four subtasks in one file, the third aborts when half is done.
func TestOneOfFourAborts(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b, BlockSize: 100})
	bufs := newBuffers()
	var writers []*Writer
	var captures []*Capture
	for i := range 4 {
		w, err := p.Writer(task(i))
		require.NoError(t, err)
		writers = append(writers, w)
		captures = append(captures, start(t, w, 1))
	}
	for half := range 2 {
		for i, c := range captures {
			err := c.Input(input(0), inflight.Pos{Offset: uint64(half * 500)}, bufs.of(bytesOf(i, 250)), bufs.of(bytesOf(i, 250)))
			if i == 2 && half == 1 {
				require.ErrorIs(t, err, inflight.ErrAborted)
			} else {
				require.NoError(t, err)
			}
		}
		bufs.wait() // so that the third has bytes in the file
		writers[2].Abort(1, nil)
	}
	for i, c := range captures {
		if i != 2 {
			finish(t, c)
		}
	}
	for i, c := range captures {
		if i != 2 {
			got := read(t, b, "", handle(t, c))
			require.Equal(t, [][]byte{bytesOf(i, 250), bytesOf(i, 250), bytesOf(i, 250), bytesOf(i, 250)}, got.data[input(0).Address()])
		}
	}
	require.Len(t, names(t, b), 1)
	require.ElementsMatch(t, []format.Status{format.StatusAborted, format.StatusComplete, format.StatusComplete, format.StatusComplete}, statuses(t, b, names(t, b)[0]))
	bufs.wait()
	bufs.check(t)
}

// statuses returns the marks in a file.
func statuses(t *testing.T, b backends.Backend, name string) (list []format.Status) {
	src, err := b.Open(t.Context(), name)
	require.NoError(t, err)
	defer src.Close()
	r := source{t.Context(), src}
	trailer, err := format.ReadTrailer(r, src.Info().Size)
	require.NoError(t, err)
	dir, err := format.ReadDirectory(r, trailer)
	require.NoError(t, err)
	for _, e := range dir {
		list = append(list, e.Status)
	}
	return list
}

// A subtask that ends and is registered anew takes part in the same checkpoint.
func TestRegisteredAnew(t *testing.T) {
	b := mem.New(mem.Options{})
	p := newPool(t, Options{Backend: b, TasksPerFile: 2})
	bufs := newBuffers()
	other, err := p.Writer(task(1))
	require.NoError(t, err)
	o := start(t, other, 1)
	require.NoError(t, o.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(9, 10))))
	for range 3 {
		w, err := p.Writer(task(0))
		require.NoError(t, err)
		_, err = p.Writer(task(0))
		require.ErrorIs(t, err, inflight.ErrExist)
		c := start(t, w, 1)
		require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(1, 10))))
		require.NoError(t, w.Close())
		_, err = c.Handle()
		require.ErrorIs(t, err, inflight.ErrClosed)
	}
	w, err := p.Writer(task(0))
	require.NoError(t, err)
	c := start(t, w, 1)
	require.NoError(t, c.Input(input(0), inflight.Pos{}, bufs.of(bytesOf(2, 10))))
	finish(t, c)
	finish(t, o)
	require.Equal(t, [][]byte{bytesOf(2, 10)}, read(t, b, "", handle(t, c)).data[input(0).Address()])
	require.Equal(t, [][]byte{bytesOf(9, 10)}, read(t, b, "", handle(t, o)).data[input(0).Address()])
	bufs.wait()
	bufs.check(t)
}
