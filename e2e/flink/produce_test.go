package flink_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/flink"
)

// running is a job under backpressure, in real Flink.
type running struct {
	job
	dir string // of its checkpoints
}

// start runs j with network buffers of a size; count and sink take so many milliseconds for each record.
func (j job) start(t testing.TB, segment string, countMS, sinkMS, warmMS int) *running {
	r := &running{job: j, dir: t.TempDir()}
	request := j.request()
	request["dir"], request["parallelism"] = r.dir, j.splits
	request["count_ms"], request["sink_ms"], request["warm_ms"], request["segment"] = countMS, sinkMS, warmMS, segment
	var answer struct{ State string }
	server.ask(t, &answer, "start", request)
	return r
}

// checkpoint takes a checkpoint and returns the name of its directory.
func (r *running) checkpoint(t testing.TB) string {
	var answer struct{ Checkpoint int }
	server.ask(t, &answer, "checkpoint", map[string]any{})
	return fmt.Sprintf("chk-%d", answer.Checkpoint)
}

func (r *running) cancel(t testing.TB) {
	var answer struct{ State string }
	server.ask(t, &answer, "cancel", map[string]any{})
}

// TestManyFiles: a checkpoint with a file for each of a thousand channels or more,
// about 4 KB each, becomes a few files.
func TestManyFiles(t *testing.T) {
	j := job{n: 96_000, keys: 997, pad: 600, splits: 24, backend: "hashmap"}
	run := j.start(t, "4kb", 20, 40, 3000)
	var dir string
	for tries := 0; ; tries++ { // until all buffers are full
		dir = run.checkpoint(t)
		if r := verified(t, open(t, run.dir, dir)); filled(r) >= 1000 || tries == 50 {
			break
		}
	}
	run.cancel(t)
	fresh := open(t, run.dir, dir)
	report := verified(t, fresh)
	j.requireExact(t, "taken now, 24 × 3 subtasks", filepath.Join(run.dir, dir), j.splits)

	place := t.TempDir()
	path := filepath.Join(place, dir)
	copyDir(t, filepath.Join(run.dir, dir), path)
	c := writeShape(t, fresh, place, dir, shape{perChannel: true, chunk: 4096})
	require.Empty(t, verified(t, c).Findings)
	p, err := c.PlanCompact(t.Context(), flink.CompactOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, p.Before.Files, 1000)
	require.LessOrEqual(t, p.After.Files, 10)
	require.Equal(t, report.Bytes, p.After.Bytes)
	say(t, "%d channel files of %d bytes on average become %d", p.Before.Files, p.Before.Bytes/int64(p.Before.Channels), p.After.Files)
	n, compacted := execute(t, p, c.CheckpointID)
	require.Empty(t, verified(t, n).Findings)
	what := fmt.Sprintf("%d channel files, compacted", p.Before.Files)
	j.requireExact(t, what, compacted, j.splits)
	j.requireExact(t, what, compacted, 3)
	if full() {
		j.requireExact(t, fmt.Sprintf("%d channel files", p.Before.Files), path, j.splits)
	}
}

// TestSealBeside: Flink removes an old checkpoint of which a seal lies beside the
// directory. The control: a file in the directory keeps it from that.
func TestSealBeside(t *testing.T) {
	j := job{n: 40000, keys: 97, pad: 600, splits: 2, backend: "hashmap"}
	run := j.start(t, "4kb", 2, 4, 1000)
	seal := func(dir, name string) {
		c := open(t, run.dir, dir)
		s, _, err := c.Seal(t.Context(), flink.SealOptions{State: true})
		require.NoError(t, err)
		require.NoError(t, s.Write(t.Context(), c.Backend(), name))
		r, err := flink.Verify(t.Context(), local.New(run.dir), dir, flink.VerifyOptions{})
		require.NoError(t, err)
		require.Equal(t, name == flink.SealName(dir), r.Sealed)
	}
	first := run.checkpoint(t)
	seal(first, flink.SealName(first))
	second := run.checkpoint(t)
	require.Eventually(t, func() bool { return !exists(run.dir, first) }, 10*time.Second, 20*time.Millisecond, "%s is still there", first)
	require.True(t, exists(run.dir, flink.SealName(first)))

	seal(second, second+"/seal.json")
	last := run.checkpoint(t)
	require.Eventually(t, func() bool { return !exists(run.dir, second, flink.MetadataName) }, 10*time.Second, 20*time.Millisecond)
	run.cancel(t)
	require.True(t, exists(run.dir, second, "seal.json"), "Flink does not remove what it does not know")
	say(t, "sealed %s was removed by Flink; a file in %s kept its directory there", first, second)
	seal(last, flink.SealName(last))
	j.requireExact(t, "taken now, sealed", filepath.Join(run.dir, last), j.splits)
}

// filled counts the channels that hold something.
func filled(r *flink.Report) int {
	some := map[int32]bool{}
	for _, s := range r.Index.Streams {
		for _, c := range s.Chunks {
			some[c.Channel] = some[c.Channel] || c.Length > 0
		}
	}
	n := 0
	for _, is := range some {
		if is {
			n++
		}
	}
	return n
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}
