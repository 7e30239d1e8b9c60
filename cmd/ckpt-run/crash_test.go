package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/dataflow"
)

// thorough asks for the long form of a test.
var thorough = os.Getenv("SPILLWAY_CRASH") != ""

// The scheme of a store that has its process stopped at an operation: it says
// so, and goes on when it has got a byte on its stdin. pausing:///dir?at=12, or ?at=12&after=1 behind it,
// or ?at=2&of=remove.
func init() {
	backends.Register("pausing", func(ctx context.Context, u *url.URL) (backends.Backend, error) {
		b, err := backends.Open(ctx, u.Path)
		if err != nil {
			return nil, err
		}
		at, err := strconv.Atoi(u.Query().Get("at"))
		if err != nil {
			return nil, err
		}
		after := u.Query().Has("after")
		when := wrap.AtOp(at)
		if op := wrap.Op(u.Query().Get("of")); op != "" {
			when = wrap.Nth(at, wrap.On(op))
		}
		return wrap.NewFaults(b, wrap.Rule{When: when, Then: func(_ context.Context, _ *wrap.Faults, c *wrap.Call, do func() error) (err error) {
			if after {
				err = do()
			}
			fmt.Fprintln(os.Stderr, "at rest:", c.Op, c.Name)
			if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
				return err
			}
			if !after {
				err = do()
			}
			return err
		}}), nil
	})
}

// trial is lines to count, and where.
type trial struct {
	t                    *testing.T
	input, output, store string
	want                 map[string]int
	args                 []string
}

// newTrial makes lines of some hundred keys, of which a few are frequent.
func newTrial(t *testing.T, lines int, args ...string) *trial {
	dir := t.TempDir()
	r := &trial{t: t, input: dir + "/words", output: dir + "/counts", store: dir + "/store", want: map[string]int{}, args: args}
	var b strings.Builder
	for range lines {
		key := fmt.Sprintf("key %d %s", rand.IntN(1+rand.IntN(400)), strings.Repeat("x", rand.IntN(60)))
		key = key[:min(len(key), 40)]
		r.want[key]++
		fmt.Fprintln(&b, key)
	}
	require.NoError(t, os.WriteFile(r.input, []byte(b.String()), 0o600))
	return r
}

// program is a run in a process of its own.
type program struct {
	*exec.Cmd
	t      *testing.T
	stdin  io.WriteCloser
	stdout bytes.Buffer

	mu     sync.Mutex
	stderr bytes.Buffer
	lines  chan string // of stderr
	ended  chan struct{}
}

func (r *trial) start(store string, args ...string) *program {
	exe, err := os.Executable()
	require.NoError(r.t, err)
	args = slices.Concat([]string{"--input", r.input, "--output", r.output, "--store", store, "--json"}, r.args, args)
	p := &program{Cmd: exec.CommandContext(r.t.Context(), exe, args...), t: r.t, lines: make(chan string, 10_000), ended: make(chan struct{})}
	p.Env = append(os.Environ(), asCommand+"=1")
	p.Stdout, p.Stderr = &p.stdout, p
	p.stdin, err = p.StdinPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, p.Start())
	go func() {
		_ = p.Wait() // the code tells
		close(p.ended)
	}()
	return p
}

// Write takes stderr, line by line.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stderr.Write(b)
	for line := range strings.Lines(string(b)) {
		select {
		case p.lines <- line:
		default:
		}
	}
	return len(b), nil
}

// said waits for a line with text; false: the process has ended without.
func (p *program) said(text string) bool {
	for {
		select {
		case line := <-p.lines:
			if strings.Contains(line, text) {
				return true
			}
		case <-p.ended:
			return false
		case <-time.After(time.Minute):
			_ = p.Process.Kill()
			require.Failf(p.t, "it hangs", "neither %q nor the end: %s", text, p.stderr.String())
		}
	}
}

// end waits for the end, and returns the exit code and what was said last.
func (p *program) end() (code int, last string) {
	p.said("\x00") // nobody says that
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	return p.ProcessState.ExitCode(), lines[len(lines)-1]
}

