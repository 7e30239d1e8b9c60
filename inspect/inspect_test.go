package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
	"github.com/spillway-io/spillway/reader"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExitCode(t *testing.T) {
	wrapped := func(err error) error {
		return &inflight.Error{Op: "do", Object: "x", Err: fmt.Errorf("again: %w", err)}
	}
	for want, errs := range map[int][]error{
		ExitOK: {nil},
		ExitFindings: {ErrFindings, inflight.ErrDamaged, inflight.ErrCorrupt, inflight.ErrTorn, inflight.ErrEmpty, inflight.ErrForeign, inflight.ErrUnknownVersion,
			inflight.ErrIncomplete, inflight.ErrTooLarge, inflight.ErrMismatch, fmt.Errorf("%w: %w", inflight.ErrDamaged, fs.ErrNotExist), fmt.Errorf("%w: %w", inflight.ErrIncomplete, fs.ErrNotExist)},
		ExitUsage: {ErrNotCheckpoint, fs.ErrNotExist, fs.ErrPermission, inflight.ErrAuth, inflight.ErrConfig, inflight.ErrUnavailable, inflight.ErrTimeout,
			inflight.ErrNoSpace, inflight.ErrReadOnly, inflight.ErrTooManyFiles, inflight.ErrFenced, inflight.ErrOutcomeUnknown, errors.New("anything else")},
		ExitInterrupted: {context.Canceled},
	} {
		for _, err := range errs {
			require.Equal(t, want, ExitCode(err), err)
			if err != nil {
				require.Equal(t, want, ExitCode(wrapped(err)), err)
			}
		}
	}
}

func TestForPeople(t *testing.T) {
	for n, want := range map[size]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 1023 << 10: "1.0 MiB", 5 << 30: "5.0 GiB", 3 << 40: "3.0 TiB", math.MaxUint64: "16384.0 PiB"} {
		require.Equal(t, want, n.String())
	}
	for d, want := range map[time.Duration]string{0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 3 * time.Hour: "3h", 49 * time.Hour: "2d", -1: "in the future"} {
		require.Equal(t, want, age(d).String())
	}
	require.Equal(t, "a: b c?[31md?", oneLine("a\nb\tc\x1b[31md\u0085"), "what a damaged file holds must not steer a terminal")
	require.Equal(t, "1 file", plural(1, "file"))
	require.Equal(t, "0 files", plural(0, "file"))
	require.Equal(t, `record of 3 bytes: "a\x00b"`, Record{Length: 3, Preview: []byte("a\x00b")}.String())
	require.Equal(t, `record of 9 bytes: "ab"…`, Record{Length: 9, Preview: []byte("ab")}.String())
}

// TestShorten cuts lists, and keeps what helps.
func TestShorten(t *testing.T) {
	require.Equal(t, "a; b (help)", Shorten("a; b (help)"))
	var parts []string
	for k := range 1000 {
		parts = append(parts, fmt.Sprintf("vertex-%d is gone", k))
	}
	got := Shorten("plan: " + strings.Join(parts, "; ") + " (help)")
	require.LessOrEqual(t, len(got), longText+50)
	var more int
	_, err := fmt.Sscanf(got[strings.LastIndex(got, "; and "):], "; and %d more (help)", &more)
	require.NoError(t, err)
	require.Equal(t, 1000, strings.Count(got, "is gone")+more)
	got = Shorten(strings.Repeat("ä", 5000))
	require.True(t, utf8.ValidString(got))
	require.LessOrEqual(t, len(got), longText+50)
	require.Contains(t, got, "… and 9000 bytes more")
	require.Equal(t, "a, b", few([]string{"a", "b"}))
	require.Equal(t, "a, a, a, a, a, a, a, a, a, a and 2 more", few(strings.Split(strings.Repeat("a", 12), "")))
}

// TestRecordSplitter compares the splitter with the reader's counter, however
// the stream is cut.
func TestRecordSplitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) byte {
			return rapid.SampledFrom([]byte{0, 0, 0, 0, 0, 1, 2, 5, 0x80, 'x'}).Draw(t, "byte")
		}), 0, 200).Draw(t, "stream")
		keep := rapid.Bool().Draw(t, "keep")
		var c reader.RecordCounter
		s := recordSplitter{keep: keep}
		n := uint64(0)
		for rest := p; len(rest) > 0; {
			k := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			c.Add(rest[:k])
			ends, ended := s.add(rest[:k])
			n += ends
			if keep {
				require.Len(t, ended, int(ends))
			} else {
				require.Empty(t, ended)
			}
			for _, r := range ended {
				require.Len(t, r.Preview, min(r.Length, recordPreview))
			}
			rest = rest[k:]
		}
		require.Equal(t, c.Count().Whole, n)
		require.Equal(t, c.Count().Bad, s.bad)
	})
}

