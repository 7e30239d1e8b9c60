package format

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

var rewrite = flag.Bool("rewrite", false, "write golden files instead of comparing with them")

// goldenDir holds files of version 1. They are read for ever: a test that fails
// on them means that old checkpoints can no longer be restored.
const goldenDir = "../testdata/v1"

// goldenIndex is what is expected of a golden file.
type goldenIndex struct {
	Handles  []inflight.Handle `json:"handles"`
	Channels []goldenChannel   `json:"channels"`
}

type goldenChannel struct {
	Task    string   `json:"task"`
	Address string   `json:"address"`
	Buffers []string `json:"buffers"` // as text: the payloads are printable
}

// fill returns n printable bytes.
func fill(tag string, n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%s.%d ", tag, i)
	}
	return b.Bytes()[:n]
}

// buildGolden writes the file that shows every feature of version 1: three
// subtasks and both sides, a channel over three blocks, a continued buffer, a
// gap, a reference, an unfinished member, an aborted one, a continued one, and
// (inner) a whole channel-state file as the payload of another.
func buildGolden(t *testing.T, codec Codec, inner []byte) ([]byte, []inflight.Handle) {
	var file bytes.Buffer
	id := inflight.FileID{0: 0xf1, 1: byte(codec), 15: byte(min(len(inner), 1))}
	e, err := NewEncoder(&file, "chk-0000000007/g0-a1.cstate", FileHeader{FileID: id, Job: "golden", Checkpoint: 7, Epoch: 5, Group: "g0"},
		EncoderOptions{BlockSize: 256, LargestBlock: 1536, PageSize: 96, Codec: codec})
	require.NoError(t, err)
	begin := func(v string, i int) Member {
		m, err := e.Begin(inflight.Task{Vertex: v, Subtask: i}, nil)
		require.NoError(t, err)
		return m
	}
	in := func(g, c int) inflight.Address { return inflight.InputChannel{Gate: g, Channel: c}.Address() }
	out := func(p, s int) inflight.Address {
		return inflight.Subpartition{Partition: p, Subpartition: s}.Address()
	}
	at := func(off uint64, seq uint64) inflight.Pos { return inflight.Pos{Epoch: 5, Offset: off, Seq: seq} }
	src, cnt0, cnt1, dead, open := begin("source", 0), begin("count", 0), begin("count", 1), begin("dead", 0), begin("open", 0)

	for i := range 6 { // over three blocks
		require.NoError(t, e.Append(src, out(0, 0), at(uint64(100*i), uint64(i)), fill("src", 100)))
	}
	require.NoError(t, e.Append(src, out(0, 1), at(9000, 42), fill("small", 7)))
	require.NoError(t, e.SetCut(src, inflight.Cut{Address: out(0, 0), Epoch: 5, Bytes: 600, Records: 12, RecordsKnown: true}))
	require.NoError(t, e.SetCut(src, inflight.Cut{Address: out(0, 1), Epoch: 5, Bytes: 9007, Records: 77, RecordsKnown: true}))
	require.NoError(t, e.Append(src, inflight.StateName("offsets").Address(), at(0, 0), fill("state", 40)))
	require.NoError(t, e.Complete(src))

	require.NoError(t, e.Append(cnt0, in(0, 0), at(64, 3), fill("long", 1300))) // continued
	require.NoError(t, e.Append(cnt0, in(0, 0), at(1364, 4), fill("after", 20)))
	require.NoError(t, e.Append(cnt0, in(1, 2), at(10, 1), fill("gap", 10)))
	require.NoError(t, e.Append(cnt0, in(1, 2), at(30, 3), fill("gap", 15))) // 20–29 missing
	require.NoError(t, e.Append(cnt0, in(1, 3), inflight.PosUnknown, fill("unknown", 33)))
	require.NoError(t, e.SetCut(cnt0, inflight.Cut{Address: in(0, 1), Epoch: 5, Bytes: 4444}))
	old := FileRef{Name: "chk-0000000006/g0-a0.cstate", FileID: inflight.FileID{1, 2, 3}}
	require.NoError(t, e.Reference(cnt0, in(0, 2), old, Run{Pos: at(500, 9), Pieces: 2, Length: 90, Digest: 0x1234, Target: Target{BlockOffset: 4711, Stored: 300, Offset: 17}}))
	if inner != nil {
		require.NoError(t, e.Append(cnt0, in(2, 0), at(0, 0), inner))
	}
	require.NoError(t, e.Complete(cnt0))

	require.NoError(t, e.Append(dead, in(0, 0), at(0, 0), fill("dead", 50)))
	require.NoError(t, e.Abort(dead))
	require.NoError(t, e.Append(cnt1, in(0, 0), at(1, 1), fill("one", 1)))
	require.NoError(t, e.Continue(cnt1))
	require.NoError(t, e.Append(open, in(0, 0), at(0, 0), fill("open", 30)))
	_, err = e.Close()
	require.NoError(t, err)
	return file.Bytes(), []inflight.Handle{e.Handle(src), e.Handle(cnt0)}
}

