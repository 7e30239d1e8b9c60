//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// These tests run the command as a process of its own, in surroundings that are
// not kind to it. docs/operations.md names them.

// process returns the test's own binary as ckpt-inspect, started by a line of
// shell in which "$@" is the command.
func process(t *testing.T, shell string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.CommandContext(t.Context(), "sh", append([]string{"-c", shell, "sh", self}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// execute runs the command in a shell and returns what it printed. An error is
// one line.
func execute(t *testing.T, shell string, args ...string) (code int, stdout, stderr string) {
	cmd, out, errs := process(t, shell, args...)
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	require.LessOrEqual(t, strings.Count(errs.String(), "\n"), 1, "one line: %s", errs)
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// root skips a test that has to mount, and says so.
func root(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("left out: it mounts a file system, which needs root")
	}
}

// mounted mounts a tmpfs at a new directory.
func mounted(t *testing.T, options string) string {
	root(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("left out: it mounts a file system, which is not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

func TestMissingDirectory(t *testing.T) {
	for _, command := range []string{"ls", "show", "dump", "verify", "roundtrip", "gc", "backend-check"} {
		dir := filepath.Join(t.TempDir(), "mistyped")
		code, _, stderr := execute(t, `exec "$@"`, command, dir)
		require.Equal(t, 2, code, command)
		require.Contains(t, stderr, dir)
		require.Contains(t, stderr, "does not exist")
		require.NoDirExists(t, dir, "nothing may be created")
	}
}

func TestUnreadableDirectory(t *testing.T) {
	dir := shared(t)
	fixture(t, filepath.Join(dir, "ckpt"))
	locked := filepath.Join(dir, "ckpt", "words")
	require.NoError(t, os.Chmod(locked, 0))
	t.Cleanup(func() { require.NoError(t, os.Chmod(locked, 0o700)) })
	for _, args := range [][]string{{"ls", locked}, {"verify", locked + "/chk-0000000005"}, {"show", locked}, {"gc", "-n", locked}} {
		code, stderr := asNobody(t, dir, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "permission denied (give user ")
		require.Contains(t, stderr, "access to "+locked)
	}
}

func TestUnwritableDirectory(t *testing.T) {
	dir := shared(t)
	fixture(t, filepath.Join(dir, "ckpt"))
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, "ckpt"), func(path string, d os.DirEntry, err error) error {
		require.NoError(t, os.Chmod(path, 0o755))
		return err
	}))
	job := filepath.Join(dir, "ckpt", "words")
	code, stderr := asNobody(t, dir, "verify", job)
	require.Equal(t, 0, code, stderr)
	if os.Geteuid() != 0 {
		require.NoError(t, os.Chmod(job, 0o500))
		require.NoError(t, os.Chmod(job+"/chk-0000000001", 0o500))
	}
	for _, args := range [][]string{{"gc", job}, {"gc", "--fence", job}, {"backend-check", job}} {
		code, stderr = asNobody(t, dir, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "permission denied (give user ")
	}
	require.FileExists(t, job+"/chk-0000000001/_manifest.json")
}

// shared returns a directory that every user can enter, with the test's binary.
func shared(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ckpt-inspect")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ckpt-inspect"), self, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ckpt"), 0o755))
	return dir
}

// asNobody runs the binary in dir as a user without rights: root gives its own
// up.
func asNobody(t *testing.T, dir string, args ...string) (code int, stderr string) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "ckpt-inspect"), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), asCommand+"=1")
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	require.LessOrEqual(t, strings.Count(errs.String(), "\n"), 1, "one line: %s", &errs)
	return cmd.ProcessState.ExitCode(), errs.String()
}

func TestFullDisk(t *testing.T) {
	dir := mounted(t, "size=4m")
	fixture(t, filepath.Join(dir, "ckpt"))
	fill, err := os.Create(filepath.Join(dir, "fill"))
	require.NoError(t, err)
	_, err = fill.Write(make([]byte, 8<<20))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, fill.Close())
	job := filepath.Join(dir, "ckpt", "words")
	for _, args := range [][]string{{"backend-check", dir}, {"gc", "--fence", job}} {
		code, _, stderr := execute(t, `exec "$@"`, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "no space left on device (free space or inodes on the disk of "+dir)
	}
	// Looking needs no space, and collecting makes some.
	for _, args := range [][]string{{"verify", "--all", filepath.Dir(job)}, {"roundtrip", job}, {"gc", job}} {
		code, _, stderr := execute(t, `exec "$@"`, args...)
		require.Equal(t, 0, code, stderr)
	}
	require.NoFileExists(t, job+"/chk-0000000001/_manifest.json")
}