func TestRecordPreviewIsBounded(t *testing.T) {
	s := recordSplitter{keep: true}
	n, ended := s.add(append([]byte{0, 0, 4, 0}, bytes.Repeat([]byte("x"), 1024)...))
	require.EqualValues(t, 1, n)
	require.Equal(t, []Record{{Length: 1024, Preview: bytes.Repeat([]byte("x"), recordPreview)}}, ended)
}

func TestSplitURL(t *testing.T) {
	wd, err := os.Getwd()
	require.NoError(t, err)
	for name, want := range map[string][2]string{
		"/a/b":                        {"/a", "b"},
		"/a/b/":                       {"/a", "b"},
		"/a/../b":                     {"/", "b"},
		"/":                           {"", ""},
		"b":                           {wd, "b"},
		"mem://x":                     {"", ""},
		"mem://x/":                    {"", ""},
		"file:///a/b":                 {"file:///a", "b"},
		"file:///a":                   {"file:///", "a"},
		"s3://bucket/a/b?region=x&y=": {"s3://bucket/a?region=x&y=", "b"},
		"s3://bucket/a":               {"s3://bucket/", "a"},
		"s3://bucket":                 {"", ""},
		"hdfs://u@host:1/a/b c":       {"hdfs://u@host:1/a", "b c"},
		"x://%zz":                     {"", ""},
	} {
		parent, base := splitURL(name)
		require.Equal(t, want, [2]string{parent, base}, name)
	}
}

// entry puts an entry into a store.
func entry(t *testing.T, b backends.Backend, name string, m *format.Manifest) {
	p, err := format.EncodeManifest(m)
	require.NoError(t, err)
	o, err := b.Create(t.Context(), name, backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(p)
	require.NoError(t, err)
	_, err = o.Finish(t.Context())
	require.NoError(t, err)
}

func checkpointEntry(job string, id inflight.CheckpointID) *format.Manifest {
	return &format.Manifest{Kind: format.KindCheckpoint, Job: job, ID: id, Attempt: "a", Mode: format.ExactlyOnce, Alignment: format.Aligned, SelfContained: true,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "v", Parallelism: 1}}}, Finished: []inflight.Task{{Vertex: "v"}}}
}