// golden returns the golden files by name, with their expectations.
func golden(t *testing.T) map[string]goldenIndex {
	index := map[string]goldenIndex{}
	p, err := os.ReadFile(filepath.Join(goldenDir, "expected.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(p, &index))
	require.NotEmpty(t, index)
	return index
}

func goldenFile(t *testing.T, name string) []byte {
	p, err := os.ReadFile(filepath.Join(goldenDir, name))
	require.NoError(t, err)
	return p
}

func TestGolden(t *testing.T) {
	if *rewrite {
		rewriteGolden(t)
	}
	for name, want := range golden(t) {
		t.Run(name, func(t *testing.T) {
			p := goldenFile(t, name)
			got, err := readHandles(p, want.Handles)
			require.NoError(t, err)
			require.Equal(t, want.Channels, got)
			require.Less(t, len(p), 64<<10)
		})
	}
	// What does not depend on a compressor is also written for ever as it was.
	p, _ := buildGolden(t, CodecNone, nil)
	require.Equal(t, goldenFile(t, "none.cstate"), p, "the encoder writes other bytes than version 1 did")
	nested, _ := buildGolden(t, CodecNone, p)
	require.Equal(t, goldenFile(t, "nested.cstate"), nested)
}

func rewriteGolden(t *testing.T) {
	require.NoError(t, os.MkdirAll(goldenDir, 0o755))
	index := map[string]goldenIndex{}
	none, _ := buildGolden(t, CodecNone, nil)
	for name, inner := range map[string][]byte{"none": nil, "s2": nil, "zstd": nil, "nested": none} {
		codec, err := ParseCodec(name)
		if err != nil {
			codec = CodecNone
		}
		p, handles := buildGolden(t, codec, inner)
		require.NoError(t, os.WriteFile(filepath.Join(goldenDir, name+".cstate"), p, 0o644))
		channels, err := readHandles(p, handles)
		require.NoError(t, err)
		index[name+".cstate"] = goldenIndex{Handles: handles, Channels: channels}
	}
	p, err := json.MarshalIndent(index, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(goldenDir, "expected.json"), append(p, '\n'), 0o644))
}

// readHandles reads all channels of handles whose segments lie in file, the
// simplest strict way. References are named, not followed.
func readHandles(file []byte, handles []inflight.Handle) (channels []goldenChannel, err error) {
	r := bytes.NewReader(file)
	for _, h := range handles {
		for _, seg := range h.Segments {
			s, err := ReadSection(r, seg)
			if err != nil {
				return nil, err
			}
			for i := range s.Entries {
				c, err := readChannel(file, seg.FileID, s, &s.Entries[i])
				if err != nil {
					return nil, err
				}
				channels = append(channels, c)
			}
		}
	}
	return channels, nil
}

func readChannel(file []byte, id inflight.FileID, s *Section, e *Entry) (c goldenChannel, err error) {
	c = goldenChannel{Task: s.Task.String(), Address: e.Address.String()}
	if cut, ok := e.Cut(); ok {
		c.Address += fmt.Sprintf(" cut %+v", cut)
	}
	digest := Digest(0)
	var table Table
	for _, x := range e.Extents {
		ref := s.Blocks[x.Block]
		if ref.File > 0 {
			c.Buffers = append(c.Buffers, fmt.Sprintf("reference %+v %+v %+v", s.Files[ref.File-1], ref, x))
			digest = digest.Join(e.Digest, uint64(x.Length))
			continue
		}
		if ref.Offset+int64(ref.Stored) > int64(len(file)) {
			return c, torn(ref.Offset, "block beyond the end")
		}
		b, _, err := DecodeBlock(file[ref.Offset:][:ref.Stored], id, ref.Offset, nil)
		if err == nil {
			err = b.ReadTable(&table)
		}
		if err != nil {
			return c, err
		}
		i := slices.IndexFunc(table.Runs, func(r Run) bool {
			return r.Offset == int(x.Offset) && r.Flags&RunReference == 0 && r.Address == e.Address && table.Members[r.Member] == s.Task && r.Length == uint64(x.Length)
		})
		if i < 0 {
			return c, corrupt(CodeSection, ref.Offset, "no such run")
		}
		run := &table.Runs[i]
		data := b.Data[run.Offset:][:run.Length]
		digest = digest.Join(Digest(0).Add(data), run.Length)
		for k := range run.Pieces {
			n := run.PieceLength(k)
			if k == 0 && run.Flags&RunHead != 0 {
				c.Buffers[len(c.Buffers)-1] += string(data[:n])
			} else {
				c.Buffers = append(c.Buffers, run.Pos.String()+": "+string(data[:n]))
			}
			data = data[n:]
		}
	}
	if digest != e.Digest {
		return c, corrupt(CodeDigest, -1, "digest")
	}
	for i, b := range c.Buffers {
		if !utf8.ValidString(b) {
			c.Buffers[i] = fmt.Sprintf("sha256 %x", sha256.Sum256([]byte(b)))
		}
	}
	return c, nil
}

// scan returns what Scan finds, and asserts its own promises.
func scan(t *testing.T, p []byte) (*Scanned, []inflight.Finding) {
	var findings []inflight.Finding
	s, err := Scan(context.Background(), bytes.NewReader(p), int64(len(p)), ScanOptions{Name: "chk-0000000007/g0-a1.cstate", Report: func(f inflight.Finding) { findings = append(findings, f) }})
	require.NoError(t, err)
	return s, findings
}

func worst(findings []inflight.Finding) bool {
	return slices.ContainsFunc(findings, func(f inflight.Finding) bool { return f.Severity == inflight.SeverityError })
}

func TestScanGolden(t *testing.T) {
	for name, want := range golden(t) {
		s, findings := scan(t, goldenFile(t, name))
		require.True(t, s.Sealed, name)
		require.False(t, worst(findings), "%s: %v", name, findings)
		for _, h := range want.Handles {
			m := s.Member(h.Task)
			require.NotNil(t, m)
			require.Equal(t, StatusComplete, m.Section.Status)
			require.Equal(t, h.Segments[0], m.Segment)
		}
		require.Nil(t, s.Member(inflight.Task{Vertex: "open"}).Section)
		require.Equal(t, StatusAborted, s.Member(inflight.Task{Vertex: "dead"}).Section.Status)
		require.Equal(t, StatusContinued, s.Member(inflight.Task{Vertex: "count", Subtask: 1}).Section.Status)
		codes := map[string]int{}
		for _, f := range findings {
			codes[f.Code]++
		}
		require.Equal(t, map[string]int{CodeIncomplete: 1, CodeAborted: 1, CodeGap: 1}, codes)
	}
}

// checkDamaged asserts that reading damaged by handle gives the right data or a
// typed error, and that what Scan still finds is a part of the truth.
func checkDamaged(t *testing.T, damaged []byte, want goldenIndex, whole *Scanned) []inflight.Finding {
	rest := want.Channels
	for i, h := range want.Handles {
		channels, err := readHandles(damaged, want.Handles[i:i+1])
		n := 0
		for n < len(rest) && rest[n].Task == h.Task.String() {
			n++
		}
		if err == nil {
			if !reflect.DeepEqual(rest[:n], channels) {
				t.Fatalf("wrong data of %s", h.Task)
			}
			rest = rest[n:]
			continue
		}
		rest = rest[n:]
		if !inflight.IsCorruption(err) && !errors.Is(err, inflight.ErrUnknownVersion) {
			t.Fatalf("%s: %v", h.Task, err)
		}
	}
	s, findings := scan(t, damaged)
	for _, m := range s.Members {
		truth := whole.Member(m.Task)
		if truth == nil {
			t.Fatalf("made up: %s", m.Task)
		}
		for _, f := range m.Found {
			i := slices.IndexFunc(truth.Found, func(g FoundEntry) bool { return g.Address == f.Address })
			if i < 0 {
				t.Fatalf("made up: %s %s", m.Task, f.Address)
			}
			for _, x := range f.Extents {
				if !slices.Contains(truth.Found[i].Extents, x) {
					t.Fatalf("made up: %s %s %+v", m.Task, f.Address, x)
				}
			}
		}
		if m.Section != nil {
			require.Equal(t, truth.Section, m.Section)
		}
	}
	return findings
}

// flipStep returns the distance of the bits that TestFlip flips: every bit of
// the plain file; with SPILLWAY_CRASH every bit of all. Steps are odd, so that
// every bit of a byte has its turn.
func flipStep(name string) int {
	step := map[string]int{"s2.cstate": 3, "zstd.cstate": 3, "nested.cstate": 7}[name]
	switch {
	case os.Getenv("SPILLWAY_CRASH") != "":
		return 1
	case raceEnabled || testing.Short():
		return max(1, step) * 9
	}
	return max(1, step)
}

// TestFlip flips the bits of the golden files: the damage is always found, and
// never gives wrong data.
func TestFlip(t *testing.T) {
	for name, want := range golden(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := goldenFile(t, name)
			whole, _ := scan(t, p)
			for bit := 0; bit < 8*len(p); bit += flipStep(name) {
				p[bit/8] ^= 1 << (bit % 8)
				findings := checkDamaged(t, p, want, whole)
				if !worst(findings) {
					t.Fatalf("bit %d of byte %d is not noticed: %v", bit%8, bit/8, findings)
				}
				p[bit/8] ^= 1 << (bit % 8)
			}
		})
	}
}

// TestCut cuts the golden files at every offset: torn or empty, never another
// answer; and the subtasks whose sections came before the cut stay whole.
func TestCut(t *testing.T) {
	for name, want := range golden(t) {
		p := goldenFile(t, name)
		whole, _ := scan(t, p)
		for n := range p {
			findings := checkDamaged(t, bytes.Clone(p[:n]), want, whole)
			ok := slices.ContainsFunc(findings, func(f inflight.Finding) bool {
				return errors.Is(f.Err, inflight.ErrTorn) || errors.Is(f.Err, inflight.ErrEmpty) && n == 0
			})
			if !ok {
				t.Fatalf("%s cut to %d bytes: %v", name, n, findings)
			}
			for _, h := range want.Handles {
				if end := h.Segments[0].Offset + h.Segments[0].Length; end <= int64(n) {
					_, err := readHandles(p[:n], []inflight.Handle{h})
					require.NoError(t, err, "%s cut to %d bytes", name, n)
				}
			}
		}
	}
}
