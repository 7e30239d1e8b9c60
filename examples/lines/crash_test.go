package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// thorough asks for the long form of a test.
var thorough = os.Getenv("SPILLWAY_CRASH") != ""

// shortTrial is a run with a few checkpoints, for tests that repeat it a lot.
func shortTrial(t testing.TB, object bool) *trial {
	r := newTrial(t, someText(120))
	r.interval, r.sleep = 60*time.Millisecond, 5*time.Millisecond
	m := mem.New(mem.Options{ObjectStore: object})
	r.store, r.truth = m, m
	return r
}

// operations counts the calls of the store in an undisturbed run.
func operations(t *testing.T, object bool) (n int) {
	synctest.Test(t, func(t *testing.T) {
		r := shortTrial(t, object)
		f := wrap.NewFaults(r.truth)
		r.store = f
		r.runs("none")
		require.Greater(t, r.verified, 3)
		n = f.Ops()
	})
	return n
}

// eachOperation calls f with 1, 2, 3, … up to and beyond the last operation; in
// the short form with some of them.
func eachOperation(t *testing.T, object bool, f func(k int)) {
	n, step := operations(t, object), 1
	if !thorough {
		step = 9
	}
	t.Logf("%d operations, every %d. is tried", n, step)
	for k := 1; k <= n+3*step; k += step {
		f(k)
	}
}

// kill is a fault that ends the program: before the call or after it.
func kill(at wrap.Fault, stop context.CancelFunc) wrap.Fault {
	return func(ctx context.Context, f *wrap.Faults, c *wrap.Call, do func() error) error {
		defer stop()
		return at(ctx, f, c, do)
	}
}

// crash runs the program until operation k of the store, and leaves the store as
// a power cut does: unsynced bytes are gone, and names with some luck.
func (r *trial) crash(k int, at wrap.Fault, from string) {
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	r.store = wrap.NewFaults(r.truth, wrap.Rule{When: wrap.AtOp(k), Then: kill(at, stop)})
	_, _ = r.run(ctx, from) // whatever it says, nobody hears it
	m := r.truth.(*mem.Backend).CrashClone(rand.New(rand.NewPCG(uint64(k), 1)), mem.CrashConfig{Names: 0.5 * float64(k%3), Leftovers: 0.5})
	r.store, r.truth = m, m
}

// finish runs the program to its end, checks the output, and that nothing is
// left on the store that nobody needs.
func (r *trial) finish() {
	r.runs("latest")
	l, err := catalog.Open(r.truth, "lines", catalog.Options{})
	require.NoError(r.t, err)
	_, err = l.GC(r.t.Context(), catalog.GCOptions{Fence: true})
	require.NoError(r.t, err)
	slots, err := l.List(r.t.Context())
	require.NoError(r.t, err)
	for _, s := range slots {
		require.True(r.t, s.Kept, "slot %d: %s", s.ID, s.State)
		require.Empty(r.t, s.Findings)
		require.Empty(r.t, s.Leftovers)
	}
	p, err := l.GC(r.t.Context(), catalog.GCOptions{DryRun: true})
	require.NoError(r.t, err)
	n, _ := p.Garbage()
	require.Zero(r.t, n)
}

// TestCrashAtEveryOperation cuts the power before and after each operation of
// the store, and restores.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, object := range []bool{false, true} {
		eachOperation(t, object, func(k int) {
			for i, at := range []wrap.Fault{wrap.Kill(), wrap.KillAfter()} {
				t.Run(fmt.Sprintf("object=%t/%d/%d", object, k, i), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := shortTrial(t, object)
						r.crash(k, at, "latest")
						r.finish()
					})
				})
			}
		})
	}
}

// TestCrashAgain cuts the power a second time, while and after the first crash
// is recovered from.
func TestCrashAgain(t *testing.T) {
	eachOperation(t, false, func(k int) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := shortTrial(t, false)
				r.crash(60+k%40, wrap.Kill(), "latest")
				r.crash(k, wrap.KillAfter(), "latest")
				r.crash(k/2+1, wrap.Kill(), "latest")
				r.finish()
			})
		})
	})
}

