package flink

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// where names a channel in every checkpoint of a job.
type where struct {
	op      OperatorID
	subtask int
	address inflight.Address
}

// payloads returns what each channel holds; empty ones are left out.
func payloads(t testing.TB, c *Checkpoint) map[where][]byte {
	x, m := c.Index(), map[where][]byte{}
	for i := range x.Channels {
		ch := &x.Channels[i]
		var data []byte
		for b, err := range c.Buffers(context.WithoutCancel(t.Context()), x, i) {
			require.NoError(t, err)
			data = append(data, b.Bytes...)
		}
		if len(data) > 0 {
			m[where{ch.Operator.ID, ch.Subtask, ch.Address}] = data
		}
	}
	return m
}

// without returns the metadata of c without channel state.
func without(t testing.TB, c *Checkpoint) []byte {
	b, err := c.Rewrite(Changes{Channels: func(*Operator, *Subtask) (in, out []ChannelHandle, changed bool) { return nil, nil, true }})
	require.NoError(t, err)
	return b
}

// execute carries a plan out in a store in memory, and opens what came of it.
func execute(t testing.TB, p *Plan, moves ...Move) *Checkpoint {
	b := mem.New(mem.Options{})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	dir := fmt.Sprintf("new/chk-%d", p.c.CheckpointID)
	require.NoError(t, p.Execute(t.Context(), b, dir))
	require.ErrorIs(t, p.Execute(t.Context(), b, dir), inflight.ErrExist)
	c, err := Open(t.Context(), b, dir, OpenOptions{Moves: moves})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.Equal(t, p.Metadata, c.raw)
	files := 0
	for info, err := range b.List(t.Context(), dir+"/") {
		require.NoError(t, err)
		require.NotContains(t, strings.TrimPrefix(info.Name, dir+"/"), "/", "Flink removes the directory, not what is below it")
		files++
	}
	require.Equal(t, len(p.Files)+1, files)
	return c
}

// moveOf says where the absolute paths of a fixture lie now.
func moveOf(name, root string) Move {
	return Move{From: "file:/flink/checkpoints/" + name, To: local.New(root).URL()}
}

func openMoved(t testing.TB, name string) (*Checkpoint, Move) {
	root := flinktest.Unpack(t, name)
	b := local.New(root)
	c, err := Open(t.Context(), b, flinktest.CheckpointDir(t, root), OpenOptions{Moves: []Move{moveOf(name, root)}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()); require.NoError(t, b.Close()) })
	return c, moveOf(name, root)
}

func requireRight(t testing.TB, c *Checkpoint) *Report {
	r, err := c.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, r.Findings)
	return r
}

func TestCompact(t *testing.T) {
	for _, name := range flinktest.Names(t) {
		c, move := openMoved(t, name)
		for _, o := range []CompactOptions{{}, {ChunkSize: 7}, {ChunkSize: 1 << 20}, {ChunkSize: 1000, FileSize: 50_000}} {
			if o.ChunkSize == 7 && name != "resume" && name != "flink-1.17.2-connect-3-4" || o.ChunkSize != 0 && raceEnabled && name != "resume" {
				continue
			}
			p, err := c.PlanCompact(t.Context(), o)
			require.NoError(t, err)
			n := execute(t, p, move)
			require.Equal(t, payloads(t, c), payloads(t, n), name)
			require.True(t, bytes.Equal(without(t, c), without(t, n)), name)
			report := requireRight(t, n)
			size := o.ChunkSize
			if size == 0 {
				size = defaultChunk
			}
			for _, s := range report.Index.Streams {
				require.Equal(t, KindRelativeFile, s.Handle.Kind())
				for _, chunk := range s.Chunks {
					require.LessOrEqual(t, chunk.Length, size)
				}
			}
			require.EqualValues(t, p.Before.Bytes, p.After.Bytes)
			require.Empty(t, p.Lost)
			if len(report.Index.Streams) > 0 && o.FileSize == 0 {
				require.Len(t, report.Index.Streams, 1)
			}
			require.Equal(t, p.After.Buffers, report.Buffers)
			require.Equal(t, p.After.Channels, int(report.Channels))
		}
	}
}

// TestCompactMany compacts 1,000 channel files of 4 KB.
func TestCompactMany(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "chk-1"), 0o700))
	bigState(t, filepath.Join(root, "chk-1"), 500, 1, 1000*4000, 60)
	c := openDir(t, root, "chk-1")
	p, err := c.PlanCompact(t.Context(), CompactOptions{})
	require.NoError(t, err)
	require.Equal(t, 1000, p.Before.Files)
	require.LessOrEqual(t, p.After.Files, 10)
	n := execute(t, p)
	requireRight(t, n)
}

func TestCompactRefusesDamage(t *testing.T) {
	c, root := openFixture(t, "resume")
	s := &sabotage{t: t, root: root, c: c, x: c.Index()}
	file, at, _ := s.chunk(inflight.Input)
	s.patch(file, at, add(65536))
	_, err := c.PlanCompact(t.Context(), CompactOptions{})
	require.ErrorIs(t, err, inflight.ErrDamaged)
}

