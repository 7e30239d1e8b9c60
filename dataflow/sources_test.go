package dataflow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

// pull runs a source alone, up to n records, and returns them and its state.
func pull(t require.TestingT, s Source, task inflight.Task, parallelism, n int, state map[inflight.StateName][]byte) (out []string, after map[inflight.StateName][]byte, err error) {
	p := &partition{full: new(bool), pool: newPool(1, 1<<20, 1<<20, 0, 1<<10, 0), selector: func([]byte) int { return 0 }}
	p.pool.owner = wakeFunc(func() {})
	sub := &subpartition{part: p, notify: func(bool) {}}
	p.subs = []*subpartition{sub}
	tk := newTestTask(task, s, p, state)
	tk.ctx = &Context{Task: task, Parallelism: parallelism, t: tk}
	if err := s.Open(tk.ctx); err != nil {
		return nil, nil, err
	}
	for range n {
		st, err := s.Next(tk.ctx)
		if err != nil {
			return out, nil, err
		}
		if st.Why != Ready {
			break
		}
	}
	sub.finish()
	var d deserializer
	for sub.q.n > 0 {
		for d.feed(sub.q.pop().view); d.has(); {
			b, err := d.next()
			require.NoError(t, err)
			if b != nil {
				out = append(out, string(b[1:]))
				d.done()
			}
		}
	}
	after = map[inflight.StateName][]byte{}
	for _, ns := range tk.states {
		after[ns.name] = encoded(ns.s.Freeze())
	}
	require.NoError(t, s.Close())
	return out, after, nil
}

func newTestTask(id inflight.Task, s Source, p *partition, state map[inflight.StateName][]byte) *task {
	return &task{id: id, exec: NewSeeded(1), src: s, out: []*partition{p}, restored: state, opts: &Options{}}
}

// TestLineFile reads files of any lines in any number of ranges, with a
// restore in between: every line once.
func TestLineFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.StringMatching(`[a-c]{0,6}`), 0, 30).Draw(t, "lines")
		if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
			lines = append(lines, strings.Repeat("x", readChunk*3))
		}
		text := strings.Join(lines, "\n")
		if len(lines) > 0 && (lines[len(lines)-1] == "" || rapid.Bool().Draw(t, "newline at the end")) {
			text += "\n"
		}
		n := rapid.IntRange(1, 5).Draw(t, "subtasks")
		cut := rapid.IntRange(0, 10).Draw(t, "cut")
		var got []string
		for i := range n {
			file := func() Source {
				return &LineFile{Connect: func() (io.ReaderAt, int64, error) {
					return strings.NewReader(text), int64(len(text)), nil
				}}
			}
			first, state, err := pull(t, file(), inflight.Task{Subtask: i}, n, cut, nil)
			require.NoError(t, err)
			rest, _, err := pull(t, file(), inflight.Task{Subtask: i}, n, 1000, state)
			require.NoError(t, err)
			got = append(append(got, first...), rest...)
		}
		require.True(t, slices.Equal(lines, got), "%q → %q", lines, got)
	})
}

func TestLineFileBecomesShorter(t *testing.T) {
	file := &LineFile{Connect: func() (io.ReaderAt, int64, error) { return strings.NewReader("ab\ncd"), 50, nil }}
	_, _, err := pull(t, file, inflight.Task{}, 1, 9, nil)
	require.ErrorIs(t, err, inflight.ErrTorn)
}

// TestLineFileIsAnother: the ranges of the subtasks depend on the length of the file.
func TestLineFileIsAnother(t *testing.T) {
	file := func(text string) Source {
		return &LineFile{Connect: func() (io.ReaderAt, int64, error) { return strings.NewReader(text), int64(len(text)), nil }}
	}
	_, state, err := pull(t, file("a\nb\nc\n"), inflight.Task{}, 1, 1, nil)
	require.NoError(t, err)
	for _, text := range []string{"a\nb\n", "a\nb\nc\nd\n", ""} {
		_, _, err = pull(t, file(text), inflight.Task{}, 1, 9, state)
		require.ErrorIs(t, err, inflight.ErrMismatch, text)
		require.ErrorContains(t, err, "give it the file that the checkpoint had read")
	}
	_, _, err = pull(t, file("a\nb\nc\n"), inflight.Task{}, 1, 9, state)
	require.NoError(t, err)
}

