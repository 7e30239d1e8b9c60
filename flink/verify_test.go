package flink

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(got), 0o644))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// codes counts findings by severity and code, in a line.
func codes(findings []inflight.Finding) string {
	n := map[string]int{}
	for _, f := range findings {
		n[string(f.Severity)+" "+f.Code]++
	}
	if len(n) == 0 {
		return "right"
	}
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(n)) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d × %s", n[k], k)
	}
	return b.String()
}

// TestVerifyFixtures shows what is said about checkpoints that are right: nothing,
// but that absolute paths lead elsewhere. The edges come from the records alone.
func TestVerifyFixtures(t *testing.T) {
	var b strings.Builder
	for _, name := range flinktest.Names(t) {
		c, root := openFixture(t, name)
		r, err := c.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, err)
		fmt.Fprintf(&b, "%s: %s; %d channels, %d buffers, %d bytes\n", name, codes(r.Findings), r.Channels, r.Buffers, r.Bytes)
		for _, e := range r.Edges {
			require.Zero(t, e.Misses)
			fmt.Fprintf(&b, "\t%s (%d)\n", e, e.Evidence)
		}
		moved, err := Verify(t.Context(), local.New(root), c.Dir, VerifyOptions{OpenOptions: OpenOptions{
			Moves: []Move{{From: "file:/flink/checkpoints/" + name, To: local.New(root).URL()}}}})
		require.NoError(t, err)
		require.Empty(t, moved.Findings)
	}
	golden(t, "fixtures.txt", b.String())
}

// TestVerifyGivenEdges gives the edges instead, and then wrong ones.
func TestVerifyGivenEdges(t *testing.T) {
	c, _ := openFixture(t, "union-3-4")
	find := func(ref string) *Operator {
		o, err := c.FindOperator(ref)
		require.NoError(t, err)
		return o
	}
	left, right, slow := find("left"), find("right"), find("slow")
	r, err := c.Verify(t.Context(), VerifyOptions{Edges: []Edge{{From: left, To: slow, Given: true}}})
	require.NoError(t, err)
	require.Empty(t, r.Findings)
	require.Len(t, r.Edges, 2)
	r, err = c.Verify(t.Context(), VerifyOptions{Edges: []Edge{{From: left, To: slow, Gate: 1}, {From: right, To: slow}}})
	require.NoError(t, err)
	require.NotEmpty(t, r.Findings)
	_, err = c.FindOperator("nobody")
	require.ErrorIs(t, err, inflight.ErrNotExist)
}

// sabotage damages a checkpoint of the resume fixture.
type sabotage struct {
	t    *testing.T
	root string
	c    *Checkpoint
	x    *Index
}

func (s *sabotage) path(stream int) string {
	f, err := s.c.Locate(s.t.Context(), s.x.Streams[stream].Handle)
	require.NoError(s.t, err)
	return filepath.Join(s.root, f.Name)
}

func (s *sabotage) meta() string { return filepath.Join(s.root, s.c.Dir, MetadataName) }

// chunk returns the longest chunk of a side.
func (s *sabotage) chunk(side inflight.Side) (path string, at int64, n int) {
	for i := range s.x.Streams {
		data, err := os.ReadFile(s.path(i))
		require.NoError(s.t, err)
		for _, c := range s.x.Streams[i].Chunks {
			if k := int(binary.BigEndian.Uint32(data[c.Offset:])); s.x.Channels[c.Channel].Address.Side == side && k > n {
				path, at, n = s.path(i), c.Offset, k
			}
		}
	}
	return path, at, n
}

// record returns a record that lies whole in an output chunk and is not its first.
func (s *sabotage) record() (path string, at int64) {
	for i := range s.x.Streams {
		data, err := os.ReadFile(s.path(i))
		require.NoError(s.t, err)
		for _, c := range s.x.Streams[i].Chunks {
			n := int64(binary.BigEndian.Uint32(data[c.Offset:]))
			body := data[c.Offset+4 : c.Offset+4+n]
			k := strings.Index(string(body[1:]), "\x00\x00\x02\x71\x00") // 625 bytes, tag 0
			if s.x.Channels[c.Channel].Address.Side == inflight.Output && k >= 0 && int64(k)+1+629 < n {
				return s.path(i), c.Offset + 4 + int64(k) + 1
			}
		}
	}
	s.t.Fatal("no whole record")
	return "", 0
}

func (s *sabotage) patch(path string, at int64, change func(v uint32) uint32) {
	b, err := os.ReadFile(path)
	require.NoError(s.t, err)
	binary.BigEndian.PutUint32(b[at:], change(binary.BigEndian.Uint32(b[at:])))
	require.NoError(s.t, os.WriteFile(path, b, 0o600))
}

func add(n uint32) func(uint32) uint32 { return func(v uint32) uint32 { return v + n } }
func xor(n uint32) func(uint32) uint32 { return func(v uint32) uint32 { return v ^ n } }

