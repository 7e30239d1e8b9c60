package hdfs_test

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/hdfs"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
	"github.com/spillway-io/spillway/writer"
)

// binaries are programs of ours that were built, by their package.
var binaries struct {
	sync.Mutex
	dir   string
	built map[string]bool
}

// command returns a command of ours, built once for all tests.
func command(t *testing.T, pkg string, args ...string) *exec.Cmd {
	t.Helper()
	b := &binaries
	b.Lock()
	defer b.Unlock()
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "e2e-hdfs-bin-")
		require.NoError(t, err)
		b.dir, b.built = dir, map[string]bool{}
	}
	file := filepath.Join(b.dir, filepath.Base(pkg))
	if !b.built[pkg] {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./"+pkg)
		cmd.Dir = "../.." // with the versions of that module
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		b.built[pkg] = true
	}
	cmd := exec.CommandContext(t.Context(), file, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SPILLWAY_") }) // they would be options
	return cmd
}

// text returns words, and how often each occurs, as the example prints them.
func text(words int) (input, output string) {
	counts := map[string]int{}
	var b strings.Builder
	for i := range words {
		word := fmt.Sprintf("word%d", (i*i+i/7)%40)
		counts[word]++
		b.WriteString(word + " \n"[i%2:i%2+1])
	}
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		output += fmt.Sprintf("%s\t%d\n", word, counts[word])
	}
	return b.String(), output
}

// TestFlinkIntoEmptyFolder has an empty folder where a checkpoint of Flink shall be
// written anew.
func TestFlinkIntoEmptyFolder(t *testing.T) {
	c := one.up(t)
	root := c.tree()
	c.control(t, "mkdirs", "path", root+"/new/chk-3", "owner", "flink")
	c.control(t, "mkdirs", "path", root+"/new", "owner", "flink")
	compact := func(dst string) string {
		out, err := command(t, "cmd/ckpt-inspect", "flink", "compact", flinktest.Unpack(t, "resume"), c.url("flink", root+"/new/"+dst)).CombinedOutput()
		if err != nil {
			require.EqualError(t, err, "exit status 2", "%s", out)
		}
		return string(out)
	}
	require.Contains(t, compact("chk-3"), "chk-3: file already exists (give a directory that does not exist)")
	require.Contains(t, compact("chk-4"), "written to ")
	require.Contains(t, compact("chk-4"), "file already exists")
}

// TestCrashKill kills the example pipeline with -9 at random moments, restores it
// from HDFS, and compares what it counts when it comes to an end.
func TestCrashKill(t *testing.T) {
	c := one.up(t)
	kills := 6
	if full() {
		kills = 60
	}
	input, want := text(1500)
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(in, []byte(input), 0o600))
	store := c.url("flink", c.tree())
	for killed, ended := 0, 0; killed < kills || ended == 0; {
		run := command(t, "examples/lines", "--store", store, "--input", in, "--output", out, "--restore", "latest", "--interval", "50ms", "--sleep", "1ms")
		var said bytes.Buffer
		run.Stderr = &said
		require.NoError(t, run.Start())
		if killed < kills {
			time.AfterFunc(time.Duration(100+rand.IntN(900))*time.Millisecond, func() { _ = run.Process.Kill() }) // or it has ended
		}
		_ = run.Wait() // the code tells
		code := run.ProcessState.ExitCode()
		if code == -1 {
			killed++
			continue
		}
		require.Zero(t, code, said.String())
		got, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		require.NoError(t, os.Remove(out))
		ended++
		store = c.url("flink", c.tree())
	}
}