func TestKeysOfLines(t *testing.T) {
	require.Equal(t, "x", string(JSONKey("id")([]byte(`{"id":"x","n":1}`)).Bytes))
	require.Equal(t, "1", string(JSONKey("n")([]byte(`{"id":"x","n":1}`)).Bytes))
	require.Empty(t, JSONKey("m")([]byte(`{"id":"x"}`)).Bytes)
	require.Empty(t, JSONKey("m")([]byte(`no JSON`)).Bytes)
	require.Equal(t, LineKey([]byte("hello")).Hash, int32(99162322))
}

// memoryLog is a PartitionedLog whose oldest records go.
type memoryLog struct {
	partitions [][]string
	first      int64
	open       bool
}

func (l *memoryLog) Partitions() int { return len(l.partitions) }
func (l *memoryLog) Closed() bool    { return !l.open }
func (l *memoryLog) Range(p int) (int64, int64) {
	return l.first, int64(len(l.partitions[p]))
}
func (l *memoryLog) Read(p int, at int64) ([]byte, error) { return []byte(l.partitions[p][at]), nil }

func TestLogSource(t *testing.T) {
	log := &memoryLog{partitions: [][]string{{"a0", "a1", "a2"}, {"b0"}, {"c0", "c1", "c2"}}}
	got, state, err := pull(t, &LogSource{Log: log}, inflight.Task{Subtask: 0}, 2, 3, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"c0", "a0", "c1"}, got, "partitions 0 and 2, in turn")
	other, _, err := pull(t, &LogSource{Log: log}, inflight.Task{Subtask: 1}, 2, 9, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"b0"}, other)
	got, _, err = pull(t, &LogSource{Log: log}, inflight.Task{Subtask: 0}, 2, 9, state)
	require.NoError(t, err)
	require.Equal(t, []string{"c2", "a1", "a2"}, got)

	log.first = 2 // retention
	_, _, err = pull(t, &LogSource{Log: log}, inflight.Task{Subtask: 0}, 2, 9, state)
	require.ErrorIs(t, err, inflight.ErrRetired)
	require.ErrorContains(t, err, "position 1 of partition 0")
	require.ErrorContains(t, err, "restore a newer checkpoint")
}

func TestBlockingSource(t *testing.T) {
	source := func() Source {
		return &Blocking{Run: func(position int64, yield func(Record, int64) bool) {
			for n := position; n < 5; n++ {
				if !yield(Record{Body: fmt.Appendf(nil, "%d", n)}, n+1) {
					return
				}
			}
		}}
	}
	got, state, err := pull(t, source(), inflight.Task{}, 1, 2, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1"}, got)
	got, _, err = pull(t, source(), inflight.Task{}, 1, 9, state)
	require.NoError(t, err)
	require.Equal(t, []string{"2", "3", "4"}, got)
}

// TestBlockingSourceWaits has a source that waits for its input, on a goroutine
// of its own: a checkpoint does not wait for it, nor does the end of the job.
func TestBlockingSourceWaits(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		input := make(chan struct{})
		source := &Blocking{Waits: true, Interrupt: sync.OnceFunc(func() { close(input) }),
			Run: func(position int64, yield func(Record, int64) bool) {
				for n := position; n < 1000; n++ {
					if n == 500 {
						<-input
					}
					if !yield(Record{Body: fmt.Appendf(nil, "%d", n)}, n+1) {
						return
					}
				}
			}}
		var seen atomic.Int64
		g := NewGraph()
		g.Source("source", 1, func(int) Source { return source })
		g.Operator("sink", 1, FlatMap(func(_ *Context, r Record) error {
			if string(r.Body) != fmt.Sprint(seen.Load()) {
				return fmt.Errorf("record %s at %d", r.Body, seen.Load())
			}
			seen.Add(1)
			return nil
		}), From("source", Rebalance()))
		exec := NewGoroutines()
		end := make(chan error, 1)
		d, err := Deploy(exec, g, Options{Unaligned: true}, &nullStore{exec: exec}, func(err error) { end <- err })
		require.NoError(t, err)
		d.Start()
		require.Eventually(t, func() bool { return seen.Load() == 500 }, 10*time.Second, time.Millisecond)
		done := make(chan CheckpointResult, 1)
		d.Trigger(Request{}, func(r CheckpointResult) { done <- r })
		require.True(t, (<-done).Completed, "while the source waits")
		require.Equal(t, int64(500), source.at.V)
		if interrupted {
			d.Stop(inflight.ErrClosed)
			require.ErrorIs(t, <-end, inflight.ErrClosed)
		} else {
			input <- struct{}{}
			require.NoError(t, <-end)
			require.Equal(t, int64(1000), seen.Load())
		}
		exec.Wait()
	}
}

