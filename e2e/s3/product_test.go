package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/e2e/servers"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// topology is one vertex that nothing leads to: its subtasks' captures stand for
// those of any job.
func topology(subtasks int) *format.Topology {
	return &format.Topology{Vertices: []format.Vertex{{ID: "count", Parallelism: subtasks}}}
}

// job opens a job, and closes it after the test.
func job(t testing.TB, url, name string, subtasks int, o spillway.Options) *spillway.Job {
	t.Helper()
	j, err := spillway.Open(t.Context(), url, name, topology(subtasks), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	return j
}

// state is what the captures of subtask i hold.
type state func(i int) []byte

// checkpoint captures the state of all subtasks, and commits.
func checkpoint(ctx context.Context, j *spillway.Job, of state) (*catalog.Checkpoint, error) {
	c, err := j.Begin(ctx)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for task, capture := range c.Captures {
		wg.Go(func() {
			data := of(task.Subtask)
			for off := 0; off < len(data); off += 32 << 10 {
				// An error is the capture's, which Commit reports.
				_ = capture.Input(inflight.InputChannel{}, inflight.Pos{Offset: uint64(off)}, inflight.Bytes(data[off:min(off+32<<10, len(data))]))
			}
			_ = capture.FinishInput()
			_ = capture.FinishOutput()
		})
	}
	wg.Wait()
	return c.Commit(ctx, format.Unaligned)
}

// restoreInto hands on what a job restores.
func restoreInto(t testing.TB, j *spillway.Job, to func(subtask int, b []byte)) {
	t.Helper()
	_, err := j.Restore(t.Context(), func(task inflight.Task, _ []reader.Entry) func(*reader.Buffer) error {
		return func(b *reader.Buffer) error {
			to(task.Subtask, b.Bytes)
			return nil
		}
	})
	require.NoError(t, err)
}

// restored returns what a job hands back of each subtask.
func restored(t testing.TB, j *spillway.Job, subtasks int) [][]byte {
	t.Helper()
	got := make([][]byte, subtasks)
	restoreInto(t, j, func(i int, b []byte) { got[i] = append(got[i], b...) })
	return got
}

// TestRacingCoordinators starts 20 at once, on a backend each, and has each
// commit as long as it can: what was committed must be one chain.
func TestRacingCoordinators(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		url := urlOf(s, bucket(t, s), "race")
		var mu sync.Mutex
		committed := map[inflight.CheckpointID]string{}
		var wg sync.WaitGroup
		failures := make(chan error, 20)
		const rounds = 1 // more slots take more requests for each list
		for range 20 {
			wg.Go(func() {
				failures <- coordinate(t.Context(), url, rounds, func(id inflight.CheckpointID, attempt string) error {
					mu.Lock()
					defer mu.Unlock()
					if other, taken := committed[id]; taken {
						return fmt.Errorf("checkpoint %d was committed by %s and %s", id, other, attempt)
					}
					committed[id] = attempt
					return nil
				})
			})
		}
		wg.Wait()
		close(failures)
		for err := range failures {
			require.NoError(t, err)
		}
		require.NotEmpty(t, committed)
		t.Logf("%d checkpoints were committed", len(committed))

		last := job(t, url, "job", 2, spillway.Options{})
		base := last.Coordinator.Base()
		require.NotNil(t, base)
		for id := range committed {
			require.LessOrEqual(t, id, base.Manifest.ID)
		}
		require.Equal(t, committed[base.Manifest.ID], base.Manifest.Attempt)
		for i, data := range restored(t, last, 2) {
			require.Equal(t, fmt.Sprintf("%s %d", base.Manifest.Attempt, i), string(data), "the state is the committer's")
		}
	})
}

