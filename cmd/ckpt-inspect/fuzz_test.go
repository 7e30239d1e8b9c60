package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inspect"
)

// folder is what lies below a folder of a store in memory: mem:// itself has no
// folders in its URLs.
type folder struct {
	backends.Backend
	prefix, url string
}

var fuzzStore *mem.Backend

func init() {
	backends.Register("fuzz", func(_ context.Context, u *url.URL) (backends.Backend, error) {
		return &folder{fuzzStore, backends.Below(strings.Trim(u.Path, "/")), u.String()}, nil
	})
}

func (f *folder) URL() string  { return f.url }
func (f *folder) Close() error { return nil }

func (f *folder) Create(ctx context.Context, name string, o backends.CreateOptions) (backends.Object, error) {
	return f.Backend.Create(ctx, f.prefix+name, o)
}

func (f *folder) Open(ctx context.Context, name string) (backends.Source, error) {
	return f.Backend.Open(ctx, f.prefix+name)
}

func (f *folder) Stat(ctx context.Context, name string) (backends.Info, error) {
	return f.Backend.Stat(ctx, f.prefix+name)
}

func (f *folder) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		for info, err := range f.Backend.List(ctx, f.prefix+prefix) {
			info.Name = strings.TrimPrefix(info.Name, f.prefix)
			if !yield(info, err) {
				return
			}
		}
	}
}

func (f *folder) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return f.Backend.Children(ctx, f.prefix+dir)
}

func (f *folder) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	return f.Backend.Leftovers(ctx, f.prefix+prefix)
}

// edit is one change of a file: six bytes of a fuzzer's input.
type edit struct {
	file, op   byte
	at, amount uint16
}

func readEdits(p []byte) (edits []edit) {
	for ; len(p) >= 6 && len(edits) < 20; p = p[6:] {
		edits = append(edits, edit{p[0], p[1], binary.LittleEndian.Uint16(p[2:]), binary.LittleEndian.Uint16(p[4:])})
	}
	return edits
}

func writeEdits(edits ...edit) (p []byte) {
	for _, e := range edits {
		p = append(p, e.file, e.op)
		p = binary.LittleEndian.AppendUint16(p, e.at)
		p = binary.LittleEndian.AppendUint16(p, e.amount)
	}
	return p
}

// The operations of edits. Those from opForge on make checksums right again, so
// that what is behind them is reached; what is dumped then may be anything.
const (
	opFlip = iota
	opCut
	opZero
	opAppend
	opSwap
	opRemove
	opForge
	opForgeManifest
	ops
)

// apply changes files, and reports whether checksums were forged.
func (e edit) apply(files map[string][]byte, names []string) (forged bool) {
	name := names[int(e.file)%len(names)]
	p := bytes.Clone(files[name])
	at, amount := 0, int(e.amount)
	if len(p) > 0 {
		at = int(e.at) % len(p)
	}
	switch e.op % ops {
	case opFlip:
		if len(p) > 0 {
			p[at] ^= 1 << (amount % 8)
		}
	case opCut:
		p = p[:at]
	case opZero:
		clear(p[at:min(len(p), at+amount)])
	case opAppend:
		p = append(p, bytes.Repeat([]byte{byte(amount)}, amount%100)...)
	case opSwap:
		other := names[amount%len(names)]
		files[other], p = p, files[other]
	case opRemove:
		delete(files, name)
		return false
	case opForge:
		forged = forgeBlock(p, at, byte(amount))
	case opForgeManifest:
		forged = forgeManifest(p, at, byte(amount))
	}
	files[name] = p
	return forged
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// forgeBlock changes a byte of the payload of a block and makes its checksums
// right.
func forgeBlock(p []byte, at int, value byte) bool {
	h, n, err := format.DecodeFileHeader(p)
	if err != nil {
		return false
	}
	for off := n; off < int64(len(p)); {
		b, err := format.DecodeBlockHeader(p[off:], h.FileID, off)
		end := off + format.BlockHeaderSize + int64(b.Stored)
		if err != nil || end > int64(len(p)) {
			return false
		}
		if int64(at) >= off+format.BlockHeaderSize && int64(at) < end {
			p[at] = value
			head := p[off:][:format.BlockHeaderSize]
			binary.LittleEndian.PutUint32(head[24:], format.Checksum(p[off+format.BlockHeaderSize:end]))
			place := binary.LittleEndian.AppendUint64(bytes.Clone(h.FileID[:]), uint64(off))
			binary.LittleEndian.PutUint32(head[28:], crc32.Update(format.Checksum(place), castagnoli, head[:28]))
			return true
		}
		off = end
	}
	return false
}

// forgeManifest changes a byte of a manifest and makes its checksum right.
func forgeManifest(p []byte, at int, value byte) bool {
	const tail = len(`xxxxxxxx"}` + "\n")
	if len(p) < 100 || p[0] != '{' {
		return false
	}
	if body := len(p) - tail; at < body {
		p[at] = value
		copy(p[body:], fmt.Sprintf("%08x", format.Checksum(p[:body])))
	}
	return true
}

// fuzzFiles returns the files of the fixture's small job, and their names.
func fuzzFiles(t testing.TB) (map[string][]byte, []string) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	files := map[string][]byte{}
	for name, p := range contents(t, filepath.Join(dir, "other")) {
		if info, err := os.Stat(name); err == nil && !info.IsDir() {
			rel, err := filepath.Rel(dir, name)
			require.NoError(t, err)
			files[filepath.ToSlash(rel)] = []byte(p)
		}
	}
	names := slices.Sorted(maps.Keys(files))
	require.Len(t, names, 4)
	return files, names
}

