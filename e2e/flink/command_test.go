package flink_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// plan is the first line that a rewriting command prints as JSON.
type plan struct {
	LostBytes    int64 `json:"lost_bytes"`
	LostRecords  int   `json:"lost_records"`
	RecordsKnown bool  `json:"lost_records_known"`
}

// command runs ckpt-inspect and returns the first line of its JSON, if any.
func command(t testing.TB, binary string, args ...string) (p plan) {
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"--json"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%v: %s", args, &errs)
	if len(out) > 0 {
		require.NoError(t, json.NewDecoder(bytes.NewReader(out)).Decode(&p), "%v: %s", args, out)
	}
	return p
}

// TestCommand does with the inspector what an operator does, and lets Flink
// restore what came of it.
func TestCommand(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "ckpt-inspect")
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../..", "build", "-o", binary, "./cmd/ckpt-inspect").CombinedOutput()
	require.NoError(t, err, "%s", out)
	j, root, dir := fixture(t, "resume")
	c := open(t, root, dir)
	r := verified(t, c)
	before := numbers(t, c, r.Edges)
	path, place := filepath.Join(root, dir), t.TempDir()
	at := func(name string) string { return filepath.Join(place, name, dir) }

	command(t, binary, "verify", path)
	command(t, binary, "flink", "seal", "--state", path)
	command(t, binary, "verify", path)
	command(t, binary, "flink", "compact", path, at("compacted"))
	command(t, binary, "flink", "relocate", at("compacted"), at("relocated"))
	command(t, binary, "flink", "convert", "--to", "spillway", at("relocated"), filepath.Join(place, "ours", "chk-0000000003"))
	command(t, binary, "verify", filepath.Join(place, "ours", "chk-0000000003"))
	command(t, binary, "flink", "convert", "--from", "spillway", filepath.Join(place, "ours", "chk-0000000003"), at("back"))
	command(t, binary, "flink", "salvage", at("back"), at("salvaged"))
	for _, name := range []string{"compacted", "salvaged"} {
		j.requireExact(t, "ckpt-inspect: "+name, at(name), j.splits)
	}

	p := command(t, binary, "flink", "drop", "--edge", "rec=>count", at("salvaged"), at("dropped"))
	var gone []int
	for _, e := range r.Edges {
		if e.To.Name == "count" {
			gone = before[e.String()]
		}
	}
	require.True(t, p.RecordsKnown)
	require.Len(t, gone, p.LostRecords)
	j.requireMissing(t, "ckpt-inspect: dropped rec=>count", at("dropped"), j.splits, gone)

	// A changed bit in a payload: Flink would count a wrong record, and not say so.
	file, chunk := largest(r.Index, inflight.Output)
	flip(t, filepath.Join(path, file), chunk.Offset+4+int64(chunk.Length)/2)
	damaged := j.restore(t, "unmended: a bit of a payload", path, j.splits, how{})
	require.Equal(t, "FINISHED", damaged.State)
	require.Equal(t, 1, damaged.CorruptAtCount+damaged.CorruptAtSink)
	require.Error(t, exec.CommandContext(t.Context(), binary, "verify", path).Run(), "the seal tells")
	p = command(t, binary, "flink", "salvage", path, at("mended"))
	n := open(t, filepath.Dir(at("mended")), dir)
	require.Empty(t, verified(t, n).Findings)
	gone = without(all(before), all(numbers(t, n, r.Edges)))
	require.EqualValues(t, len(gone), p.LostBytes/j.recordBytes())
	j.requireMissing(t, "ckpt-inspect: salvaged with the seal", at("mended"), j.splits, gone)
}