// TestCrashErrors fails each operation of the store once, and each from some
// operation on: the run ends right or says why not, and another one is right.
func TestCrashErrors(t *testing.T) {
	faults := map[string]func(k int) wrap.Rule{
		"once": func(k int) wrap.Rule { return wrap.Rule{When: wrap.AtOp(k), Then: wrap.Fail(inflight.ErrNoSpace)} },
		"partial": func(k int) wrap.Rule {
			return wrap.Rule{When: wrap.AtOp(k), Then: wrap.Partial(3, inflight.ErrUnavailable)}
		},
		"lost": func(k int) wrap.Rule { return wrap.Rule{When: wrap.AtOp(k), Then: wrap.LoseAnswer()} },
		"ever": func(k int) wrap.Rule { return wrap.Rule{When: wrap.FromOp(k), Then: wrap.Fail(inflight.ErrPermission)} },
	}
	for name, fault := range faults {
		eachOperation(t, false, func(k int) {
			t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := shortTrial(t, false)
					r.store = wrap.NewFaults(r.truth, fault(k))
					switch code, err := r.run(t.Context(), "latest"); code {
					case 0:
						require.NoError(t, err)
						r.exact()
					default:
						require.Error(t, err)
						require.NoFileExists(t, r.output)
					}
					r.store = r.truth
					r.finish()
				})
			})
		})
	}
}

// TestCrashPaused stops a run before each operation of the store, has another one
// take over and come to its end, and wakes the first one up: it is fenced, or it
// had not claimed the job or had ended, as far as the store can see.
func TestCrashPaused(t *testing.T) {
	fenced := 0
	eachOperation(t, false, func(k int) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := shortTrial(t, false)
				heir := *r
				paused, awake := make(chan struct{}), make(chan struct{})
				r.store = wrap.NewFaults(r.truth, wrap.Rule{When: wrap.AtOp(k), Then: wrap.Before(func(wrap.Call) {
					close(paused)
					<-awake
				})})
				ended := make(chan error)
				go func() {
					_, err := r.run(t.Context(), "none")
					ended <- err
				}()
				select {
				case <-paused:
				case err := <-ended: // before operation k
					require.NoError(t, err)
					return
				}
				time.Sleep(10 * time.Second)
				_, err := os.Stat(r.output)
				done := err == nil // it went on without what it was paused in
				if done {
					r.exact()
				}
				heir.runs("latest")
				require.NoError(t, os.Remove(r.output))
				close(awake)
				switch err := <-ended; {
				case done:
					require.NoError(t, err)
				case err == nil:
					r.exact()
				default:
					require.ErrorIs(t, err, inflight.ErrFenced)
					require.NoFileExists(t, r.output)
					fenced++
				}
				heir.finish()
			})
		})
	})
	require.Greater(t, fenced, 3)
}

// TestRestoreOfAnotherTopology refuses a checkpoint that does not fit, and leaves
// the job as it is.
func TestRestoreOfAnotherTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := shortTrial(t, false)
		r.crash(100, wrap.Kill(), "latest")
		before := r.truth.(*mem.Backend).Snapshot().Fingerprint()
		topology.Vertices[2].Parallelism = 3
		code, err := r.run(t.Context(), "latest")
		topology.Vertices[2].Parallelism = 2
		require.Equal(t, 2, code)
		require.ErrorIs(t, err, inflight.ErrMismatch)
		require.ErrorContains(t, err, "count has parallelism 3, and had 2")
		require.Equal(t, before, r.truth.(*mem.Backend).Snapshot().Fingerprint())
		r.finish()
	})
}

// program is a run of the program in a process of its own.
type program struct {
	*exec.Cmd
	stderr bytes.Buffer
	lines  chan string // of stderr
}