// store puts files into the store, and nothing else.
func store(t testing.TB, files map[string][]byte) {
	fuzzStore = mem.New(mem.Options{ObjectStore: true})
	for name, p := range files {
		o, err := fuzzStore.Create(t.Context(), name, backends.CreateOptions{})
		require.NoError(t, err)
		_, err = o.Write(p)
		require.NoError(t, err)
		_, err = o.Finish(t.Context())
		require.NoError(t, err)
	}
}

// dumped returns the buffers of a dump, as a set of their lines; how many
// records end in one is left out, since that depends on what is before it.
func dumped(t testing.TB, target string) map[string]bool {
	_, out := inspectStore(t, "dump", "--digest", "--json", target)
	lines := map[string]bool{}
	for line := range strings.Lines(out) {
		var b inspect.BufferLine
		require.NoError(t, json.Unmarshal([]byte(line), &b))
		b.Records, b.File = nil, path.Base(b.File)
		p, err := json.Marshal(b)
		require.NoError(t, err)
		lines[string(p)] = true
	}
	return lines
}

// inspectStore runs one command and checks what holds for each.
func inspectStore(t testing.TB, args ...string) (code int, out string) {
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), testEnv(&stdout, &stderr), args)
	require.Contains(t, []int{0, 1, 2}, code, "%s: %s", args, &stderr)
	require.LessOrEqual(t, bytes.Count(stderr.Bytes(), []byte("\n")), 1, "one line: %s", &stderr)
	if slices.Contains(args, "--json") {
		for d := json.NewDecoder(bytes.NewReader(stdout.Bytes())); ; {
			err := d.Decode(new(map[string]any))
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, "%s: %s", args, &stdout)
		}
	}
	return code, stdout.String()
}

// FuzzCommands damages a job and looks at it with every command: each ends with
// an exit code and at most one line on stderr, and nothing is dumped that was
// not captured; where verify finds nothing, everything is.
func FuzzCommands(f *testing.F) {
	for op := range byte(ops) {
		for file := range byte(4) {
			f.Add(writeEdits(edit{file, op, 200, 3}))
			f.Add(writeEdits(edit{file, op, 700, 77}, edit{file + 1, op + 1, 300, 9}))
		}
	}
	files, names := fuzzFiles(f)
	store(f, files)
	const job, checkpoint, bare = "fuzz:///other", "fuzz:///other/chk-0000000001", "fuzz:///other/chk-0000000001/g0-b0.cstate"
	whole := dumped(f, checkpoint)
	f.Fuzz(func(t *testing.T, p []byte) {
		damaged, forged := maps.Clone(files), false
		for _, e := range readEdits(p) {
			forged = e.apply(damaged, names) || forged
		}
		store(t, damaged)
		for _, args := range [][]string{{"ls", job}, {"ls", "--json", "fuzz:///"}, {"show", job}, {"show", "--json", checkpoint}, {"gc", "-n", "--json", job}, {"gc", "-n", "--fence", job},
			{"verify", "--all", "--records", "--json", job}, {"verify", bare}, {"dump", "--records", "--hex", job}, {"roundtrip", "--json", job}} {
			inspectStore(t, args...)
		}
		if forged {
			return
		}
		for line := range dumped(t, checkpoint) {
			require.True(t, whole[line], "dumped and never captured: %s", line)
		}
		if code, findings := inspectStore(t, "verify", "--json", checkpoint); code == 0 && findings == "" {
			require.Len(t, dumped(t, checkpoint), len(whole), "verify found nothing, and buffers are missing")
		}
	})
}