func TestDrop(t *testing.T) {
	for _, name := range []string{"resume", "connect-3-4", "inline", "file-merging", "flink-1.17.2-connect-3-4", "partitioners", "wide-16x16"} {
		c, move := openMoved(t, name)
		before, r := payloads(t, c), requireRight(t, c)
		for i := range r.Edges {
			e := r.Edges[i]
			p, err := c.PlanDrop(t.Context(), DropOptions{Edges: []Edge{e}})
			require.NoError(t, err)
			n := execute(t, p, move)
			requireRight(t, n)
			after := payloads(t, n)
			var lost, counted int64
			for w, data := range before {
				gone := w.op == e.To.ID && w.address.Side == inflight.Input && w.address.Input.Gate == e.Gate ||
					w.op == e.From.ID && w.address.Side == inflight.Output && w.address.Output.Partition == e.Partition
				if gone {
					lost += int64(len(data))
					require.NotContains(t, after, w)
				} else {
					require.Equal(t, data, after[w])
				}
			}
			for _, l := range p.Lost {
				counted += l.Bytes
				require.True(t, l.RecordsKnown)
				require.Equal(t, e.To.ID, l.Edge.To.ID)
				if name == "resume" {
					require.Equal(t, l.Bytes, 629*l.Records)
				}
			}
			require.Equal(t, lost, counted)
			require.Equal(t, p.Before.Bytes-p.After.Bytes, lost)
			require.True(t, bytes.Equal(without(t, c), without(t, n)))
		}
		p, err := c.PlanDrop(t.Context(), DropOptions{All: true})
		require.NoError(t, err)
		n := execute(t, p, move)
		requireRight(t, n)
		require.Empty(t, n.Index().Channels)
		require.True(t, bytes.Equal(without(t, c), n.raw))
		var sum int64
		for _, l := range p.Lost {
			sum += l.Bytes
		}
		require.Equal(t, r.Bytes, sum)
	}
}

func TestRelocate(t *testing.T) {
	for _, name := range flinktest.Names(t) {
		c, _ := openMoved(t, name)
		p, err := c.PlanRelocate(t.Context(), RelocateOptions{})
		require.NoError(t, err)
		n := execute(t, p) // no moves: nothing leads anywhere else
		requireRight(t, n)
		require.Equal(t, payloads(t, c), payloads(t, n))
		for i := range n.Operators {
			for j := range n.Operators[i].Subtasks {
				s := &n.Operators[i].Subtasks[j]
				for h := range s.StateHandles() {
					require.Contains(t, []HandleKind{KindByteStream, KindRelativeFile}, h.Kind())
				}
			}
		}
		require.Equal(t, stateOf(t, c), stateOf(t, n), name)
	}
}

// stateOf returns the contents of all streams of state that hold anything.
func stateOf(t testing.TB, c *Checkpoint) (list []string) {
	d := describer{t, context.WithoutCancel(t.Context()), c, ""}
	for i := range c.Operators {
		for j := range c.Operators[i].Subtasks {
			for h := range c.Operators[i].Subtasks[j].StateHandles() {
				if h.Kind() != KindEmptySegment {
					list = append(list, sum(d.content(h)))
				}
			}
		}
	}
	return list
}

func TestRelocatePaths(t *testing.T) {
	for _, name := range []string{"resume-rocksdb", "file-merging-share5", "keyed-2x2"} {
		c, root := openFixture(t, name)
		to := "file:" + filepath.ToSlash(root)
		p, err := c.PlanRelocate(t.Context(), RelocateOptions{Paths: []Move{{From: "file:/flink/checkpoints/" + name, To: to}}})
		require.NoError(t, err)
		require.Empty(t, p.Notes)
		dir := path.Join(path.Dir(c.Dir), "moved", path.Base(c.Dir))
		require.NoError(t, p.Execute(t.Context(), c.Backend(), dir))
		n := openDir(t, root, dir)
		requireRight(t, n)
		require.Equal(t, stateOf(t, c), stateOf(t, n))
		for i := range n.Operators {
			for j := range n.Operators[i].Subtasks {
				s := &n.Operators[i].Subtasks[j]
				for h := range s.StateHandles() {
					require.False(t, strings.HasPrefix(h.Path(), "file:/flink"), h)
				}
				if o := s.ManagedOperator; o != nil && o.Merging {
					require.True(t, strings.HasPrefix(o.TaskOwnedDir, to), o.TaskOwnedDir)
					require.True(t, strings.HasPrefix(o.SharedDir, to), o.SharedDir)
				}
			}
		}

		p, err = c.PlanRelocate(t.Context(), RelocateOptions{Paths: []Move{{From: "s3://elsewhere", To: to}}})
		require.NoError(t, err)
		require.Equal(t, name == "keyed-2x2", len(p.Notes) == 0)
		require.Equal(t, c.raw, p.Metadata)
	}
}