// process starts the program; limit is a shell command that comes before it.
func (r *trial) process(limit, store string, args ...string) *program {
	exe, err := os.Executable()
	require.NoError(r.t, err)
	args = append([]string{"--store", store, "--input", r.input, "--output", r.output, "--sleep", r.sleep.String(), "--interval", r.interval.String()}, args...)
	p := &program{Cmd: exec.CommandContext(r.t.Context(), exe, args...), lines: make(chan string, 10_000)}
	if limit != "" {
		p.Cmd = exec.CommandContext(r.t.Context(), "/bin/sh", append([]string{"-c", limit + ` && exec "$0" "$@"`, exe}, args...)...)
	}
	p.Env = append(os.Environ(), asProgram+"=1")
	p.Stderr = p
	require.NoError(r.t, p.Start())
	return p
}

// Write takes stderr, line by line.
func (p *program) Write(b []byte) (int, error) {
	p.stderr.Write(b)
	for line := range strings.Lines(string(b)) {
		select {
		case p.lines <- line:
		default:
		}
	}
	return len(b), nil
}

// waitFor waits for a line with text.
func (p *program) waitFor(t testing.TB, text string) {
	for {
		select {
		case line := <-p.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-time.After(20 * time.Second):
			require.Fail(t, "no line with "+text)
		}
	}
}

// end waits for the end, and returns the exit code and what was said last.
func (p *program) end() (code int, last string) {
	_ = p.Wait() // the code tells
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	return p.ProcessState.ExitCode(), lines[len(lines)-1]
}

// TestCrashKill kills the program with -9 at random moments, restores it, and
// compares when it comes to an end.
func TestCrashKill(t *testing.T) {
	r := newTrial(t, someText(1200))
	r.interval, r.sleep = 15*time.Millisecond, 500*time.Microsecond
	store, ended := t.TempDir(), 0
	for kills := 0; kills < *crashRounds || ended == 0; {
		p := r.process("", store, "--restore", "latest")
		dead := make(chan struct{})
		go func() {
			select {
			case <-dead:
			case <-time.After(time.Duration(rand.IntN(300)) * time.Millisecond):
				if kills < *crashRounds {
					_ = p.Process.Kill() // or it has ended
				}
			}
		}()
		code, last := p.end()
		close(dead)
		if code == -1 { // killed
			kills++
			continue
		}
		require.Zero(t, code, last)
		r.exact()
		require.NoError(t, os.Remove(r.output))
		ended++
		store = t.TempDir()
	}
	t.Logf("%d kills, %d outputs compared", *crashRounds, ended)
}

// TestCrashZombie stops a run, lets another take over and end, and wakes the
// first one up.
func TestCrashZombie(t *testing.T) {
	rounds := 2
	if thorough {
		rounds = 30
	}
	for range rounds {
		r := newTrial(t, someText(600))
		r.interval, r.sleep = 10*time.Millisecond, time.Millisecond
		store := t.TempDir()
		zombie := r.process("", store)
		zombie.waitFor(t, "checkpoint 2")
		//lint:sleep it is to be stopped anywhere in a checkpoint
		time.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond)
		require.NoError(t, zombie.Process.Signal(syscall.SIGSTOP))

		heir := r.process("", store, "--restore", "latest")
		code, last := heir.end()
		require.Zero(t, code, last)
		r.exact()

		require.NoError(t, os.Remove(r.output))
		require.NoError(t, zombie.Process.Signal(syscall.SIGCONT))
		code, last = zombie.end()
		require.Equal(t, 1, code, last)
		require.Contains(t, last, "fenced")
		require.NoFileExists(t, r.output)
	}
}