func TestFlinkFullDisk(t *testing.T) {
	root := flinktest.Unpack(t, "resume")
	dir := mounted(t, "size=64k")
	for _, verb := range []string{"compact", "relocate", "salvage"} {
		code, _, stderr := execute(t, `exec "$@"`, "flink", verb, root, filepath.Join(dir, "new", "chk-3"))
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "no space left on device")
		entries, err := os.ReadDir(filepath.Join(dir, "new"))
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := mounted(t, "size=4m")
	fixture(t, filepath.Join(dir, "ckpt"))
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	job := filepath.Join(dir, "ckpt", "words")
	for _, args := range [][]string{{"ls", job}, {"show", job}, {"dump", job}, {"verify", "--all", job}, {"roundtrip", job}, {"gc", "-n", job}} {
		code, _, stderr := execute(t, `exec "$@"`, args...)
		require.Equal(t, 0, code, stderr)
	}
	for _, args := range [][]string{{"gc", job}, {"gc", "--fence", job}, {"backend-check", dir}} {
		code, _, stderr := execute(t, `exec "$@"`, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "read-only file system (mount the disk of "+dir)
	}
}

func TestFewFileDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "many")
	manyFiles(t, dir, 200)
	for _, args := range [][]string{{"ls", dir}, {"show", dir}, {"dump", "--digest", "--json", dir}, {"verify", dir}, {"roundtrip", dir}, {"gc", dir}} {
		code, _, stderr := execute(t, `ulimit -n 64; exec "$@"`, args...)
		require.Equal(t, 0, code, "%s: %s", args[0], stderr)
	}
}

// TestPipe: whoever opens a pipe waits for its other end.
func TestPipe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	file := dir + "/words/chk-0000000005/g1-a3.cstate"
	require.NoError(t, os.Remove(file))
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	for _, args := range [][]string{{"verify", file}, {"dump", file}} {
		code, _, stderr := execute(t, `exec "$@"`, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "a pipe, socket or device (choose another name: a file is needed)")
	}
	code, stdout, _ := execute(t, `exec "$@"`, "verify", dir+"/words")
	require.Equal(t, 1, code, stdout)
	require.Regexp(t, "error +unreadable +.*a pipe, socket or device", stdout)
}

func TestInterrupt(t *testing.T) {
	// 1 TiB of zeros take a while, and no space.
	dir := t.TempDir()
	name := filepath.Join(dir, "big.cstate")
	p, err := os.ReadFile("../../testdata/v1/none.cstate")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, p[:2000], 0o600))
	require.NoError(t, os.Truncate(name, 1<<40))
	for _, row := range []struct {
		signal os.Signal
		code   int
		said   string
	}{
		{os.Interrupt, 130, "interrupted"},
		{syscall.SIGTERM, 143, "terminated"},
	} {
		cmd, _, stderr := process(t, `exec "$@"`, "verify", name)
		require.NoError(t, cmd.Start())
		waitForReads(t, cmd.Process.Pid, 4<<20)
		require.NoError(t, cmd.Process.Signal(row.signal))
		require.ErrorAs(t, cmd.Wait(), new(*exec.ExitError))
		require.Equal(t, row.code, cmd.ProcessState.ExitCode())
		require.Equal(t, "ckpt-inspect: "+row.said+"\n", stderr.String())
	}
}

// waitForReads waits until a process has read so many bytes.
func waitForReads(t *testing.T, pid int, bytes int64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		var n int64
		p, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		require.NoError(t, err)
		_, err = fmt.Sscanf(string(p), "rchar: %d", &n)
		require.NoError(t, err)
		if n > bytes {
			return
		}
		p, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		require.NotContains(t, string(p), ") Z ", "it has ended")
	}
}

// manyFiles writes a checkpoint of n small files.
func manyFiles(t *testing.T, dir string, n int) {
	j := &fixtureJob{t: t, dir: dir, name: "many"}
	j.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "c0"})
	c := &fixtureCheckpoint{fixtureJob: j, Manifest: format.Manifest{ID: 1, Attempt: "c0", Alignment: format.Unaligned}}
	for i := range n {
		c.file(fmt.Sprintf("g%d", i), func(f *capture) {
			m, done := f.begin("source", i)
			f.data(m, output(0, 0), 0, stream(0, 3))
			f.cut(m, output(0, 0), 3)
			done()
		})
	}
	c.file("g", func(f *capture) {
		m, done := f.begin("count", 0)
		for i := range n {
			f.cut(m, input(0, i), 0)
		}
		done()
	})
	c.Topology = &format.Topology{Vertices: []format.Vertex{{ID: "source", Parallelism: n}, {ID: "count", Parallelism: 1}},
		Edges: []format.Edge{{From: "source", To: "count", Partitioner: "hash"}}}
	c.commit()
}