// TestFindWithoutParent looks at stores whose root cannot be left: mem://name.
func TestFindWithoutParent(t *testing.T) {
	for _, tc := range []struct {
		name string
		want Target
	}{
		{"_manifest.json", Target{Kind: TargetCheckpoint, Jobs: []string{""}}},
		{"_manifest.json/o", Target{Kind: TargetCheckpoint, Jobs: []string{""}}},
		{"chk-0000000001/_manifest.json", Target{Kind: TargetJob, Jobs: []string{""}}},
		{"words/chk-0000000001/_manifest.json", Target{Kind: TargetRoot, Jobs: []string{"words"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := mem.New(mem.Options{ObjectStore: true})
			entry(t, b, tc.name, checkpointEntry("words", 1))
			i := New(Options{Open: func(context.Context, string) (backends.Backend, error) { return b, nil }})
			target, err := i.Find(t.Context(), "mem://x", "")
			require.NoError(t, err)
			require.Equal(t, b, target.Backend)
			target.Backend, target.Name = nil, ""
			require.Equal(t, &tc.want, target)

			target.Backend = b
			for range 2 {
				v, err := i.Show(t.Context(), target, ShowOptions{})
				require.NoError(t, err)
				require.Equal(t, "words", v.Checkpoint.Job)
				require.EqualValues(t, 1, v.Checkpoint.ID)
				require.NoError(t, i.Verify(t.Context(), target, VerifyOptions{}, func(v *Verification) error {
					require.Empty(t, v.Findings)
					return nil
				}))
			}
		})
	}
}

// TestFindClosesAll counts backends.
func TestFindClosesAll(t *testing.T) {
	dir := t.TempDir()
	entry(t, local.New(dir), "words/chk-0000000001/_manifest.json", checkpointEntry("words", 1))
	open := 0
	i := New(Options{Open: func(ctx context.Context, url string) (backends.Backend, error) {
		b, err := backends.Open(ctx, url)
		if err != nil {
			return nil, err
		}
		open++
		return &counted{b, &open}, nil
	}})
	for name, ok := range map[string]bool{dir: true, dir + "/words": true, dir + "/words/chk-0000000001": true, dir + "/words/chk-0000000001/_manifest.json": true, dir + "/nothing": false, dir + "/words/x": false} {
		target, err := i.Find(t.Context(), name, "")
		require.Equal(t, ok, err == nil, "%s: %v", name, err)
		if ok {
			require.Equal(t, 1, open, name)
			require.NoError(t, target.Close())
		}
		require.Zero(t, open, name)
		_, err = i.Find(t.Context(), name, "other")
		require.Error(t, err)
		require.Zero(t, open, name)
	}
}

type counted struct {
	backends.Backend
	open *int
}

func (c *counted) Close() error {
	*c.open--
	return c.Backend.Close()
}

// forgetful breaks a promise: it creates over what is there.
type forgetful struct{ backends.Backend }

func (f forgetful) Create(ctx context.Context, name string, o backends.CreateOptions) (backends.Object, error) {
	o.Exclusive = false
	return f.Backend.Create(ctx, name, o)
}

func TestCheckStore(t *testing.T) {
	const url = "mem://inspect-test"
	var layer func(backends.Backend) backends.Backend
	i := New(Options{Open: func(ctx context.Context, url string) (backends.Backend, error) {
		b, err := backends.Open(ctx, url)
		return layer(b), err
	}})
	layer = func(b backends.Backend) backends.Backend { return b }
	s, err := i.CheckStore(t.Context(), url)
	require.NoError(t, err)
	require.False(t, s.Failed(), "%+v", s.Checks)
	require.Nil(t, s.Capabilities.FreeBytes)

	layer = func(b backends.Backend) backends.Backend { return forgetful{b} }
	s, err = i.CheckStore(t.Context(), url)
	require.NoError(t, err)
	require.True(t, s.Failed())
	require.Positive(t, s.count(CheckFailed))
	require.Less(t, s.count(CheckFailed), s.count(CheckOK))
	require.Len(t, s.Lines(), 1+len(s.Checks))
	require.Contains(t, s.Tables()[1].Note, "failed")

	layer = wrap.ReadOnly
	_, err = i.CheckStore(t.Context(), url)
	require.ErrorIs(t, err, inflight.ErrReadOnly)

	b, err := backends.Open(t.Context(), url)
	require.NoError(t, err)
	defer b.Close()
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		t.Error("left behind: ", info.Name)
	}
}

// TestManyConnections shows what is not proven first, and not all.
func TestManyConnections(t *testing.T) {
	var lines []ConnectionLine
	for k := range 200 {
		lines = append(lines, ConnectionLine{From: "a", FromSubtask: k, To: "b", Verdict: reader.Proven})
	}
	lines[150].Verdict, lines[150].Reason = reader.Violated, "3 bytes are missing"
	lines[199].Verdict = reader.NotProvable
	table := connectionTable(lines)
	require.Len(t, table.Rows, manyConnections)
	require.Equal(t, "a/150 partition 0", table.Rows[0].Cells[0])
	require.Equal(t, ToneError, table.Rows[0].Tone)
	require.Equal(t, "a/199 partition 0", table.Rows[1].Cells[0])
	require.Equal(t, "198 proven, 1 not provable, 1 violated (150 of them not shown)", table.Note)
	for _, r := range table.Rows {
		require.Len(t, r.Cells, len(table.Columns))
	}
}

func TestAncestor(t *testing.T) {
	slot := func(id inflight.CheckpointID, epoch inflight.Epoch, state catalog.State) catalog.Slot {
		return catalog.Slot{ID: id, State: state, Manifest: &format.Manifest{ID: id, Epoch: epoch}}
	}
	base := inflight.CheckpointID(1)
	before := []catalog.Slot{slot(1, 0, catalog.StateCompleted), slot(2, 0, catalog.StateCompleted), slot(3, 3, ""), slot(4, 3, catalog.StateAborted)}
	require.EqualValues(t, 1, ancestor(before, &format.Manifest{ID: 5, Epoch: 3, Base: &base}), "the first of a coordinator descends from its base")
	before = append(before, slot(5, 3, catalog.StateCompleted))
	require.EqualValues(t, 5, ancestor(before, &format.Manifest{ID: 6, Epoch: 3, Base: &base}))
	require.EqualValues(t, 7, ancestor(nil, &format.Manifest{ID: 7, Epoch: 3}), "itself: nothing to compare with")
}