// result returns the line of that event.
func (p *program) result() (l resultLine) {
	for line := range bytes.Lines(p.stdout.Bytes()) {
		if bytes.HasPrefix(line, []byte(`{"event":"result"`)) {
			require.NoError(p.t, json.Unmarshal(line, &l))
		}
	}
	require.Equal(p.t, "result", l.Event, p.stdout.String())
	return l
}

// exact compares the output: each key was counted 1, 2, 3, … to its number of
// lines, each of them once, in the order of the files.
func (r *trial) exact() {
	got := map[string]int{}
	names, err := filepath.Glob(r.output + "/part-*.tsv")
	require.NoError(r.t, err)
	for _, name := range names { // in order
		data, err := os.ReadFile(name)
		require.NoError(r.t, err)
		for line := range strings.Lines(string(data)) {
			key, count, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			require.True(r.t, ok, line)
			n, err := strconv.Atoi(count)
			require.NoError(r.t, err)
			got[key]++
			require.Equal(r.t, got[key], n, "%s: %s", name, key)
		}
	}
	require.Equal(r.t, r.want, got)
}

// tidy checks that nothing is pending.
func (r *trial) tidy() {
	pending, err := dataflow.Dir(r.output).Pending()
	require.NoError(r.t, err)
	require.Empty(r.t, pending)
}

var crashModes = [][]string{
	{"aligned"}, {"unaligned", "--network", "credit"}, {"mixed", "--aligned-timeout", "15ms"},
	{"unaligned"}, {"aligned", "--network", "credit"}, {"mixed", "--aligned-timeout", "15ms", "--network", "credit"},
}

// TestCrash kills the command with -9 at random moments, restores it, and
// compares when it comes to an end.
func TestCrash(t *testing.T) {
	modes, kills, lines := crashModes[:3], 3, 1500
	if thorough {
		modes, kills, lines = crashModes, 50, 12_000
	}
	for _, mode := range modes {
		t.Run(strings.Join(mode, " "), func(t *testing.T) {
			t.Parallel()
			r := newTrial(t, lines, slices.Concat(mode, []string{"--sleep", "500us", "--interval", "20ms", "--set", "network.buffer-size=2kb"})...)
			var replayed uint64
			for n := 0; ; {
				p := r.start(r.store, "--restore", "latest")
				if n < kills {
					time.AfterFunc(time.Duration(rand.IntN(500))*time.Millisecond, func() { _ = p.Process.Kill() })
				}
				code, last := p.end()
				if code == -1 {
					n++
					continue
				}
				require.Zero(t, code, last)
				l := p.result()
				require.Zero(t, l.Lost+l.Duplicated)
				replayed += l.ReplayedBytes
				r.exact()
				r.tidy()
				if n == kills {
					break
				}
				r.store += "+" // it was faster: once more
				require.NoError(t, os.RemoveAll(r.output))
			}
			t.Logf("%d kills, %d bytes replayed by the last run", kills, replayed)
		})
	}
}

// TestZombie stops a run at an operation of its store, has another one take
// over and come to its end, and wakes the first one up: it is fenced, and the
// output is exact.
func TestZombie(t *testing.T) {
	t.Parallel()
	moments := []int{2, 9, 30, 47}
	if thorough {
		moments = nil
		for at := 1; at < 120; at++ {
			moments = append(moments, at)
		}
	}
	fenced := 0
	for i, at := range moments {
		when := fmt.Sprintf("?at=%d", at)
		if i%2 == 1 {
			when += "&after=1"
		}
		r := newTrial(t, 400, crashModes[i%len(crashModes)]...)
		r.args = append(r.args, "--sleep", "500us", "--interval", "20ms", "--set", "network.buffer-size=2kb")
		zombie := r.start("pausing://" + r.store + when)
		if !zombie.said("at rest") {
			code, last := zombie.end()
			require.Zero(t, code, last)
			r.exact() // it had no such operation
			continue
		}
		require.NoError(t, zombie.Process.Signal(syscall.SIGSTOP))
		heir := r.start(r.store, "--restore", "latest")
		code, last := heir.end()
		require.Zero(t, code, last)
		before := r.files()
		require.NoError(t, zombie.Process.Signal(syscall.SIGCONT))
		_, err := zombie.stdin.Write([]byte{0})
		require.NoError(t, err)
		code, last = zombie.end()
		switch {
		case code == 1:
			require.Contains(t, last, "fenced", when)
			require.Equal(t, before, r.files(), when)
			fenced++
		default: // it had not claimed the job before, and was started afresh now; or it had come to its end
			require.Zero(t, code, "%s: %s", when, last)
			if at < 9 {
				continue
			}
			require.Equal(t, before, r.files(), when)
		}
		r.exact()
	}
	require.GreaterOrEqual(t, fenced, min(2, len(moments)))
	t.Logf("%d times fenced", fenced)
}