// streams returns the bytes of each connection of c: input part, then output part.
func streams(t testing.TB, c *Checkpoint, edges []Edge) map[string][]byte {
	x, m := c.Index(), map[string][]byte{}
	data := payloads(t, c)
	get := func(op *Operator, subtask int, a inflight.Address) []byte { return data[where{op.ID, subtask, a}] }
	_ = x
	for _, e := range edges {
		for d := range e.To.Parallelism {
			for u := range e.From.Parallelism {
				in := get(e.To, d, inflight.InputChannel{Gate: e.Gate, Channel: u}.Address())
				out := get(e.From, u, inflight.Subpartition{Partition: e.Partition, Subpartition: d}.Address())
				m[fmt.Sprintf("%s %d %d", e, u, d)] = slices.Concat(in, out)
			}
		}
	}
	return m
}

// requireSalvaged salvages what s damaged and holds the result against what was
// there before.
func requireSalvaged(t testing.TB, c *Checkpoint, edges []Edge, before map[string][]byte, what string) *Plan {
	p, err := c.PlanSalvage(t.Context(), SalvageOptions{})
	require.NoError(t, err, what)
	n := execute(t, p)
	r, err := n.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, r.Findings, what)
	require.True(t, bytes.Equal(without(t, c), without(t, n)), what)
	var lost, counted int64
	for k, kept := range streams(t, n, edges) {
		require.True(t, bytes.HasPrefix(before[k], kept), "%s: %s", what, k)
		lost += int64(len(before[k]) - len(kept))
	}
	for _, l := range p.Lost {
		counted += l.Bytes
	}
	require.Equal(t, lost, counted, what)
	return p
}

func TestSalvage(t *testing.T) {
	var b strings.Builder
	for _, sealed := range []bool{false, true} {
		for _, r := range recipes {
			if strings.HasPrefix(r.name, "meta") || r.name == "foreign-file" || r.name == "other-directory" ||
				!sealed && slices.Contains([]string{"payload-bit", "seq-bit", "timestamp-bit"}, r.name) {
				continue
			}
			c, root := openFixture(t, "resume")
			edges := requireRight(t, c).Edges
			before := streams(t, c, edges)
			if sealed {
				seal, _, err := c.Seal(t.Context(), SealOptions{})
				require.NoError(t, err)
				require.NoError(t, seal.Write(t.Context(), c.Backend(), SealName(c.Dir)))
			}
			r.do(&sabotage{t: t, root: root, c: c, x: c.Index()})
			c = openDir(t, root, c.Dir)
			p := requireSalvaged(t, c, edges, before, r.name)
			fmt.Fprintf(&b, "%s, sealed %t: keeps %d of %d bytes in %d of %d channels\n", r.name, sealed, p.After.Bytes, total(before), p.After.Channels, p.Before.Channels)
			for _, l := range p.Lost {
				require.Zero(t, l.Bytes%629, r.name) // whole records
				fmt.Fprintf(&b, "\t%s\n", l)
			}
		}
	}
	golden(t, "salvage.txt", b.String())
}

func total(m map[string][]byte) (n int) {
	for _, b := range m {
		n += len(b)
	}
	return n
}

// TestSalvageRandom damages channel-state files at random: whatever happened,
// each connection keeps a beginning of what it had, and ends at a boundary.
func TestSalvageRandom(t *testing.T) {
	n := 100
	if raceEnabled || testing.Short() {
		n = 10
	} else if os.Getenv("SPILLWAY_CRASH") != "" {
		n = 5000
	}
	seed := testSeed()
	for _, name := range []string{"resume", "connect-3-4", "keyed-2x2-share1", "partitioners", "spanning-100k", "flink-1.17.2-connect-3-4"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t, name)
			whole, err := Open(t.Context(), v.b, v.dir, OpenOptions{Moves: v.moves})
			require.NoError(t, err)
			edges := requireRight(t, whole).Edges
			before := streams(t, whole, edges)
			r := rand.New(rand.NewPCG(seed, 1))
			for range n {
				m := v.mutateFile(r, v.files[1+r.IntN(len(v.files)-1)])
				if kinds := v.kinds(m); len(kinds) == 0 || slices.Contains(kinds, payloadByte) {
					continue // a value: it comes back as it is now
				}
				what := fmt.Sprintf("%s, %s of %s, seed %d", name, m.text, m.file, seed)
				c, err := Open(t.Context(), &overlay{Backend: v.b, name: m.file, bytes: m.bytes}, v.dir, OpenOptions{Moves: v.moves})
				require.NoError(t, err)
				p, err := c.PlanSalvage(t.Context(), SalvageOptions{Verify: VerifyOptions{NoSeal: true}})
				require.NoError(t, err, what)
				n := execute(t, p, v.moves...)
				report, err := n.Verify(t.Context(), VerifyOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Findings, what)
				for k, kept := range streams(t, n, edges) {
					if m.n < 0 && !bytes.HasPrefix(before[k], kept) {
						// What moved by some bytes can look like records; then it is one more
						// changed value, in the connection that moved.
						continue
					}
					require.True(t, bytes.HasPrefix(before[k], kept), "%s: %s", what, k)
				}
			}
		})
	}
}