func TestNotes(t *testing.T) {
	one := inflight.CheckpointID(1)
	for _, tc := range []struct {
		line CheckpointLine
		tone Tone
		note string
	}{
		{CheckpointLine{Kind: catalog.SlotClaim}, ToneQuiet, "a coordinator started afresh"},
		{CheckpointLine{Kind: catalog.SlotClaim, Base: &one}, ToneQuiet, "a coordinator started from 1"},
		{CheckpointLine{Kind: catalog.SlotClaim, Base: &one, PassedOver: []inflight.CheckpointID{2, 3}}, ToneQuiet, "a coordinator went back to 1, over 2 3"},
		{CheckpointLine{State: catalog.StateFailed, Reason: "io", Text: "disk"}, ToneQuiet, "io: disk"},
		{CheckpointLine{State: catalog.StateAborted, Reason: "subsumed"}, ToneQuiet, "subsumed"},
		{CheckpointLine{State: catalog.StatePending, leftovers: 2}, ToneWarning, "not committed: somebody may be writing it; 2 leftovers of unfinished writers"},
		{CheckpointLine{State: catalog.StateOrphaned}, ToneWarning, "files of a coordinator that is over: gc deletes them"},
		{CheckpointLine{State: catalog.StateCompleted}, ToneGood, ""},
		{CheckpointLine{State: catalog.StateCompleted, leftovers: 1}, ToneGood, "1 leftover of unfinished writers"},
		{CheckpointLine{State: catalog.StateCompleted, Text: "the file is missing"}, ToneError, "the file is missing"},
		{CheckpointLine{State: catalog.StateDamaged, Text: "torn"}, ToneError, "torn"},
	} {
		require.Equal(t, tc.note, tc.line.note())
		require.Equal(t, tc.tone, tc.line.tone(), tc.note)
		require.Len(t, tc.line.row().Cells, 11)
	}
}