// TestKilledRuns kills the reference pipeline on a cluster with Kerberos, and has
// the last run count every record once. What the killed ones left is swept.
func TestKilledRuns(t *testing.T) {
	c := secure.up(t)
	c.conf(t, "ALICE")
	root := c.tree()
	store := "hdfs://" + root
	run := func(name string, args ...string) (code int, out string) {
		cmd := command(t, "cmd/"+name, args...)
		text, _ := cmd.CombinedOutput() // the code tells
		return cmd.ProcessState.ExitCode(), string(text)
	}
	args := []string{"slow", "unaligned", "--sleep", "2ms", "--records", "2000", "--store", store, "--interval", "200ms", "--restore"}
	kills, restore := 0, "none"
	for range 3 {
		cmd := command(t, "cmd/ckpt-run", append(args, restore)...)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		for said := bufio.NewScanner(stdout); said.Scan(); {
			if strings.HasPrefix(said.Text(), "checkpoint ") { // there is one
				time.AfterFunc(time.Duration(rand.IntN(600))*time.Millisecond, func() { _ = cmd.Process.Kill() }) // or it has ended
			}
		}
		_ = cmd.Wait() // the code tells
		if cmd.ProcessState.ExitCode() == -1 {
			kills++
		}
		if code, _ := run("ckpt-inspect", "verify", store+"/job"); code == 0 {
			restore = "latest" // there is a checkpoint
		}
	}
	code, out := run("ckpt-run", append(args, restore)...)
	require.Zero(t, code, out)
	require.Contains(t, out, "2000 emitted, 2000 counted, 0 lost, 0 duplicated")
	require.Positive(t, kills)
	require.Equal(t, "latest", restore)
	code, out = run("ckpt-inspect", "gc", "--fence", store)
	require.Zero(t, code, out)
	require.Empty(t, c.control(t, "open", "path", root))
	require.Empty(t, leftovers(t, c.open(t, root, func(o *hdfs.Options) {
		o.User, o.Keytab = "", c.env["KEYTAB_ALICE"]
		o.Conf = map[string]string{"dfs.namenode.kerberos.principal": "hdfs/_HOST", "dfs.data.transfer.protection": "privacy", "dfs.encrypt.data.transfer.cipher.suites": "AES/CTR/NoPadding"}
	})))
}

// copyTo copies all objects. Manifests are created exclusively, so that HDFS has
// them in its own form.
func copyTo(t *testing.T, from, to backends.Backend) {
	for info, err := range from.List(t.Context(), "") {
		require.NoError(t, err)
		data, err := get(t.Context(), from, info.Name)
		require.NoError(t, err)
		require.NoError(t, put(t.Context(), to, info.Name, data, backends.CreateOptions{Exclusive: strings.HasSuffix(info.Name, "_manifest.json")}))
	}
}