// coordinate is one coordinator, until it is fenced or has committed so many
// checkpoints.
func coordinate(ctx context.Context, url string, rounds int, committed func(inflight.CheckpointID, string) error) (err error) {
	j, err := spillway.Open(ctx, url, "job", topology(2), spillway.Options{})
	if err != nil {
		return unlessFenced(err)
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	_, err = j.Restore(ctx, func(inflight.Task, []reader.Entry) func(*reader.Buffer) error {
		return func(*reader.Buffer) error { return nil }
	})
	for range rounds {
		if err != nil {
			break
		}
		var c *catalog.Checkpoint
		c, err = checkpoint(ctx, j, func(i int) []byte { return fmt.Appendf(nil, "%s %d", j.Coordinator.Attempt(), i) })
		if err == nil {
			err = committed(c.Manifest.ID, c.Manifest.Attempt)
		}
	}
	return unlessFenced(err)
}

// unlessFenced drops what ends a coordinator that another one has superseded: its
// files, or those of its base, may be gone before it learns of it.
func unlessFenced(err error) error {
	for _, end := range []error{inflight.ErrFenced, inflight.ErrIncomplete, inflight.ErrRetired, inflight.ErrNotExist} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}

// ckpt runs one of the commands and returns its exit code and what it printed.
func ckpt(t testing.TB, name string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), command(t, name), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// killRounds is how often a run is killed.
const killRounds = 5

// TestKilledRuns kills the reference pipeline again and again, and has the last
// run count every record once.
func TestKilledRuns(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		t.Parallel()
		store := urlOf(s, bucket(t, s), "runs")
		args := []string{"slow", "unaligned", "--sleep", "2ms", "--records", "8000", "--store", store, "--interval", "150ms", "--restore"}
		kills, restore := 0, "none"
		for range killRounds {
			cmd := exec.CommandContext(t.Context(), command(t, "ckpt-run"), append(args, restore)...)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				require.NoError(t, err, errs.String())
			case <-time.After(800*time.Millisecond + time.Duration(rand.IntN(800))*time.Millisecond):
				require.NoError(t, cmd.Process.Kill())
				<-ended
				kills++
			}
			if code, _, _ := ckpt(t, "ckpt-inspect", "verify", joined(store, "job")); code == 0 {
				restore = "latest" // there is a checkpoint
			}
		}
		code, stdout, stderr := ckpt(t, "ckpt-run", append(args, restore)...)
		require.Zero(t, code, "%s%s", stdout, stderr)
		require.Contains(t, stdout, "8000 emitted, 8000 counted, 0 lost, 0 duplicated")
		require.Positive(t, kills)
		require.Equal(t, "latest", restore)
		t.Logf("killed %d times", kills)
		code, stdout, stderr = ckpt(t, "ckpt-inspect", "verify", "--all", store)
		require.Zero(t, code, "%s%s", stdout, stderr)
		code, stdout, stderr = ckpt(t, "ckpt-inspect", "gc", "--fence", store)
		require.Zero(t, code, "%s%s", stdout, stderr)
		require.Zero(t, uploads(t, open(t, store)))
	})
}

// joined appends to the path of a URL.
func joined(url, path string) string {
	before, query, _ := strings.Cut(url, "?")
	return strings.TrimSuffix(before, "/") + "/" + path + "?" + query
}

// TestSameOutput: the inspector says the same of a checkpoint on S3 as on disk,
// of one that is whole and of one that is damaged.
func TestSameOutput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "whole")
	code, _, stderr := ckpt(t, "ckpt-run", "slow", "unaligned", "--store", dir, "--interval", "300ms", "--duration", "1500ms")
	require.Zero(t, code, stderr)
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.CopyFS(broken, os.DirFS(dir)))
	files, err := filepath.Glob(filepath.Join(broken, "job", "chk-*", "*.cstate"))
	require.NoError(t, err)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	data[len(data)/3] ^= 4
	require.NoError(t, os.WriteFile(files[0], data, 0o600))
	each(t, func(t *testing.T, s *servers.Server) {
		for _, dir := range []string{dir, broken} {
			url := urlOf(s, bucket(t, s), "ckpt")
			upload(t, dir, open(t, url))
			for _, args := range [][]string{{"ls"}, {"show"}, {"verify"}, {"verify", "--all"}, {"dump"}, {"roundtrip"}, {"gc", "--dry-run"}} {
				t.Run(filepath.Base(dir)+" "+strings.Join(args, " "), func(t *testing.T) {
					onDisk, onS3 := filepath.Join(dir, "job"), joined(url, "job")
					if args[0] == "ls" || args[0] == "gc" || len(args) > 1 {
						onDisk, onS3 = dir, url
					}
					diskCode, want := inspect(t, args, onDisk, dir)
					code, got := inspect(t, args, onS3, url)
					require.Equal(t, diskCode, code)
					if got != want {
						require.Equal(t, clipped(want), clipped(got))
						require.Fail(t, "the output differs")
					}
				})
			}
		}
	})
}