// TestRoundtripDifferences replays by hand, each time in another wrong way.
func TestRoundtripDifferences(t *testing.T) {
	task := inflight.Task{Vertex: "count"}
	ch := inflight.InputChannel{Gate: 0, Channel: 1}
	at := func(offset uint64) inflight.Pos { return inflight.Pos{Epoch: 1, Offset: offset, Seq: offset} }
	captured := []reader.Entry{
		{Address: ch.Address(), Buffers: 2, Bytes: 4, Digest: format.Digest(0).Add([]byte("abcd")), Start: at(10), End: inflight.Pos{Epoch: 1, Offset: 14, Seq: 12}},
		{Address: inflight.StateName("s").Address(), Buffers: 1, Bytes: 1, Digest: format.Digest(0).Add([]byte("s"))},
		{Address: inflight.Subpartition{}.Address()}, // nothing but a cut
	}
	buffer := func(text string) *reader.Buffer { return &reader.Buffer{Bytes: []byte(text)} }
	state := func(s *memorySink) { require.NoError(t, s.State(t.Context(), "s", buffer("s"))) }
	in := func(s *memorySink, offset uint64, text string) {
		pos := inflight.Pos{Epoch: 1, Offset: offset, Seq: offset}
		if offset == 12 {
			pos.Seq = 11
		}
		require.NoError(t, s.Input(t.Context(), ch, pos, buffer(text)))
	}
	for name, tc := range map[string]struct {
		replay func(s *memorySink)
		want   []string
	}{
		"right":            {func(s *memorySink) { state(s); in(s, 10, "ab"); in(s, 12, "cd") }, nil},
		"nothing":          {func(*memorySink) {}, []string{"2 buffers and 4 bytes were captured, 0 and 0 replayed", "1 buffers and 1 bytes were captured, 0 and 0 replayed"}},
		"one lost":         {func(s *memorySink) { state(s); in(s, 10, "ab") }, []string{"2 buffers and 4 bytes were captured, 1 and 2 replayed"}},
		"cut anew":         {func(s *memorySink) { state(s); in(s, 10, "abcd") }, []string{"2 buffers and 4 bytes were captured, 1 and 4 replayed"}},
		"another byte":     {func(s *memorySink) { state(s); in(s, 10, "ab"); in(s, 12, "cX") }, []string{"the replayed bytes have another digest"}},
		"another order":    {func(s *memorySink) { state(s); in(s, 12, "cd"); in(s, 10, "ab") }, []string{"the replayed bytes have another digest"}},
		"another place":    {func(s *memorySink) { state(s); in(s, 11, "ab"); in(s, 13, "cd") }, []string{"captured from 1/10#10 to 1/14#12, replayed from 1/11#11 to 1/15#14"}},
		"input before all": {func(s *memorySink) { in(s, 10, "ab"); in(s, 12, "cd"); state(s) }, []string{`state "s" came behind its turn`}},
		"too much": {func(s *memorySink) {
			state(s)
			require.NoError(t, s.Output(t.Context(), inflight.Subpartition{Partition: 3}, at(0), buffer("x")))
			in(s, 10, "ab")
			in(s, 12, "cd")
		}, []string{"it was replayed and had not been captured"}},
		"after the end": {func(s *memorySink) {
			state(s)
			in(s, 10, "ab")
			require.NoError(t, s.Done(t.Context()))
			in(s, 12, "cd")
		}, []string{"gate 0 channel 1 came behind its turn"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &memorySink{channels: map[inflight.Address]*memoryChannel{}}
			tc.replay(s)
			require.NoError(t, s.Done(t.Context()))
			r := new(Roundtrip)
			r.compare(task, captured, s)
			var texts []string
			for _, f := range r.Findings {
				require.Equal(t, CodeReplay, f.Code)
				require.Equal(t, &task, f.Task)
				texts = append(texts, f.Text)
			}
			require.Equal(t, tc.want, texts)
			require.Equal(t, tc.want != nil, r.Failed())
			require.Len(t, r.Tables(), 1+min(1, len(texts)))
		})
	}
	r := new(Roundtrip)
	r.compare(task, captured, &memorySink{})
	require.Equal(t, "the replay did not come to its end", r.Findings[0].Text)
}

// TestHostileManifest is small, and asks for a lot.
func TestHostileManifest(t *testing.T) {
	b := mem.New(mem.Options{})
	m := checkpointEntry("words", 1)
	for v := range 1000 {
		m.Topology.Vertices = append(m.Topology.Vertices, format.Vertex{ID: fmt.Sprint(v), Parallelism: 50000})
	}
	_, err := format.EncodeManifest(m)
	require.ErrorContains(t, err, "more than 1048576 subtasks")
	for v := range m.Topology.Vertices {
		m.Topology.Vertices[v].Parallelism = 1
	}
	p, err := format.EncodeManifest(m)
	require.NoError(t, err)
	p = bytes.ReplaceAll(p, []byte(`"parallelism":1`), []byte(`"parallelism":50000`))
	const tail = `01234567"}` + "\n"
	p = fmt.Appendf(p[:len(p)-len(tail)], "%08x\"}\n", format.Checksum(p[:len(p)-len(tail)]))
	statetest.Put(t, b, "words/chk-0000000001/_manifest.json", p)
	i := New(Options{Open: func(context.Context, string) (backends.Backend, error) { return b, nil }})
	target, err := i.Find(t.Context(), "mem://x", "words")
	require.NoError(t, err)
	_, err = i.Show(t.Context(), target, ShowOptions{})
	require.ErrorIs(t, err, inflight.ErrDamaged)
	require.Equal(t, ExitFindings, ExitCode(err))
	_, err = i.Roundtrip(t.Context(), target)
	require.ErrorIs(t, err, inflight.ErrDamaged)
	for _, all := range []bool{false, true} {
		require.NoError(t, i.Verify(t.Context(), target, VerifyOptions{All: all}, func(v *Verification) error {
			require.Len(t, v.Findings, 1)
			require.Equal(t, format.CodeManifest, v.Findings[0].Code)
			require.Equal(t, "manifest: more than 1048576 subtasks", v.Findings[0].Text)
			return nil
		}))
	}
	list, err := i.List(t.Context(), target)
	require.NoError(t, err)
	require.Len(t, list.Checkpoints, 1)
}
