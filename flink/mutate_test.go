package flink

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// overlay is a store in which one object has other bytes, or is missing.
type overlay struct {
	backends.Backend
	name    string
	bytes   []byte
	missing bool
}

func (o *overlay) Stat(ctx context.Context, name string) (backends.Info, error) {
	if name != o.name {
		return o.Backend.Stat(ctx, name)
	}
	if o.missing {
		return backends.Info{}, &inflight.Error{Op: "stat", Object: name, Err: inflight.ErrNotExist}
	}
	return backends.Info{Name: name, Size: int64(len(o.bytes))}, nil
}

func (o *overlay) Open(ctx context.Context, name string) (backends.Source, error) {
	if name != o.name {
		return o.Backend.Open(ctx, name)
	}
	info, err := o.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return &overlaySource{info: info, bytes: o.bytes}, nil
}

type overlaySource struct {
	info  backends.Info
	bytes []byte
}

func (s *overlaySource) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > int64(len(s.bytes)) {
		return inflight.ErrTorn
	}
	copy(p, s.bytes[off:])
	return nil
}

func (s *overlaySource) Stream(context.Context, int64, int64) (io.ReadCloser, error) {
	return nil, inflight.ErrUnsupported
}
func (s *overlaySource) Info() backends.Info { return s.info }
func (s *overlaySource) Close() error        { return nil }

// victim is a fixture that is damaged again and again.
type victim struct {
	name   string
	b      backends.Backend
	dir    string
	files  []string // what is changed: _metadata, and the files with channel state
	bytes  map[string][]byte
	fields []field // of each byte of _metadata
	// channel says of each byte of a channel-state file whether it is structure.
	structure map[string][]bool
	joined    map[int]bool // offsets in _metadata: of channels that a record binds together
	bare      map[int]bool // offsets in _metadata: of operators without subtasks
	moves     []Move
	merged    map[string]bool // several segments lie in it
	end       map[string]int  // where the part of a file ends that is looked at
}

func newVictim(t testing.TB, name string) *victim {
	root := flinktest.Unpack(t, name)
	b := local.New(root)
	t.Cleanup(func() { b.Close() })
	v := &victim{name: name, b: b, dir: flinktest.CheckpointDir(t, root), bytes: map[string][]byte{}, structure: map[string][]bool{}, end: map[string]int{}, merged: map[string]bool{}, joined: map[int]bool{}, bare: map[int]bool{}}
	v.moves = []Move{{"file:/flink/checkpoints/" + name, b.URL()}}
	c, err := Open(t.Context(), b, v.dir, OpenOptions{Moves: v.moves})
	require.NoError(t, err)
	defer c.Close()
	meta := path.Join(v.dir, MetadataName)
	v.files = []string{meta}
	v.bytes[meta] = c.raw
	v.fields = traceFields(t, c.raw)
	for _, o := range c.Operators {
		for i := o.at; i < o.end && len(o.Subtasks) == 0; i++ {
			v.bare[i] = true
		}
	}
	r, err := c.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, r.Findings)
	for _, s := range r.Index.Streams {
		if s.Handle.Path() == "" {
			continue
		}
		f, err := c.Locate(t.Context(), s.Handle)
		require.NoError(t, err)
		if v.bytes[f.Name] == nil {
			v.files = append(v.files, f.Name)
			v.bytes[f.Name], err = readAll(t.Context(), b, f.Name, 1<<30)
			require.NoError(t, err)
		}
		v.markStructure(f.Name, s)
	}
	x := r.Index
	gates, parts := x.portsOf(inflight.Input), x.portsOf(inflight.Output)
	for _, e := range r.Edges {
		for in, out := range connections(endsOf(gates, port{e.To, e.Gate}), endsOf(parts, port{e.From, e.Partition})) {
			v.markRecords(c, x, in, out)
		}
	}
	v.seal(t, c)
	return v
}

// seal seals the fixture, and the other parts of merged files too.
func (v *victim) seal(t testing.TB, c *Checkpoint) {
	seal, _, err := c.Seal(t.Context(), SealOptions{State: true})
	require.NoError(t, err)
	require.NoError(t, seal.Write(t.Context(), v.b, SealName(v.dir)))
}