// upload copies a directory to a store.
func upload(t *testing.T, dir string, b backends.Backend) {
	disk := local.New(dir)
	defer disk.Close()
	for info, err := range disk.List(t.Context(), "") {
		require.NoError(t, err)
		data, err := get(t.Context(), disk, info.Name)
		require.NoError(t, err)
		_, err = put(t.Context(), b, info.Name, data, backends.CreateOptions{})
		require.NoError(t, err)
	}
}

// inspect returns the exit code and the JSON of the inspector, without the place
// of the store and without the times at which it took the objects.
func inspect(t *testing.T, args []string, target, store string) (int, string) {
	code, stdout, stderr := ckpt(t, "ckpt-inspect", append(slices.Clone(args), "--json", target)...)
	require.LessOrEqual(t, code, 1, stderr)
	lines := strings.ReplaceAll(stdout, target, "TARGET")
	before, query, _ := strings.Cut(store, "?")
	lines = strings.ReplaceAll(strings.ReplaceAll(lines, before, "STORE"), query, "")
	return code, regexp.MustCompile(`"modified":"[^"]*"|"age_ms":\d+`).ReplaceAllString(lines, "")
}

func clipped(s string) string { return s[:min(len(s), 1500)] }

// TestBusyStoreCheckpoints: a store that refuses three of ten requests costs
// tries, not checkpoints.
func TestBusyStoreCheckpoints(t *testing.T) {
	s := shared(t, servers.VersityGW)
	var n, refused atomic.Int64
	gate := servers.NewGate(t, s, func(*http.Request) servers.Verdict {
		if n.Add(1)*7%10 < 3 {
			refused.Add(1)
			return servers.Busy
		}
		return servers.Pass
	})
	far := *s
	far.Endpoint = gate.URL
	url := urlOf(&far, bucket(t, s), "busy")
	const subtasks, checkpoints = 200, 5
	j := job(t, url, "job", subtasks, spillway.Options{})
	of := func(i int) []byte { return random(byte(i), 1000) }
	for range checkpoints {
		_, err := checkpoint(t.Context(), j, of)
		require.NoError(t, err)
	}
	retries := j.Backend.(*s3.Backend).Stats().Retries
	require.Greater(t, refused.Load(), int64(20))
	require.GreaterOrEqual(t, retries, refused.Load()*9/10) // some requests are made once, whatever comes
	t.Logf("%d of %d requests were refused, %d were sent again", refused.Load(), n.Load(), retries)

	again := job(t, url, "job", subtasks, spillway.Options{})
	for i, data := range restored(t, again, subtasks) {
		require.Equal(t, of(i), data)
	}
}

// TestBackendCheck runs the suite by the command, on one server: TestSuite runs it
// on all. With E2E_KEEP it runs on all, and what it prints is kept in that folder.
func TestBackendCheck(t *testing.T) {
	dir := os.Getenv("E2E_KEEP")
	for _, kind := range servers.Kinds {
		if dir == "" && kind != servers.VersityGWTLS {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			s := shared(t, kind)
			code, stdout, stderr := ckpt(t, "ckpt-inspect", "backend-check", urlOf(s, bucket(t, s), "check"))
			require.Zero(t, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout, " 0 failed")
			if dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, string(kind)+".txt"), []byte(stdout), 0o600))
			}
		})
	}
}
