package flink_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// job is what a checkpoint and its restore have to agree on (Numbers.java): the
// numbers below n, by key, with a payload of pad bytes. The source cuts them into
// splits; order is checked within each, so their lengths should be equal.
type job struct {
	n, keys, pad, splits int
	backend              string
}

// recordBytes is what a record takes on the wire.
func (j job) recordBytes() int64 { return int64(29 + j.pad) }

func (j job) request() map[string]any {
	return map[string]any{"n": j.n, "keys": j.keys, "pad": j.pad, "splits": j.splits, "backend": j.backend}
}

// fixture unpacks a checkpoint of the job that lies in testdata/flink.
func fixture(t testing.TB, name string) (j job, root, dir string) {
	root = flinktest.Unpack(t, name)
	text, err := os.ReadFile(filepath.Join(root, "resume.properties"))
	require.NoError(t, err)
	number := map[string]*int{"n": &j.n, "keys": &j.keys, "pad": &j.pad, "p": &j.splits}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		if p := number[k]; p != nil {
			*p, err = strconv.Atoi(v)
			require.NoError(t, err)
		} else if k == "backend" {
			j.backend = v
		}
	}
	return j, root, flinktest.CheckpointDir(t, root)
}

// open opens the checkpoint in directory dir below root.
func open(t testing.TB, root, dir string, moves ...flink.Move) *flink.Checkpoint {
	b := store(t, root)
	c, err := flink.Open(t.Context(), b, dir, flink.OpenOptions{Moves: moves})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func store(t testing.TB, root string) backends.Backend {
	b := local.New(root)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// moveOf says where the absolute paths of a fixture lie now.
func moveOf(name, root string) flink.Move {
	return flink.Move{From: "file:/flink/checkpoints/" + name, To: local.New(root).URL()}
}

// verified is what Verify says of a checkpoint that has no errors.
func verified(t testing.TB, c *flink.Checkpoint) *flink.Report {
	r, err := c.Verify(t.Context(), flink.VerifyOptions{})
	require.NoError(t, err)
	for _, f := range r.Findings {
		require.NotEqual(t, inflight.SeverityError, f.Severity, "%s", f)
	}
	return r
}

// executor is a plan, or a conversion.
type executor interface {
	Execute(ctx context.Context, dst backends.Backend, dir string) error
}

// execute carries a plan out in a new directory, and opens what came of it.
func execute(t testing.TB, p executor, id inflight.CheckpointID) (c *flink.Checkpoint, path string) {
	root, dir := t.TempDir(), fmt.Sprintf("chk-%d", id)
	require.NoError(t, p.Execute(t.Context(), store(t, root), dir))
	c = open(t, root, dir)
	return c, filepath.Join(root, dir)
}

// restored is the answer to a restore.
type restored struct {
	State          string
	Exact          bool `json:"exactly_once"`
	Expected       int
	Counted        int
	Missing        []int
	Duplicates     int
	CorruptAtCount int `json:"corrupt_at_count"`
	CorruptAtSink  int `json:"corrupt_at_sink"`
	WrongKeys      int `json:"wrong_keys"`
	Disordered     int
	Checkpoints    int
	InputBuffers   int64 `json:"replayed_input_buffers"`
	OutputBuffers  int64 `json:"replayed_output_buffers"`
	InputBytes     int64 `json:"replayed_input_bytes"`
	OutputBytes    int64 `json:"replayed_output_bytes"`
	Causes, Busy   []string
}

// how says how to restore; the zero value is fine.
type how struct {
	limit    int               // seconds, behind which a restore hangs
	settings map[string]string // of the job
}

// restore lets Flink restore the checkpoint at path and run to the end.
func (j job) restore(t testing.TB, what, path string, parallelism int, h how) (r restored) {
	t.Helper()
	request := j.request()
	request["from"], request["parallelism"], request["limit"], request["settings"] = path, parallelism, cmp.Or(h.limit, 240), h.settings
	start := time.Now()
	server.ask(t, &r, "restore", request)
	text := ""
	for _, s := range append(r.Causes, r.Busy...) {
		text += "; " + s
	}
	say(t, "%-58s parallelism %2d  %-8s exactly_once=%-5t counted %5d of %5d  missing %4d  duplicates %d  corrupt %d  replayed %d+%d buffers, %d+%d bytes, %.1f s%.300s",
		what, parallelism, r.State, r.Exact, r.Counted, r.Expected, len(r.Missing), r.Duplicates, r.CorruptAtCount+r.CorruptAtSink,
		r.InputBuffers, r.OutputBuffers, r.InputBytes, r.OutputBytes, time.Since(start).Seconds(), text)
	return r
}

// requireExact restores and wants every number counted once.
func (j job) requireExact(t testing.TB, what, path string, parallelism int) restored {
	t.Helper()
	r := j.restore(t, what, path, parallelism, how{})
	require.Equal(t, "FINISHED", r.State, "%s: %v", what, r.Causes)
	require.True(t, r.Exact, "%s: %+v", what, r)
	require.Equal(t, j.n, r.Counted)
	require.Zero(t, r.Disordered)
	return r
}

// requireMissing restores and wants every number counted once but those that are
// in lost.
func (j job) requireMissing(t testing.TB, what, path string, parallelism int, lost []int) {
	t.Helper()
	r := j.restore(t, what, path, parallelism, how{})
	require.Equal(t, "FINISHED", r.State, "%s: %v", what, r.Causes)
	slices.Sort(lost)
	require.Equal(t, lost, r.Missing, what)
	require.Zero(t, r.Duplicates+r.CorruptAtCount+r.CorruptAtSink+r.Disordered, what)
	require.Equal(t, j.n-len(lost), r.Counted)
}

// channelKey names a channel in every checkpoint of a job.
type channelKey struct {
	op      flink.OperatorID
	subtask int
	address inflight.Address
}

// indexOf returns the index of each channel of x.
func indexOf(x *flink.Index) map[channelKey]int {
	m := map[channelKey]int{}
	for i := range x.Channels {
		m[channelKey{x.Channels[i].Operator.ID, x.Channels[i].Subtask, x.Channels[i].Address}] = i
	}
	return m
}

// payloads returns what each channel of c holds; empty ones are left out.
func payloads(t testing.TB, c *flink.Checkpoint) map[channelKey][]byte {
	x, m := c.Index(), map[channelKey][]byte{}
	for k, i := range indexOf(x) {
		var data []byte
		for b, err := range c.Buffers(t.Context(), x, i) {
			require.NoError(t, err)
			data = append(data, b.Bytes...)
		}
		if len(data) > 0 {
			m[k] = data
		}
	}
	return m
}

// numbers returns the numbers in flight on the edges of c, by edge.
func numbers(t testing.TB, c *flink.Checkpoint, edges []flink.Edge) map[string][]int {
	x, found := c.Index(), map[string][]int{}
	index := indexOf(x)
	for _, e := range edges {
		for d := range e.To.Parallelism {
			for u := range e.From.Parallelism {
				var channels []int
				for _, k := range []channelKey{{e.To.ID, d, inflight.InputChannel{Gate: e.Gate, Channel: u}.Address()},
					{e.From.ID, u, inflight.Subpartition{Partition: e.Partition, Subpartition: d}.Address()}} {
					if i, ok := index[k]; ok {
						channels = append(channels, i)
					}
				}
				for el, err := range c.Elements(t.Context(), x, channels...) {
					require.NoError(t, err)
					if el.Kind.IsRecord() {
						found[e.String()] = append(found[e.String()], int(binary.BigEndian.Uint64(el.Value)))
					}
				}
			}
		}
	}
	return found
}

// all returns the numbers of all edges.
func all(m map[string][]int) (list []int) {
	for _, l := range m {
		list = append(list, l...)
	}
	slices.Sort(list)
	return list
}

// without returns the numbers of a that are not in b, sorted.
func without(a, b []int) []int {
	there := map[int]bool{}
	for _, n := range b {
		there[n] = true
	}
	gone := []int{}
	for _, n := range a {
		if !there[n] {
			gone = append(gone, n)
		}
	}
	slices.Sort(gone)
	return gone
}