// TestBadStart has reasons why the program cannot start: one line, exit code 2.
func TestBadStart(t *testing.T) {
	r := newTrial(t, someText(10))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	damaged := t.TempDir()
	code, last := r.process("", damaged).end()
	require.Zero(t, code, last)
	manifests, err := filepath.Glob(filepath.Join(damaged, "lines", "chk-*", "_manifest.json"))
	require.NoError(t, err)
	require.NotEmpty(t, manifests)
	require.NoError(t, os.WriteFile(manifests[len(manifests)-1], []byte("{}"), 0o600))
	for _, tc := range []struct {
		name, store string
		args        []string
		want        string
	}{
		{"no store", "", nil, "give a directory or a URL"},
		{"unknown scheme", "ftp://host/dir", nil, "no backend for"},
		{"a store that is a file", file, nil, "not a directory"},
		{"no such input", t.TempDir(), []string{"--input", "missing"}, "open missing: no such file or directory"},
		{"no input", t.TempDir(), []string{"--input", ""}, "--input or --output is missing"},
		{"an input that is a folder", t.TempDir(), []string{"--input", t.TempDir()}, "it must be a regular file"},
		{"an input that never ends", t.TempDir(), []string{"--input", "/dev/zero"}, "it must be a regular file"},
		{"an output that is a folder", t.TempDir(), []string{"--output", t.TempDir()}, "it must be a regular file"},
		{"no folder for the output", t.TempDir(), []string{"--output", "missing/x"}, "missing/.x"},
		{"a negative duration", t.TempDir(), []string{"--sleep", "-1s"}, "a duration is negative: see --help"},
		{"no duration", t.TempDir(), []string{"--sleep", "x"}, "invalid argument \"x\" for \"--sleep\""},
		{"an unknown flag", t.TempDir(), []string{"--unknown"}, "unknown flag: --unknown"},
		{"one argument more", t.TempDir(), []string{"more"}, "unknown command \"more\" for \"lines\""},
		{"no output", t.TempDir(), []string{"--output", ""}, "--input or --output is missing"},
		{"another restore", t.TempDir(), []string{"--restore", "7"}, "give latest or none"},
		{"a damaged manifest", damaged, []string{"--restore", "latest"}, "damaged manifest"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := r.process("", tc.store, tc.args...)
			code, last := p.end()
			require.Equal(t, 2, code)
			require.Contains(t, last, tc.want)
			require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		})
	}
	code, _ = r.process("", t.TempDir(), "-h").end()
	require.Zero(t, code)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(r.output), ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestNoLastCheckpoint: without a last checkpoint there is no output, whether
// the disk is full or another run has taken over meanwhile, or both.
func TestNoLastCheckpoint(t *testing.T) {
	full := wrap.Rule{When: wrap.On(wrap.OpCreate), Then: wrap.Fail(inflight.ErrNoSpace)}
	for _, heirs := range []int{0, 1} {
		t.Run(fmt.Sprint(heirs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := shortTrial(t, false)
				f := wrap.NewFaults(r.truth)
				r.store = observed{f, func(m *format.Manifest) {
					if m.ID != 3 {
						return
					}
					f.Set(full)
					if heirs > 0 {
						l, err := catalog.Open(r.truth, "lines", catalog.Options{})
						require.NoError(t, err)
						_, err = l.Start(t.Context(), catalog.StartOptions{})
						require.NoError(t, err)
					}
				}}
				code, err := r.run(t.Context(), "none")
				require.Equal(t, 1, code)
				require.NoFileExists(t, r.output)
				if heirs > 0 {
					require.ErrorIs(t, err, inflight.ErrFenced)
				} else {
					require.ErrorIs(t, err, inflight.ErrNoSpace)
					require.ErrorContains(t, err, "the last checkpoint could not be committed: ")
					require.ErrorContains(t, err, ": what it would have put out was not; mend that and restore the latest one")
				}
				r.store = r.truth
				r.finish()
			})
		})
	}
}