// TestInspect compares what the inspector says of the same checkpoints on disk and
// on HDFS: the same, but for the URL.
func TestInspect(t *testing.T) {
	c := one.up(t)
	input, _ := text(400)
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in"), []byte(input), 0o600))
	out, err := command(t, "examples/lines", "--store", disk, "--input", filepath.Join(dir, "in"), "--output", filepath.Join(dir, "out"), "--interval", "30ms").CombinedOutput()
	require.NoError(t, err, "%s", out)
	root := c.tree()
	store := c.url("flink", root)
	copyTo(t, local.New(disk), c.open(t, root, nil))
	times := regexp.MustCompile(`"modified":"[^"]*",|"age_ms":\d+`) // a copy has its own
	run := func(store string, args ...string) (string, int) {
		cmd := command(t, "cmd/ckpt-inspect", append(args, "--json", store+"/lines")...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the code tells
		require.Empty(t, stderr.String(), args)
		return times.ReplaceAllString(stdout.String(), ""), cmd.ProcessState.ExitCode()
	}
	for _, args := range [][]string{{"ls"}, {"show"}, {"verify"}, {"channels"}, {"du"}, {"dump"}, {"roundtrip"}, {"gc", "--dry-run"}} {
		t.Run(args[0], func(t *testing.T) {
			onDisk, code := run(disk, args...)
			require.Zero(t, code)
			require.True(t, onDisk != "" || args[0] == "verify")
			onHDFS, code := run(store, args...)
			require.Zero(t, code)
			for _, u := range []string{store, "file://" + disk, disk} {
				onDisk, onHDFS = strings.ReplaceAll(onDisk, u, "URL"), strings.ReplaceAll(onHDFS, u, "URL")
			}
			require.Equal(t, onDisk, onHDFS)
		})
	}
	// And as a copy with Hadoop's tools has it.
	copied := filepath.Join(dir, "copied")
	for info, err := range local.New(disk).List(t.Context(), "") {
		require.NoError(t, err)
		name := info.Name
		if strings.HasSuffix(name, "_manifest.json") {
			name += "/o"
		}
		require.NoError(t, os.MkdirAll(filepath.Join(copied, filepath.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(copied, name), c.post(t, nil, "cat", "path", root+"/"+name), 0o600))
	}
	text, code := run(copied, "verify", "--all")
	require.Zero(t, code, text)
}

// capture captures size bytes as one subtask, in buffers. midway is called when
// 16 MiB of them are handed over: the first file is open then.
func capture(t testing.TB, b backends.Backend, size int, o writer.Options, midway ...func()) (h inflight.Handle, err error) {
	o.Backend, o.Job = b, "job"
	pool, err := writer.NewPool(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, pool.Close()) }()
	w, err := pool.Writer(inflight.Task{Vertex: "v"})
	require.NoError(t, err)
	c, err := w.Start(1, writer.StartOptions{Attempt: "attempt"})
	require.NoError(t, err)
	buffer := pattern(5, 32<<10)
	for at := 0; at < size; at += len(buffer) {
		if at == 16<<20 {
			for _, f := range midway {
				f()
			}
		}
		if err = pool.WaitRoom(t.Context(), int64(len(buffer))); err != nil {
			return h, err
		}
		_ = c.Input(inflight.InputChannel{}, inflight.Pos{Offset: uint64(at)}, inflight.Bytes(buffer)) // Handle says what failed
	}
	_ = c.FinishInput()
	_ = c.FinishOutput()
	<-c.Done()
	return c.Handle()
}

// TestRewritten kills a datanode while files are captured: their bytes are still
// held, and are written again, so that the capture is complete all the same. There
// is one more datanode than replicas: otherwise the namenode has no choice.
func TestRewritten(t *testing.T) {
	c := three.up(t)
	root := c.tree()
	var retried sync.Map
	b := c.open(t, root, func(o *hdfs.Options) { o.Replication = 2 })
	kill := func() {
		for {
			if open := strings.Fields(c.control(t, "open", "path", root)); len(open) > 0 {
				if nodes := strings.Fields(c.control(t, "blocks", "path", open[0])); len(nodes) > 0 {
					c.control(t, "dn/kill", "port", strings.TrimPrefix(nodes[len(nodes)-1], "127.0.0.1:"))
					return
				}
			}
			require.NoError(t, t.Context().Err())
		}
	}
	t.Cleanup(func() { c.control(t, "dn/restart") })
	begun := time.Now()
	o := writer.Options{MaxBuffered: 64 << 20, TargetFileSize: 32 << 20, Codec: format.CodecNone, Observer: observer(func(e inflight.Event) {
		if e.Name == inflight.EventFileRetried {
			retried.Store(time.Since(begun), e.Err)
		}
	})}
	// With bad luck the namenode names the dead one until all tries are used up: then
	// the capture has failed, in a way that says so, and the next one may not.
	_, err := capture(t, b, 96<<20, o, kill)
	for range 3 {
		if err != nil {
			require.True(t, inflight.Retryable(err), err)
			_, err = capture(t, b, 96<<20, o)
		}
	}
	require.NoError(t, err)
	count := 0
	retried.Range(func(at, err any) bool {
		count++
		t.Log(at, err)
		require.True(t, inflight.Retryable(err.(error)))
		return true
	})
	require.Positive(t, count, "no file was written again")
	require.Empty(t, leftovers(t, b))
	var size int64
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		size += info.Size
	}
	require.Greater(t, size, int64(96<<20))
}

type observer func(inflight.Event)

func (o observer) Observe(e inflight.Event) { o(e) }