// recipes are the damages that were tried on real Flink, with what it does.
var recipes = []struct {
	name, flink string
	do          func(s *sabotage)
}{
	{"payload-bit", "silent: 1 record corrupt", func(s *sabotage) { p, at := s.record(); s.patch(p, at+79, xor(1)) }},
	{"seq-bit", "silent: 1 missing, 1 twice", func(s *sabotage) { p, at := s.record(); s.patch(p, at+17, xor(1)) }},
	{"timestamp-bit", "silent", func(s *sabotage) { p, at := s.record(); s.patch(p, at+9, xor(1)) }},
	{"tag", "fails: invalid status value", func(s *sabotage) { p, at := s.record(); s.patch(p, at+4, xor(4<<24)) }},
	{"record-length-minus-2", "silent", func(s *sabotage) { p, at := s.record(); s.patch(p, at, add(^uint32(1))) }},
	{"record-length-plus-1g", "silent: 4244 records lost", func(s *sabotage) { p, at := s.record(); s.patch(p, at, add(1<<30)) }},
	{"record-length-negative", "silent", func(s *sabotage) { p, at := s.record(); s.patch(p, at, xor(1<<31)) }},
	{"output-chunk-plus-1", "fails: corrupt stream", func(s *sabotage) { p, at, _ := s.chunk(inflight.Output); s.patch(p, at, add(1)) }},
	{"output-chunk-plus-64k", "fails, or is silent", func(s *sabotage) { p, at, _ := s.chunk(inflight.Output); s.patch(p, at, add(65536)) }},
	{"output-chunk-negative", "fails: negative state size", func(s *sabotage) { p, at, _ := s.chunk(inflight.Output); s.patch(p, at, xor(1<<31)) }},
	{"output-chunk-plus-1g", "fails without naming a file", func(s *sabotage) { p, at, _ := s.chunk(inflight.Output); s.patch(p, at, add(1<<30)) }},
	{"input-chunk-minus-4", "silent: 3846 records lost", func(s *sabotage) { p, at, _ := s.chunk(inflight.Input); s.patch(p, at, add(^uint32(3))) }},
	{"input-chunk-plus-64k", "hangs", func(s *sabotage) { p, at, _ := s.chunk(inflight.Input); s.patch(p, at, add(65536)) }},
	{"file-version-1", "fails: unsupported version", func(s *sabotage) { s.patch(s.path(0), 0, add(1)) }},
	{"cut-in-output-chunk", "fails without naming a file", func(s *sabotage) {
		p, at, n := s.chunk(inflight.Output)
		require.NoError(s.t, os.Truncate(p, at+4+int64(n)/2))
	}},
	{"cut-in-input-chunk", "hangs", func(s *sabotage) {
		p, at, n := s.chunk(inflight.Input)
		require.NoError(s.t, os.Truncate(p, at+4+int64(n)/2))
	}},
	{"cut-to-header", "fails without naming a file", func(s *sabotage) { require.NoError(s.t, os.Truncate(s.path(0), 4)) }},
	{"cut-to-nothing", "fails without naming a file", func(s *sabotage) { require.NoError(s.t, os.Truncate(s.path(0), 0)) }},
	{"delete", "fails: file not found", func(s *sabotage) { require.NoError(s.t, os.Remove(s.path(0))) }},
	{"foreign-file", "cannot remove the checkpoint later", func(s *sabotage) {
		require.NoError(s.t, os.WriteFile(filepath.Join(s.root, s.c.Dir, "note.txt"), []byte("x"), 0o600))
	}},
	{"other-directory", "nothing", func(s *sabotage) {
		require.NoError(s.t, os.Rename(filepath.Join(s.root, "chk-3"), filepath.Join(s.root, "chk-4")))
		s.c.Dir = "chk-4"
	}},
	{"meta-cut", "fails without naming a file", func(s *sabotage) { require.NoError(s.t, os.Truncate(s.meta(), int64(len(s.c.raw)-500))) }},
	{"meta-trailing", "silent", func(s *sabotage) {
		require.NoError(s.t, os.WriteFile(s.meta(), append(slices.Clone(s.c.raw), "garbage\n"...), 0o600))
	}},
	{"meta-magic", "fails", func(s *sabotage) { s.patch(s.meta(), 0, xor(1<<24)) }},
	{"meta-version-7", "fails", func(s *sabotage) { s.patch(s.meta(), 4, add(1)) }},
	{"meta-checkpoint-id-negative", "fails", func(s *sabotage) { s.patch(s.meta(), 8, xor(1<<31)) }},
	{"meta-operator-id", "fails: state of an unknown operator", func(s *sabotage) {
		s.patch(s.meta(), int64(strings.Index(string(s.c.raw), string(s.c.Operators[0].ID[:]))), xor(1))
	}},
}

func TestVerifyDamage(t *testing.T) {
	var b strings.Builder
	for _, r := range recipes {
		for _, sealed := range []bool{false, true} {
			c, root := openFixture(t, "resume")
			s := &sabotage{t: t, root: root, c: c, x: c.Index()}
			if sealed {
				seal, _, err := c.Seal(t.Context(), SealOptions{})
				require.NoError(t, err)
				require.NoError(t, seal.Write(t.Context(), c.Backend(), SealName(c.Dir)))
			}
			r.do(s)
			report, err := Verify(t.Context(), c.Backend(), c.Dir, VerifyOptions{})
			require.NoError(t, err)
			if !sealed {
				fmt.Fprintf(&b, "%s (Flink: %s)\n\tunsealed: %s\n", r.name, r.flink, codes(report.Findings))
				for _, f := range report.Findings {
					if f.Severity == inflight.SeverityError {
						require.True(t, inflight.IsCorruption(f.Err) || errors.Is(f.Err, inflight.ErrNotExist) || errors.Is(f.Err, inflight.ErrUnknownVersion), f)
					}
				}
				continue
			}
			fmt.Fprintf(&b, "\tsealed:   %s\n", codes(report.Findings))
			// A seal is found by the name of the directory.
			require.Equal(t, r.name != "other-directory", report.Sealed, r.name)
			require.NotEmpty(t, report.Findings, r.name)
		}
	}
	golden(t, "damage.txt", b.String())
}
