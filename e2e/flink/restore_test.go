package flink_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// TestOriginal: what is compared with everywhere else.
func TestOriginal(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	report := verified(t, open(t, root, dir))
	require.Len(t, report.Edges, 2)
	path := filepath.Join(root, dir)
	same := j.requireExact(t, "original", path, j.splits)
	require.Equal(t, report.Bytes, same.InputBytes+same.OutputBytes, "what Flink puts back is what Verify counts")
	require.Equal(t, report.Buffers, same.InputBuffers+same.OutputBuffers)
	j.requireExact(t, "original", path, 2)
	j.requireExact(t, "original", path, 4)
}

// TestCompact: chunks of any length, also longer than Flink's buffers (32 KiB here).
func TestCompact(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	c := open(t, root, dir)
	for _, size := range []int32{0, 7, 32 << 10, 1 << 20} {
		p, err := c.PlanCompact(t.Context(), flink.CompactOptions{ChunkSize: size})
		require.NoError(t, err)
		require.Equal(t, 1, p.After.Files)
		n, path := execute(t, p, c.CheckpointID)
		verified(t, n)
		require.Equal(t, payloads(t, c), payloads(t, n))
		what := fmt.Sprintf("compacted, chunks of %d", size)
		if size == 0 {
			what = "compacted"
			j.requireExact(t, what, path, 2)
		}
		r := j.requireExact(t, what, path, j.splits)
		if size != 7 { // buffers of 4 and 12 bytes look like events in Flink's log
			require.Equal(t, p.After.Bytes, r.InputBytes+r.OutputBytes)
		}
	}
}

// TestRelocate: state by absolute path, of RocksDB and of file merging. Where it
// was written, nothing is left.
func TestRelocate(t *testing.T) {
	for _, name := range []string{"resume-rocksdb", "resume-filemerging"} {
		j, root, dir := fixture(t, name)
		c := open(t, root, dir, moveOf(name, root))
		require.NotEmpty(t, verifyMoved(t, root, dir), "the original needs to be where it was written")

		p, err := c.PlanRelocate(t.Context(), flink.RelocateOptions{})
		require.NoError(t, err)
		n, path := execute(t, p, c.CheckpointID)
		require.Empty(t, verified(t, n).Findings)
		moved := filepath.Join(t.TempDir(), "elsewhere")
		require.NoError(t, os.Rename(path, moved))
		j.requireExact(t, name+": relocated, then moved", moved, j.splits)
		j.requireExact(t, name+": relocated, then moved", moved, 2)

		p, err = c.PlanRelocate(t.Context(), flink.RelocateOptions{Paths: []flink.Move{{From: moveOf(name, root).From, To: "file:" + filepath.ToSlash(root)}}})
		require.NoError(t, err)
		require.NoError(t, p.Execute(t.Context(), c.Backend(), "new/"+dir))
		j.requireExact(t, name+": paths rewritten", filepath.Join(root, "new", dir), j.splits)
	}
}

// verifyMoved returns the findings where absolute paths lead nowhere.
func verifyMoved(t *testing.T, root, dir string) []inflight.Finding {
	r, err := flink.Verify(t.Context(), store(t, root), dir, flink.VerifyOptions{})
	require.NoError(t, err)
	return r.Findings
}

// TestConvert: into a checkpoint of Spillway, and back.
func TestConvert(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	c := open(t, root, dir)
	to, err := c.PlanToSpillway(t.Context(), flink.ConvertOptions{})
	require.NoError(t, err)
	ours := store(t, t.TempDir())
	require.NoError(t, to.Execute(t.Context(), ours, "chk-0000000003"))
	back, err := flink.PlanFromSpillway(t.Context(), ours, "chk-0000000003")
	require.NoError(t, err)
	n, path := execute(t, back, c.CheckpointID)
	require.Empty(t, verified(t, n).Findings)
	require.Equal(t, payloads(t, c), payloads(t, n))
	j.requireExact(t, "converted to Spillway and back", path, j.splits)
	j.requireExact(t, "converted to Spillway and back", path, 2)
}

// TestChain: what one rewrite writes, every other takes.
func TestChain(t *testing.T) {
	j, root, dir := fixture(t, "resume-filemerging")
	c := open(t, root, dir, moveOf("resume-filemerging", root))
	compact, err := c.PlanCompact(t.Context(), flink.CompactOptions{})
	require.NoError(t, err)
	place := t.TempDir()
	require.NoError(t, compact.Execute(t.Context(), store(t, place), "chk-3"))
	c = open(t, place, "chk-3", moveOf("resume-filemerging", root))
	relocate, err := c.PlanRelocate(t.Context(), flink.RelocateOptions{})
	require.NoError(t, err)
	c, _ = execute(t, relocate, c.CheckpointID)
	to, err := c.PlanToSpillway(t.Context(), flink.ConvertOptions{})
	require.NoError(t, err)
	ours := store(t, t.TempDir())
	require.NoError(t, to.Execute(t.Context(), ours, "x"))
	back, err := flink.PlanFromSpillway(t.Context(), ours, "x")
	require.NoError(t, err)
	c, _ = execute(t, back, c.CheckpointID)
	salvage, err := c.PlanSalvage(t.Context(), flink.SalvageOptions{})
	require.NoError(t, err)
	require.Empty(t, salvage.Lost)
	_, path := execute(t, salvage, c.CheckpointID)
	j.requireExact(t, "compact, relocate, convert, back, salvage", path, j.splits)
	j.requireExact(t, "compact, relocate, convert, back, salvage", path, 2)
}
