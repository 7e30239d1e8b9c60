package flink

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
	"github.com/spillway-io/spillway/reader"
)

// TestConvert converts each fixture into a checkpoint of ours and back.
func TestConvert(t *testing.T) {
	for _, name := range flinktest.Names(t) {
		c, move := openMoved(t, name)
		b := mem.New(mem.Options{})
		defer b.Close()
		v, err := c.PlanToSpillway(t.Context(), ConvertOptions{Codec: format.CodecS2})
		require.NoError(t, err, name)
		require.NoError(t, v.Execute(t.Context(), b, "job/copy"))
		require.ErrorIs(t, v.Execute(t.Context(), b, "job/copy"), inflight.ErrExist)

		r := reader.Open(b, "job", reader.Options{})
		cp, err := r.Checkpoint(t.Context(), "copy")
		require.NoError(t, err)
		report, err := cp.Verify(t.Context(), reader.VerifyOptions{Records: true})
		require.NoError(t, err)
		require.False(t, report.Failed(), "%s: %v", name, report.Findings)
		require.Empty(t, cp.Manifest.Missing())
		require.EqualValues(t, v.Bytes, cp.Manifest.PersistedBytes())
		require.NoError(t, r.Close())

		back, err := PlanFromSpillway(t.Context(), b, "job/copy")
		require.NoError(t, err)
		require.Equal(t, v.Bytes, back.Bytes)
		slices.Sort(v.Files)
		require.Equal(t, v.Files, back.Files)
		dir := "flink/" + chk(c)
		require.NoError(t, back.Execute(t.Context(), b, dir))
		n, err := Open(t.Context(), b, dir, OpenOptions{Moves: []Move{move}})
		require.NoError(t, err)
		requireRight(t, n)
		require.Equal(t, payloads(t, c), payloads(t, n), name)
		require.Equal(t, stateOf(t, c), stateOf(t, n), name)
		require.True(t, bytes.Equal(without(t, c), without(t, n)), name)
		require.NoError(t, n.Close())
	}
}

func chk(c *Checkpoint) string { return "chk-" + jsonNumber(int64(c.CheckpointID)) }

func TestConvertForeign(t *testing.T) {
	b := mem.New(mem.Options{})
	defer b.Close()
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "j", ID: 3, Attempt: "a", Mode: format.ExactlyOnce, Alignment: format.Aligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "v", Parallelism: 1}}}}
	m.SetHandles([]inflight.Handle{{Task: inflight.Task{Vertex: "v"}, Checkpoint: 3}})
	p, err := format.EncodeManifest(m)
	require.NoError(t, err)
	require.NoError(t, writeFile(t.Context(), b, "j/chk-0000000003/"+format.ManifestName, p))
	_, err = PlanFromSpillway(t.Context(), b, "j/chk-0000000003")
	require.ErrorIs(t, err, inflight.ErrMismatch)
	_, err = PlanFromSpillway(t.Context(), b, "j/chk-0000000004")
	require.ErrorIs(t, err, inflight.ErrNotExist)
}