// TestGeneratedLog grows with time, loses its oldest records, and ends.
func TestGeneratedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &GeneratedLog{Count: 2, Since: time.Now(), Every: time.Second, Records: 5, Retain: 3,
			Body: func(p int, at int64) []byte { return fmt.Appendf(nil, "%d/%d", p, at) }}
		for _, want := range []string{"[0,1) false", "[1,4) false", "[2,5) true", "[2,5) true"} {
			first, end := l.Range(1)
			require.Equal(t, want, fmt.Sprintf("[%d,%d) %v", first, end, l.Closed()))
			time.Sleep(3500 * time.Millisecond)
		}
		require.Equal(t, 2, l.Partitions())
		body, err := l.Read(1, 4)
		require.NoError(t, err)
		require.Equal(t, "1/4", string(body))
		l.Records, l.Retain = -1, 0
		first, end := l.Range(0)
		require.Equal(t, []int64{0, 15}, []int64{first, end})
		require.False(t, l.Closed())
	})
}

func TestChangeEvent(t *testing.T) {
	got, _, err := pull(t, &Generator{Records: 3, Body: ChangeEvent(2)}, inflight.Task{}, 1, 9, nil)
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, "0", string(JSONKey("key")([]byte(got[2])).Bytes))
	require.Contains(t, got[2], `"before":{"id":0,"quantity":1},"after":{"id":0,"quantity":2}`)
}

func TestParseFault(t *testing.T) {
	f, err := ParseFault("source:0:stall@5s+12s")
	require.NoError(t, err)
	require.Equal(t, Fault{Task: inflight.Task{Vertex: "source"}, At: 5 * time.Second, For: 12 * time.Second}, f)
	f, err = ParseFault("cdc:2:disconnect@1m+1ms")
	require.NoError(t, err)
	require.True(t, f.Disconnect)
	f, err = ParseFault("source:0:gone@1s+2s")
	require.NoError(t, err)
	require.True(t, f.Gone)
	for _, bad := range []string{"", "source", "source:0:stall", "source:x:stall@1s+1s", "source:0:explode@1s+1s", "source:0:stall@1s", "source:-1:stall@1s+1s"} {
		_, err := ParseFault(bad)
		require.ErrorIs(t, err, inflight.ErrConfig, bad)
	}
}

// TestScript stalls a source and an operator, and disconnects a file.
func TestScript(t *testing.T) {
	connects := 0
	file := &LineFile{Connect: func() (io.ReaderAt, int64, error) {
		connects++
		return strings.NewReader("a\nb\nc\n"), 6, nil
	}}
	exec := NewSeeded(1)
	faults := []Fault{{Task: inflight.Task{Vertex: "source"}, Disconnect: true, At: 0, For: 3 * time.Second},
		{Task: inflight.Task{Vertex: "pass"}, At: 3 * time.Second, For: 2 * time.Second}}
	var seen []time.Duration
	g := NewGraph()
	g.Source("source", 1, func(int) Source { return ScriptedSource(file, faults) })
	g.Operator("pass", 1, func(int) Operator {
		return ScriptedOperator(FlatMap(func(c *Context, r Record) error {
			seen = append(seen, c.Now())
			return nil
		})(0), faults)
	}, From("source", Forward()))
	ended := false
	d, err := Deploy(exec, g, Options{}, nil, func(err error) { ended = err == nil })
	require.NoError(t, err)
	d.Start()
	require.True(t, exec.Run(time.Minute))
	require.True(t, ended)
	require.Len(t, seen, 3)
	require.GreaterOrEqual(t, seen[0], 3*time.Second)
	require.GreaterOrEqual(t, seen[1], 5*time.Second)
	require.Equal(t, 2, connects)
}

