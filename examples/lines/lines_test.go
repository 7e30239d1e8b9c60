package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

var crashRounds = flag.Int("crash-rounds", 6, "how often TestCrashKill kills the program with -9")

// asProgram makes the test binary the program: it runs what the arguments say,
// and verifies each checkpoint that it commits.
const asProgram = "LINES_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		store := os.Args[slices.Index(os.Args, "--store")+1]
		standard.options.Observer = &verifier{open: func() (backends.Backend, error) { return backends.Open(context.Background(), store) }, fail: func(why string) {
			fmt.Fprintln(os.Stderr, "not conserved:", why)
			os.Exit(3)
		}}
		main()
		os.Exit(0)
	}
	log.SetOutput(io.Discard)
	backends.Register("test", func(_ context.Context, u *url.URL) (backends.Backend, error) {
		return unclosed{stores[u.Host]}, nil
	})
	goleak.VerifyTestMain(m)
}

// stores are those that test:// URLs name. They survive the job's Close.
var stores = map[string]backends.Backend{}

type unclosed struct{ backends.Backend }

func (unclosed) Close() error { return nil }

// verifier verifies every checkpoint that is committed, and proves that it
// conserves every byte and record, since the one that was restored.
type verifier struct {
	open func() (backends.Backend, error)
	fail func(why string)

	mu       sync.Mutex
	last     []reader.Flow
	verified int
	aborted  []error
}

func (v *verifier) Observe(e inflight.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var err error
	switch e.Name {
	case inflight.EventClaimed:
		err = v.verify(nil)
	case inflight.EventAborted:
		v.aborted = append(v.aborted, e.Err)
	case inflight.EventCommitted:
		v.verified++
		err = v.verify(&e.Checkpoint)
	}
	if err != nil && !v.superseded(e.Checkpoint) {
		v.fail(err.Error())
	}
}

// superseded reports whether another coordinator has claimed the job since
// checkpoint id, and so may have deleted it.
func (v *verifier) superseded(id inflight.CheckpointID) bool {
	b, err := v.open()
	if err != nil {
		return false
	}
	defer b.Close()
	l, err := catalog.Open(b, "lines", catalog.Options{})
	if err != nil {
		return false
	}
	slots, err := l.List(context.Background())
	if err != nil || len(slots) == 0 {
		return false
	}
	last := slots[len(slots)-1].Manifest
	return last != nil && (last.Kind == format.KindClaim && last.ID > id || last.Epoch > inflight.Epoch(id))
}