// files are the names in the output.
func (r *trial) files() (names []string) {
	require.NoError(r.t, filepath.WalkDir(r.output, func(path string, _ fs.DirEntry, err error) error {
		if !strings.Contains(path, ".pending") { // the zombie's own, which the next run rolls back
			names = append(names, path)
		}
		return err
	}))
	return names
}

// TestInterrupt: Ctrl-C and SIGTERM end a run cleanly, and its summary is printed.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		signal os.Signal
		code   int
		said   string
	}{
		{os.Interrupt, 130, "interrupted"},
		{syscall.SIGTERM, 143, "terminated"},
	} {
		r := newTrial(t, 20_000, "slow", "unaligned", "--interval", "20ms")
		p := r.start(r.store)
		require.True(t, p.said("msg=committed"))
		require.NoError(t, p.Process.Signal(row.signal))
		code, last := p.end()
		require.Equal(t, row.code, code)
		require.Equal(t, "ckpt-run: "+row.said, last)
		require.Contains(t, p.stdout.String(), `{"event":"summary","completed":`)
		require.NotContains(t, p.stdout.String(), `{"event":"result"`)

		// What it left is restored.
		r.args = append(r.args, "--sleep", "0s")
		p = r.start(r.store, "--restore", "latest")
		code, last = p.end()
		require.Zero(t, code, last)
		r.exact()
	}
}

// TestRestart: a job whose output goes away for a while restarts within the
// process, from its latest checkpoint.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newTrial(t, 3000)
	away := r.output + "-away"
	var once sync.Once
	stdout := hook(func(line string) {
		if strings.Contains(line, `"state":"completed"`) {
			once.Do(func() { require.NoError(t, os.Rename(r.output, away)) })
		}
	})
	stderr := hook(func(line string) {
		if strings.Contains(line, "msg=restart") {
			_ = os.Rename(away, r.output) // once
		}
	})
	code := run(t.Context(), env{stdout: stdout, stderr: stderr}, []string{"unaligned", "--input", r.input, "--output", r.output, "--store", r.store,
		"--sleep", "200us", "--interval", "20ms", "--json"})
	require.Zero(t, code)
	r.exact()
}

// hook is a writer that calls itself with what is written.
type hook func(string)

func (h hook) Write(p []byte) (int, error) {
	h(string(p))
	return len(p), nil
}

// TestSavepoint takes a savepoint while unaligned checkpoints run: it is
// aligned and holds no channel state; and it can be gone back to.
func TestSavepoint(t *testing.T) {
	t.Parallel()
	r := newTrial(t, 1500)
	var saved checkpointLine
	overtook := false
	stdout := hook(func(line string) {
		var l checkpointLine
		if json.Unmarshal([]byte(line), &l) != nil || l.State != "completed" {
			return
		}
		if overtook = overtook || l.ChannelStateBytes > 0; l.Kind == "savepoint" {
			saved = l
		}
	})
	args := []string{"unaligned", "--input", r.input, "--output", r.output, "--sleep", "500us", "--interval", "20ms", "--json", "--set", "network.buffer-size=2kb"}
	require.Zero(t, run(t.Context(), env{stdout: stdout, stderr: hook(func(string) {})}, append(args, "--store", r.store, "--savepoint-after", "100ms")))
	r.exact()
	require.True(t, overtook)
	require.Equal(t, "savepoint", saved.Kind)
	require.Equal(t, "aligned", saved.Alignment)
	require.Zero(t, saved.ChannelStateBytes)

	for _, name := range r.files()[1:] { // what came after it is to be made again
		var id int
		_, err := fmt.Sscanf(filepath.Base(name), "part-%d-", &id)
		require.NoError(t, err)
		if uint64(id) > saved.ID {
			require.NoError(t, os.Remove(name))
		}
	}
	require.Zero(t, run(t.Context(), env{stdout: hook(func(string) {}), stderr: hook(func(string) {})},
		append(args, "--restore", fmt.Sprintf("%s/job/chk-%010d", r.store, saved.ID))))
	r.exact()
}