func TestFileSink(t *testing.T) {
	dir := Dir(t.TempDir())
	open := func(epoch inflight.Epoch, state map[inflight.StateName][]byte) (*FileSink, *Context, *task) {
		s := &FileSink{Files: dir}
		tk := &task{restored: state}
		c := &Context{Epoch: epoch, t: tk}
		require.NoError(t, s.Open(c))
		return s, c, tk
	}
	write := func(s *FileSink, c *Context, lines ...string) {
		for _, l := range lines {
			require.NoError(t, s.Process(c, Record{Body: []byte(l)}))
		}
	}
	files := func() (out []string) {
		names, _ := filepath.Glob(string(dir) + "/part-*")
		for _, n := range names {
			b, err := os.ReadFile(n)
			require.NoError(t, err)
			out = append(out, filepath.Base(n)+": "+string(bytes.ReplaceAll(bytes.TrimSpace(b), []byte("\n"), []byte(","))))
		}
		return out
	}
	s, c, tk := open(1, nil)
	require.NoError(t, s.Prepare(c, 2), "nothing written: no file")
	write(s, c, "a", "b")
	require.NoError(t, s.Prepare(c, 3))
	state := map[inflight.StateName][]byte{"transactions": encoded(tk.states[0].s.Freeze())}
	write(s, c, "c")
	require.NoError(t, s.Prepare(c, 4)) // given up; the next one makes it good
	write(s, c, "d")
	require.Empty(t, files(), "pre-committed is hidden")

	// A restore of 3 commits what it holds and rolls back the rest.
	_, _, _ = open(2, state)
	require.Equal(t, []string{"part-0000000003-0000.tsv: a,b"}, files())
	pending, err := dir.Pending()
	require.NoError(t, err)
	require.Empty(t, pending)

	// Doing it twice is doing it once; transactions of greater epochs stay.
	require.NoError(t, os.WriteFile(string(dir)+"/"+pendingPrefix+"9-0-0", nil, 0o600))
	require.NoError(t, os.WriteFile(string(dir)+"/"+pendingPrefix+"1-1-0", nil, 0o600))
	s, c, _ = open(3, state)
	pending, err = dir.Pending()
	require.NoError(t, err)
	require.Len(t, pending, 2, "a greater epoch's, and another subtask's")

	// A lost notification is made good by the next one.
	write(s, c, "e")
	require.NoError(t, s.Prepare(c, 6))
	write(s, c, "f")
	require.NoError(t, s.Prepare(c, 7))
	require.NoError(t, s.Complete(c, 7))
	require.NoError(t, s.Complete(c, 7))
	require.Equal(t, []string{"part-0000000003-0000.tsv: a,b", "part-0000000006-0000.tsv: e", "part-0000000007-0000.tsv: f"}, files())

	// A sink that loses its connection goes on with its file.
	write(s, c, "g")
	require.NoError(t, s.Disconnect())
	require.NoError(t, s.Disconnect())
	write(s, c, "h")
	require.NoError(t, s.Disconnect())
	require.NoError(t, s.Prepare(c, 8))
	require.NoError(t, s.Complete(c, 8))
	require.Equal(t, "part-0000000008-0000.tsv: g,h", files()[3])
	write(s, c, "i")
	require.NoError(t, s.Disconnect())
	require.NoError(t, s.Close())

	// A second transaction of one checkpoint is refused.
	require.NoError(t, os.WriteFile(string(dir)+"/other", []byte("x"), 0o600))
	require.ErrorIs(t, dir.Commit("other", "part-0000000007-0000.tsv"), os.ErrExist)
	require.ErrorIs(t, dir.Commit("nowhere", "part-9"), os.ErrNotExist)
}

type closeBuffer struct{ bytes.Buffer }

func (*closeBuffer) Close() error { return nil }

func TestPlainSink(t *testing.T) {
	var out closeBuffer
	s := &PlainSink{Append: func(int) (io.WriteCloser, error) { return &out, nil }}
	c := &Context{t: &task{}}
	require.NoError(t, s.Open(c))
	require.NoError(t, s.Process(c, Record{Body: []byte("a")}))
	require.NoError(t, s.Prepare(c, 1))
	require.Equal(t, "a\n", out.String(), "visible without a commit")
	require.NoError(t, s.Disconnect())
	require.NoError(t, s.Process(c, Record{Body: []byte("b")}))
	require.NoError(t, s.Prepare(c, 2))
	require.Equal(t, "a\nb\n", out.String(), "opened again")
	require.NoError(t, s.Close())
	require.NoError(t, (&PlainSink{}).Close())
	broken := &PlainSink{Append: func(int) (io.WriteCloser, error) { return nil, errors.New("no") }}
	require.Error(t, broken.Open(c))
}