func traceFields(t testing.TB, raw []byte) []field {
	fields := make([]field, len(raw))
	d := decoder{b: raw, code: CodeMetadata, trace: func(f field, at, end int) {
		for i := at; i < end; i++ {
			fields[i] = f
		}
	}}
	_, err := d.metadata()
	require.Nil(t, err)
	return fields
}

// markStructure marks the header of a stream and the lengths of its chunks.
func (v *victim) markStructure(name string, s Stream) {
	mark := v.structure[name]
	if mark == nil {
		mark = make([]bool, len(v.bytes[name]))
		v.structure[name] = mark
	}
	base := s.Handle.StartPos()
	v.merged[name] = s.Handle.Kind() == KindSegment
	v.end[name] = max(v.end[name], int(base+s.Handle.Size()))
	for i := range int64(headerSize) {
		mark[base+i] = true
	}
	for _, c := range s.Chunks {
		for i := range int64(lengthSize) {
			mark[base+c.Offset+i] = true
		}
	}
}

// markRecords marks the lengths and the tags of the records of a connection, and
// the indexes of its channels if a record goes over from one to the other.
func (v *victim) markRecords(c *Checkpoint, x *Index, in, out int) {
	type at struct {
		mark   []bool
		offset int64
	}
	var where []at
	var data []byte
	goesOver := 0
	for _, i := range []int{in, out} {
		if i < 0 {
			continue
		}
		goesOver = len(data) // in the end: where the output part begins
		h := x.Streams[x.Channels[i].Stream].Handle
		file, mark := h.Data(), make([]bool, h.Size())
		if h.Path() != "" {
			f, _ := c.Locate(context.Background(), h)
			file, mark = v.bytes[f.Name], v.structure[f.Name]
		}
		for _, chunk := range x.chunksOf(i) {
			from := h.StartPos() + chunk.Offset
			n := int64(binary.BigEndian.Uint32(file[from:]))
			data = append(data, file[from+4:from+4+n]...)
			for k := range n {
				where = append(where, at{mark, from + 4 + k})
			}
		}
	}
	joined := false
	for n := 0; n < len(data); {
		marked := 5
		if kind := ElementKind(data[n+4]); kind == ElementWatermarkStatus || kind == ElementAttributes {
			marked++
		}
		for _, w := range where[n : n+marked] {
			w.mark[w.offset] = true
		}
		size := 4 + int(binary.BigEndian.Uint32(data[n:]))
		joined = joined || in >= 0 && out >= 0 && n < goesOver && n+size > goesOver
		n += size
	}
	if joined {
		v.markIndex(x, in)
		v.markIndex(x, out)
	}
}

// markIndex marks the two numbers that say which channel i is.
func (v *victim) markIndex(x *Index, i int) {
	raw := v.bytes[v.files[0]]
	at := cap(raw) - cap(x.Channels[i].Offsets) - 12
	if x.Channels[i].Merged {
		at -= 8
	}
	for k := range 8 {
		v.joined[at+k] = true
	}
}

type mutation struct {
	file  string
	text  string
	bytes []byte
	at    int // of the first changed byte
	n     int // changed bytes; -1: everything behind it moves
}

func (v *victim) mutate(r *rand.Rand) mutation {
	if len(v.files) > 1 && r.IntN(2) == 0 {
		return v.mutateFile(r, v.files[1+r.IntN(len(v.files)-1)])
	}
	return v.mutateFile(r, v.files[0])
}

func (v *victim) mutateFile(r *rand.Rand, file string) mutation {
	m := mutation{file: file}
	was := v.bytes[m.file]
	b := slices.Clone(was)
	m.at = r.IntN(len(b))
	if end := v.end[m.file]; end > 0 {
		m.at = r.IntN(end)
	}
	switch r.IntN(10) {
	case 0, 1, 2, 3, 4:
		bit := r.IntN(8)
		b[m.at] ^= 1 << bit
		m.text, m.n = fmt.Sprintf("bit %d at %d", bit, m.at), 1
	case 5:
		b[m.at] += byte(1 + r.IntN(255))
		m.text, m.n = fmt.Sprintf("byte at %d", m.at), 1
	case 6:
		m.n = min(1+r.IntN(16), len(b)-m.at)
		for i := range m.n {
			b[m.at+i] = byte(r.IntN(256))
		}
		m.text = fmt.Sprintf("%d bytes at %d", m.n, m.at)
	case 7:
		b, m.text, m.n = b[:m.at], fmt.Sprintf("cut at %d", m.at), -1
	case 8:
		b, m.text, m.n = slices.Insert(b, m.at, byte(r.IntN(256))), fmt.Sprintf("a byte more at %d", m.at), -1
	case 9:
		n := min(1+r.IntN(100), len(b)-m.at)
		b, m.text, m.n = slices.Delete(b, m.at, m.at+n), fmt.Sprintf("%d bytes less at %d", n, m.at), -1
	}
	m.bytes = b
	return m
}