// verify verifies a checkpoint; nil is the one to be restored.
func (v *verifier) verify(id *inflight.CheckpointID) error {
	b, err := v.open()
	if err != nil {
		return err
	}
	defer b.Close()
	ctx := context.Background()
	if id == nil {
		l, err := catalog.Open(b, "lines", catalog.Options{})
		if err != nil {
			return err
		}
		c, err := l.Latest(ctx)
		if err != nil {
			return nil // there is none
		}
		id = &c.Manifest.ID
	}
	r := reader.Open(b, "lines", reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(ctx, format.CheckpointDir(*id))
	if err != nil {
		return err
	}
	report, err := c.Verify(ctx, reader.VerifyOptions{Records: true})
	if err != nil {
		return err
	}
	for i := range report.Flows {
		if f := &report.Flows[i]; f.Verdict != reader.Proven || !f.RecordsProven {
			return fmt.Errorf("checkpoint %d:\n%s", *id, reader.Table(report.Flows))
		}
	}
	back := reader.Regressed(v.last, report.Flows)
	if want := connections(c.Manifest.Topology); report.Failed() || len(report.Flows) != want || len(back) > 0 {
		return fmt.Errorf("checkpoint %d: %d of %d connections: %v, went back: %v", *id, len(report.Flows), want, report.Findings, back)
	}
	v.last = report.Flows
	return nil
}

func connections(t *format.Topology) (n int) {
	for _, e := range t.Edges {
		n += t.Vertex(e.From).Parallelism * t.Vertex(e.To).Parallelism
	}
	return n
}

// ledger counts buffers.
type ledger struct{ made, released, twice atomic.Int64 }

type counted struct {
	bytes []byte
	l     *ledger
	gone  atomic.Bool
}

func (c *counted) Bytes() []byte { return c.bytes }

func (c *counted) Release() {
	if c.gone.Swap(true) {
		c.l.twice.Add(1)
	}
	c.l.released.Add(1)
}

func (l *ledger) buffer(b []byte) inflight.Buffer {
	l.made.Add(1)
	return &counted{bytes: b, l: l}
}

func (l *ledger) balanced(t require.TestingT) {
	require.Equal(t, l.made.Load(), l.released.Load(), "buffers released")
	require.Zero(t, l.twice.Load(), "buffers released twice")
}

// requirer is a testing.TB or a rapid.T.
type requirer interface {
	require.TestingT
	Error(...any)
	Context() context.Context
}

// trial is one run of the program in this process, on a store of its own.
type trial struct {
	t        requirer
	text     string
	input    string
	output   string
	interval time.Duration
	sleep    time.Duration
	store    backends.Backend // as the program sees it
	truth    backends.Backend // without faults
	verified int
	aborted  []error // checkpoints of the last run
}

func newTrial(t testing.TB, text string) *trial {
	return newTrialIn(t, t.TempDir(), text)
}

func newTrialIn(t requirer, dir, text string) *trial {
	m := mem.New(mem.Options{})
	r := &trial{t: t, text: text, input: filepath.Join(dir, "input"), output: filepath.Join(dir, "output"), interval: 20 * time.Millisecond, store: m, truth: m}
	require.NoError(t, os.WriteFile(r.input, []byte(text), 0o600))
	return r
}

// run runs the program, and checks each checkpoint and that each buffer was
// released once.
func (r *trial) run(ctx context.Context, from string) (code int, err error) {
	require.NoError(r.t, os.RemoveAll(r.output))
	stores["trial"] = r.store
	v := &verifier{open: func() (backends.Backend, error) { return unclosed{r.truth}, nil }, fail: func(why string) { r.t.Error("not conserved: " + why) }}
	l, c := new(ledger), standard
	c.store, c.input, c.output, c.interval, c.sleep = "test://trial", r.input, r.output, r.interval, r.sleep
	require.NoError(r.t, c.options.Start.Base.UnmarshalText([]byte(from)))
	c.options.Observer, c.buffer = v, l.buffer
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a record that was lost is waited for
	defer cancel()
	if code, err = run(ctx, c); err == nil {
		code = 0
	}
	l.balanced(r.t)
	r.verified, r.aborted = r.verified+v.verified, v.aborted
	for _, err := range v.aborted {
		require.NotContains(r.t, err.Error(), "timeout") // no store here hangs
	}
	return code, err
}

// runs runs the program on a store without faults: it comes to its end, the
// output is right, and no checkpoint fails.
func (r *trial) runs(from string) {
	code, err := r.run(r.t.Context(), from)
	require.NoError(r.t, err)
	require.Zero(r.t, code)
	require.Empty(r.t, r.aborted)
	r.exact()
}

// exact checks that the output is there and right.
func (r *trial) exact() {
	got, err := os.ReadFile(r.output)
	require.NoError(r.t, err)
	require.Equal(r.t, expected(r.text), string(got))
}

// expected counts in the plain way.
func expected(text string) string {
	n := map[string]int{}
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) }) {
		n[w]++
	}
	var lines []string
	for w, n := range n {
		lines = append(lines, fmt.Sprintf("%s\t%d\n", w, n))
	}
	slices.SortFunc(lines, func(a, b string) int {
		return strings.Compare(a[:strings.LastIndexByte(a, '\t')], b[:strings.LastIndexByte(b, '\t')])
	})
	return strings.Join(lines, "")
}