// TestForeignState has state that the program does not know.
func TestForeignState(t *testing.T) {
	p := build(standard, nil)
	entries := []reader.Entry{{Address: inflight.InputChannel{Channel: 9}.Address()}}
	for _, b := range []reader.Buffer{
		{Address: stateAddress, Bytes: []byte("short")},
		{Address: inflight.StateName("other").Address(), Bytes: entry("word", 1)},
		{Address: inflight.InputChannel{Channel: 9}.Address(), Bytes: entry("word", 1)},
		{Address: inflight.Subpartition{Subpartition: 9}.Address(), Bytes: entry("word", 1)},
		{Address: inflight.InputChannel{Channel: 1}.Address(), Bytes: []byte("abc")},
	} {
		require.ErrorIs(t, p.restore(p.tasks[3].id, entries)(&b), inflight.ErrMismatch, "%v", b.Address)
	}
}

// mount makes a tmpfs for the test.
func mount(t *testing.T, options string) string {
	dir := t.TempDir()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root on Linux, to mount a tmpfs")
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount: %s", out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", dir).CombinedOutput()
		require.NoError(t, err, string(out))
	})
	return dir
}

// TestFullDisk runs on a disk that is full for some time: checkpoints fail, and
// the run goes on.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=4m")
	r := newTrial(t, someText(2000))
	r.interval, r.sleep = 20*time.Millisecond, time.Millisecond
	p := r.process("", dir)
	p.waitFor(t, "checkpoint 2: ")
	ballast := filepath.Join(dir, "ballast")
	err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600)
	require.ErrorIs(t, err, syscall.ENOSPC)
	p.waitFor(t, "no space left")
	require.NoError(t, os.Remove(ballast))
	p.waitFor(t, ": captured")
	code, last := p.end()
	require.Zero(t, code, last)
	r.exact()
	for line := range strings.Lines(p.stderr.String()) {
		require.Regexp(t, `^lines: (nothing to restore|checkpoint \d+(: captured \d+ bytes| failed: .*no space left))`, line)
	}
}

// TestZombieOnFullDisk wakes a run up that was superseded, on a disk that is
// full by then.
func TestZombieOnFullDisk(t *testing.T) {
	dir := mount(t, "size=4m")
	r := newTrial(t, someText(600))
	r.interval, r.sleep = 10*time.Millisecond, time.Millisecond
	zombie := r.process("", dir)
	zombie.waitFor(t, "checkpoint 2")
	require.NoError(t, zombie.Process.Signal(syscall.SIGSTOP))
	code, last := r.process("", dir, "--restore", "latest").end()
	require.Zero(t, code, last)
	r.exact()
	require.NoError(t, os.Remove(r.output))
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 8<<20), 0o600), syscall.ENOSPC)
	require.NoError(t, zombie.Process.Signal(syscall.SIGCONT))
	code, last = zombie.end()
	require.Equal(t, 1, code, last)
	require.Contains(t, last, "fenced")
	require.NoFileExists(t, r.output)
}

// TestReadOnlyDisk cannot start.
func TestReadOnlyDisk(t *testing.T) {
	dir := mount(t, "size=4m,ro")
	p := newTrial(t, "a").process("", dir)
	code, last := p.end()
	require.Equal(t, 2, code)
	require.Contains(t, last, "read-only")
	require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
}

// TestFewFiles runs with few file descriptors: 64 are enough, and where they
// are not, it says so.
func TestFewFiles(t *testing.T) {
	r := newTrial(t, someText(200))
	r.interval, r.sleep = 10*time.Millisecond, time.Millisecond
	p := r.process("ulimit -n 64", t.TempDir())
	code, last := p.end()
	require.Zero(t, code, last)
	r.exact()
	require.NotContains(t, p.stderr.String(), "failed")

	refused := 0
	for n := 7; n < 12; n++ {
		require.NoError(t, os.RemoveAll(r.output))
		p = r.process(fmt.Sprintf("ulimit -n %d", n), t.TempDir())
		code, last = p.end()
		switch {
		case strings.Contains(p.stderr.String(), "fatal error: runtime"): // Go itself needs some
		case code == 0:
			r.exact()
		default:
			require.Contains(t, []int{1, 2}, code) // it may be the last checkpoint that fails
			require.Contains(t, last, "too many open files")
			require.NoFileExists(t, r.output)
			refused++
		}
	}
	require.NotZero(t, refused)
}