// kinds returns what the bytes that m changes are.
func (v *victim) kinds(m mutation) (kinds []string) {
	was, end := v.bytes[m.file], m.at+m.n
	if m.n < 0 {
		if m.file == v.files[0] && !strings.HasPrefix(m.text, "cut") {
			return []string{wholeAgain}
		}
		if !v.merged[m.file] {
			return []string{"all"}
		}
		// No handle says how long the file is: what counts is the bytes that stand
		// where channel state is looked for.
		if end = v.end[m.file]; len(m.bytes) < end {
			return []string{"all"}
		}
	}
	for i := m.at; i < end; i++ {
		if was[i] == m.bytes[i] {
			continue
		}
		k := payloadByte
		if m.file == v.files[0] {
			if k = v.fields[i].String(); v.fields[i] == fieldChannelIndex && !v.joined[i] {
				k = freeIndex
			}
			if v.fields[i] == fieldParallelism && v.bare[i] {
				k = freeParallelism
			}
		} else if v.structure[m.file][i] && !sameButTimestamp(was[i], m.bytes[i]) {
			k = "structure"
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// sameButTimestamp reports whether the tag of a record changed into that of one
// with a timestamp, or without: the bytes do not tell which is right.
func sameButTimestamp(a, b byte) bool { return a^b == 1 && a <= 1 }

// undetectable are the kinds of bytes whose change may leave a checkpoint that
// looks right. docs/flink.md lists them; a seal finds them all.
var undetectable = map[string]bool{
	payloadByte: true, freeIndex: true, freeParallelism: true,
}

const (
	payloadByte = "value or timestamp of a record"
	freeIndex   = "index of a channel without a record that goes over"

	freeParallelism = "parallelism of an operator without subtasks"
	// One in some ten thousand of these falls on its feet.
	wholeAgain = "bytes more or fewer that happen to leave whole metadata"
)

func init() {
	for _, f := range []field{
		fieldCheckpointID, fieldMasterPayload, fieldOperatorName, fieldOperatorID, fieldMaxParallelism, fieldHandleName, fieldInlineData,
		fieldSegment, fieldAdded, fieldLocalPath, fieldScope, fieldLogicalID, fieldStateName, fieldStateMode, fieldStateOffset,
		fieldKeyGroupOffset, fieldBackend, fieldStateID, fieldDelta, fieldDirectory, fieldProperties,
	} {
		undetectable[f.String()] = true
	}
	undetectable[wholeAgain] = true
}

// testSeed is random in long runs only: a failure of the others can be repeated.
func testSeed() uint64 {
	if os.Getenv("SPILLWAY_CRASH") != "" {
		return rand.Uint64()
	}
	return 1
}

// allocated is how many bytes this process has ever allocated.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// TestMutations damages checkpoints at random: each time there is a finding, or
// only bytes changed of a kind that nothing can be told about; on a sealed
// checkpoint there is a finding each time.
func TestMutations(t *testing.T) {
	names := []string{"keyed-2x2", "flink-1.17.2-keyed-2x2", "keyed-2x2-share1", "file-merging", "stateful-rocksdb-incremental",
		"inline", "savepoint-native", "mixed-skewed", "partitioners", "finished-subtask"}
	n := 10_000 / len(names)
	if testing.Short() || raceEnabled {
		n /= 10
	} else if os.Getenv("SPILLWAY_CRASH") != "" {
		n *= 20
	}
	seed := testSeed()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t, name)
			r := rand.New(rand.NewPCG(seed, 0))
			silent := map[string]int{}
			for range n {
				m := v.mutate(r)
				kinds := v.kinds(m)
				if len(kinds) == 0 {
					continue // the same bytes again
				}
				what := fmt.Sprintf("%s, %s of %s (%s), seed %d", name, m.text, m.file, strings.Join(kinds, ", "), seed)
				b := &overlay{Backend: v.b, name: m.file, bytes: m.bytes}
				report, err := Verify(t.Context(), b, v.dir, VerifyOptions{OpenOptions: OpenOptions{Moves: v.moves}, NoSeal: true})
				require.NoError(t, err, what)
				if len(report.Findings) > 0 {
					continue
				}
				for _, k := range kinds {
					require.True(t, undetectable[k], "no finding: %s", what)
					silent[k]++
				}
				report, err = Verify(t.Context(), b, v.dir, VerifyOptions{OpenOptions: OpenOptions{Moves: v.moves}})
				require.NoError(t, err, what)
				require.True(t, report.Sealed)
				require.NotEmpty(t, report.Findings, "sealed, no finding: %s", what)
			}
			require.LessOrEqual(t, silent[wholeAgain], 1+n/2000)
			t.Log(silent)
		})
	}
}

