package writer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
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
	require.NoError(t, c.Cuts(inflight.Cut{Address: input(0).Address()}))
	finish(t, c)
	require.Equal(t, inflight.Handle{Task: task(0), Checkpoint: 1}, handle(t, c))
	require.Empty(t, c.Files())
	require.Empty(t, names(t, b))
	bufs.check(t)
}
