package flink_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// requireReported holds what a plan says is lost against the numbers that are
// gone.
func requireReported(t testing.TB, j job, p *flink.Plan, gone []int) {
	t.Helper()
	var bytes, records int64
	known := true
	for _, l := range p.Lost {
		bytes += l.Bytes
		records += l.Records
		known = known && l.RecordsKnown
	}
	require.EqualValues(t, len(gone), bytes/j.recordBytes())
	require.Zero(t, bytes%j.recordBytes(), "whole records")
	if known {
		require.EqualValues(t, len(gone), records)
	} else {
		require.LessOrEqual(t, records, int64(len(gone)))
	}
}

// TestDrop: exactly what is reported is missing.
func TestDrop(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	c := open(t, root, dir)
	edges := verified(t, c).Edges
	before := numbers(t, c, edges)
	for _, e := range edges {
		p, err := c.PlanDrop(t.Context(), flink.DropOptions{Edges: []flink.Edge{e}})
		require.NoError(t, err)
		_, path := execute(t, p, c.CheckpointID)
		requireReported(t, j, p, before[e.String()])
		j.requireMissing(t, "dropped "+e.String(), path, j.splits, before[e.String()])
	}
	p, err := c.PlanDrop(t.Context(), flink.DropOptions{All: true})
	require.NoError(t, err)
	_, path := execute(t, p, c.CheckpointID)
	gone := all(before)
	requireReported(t, j, p, gone)
	j.requireMissing(t, "dropped all", path, j.splits, gone)
	j.requireMissing(t, "dropped all", path, 2, gone)
}

// damage is something that happens to a channel-state file.
type damage struct {
	name string
	do   func(t testing.TB, path string, x *flink.Index)
}

// largest returns the file and the chunk of a side that has the largest chunk.
func largest(x *flink.Index, side inflight.Side) (file string, chunk flink.Chunk) {
	for _, s := range x.Streams {
		for _, c := range s.Chunks {
			if x.Channels[c.Channel].Address.Side == side && s.Handle.Kind() == flink.KindRelativeFile && c.Length > chunk.Length {
				file, chunk = s.Handle.Path(), c
			}
		}
	}
	return file, chunk
}

// addTo adds n to the number at an offset of a file.
func addTo(t testing.TB, name string, at int64, n int32) {
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	binary.BigEndian.PutUint32(b[at:], binary.BigEndian.Uint32(b[at:])+uint32(n))
	require.NoError(t, os.WriteFile(name, b, 0o600))
}

// cutIn cuts a file in the middle of the chunk of a side that is the nearest to
// its end.
func cutIn(side inflight.Side) func(t testing.TB, path string, x *flink.Index) {
	return func(t testing.TB, path string, x *flink.Index) {
		file, at, behind := "", int64(0), 1<<30
		for _, s := range x.Streams {
			for i, c := range s.Chunks {
				if n := len(s.Chunks) - i; x.Channels[c.Channel].Address.Side == side && s.Handle.Kind() == flink.KindRelativeFile && n < behind {
					file, at, behind = s.Handle.Path(), c.Offset+4+int64(c.Length)/2, n
				}
			}
		}
		require.NoError(t, os.Truncate(filepath.Join(path, file), at))
	}
}

func chunkLength(side inflight.Side, n int32) func(t testing.TB, path string, x *flink.Index) {
	return func(t testing.TB, path string, x *flink.Index) {
		file, c := largest(x, side)
		addTo(t, filepath.Join(path, file), c.Offset, n)
	}
}

// halve cuts the largest file in its middle: many connections lose something.
func halve(t testing.TB, path string, x *flink.Index) {
	file, _ := largest(x, inflight.Output)
	info, err := os.Stat(filepath.Join(path, file))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(path, file), info.Size()/2))
}

func remove(t testing.TB, path string, x *flink.Index) {
	file, _ := largest(x, inflight.Output)
	require.NoError(t, os.Remove(filepath.Join(path, file)))
}

// damaged copies a fixture and damages it.
func damaged(t testing.TB, d damage) (j job, path string, c *flink.Checkpoint, edges []flink.Edge, before []int) {
	j, root, dir := fixture(t, "resume")
	c = open(t, root, dir)
	r := verified(t, c)
	before = all(numbers(t, c, r.Edges))
	path = filepath.Join(root, dir)
	d.do(t, path, r.Index)
	return j, path, open(t, root, dir), r.Edges, before
}

// TestSalvage: Flink restores what is salvaged, and only the records that are
// reported are missing.
func TestSalvage(t *testing.T) {
	for _, d := range []damage{
		{"a file cut in an input chunk", cutIn(inflight.Input)},
		{"a file cut in an output chunk", cutIn(inflight.Output)},
		{"a file cut in half", halve},
		{"a file missing", remove},
		{"length of an input chunk - 4", chunkLength(inflight.Input, -4)},
		{"length of an input chunk + 64 Ki", chunkLength(inflight.Input, 65536)},
		{"length of an output chunk + 1", chunkLength(inflight.Output, 1)},
	} {
		j, _, c, edges, before := damaged(t, d)
		p, err := c.PlanSalvage(t.Context(), flink.SalvageOptions{})
		require.NoError(t, err, d.name)
		n, path := execute(t, p, c.CheckpointID)
		require.Empty(t, verified(t, n).Findings, d.name)
		gone := without(before, all(numbers(t, n, edges)))
		require.NotEmpty(t, gone)
		requireReported(t, j, p, gone)
		j.requireMissing(t, "salvaged: "+d.name, path, j.splits, gone)
		j.requireMissing(t, "salvaged: "+d.name, path, 2, gone)
	}
}

// flip changes a bit of a file.
func flip(t testing.TB, name string, at int64) {
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	b[at] ^= 1
	require.NoError(t, os.WriteFile(name, b, 0o600))
}