// TestTrace prints each of the seven points of docs/semantics.md.
func TestTrace(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var mu sync.Mutex
	var out strings.Builder
	stderr := hook(func(s string) {
		mu.Lock()
		defer mu.Unlock()
		out.WriteString(s)
	})
	for _, mode := range []string{"unaligned", "mixed --aligned-timeout 20ms", "mixed --aligned-timeout 20ms --network credit"} {
		args := strings.Fields("slow " + mode + " --trace --sleep 1ms --interval 60ms --duration 250ms --set network.buffer-size=4kb")
		require.Zero(t, run(t.Context(), env{stdout: hook(func(string) {}), stderr: stderr}, args))
	}
	for _, p := range []dataflow.Point{dataflow.PointUrgentMail, dataflow.PointBarrierAtHead, dataflow.PointHandOver, dataflow.PointFirstBarrier,
		dataflow.PointInputCapture, dataflow.PointSwitchUpstream, dataflow.PointSwitchDownstream} {
		require.True(t, strings.Contains(out.String(), "  "+string(p)+": "), p)
	}
}

// TestLiveLine draws it on a terminal, and takes it away.
func TestLiveLine(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), env{stdout: &stdout, stderr: &stderr, live: true, colour: true}, []string{"slow", "--sleep", "1ms", "--duration", "700ms"}))
	require.Regexp(t, ` +\d+ s  \d+ records/s  queues \d+ % full`, stderr.String())
	require.Contains(t, stdout.String(), bold)
	require.NotContains(t, stdout.String(), "queues 1")
}

// TestFallback: over the memory bound a checkpoint is declined, the next one
// is aligned, and the run says so.
func TestFallback(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), env{stdout: &stdout, stderr: &stderr}, []string{"slow", "unaligned", "--json", "--sleep", "1ms", "--interval", "100ms",
		"--duration", "600ms", "--set", "unaligned.max-buffered-data=64KiB"}))
	require.Contains(t, stdout.String(), `"state":"declined","reason":"over-budget"`)
	require.Contains(t, stdout.String(), `"state":"completed","kind":"checkpoint","alignment":"aligned"`)
	require.Contains(t, stderr.String(), "level=WARN msg=fallback")
	require.Contains(t, stderr.String(), "the queues hold more than unaligned.max-buffered-data")
}

// TestDeathLoop: a job that crashes again and again while its barriers need
// longer than checkpoint.timeout begins from the start each time if they are
// aligned; if they overtake, it gets on.
func TestDeathLoop(t *testing.T) {
	for mode, want := range map[string][]bool{"aligned": {false, false, false}, "unaligned": {false, true, true}} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newTrial(t, 20_000, mode, "--sleep", "5ms", "--interval", "50ms", "--checkpoint-timeout", "1s", "--restore", "latest")
			last := uint64(0)
			for _, restores := range want {
				p := r.start(r.store)
				if mode == "aligned" {
					require.True(t, p.said("reason=timeout"))
				} else {
					require.True(t, p.said("msg=pre-committed")) // behind what the restored one holds
					require.True(t, p.said("msg=committed"))
				}
				require.NoError(t, p.Process.Kill())
				p.end()
				var l restoreLine
				line, _, _ := strings.Cut(p.stdout.String(), "\n")
				require.Equal(t, restores, json.Unmarshal([]byte(line), &l) == nil && l.Event == "restore", line)
				if restores {
					require.Greater(t, l.Checkpoint, last, "it gets on")
					last = l.Checkpoint
				}
			}
		})
	}
}