// someText returns n words in lines.
func someText(n int) string {
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "w%d%s", rng.IntN(1+n/5), []string{" ", " ", "\n", "\t", "  ", "\r\n"}[rng.IntN(6)])
	}
	return b.String()
}

func TestCounts(t *testing.T) {
	for _, tc := range []struct{ name, text string }{
		{"nothing", ""},
		{"white space only", " \n\t\v\f\r\n\n"},
		{"one word", "word"},
		{"no newline at the end", "a b\nb c"},
		{"all kinds of white space", "a b\tc\nd\ve\ff\rg\r\nh"},
		{"other spaces are letters", "a\u00a0b\u2003c a\u0085b"},
		{"bytes that are no text", "\xff\xfe \x00\x01 \xc3 \xc3\xa9 \xff\xfe"},
		{"a long line", strings.Repeat("x y ", 10_000)},
		{"a long word", strings.Repeat("z", 1<<20) + " " + strings.Repeat("z", 1<<20)},
		{"a book", someText(5000)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newTrial(t, tc.text)
			r.interval = time.Millisecond
			r.runs("none")
			require.NotZero(t, r.verified)
		})
	}
}

func TestCountsOfAnything(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		r := newTrialIn(rt, dir, string(rapid.SliceOfN(rapid.SampledFrom([]byte("ab \n\t\r\x00\xff")), 0, 300).Draw(rt, "text")))
		r.runs("latest")
	})
}

// TestOvertakes shows, on a clock that runs only while everybody waits, that a
// checkpoint takes no longer than the processing of a record, whatever is queued.
func TestOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrial(t, someText(4000))
		r.interval, r.sleep = 100*time.Millisecond, 5*time.Millisecond
		var checkpoints, input, output uint64
		begun := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		r.store = observed{r.store, func(m *format.Manifest) {
			checkpoints++
			for _, h := range m.Handles {
				input, output = input+h.InputBytes, output+h.OutputBytes
			}
			// 2 × 1000 records wait for the two that count: 5 s of work.
			require.WithinDuration(t, begun.Add(time.Duration(checkpoints)*r.interval), time.Now(), 40*time.Millisecond)
			if checkpoints == 8 {
				stop()
			}
		}}
		code, err := r.run(ctx, "none")
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, code)
		require.Greater(t, input, uint64(8*4000))
		require.Greater(t, output, uint64(8*1000))
	})
}

// observed is a store that tells of the checkpoints that are committed on it.
type observed struct {
	backends.Backend
	committed func(*format.Manifest)
}

func (o observed) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	obj, err := o.Backend.Create(ctx, name, opt)
	if err != nil || filepath.Base(name) != format.ManifestName {
		return obj, err
	}
	return &observedObject{Object: obj, committed: o.committed}, nil
}

type observedObject struct {
	backends.Object
	text      bytes.Buffer
	committed func(*format.Manifest)
}

func (o *observedObject) Write(p []byte) (int, error) {
	o.text.Write(p)
	return o.Object.Write(p)
}

func (o *observedObject) Finish(ctx context.Context) (backends.Info, error) {
	info, err := o.Object.Finish(ctx)
	if m, decoded := format.DecodeManifest(o.text.Bytes()); err == nil && decoded == nil && m.Kind == format.KindCheckpoint {
		o.committed(m)
	}
	return info, err
}

// TestShort holds that the program is no more than 300 lines of code: without
// blank lines, comments and imports.
func TestShort(t *testing.T) {
	n := 0
	for _, name := range []string{"main.go", "coordinator.go", "pipeline.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		_, text, found := bytes.Cut(text, []byte("\n)\n")) // the end of the imports
		require.True(t, found)
		n++ // package
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
	}
	t.Logf("%d lines", n)
	require.Greater(t, n, 270)
	require.LessOrEqual(t, n, 300)
}
