package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/inspect"
)

// oneConnection writes job "one" with checkpoints of a source and a sink, which
// stand at emitted and consumed records, with what lies between captured by
// fill.
func oneConnection(t *testing.T, dir string, checkpoints ...func(c *capture, source, sink format.Member)) string {
	j := &fixtureJob{t: t, dir: filepath.Join(dir, "one"), name: "one"}
	j.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "a0"})
	for i, fill := range checkpoints {
		c := &fixtureCheckpoint{fixtureJob: j, Manifest: format.Manifest{ID: inflight.CheckpointID(i + 1), Attempt: "a0", Alignment: format.Unaligned}}
		c.Topology = &format.Topology{Vertices: []format.Vertex{{ID: "source", Parallelism: 1}, {ID: "sink", Parallelism: 1}},
			Edges: []format.Edge{{From: "source", To: "sink", Partitioner: "forward", Serializer: inspect.LengthPrefixed}}}
		c.file("g0", func(f *capture) {
			source, sourceDone := f.begin("source", 0)
			sink, sinkDone := f.begin("sink", 0)
			fill(f, source, sink)
			sourceDone()
			sinkDone()
		})
		c.commit()
	}
	return filepath.Join(dir, "one")
}

// findings runs verify and returns the findings by code.
func findings(t *testing.T, args ...string) (code int, found map[string]inspect.FindingLine) {
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), testEnv(&stdout, &stderr), append([]string{"verify", "--json"}, args...))
	require.Zero(t, stderr.Len(), &stderr)
	found = map[string]inspect.FindingLine{}
	for line := range strings.Lines(stdout.String()) {
		var f inspect.FindingLine
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		found[f.Code] = f
	}
	return code, found
}

// right captures what was between: 5 records were consumed, 9 emitted.
func right(c *capture, source, sink format.Member) {
	a, b, end := len(stream(0, 5)), len(stream(0, 8))-3, len(stream(0, 9))
	c.data(sink, input(0, 0), a, stream(0, 9)[a:b])
	c.data(source, output(0, 0), b, stream(0, 9)[b:end])
	c.cut(sink, input(0, 0), 5)
	c.cut(source, output(0, 0), 9)
}

func TestConservation(t *testing.T) {
	for name, tc := range map[string]struct {
		fill func(c *capture, source, sink format.Member)
		text string
	}{
		"right": {right, ""},
		"a buffer is lost at the end": {func(c *capture, source, sink format.Member) {
			a, b := len(stream(0, 5)), len(stream(0, 8))-3
			c.data(sink, input(0, 0), a, stream(0, 9)[a:b])
			c.cut(sink, input(0, 0), 5)
			c.cut(source, output(0, 0), 9)
		}, "23 bytes are missing"},
		"a buffer is lost between": {func(c *capture, source, sink format.Member) {
			a, end := len(stream(0, 5)), len(stream(0, 9))
			c.data(sink, input(0, 0), a, stream(0, 9)[a:a+50])
			c.data(source, output(0, 0), a+60, stream(0, 9)[a+60:end])
			c.cut(sink, input(0, 0), 5)
			c.cut(source, output(0, 0), 9)
		}, "10 bytes are missing"},
		"captured twice": {func(c *capture, source, sink format.Member) {
			right(c, source, sink)
			c.cut(source, output(0, 0), 8)
		}, "20 bytes too many"},
		"processed and captured": {func(c *capture, source, sink format.Member) {
			right(c, source, sink) // bytes and position err together
			require.NoError(t, c.SetCut(sink, inflight.Cut{Address: input(0, 0), Bytes: uint64(len(stream(0, 5))), Records: 6, RecordsKnown: true}))
		}, "1 records too many"},
		"cut inside a record": {func(c *capture, source, sink format.Member) {
			right(c, source, sink)
			require.NoError(t, c.SetCut(source, inflight.Cut{Address: output(0, 0), Bytes: uint64(len(stream(0, 9))), Records: 10, RecordsKnown: true}))
		}, "1 records are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			code, found := findings(t, oneConnection(t, t.TempDir(), tc.fill))
			if tc.text == "" {
				require.Zero(t, code)
				require.Empty(t, found)
				return
			}
			require.Equal(t, 1, code)
			require.Len(t, found, 1)
			f := found["conservation"]
			require.Equal(t, inflight.SeverityError, f.Severity)
			require.Equal(t, "source/0 → sink/0 (partition 0, gate 0): "+tc.text, f.Text)
			require.Equal(t, "one/chk-0000000001", f.Object)
			require.Equal(t, "sink", *f.Vertex)
		})
	}
}

// TestWentBack has two checkpoints that each are right, and do not follow on
// each other.
func TestWentBack(t *testing.T) {
	fewer := func(*capture, format.Member, format.Member) {}
	job := oneConnection(t, t.TempDir(), right, fewer)
	code, found := findings(t, "--all", job)
	require.Zero(t, code, found)

	fewer = func(c *capture, source, sink format.Member) {
		c.cut(sink, input(0, 0), 4)
		c.cut(source, output(0, 0), 4)
	}
	job = oneConnection(t, t.TempDir(), right, fewer)
	code, found = findings(t, job)
	require.Zero(t, code, found)
	code, found = findings(t, "--all", job)
	require.Equal(t, 1, code)
	require.Len(t, found, 1)
	require.Equal(t, "one/chk-0000000002", found["went-back"].Object)
	require.Contains(t, found["went-back"].Text, "consumed went back: 100 bytes and 5 records before, 80 and 4 now")
}
