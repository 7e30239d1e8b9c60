package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/enginetest"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// TestPluggingIn holds docs/plugging-in.md to the source: each block of Go names
// a file of ours that the tests run, and its lines stand in that file, one after
// the other; a line of an ellipsis stands for lines that are left out.
func TestPluggingIn(t *testing.T) {
	const root = "../../"
	text, err := os.ReadFile(root + "docs/plugging-in.md")
	require.NoError(t, err)
	blocks := strings.Split(string(text), "```go")
	require.Greater(t, len(blocks), 8)
	for _, b := range blocks[1:] {
		name, b, _ := strings.Cut(b, "\n")
		name = strings.TrimSpace(name)
		b, _, closed := strings.Cut(b, "```")
		require.True(t, closed)
		require.NotEmpty(t, name, "a block without a file: %s", b)
		source, err := os.ReadFile(root + name)
		require.NoError(t, err)
		left := unindented(string(source))
		for part := range strings.SplitSeq(b, "// …\n") {
			_, after, found := strings.Cut(left, unindented(part))
			require.True(t, found, "%s has not: %s", name, part)
			left = after
		}
	}
	for _, c := range enginetest.Checks() {
		require.Contains(t, string(text), "| "+c.Name+" | "+c.About+" |")
	}
}

// unindented returns text without the white space around its lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// queue is what stands in front of an aligned barrier that may time out.
type queue struct {
	sub     inflight.Subpartition
	pos     inflight.Pos // of the first buffer
	buffers []inflight.Buffer
}

// barrier sends an aligned barrier behind what is queued. left is closed when the
// barrier has left by itself, and late fires when it may wait no longer.
func (q *queue) barrier(capture *writer.Capture, left <-chan struct{}, late <-chan time.Time) error {
	hold, err := capture.HoldOutput(q.sub)
	if err != nil {
		return err
	}
	select {
	case <-left:
		hold.Drop(nil) // nothing was overtaken
		return nil
	case <-late:
		return hold.Fill(q.pos, q.buffers...) // the barrier goes first
	}
}

// TestHold shows both ends of a hold: what is captured, and that the checkpoint
// is complete.
func TestHold(t *testing.T) {
	one := &format.Topology{Vertices: []format.Vertex{{ID: "a", Parallelism: 1}, {ID: "b", Parallelism: 1}}, Edges: []format.Edge{{From: "a", To: "b", Partitioner: "hash"}}}
	job, err := spillway.Open(t.Context(), t.TempDir(), "job", one, spillway.Options{})
	require.NoError(t, err)
	defer job.Close()
	for _, overtakes := range []bool{false, true} {
		c, err := job.Begin(t.Context())
		require.NoError(t, err)
		left, late := make(chan struct{}), make(chan time.Time, 1)
		if overtakes {
			late <- time.Now()
		} else {
			close(left)
		}
		q := &queue{pos: inflight.Pos{Offset: 100}, buffers: []inflight.Buffer{inflight.Bytes("in"), inflight.Bytes("front")}}
		require.NoError(t, q.barrier(c.Captures[inflight.Task{Vertex: "a"}], left, late))
		for _, capture := range c.Captures {
			require.NoError(t, capture.FinishOutput())
			require.NoError(t, capture.FinishInput())
		}
		done, err := c.Commit(t.Context(), format.Unaligned)
		require.NoError(t, err)
		var got []string
		s, err := job.Reader.At(done.Manifest, done.Dir).Subtask(t.Context(), inflight.Task{Vertex: "a"})
		require.NoError(t, err)
		for b, err := range s.Buffers(t.Context()) {
			require.NoError(t, err)
			got = append(got, fmt.Sprintf("%s@%d", b.Bytes, b.Pos.Offset))
		}
		s.Close()
		require.Equal(t, overtakes, slices.Equal([]string{"in@100", "front@102"}, got), got)
	}
}