// TestMutationMemory holds what verification allocates in all, of damaged files,
// against its bound.
func TestMutationMemory(t *testing.T) {
	v := newVictim(t, "keyed-2x2")
	r := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		m := v.mutate(r)
		before := allocated()
		_, err := Verify(t.Context(), &overlay{Backend: v.b, name: m.file, bytes: m.bytes}, v.dir, VerifyOptions{})
		require.NoError(t, err)
		require.Less(t, allocated()-before, uint64(64<<20), m.text)
	}
}

// TestExtremes sets each number in _metadata that says how much of something
// there is, or what kind, to values that it cannot have.
func TestExtremes(t *testing.T) {
	structural := map[field]bool{fieldCount: true, fieldTag: true, fieldMerged: true, fieldSubtask: true, fieldParallelism: true, fieldPresence: true,
		fieldChannelOffset: true, fieldChannelSize: true, fieldChannelSubtask: true, fieldChannelIndex: true, fieldSize: true, fieldKeyGroup: true, fieldScope: true}
	for _, name := range []string{"keyed-2x2", "flink-1.17.2-keyed-2x2", "file-merging", "stateful-rocksdb-incremental"} {
		v := newVictim(t, name)
		meta := v.files[0]
		raw := v.bytes[meta]
		r := rand.New(rand.NewPCG(7, 7))
		step := 4
		if raceEnabled || testing.Short() {
			step = 16
		} else if os.Getenv("SPILLWAY_CRASH") != "" {
			step = 1
		}
		for i := r.IntN(step); i < len(raw); i += step {
			f := v.fields[i]
			if !structural[f] || i > 0 && v.fields[i-1] == f && r.IntN(4) > 0 {
				continue
			}
			for _, value := range []byte{0x00, 0x7f, 0x80, 0xff} {
				if raw[i] == value || f == fieldChannelIndex && !v.joined[i] {
					continue
				}
				b := slices.Clone(raw)
				b[i] = value
				report, err := Verify(t.Context(), &overlay{Backend: v.b, name: meta, bytes: b}, v.dir, VerifyOptions{OpenOptions: OpenOptions{Moves: v.moves}, NoSeal: true})
				require.NoError(t, err)
				require.NotEmpty(t, report.Findings, "%s: %s at %d: %#x for %#x", name, f, i, value, raw[i])
			}
		}
	}
}

// TestCuts cuts _metadata at the boundaries of its fields: every one is an error
// that says where.
func TestCuts(t *testing.T) {
	for _, name := range flinktest.Names(t) {
		c, _ := openFixture(t, name)
		fields := traceFields(t, c.raw)
		step := 1 + len(fields)/400
		if os.Getenv("SPILLWAY_CRASH") != "" {
			step = 1
		}
		for i := 1; i < c.tail; i++ {
			if fields[i] == fields[i-1] || i%step != 0 {
				continue
			}
			_, err := Parse(c.raw[:i])
			require.True(t, inflight.IsCorruption(err), "%s cut at %d: %v", name, i, err)
			var f *FormatError
			require.ErrorAs(t, err, &f)
			require.LessOrEqual(t, f.Offset, int64(i))
		}
		for i := c.tail; i < len(c.raw); i += 7 {
			m, err := Parse(c.raw[:i])
			if err == nil {
				_, err = m.Properties()
			}
			require.True(t, inflight.IsCorruption(err), "%s cut at %d: %v", name, i, err)
		}
	}
}
