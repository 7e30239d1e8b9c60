//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// The test binary runs itself with these to do something as another process.
const (
	childMode = "SPILLWAY_LOCAL_CHILD"
	childDir  = "SPILLWAY_LOCAL_DIR"
)

// child is the other process. What it prints, the test reads.
func child(mode, dir string) int {
	ctx, b := context.Background(), New(dir)
	switch mode {
	case "put": // one object
		fmt.Println(tryPut(ctx, b, "job/x", "x", true))
	case "read":
		_, err := b.Open(ctx, "job/x")
		fmt.Println(err)
	case "hang": // in the middle of a write, until it is killed
		o, err := b.Create(ctx, "job/chk-1/x.cstate", backends.CreateOptions{})
		if err == nil {
			_, err = o.Write(make([]byte, 300<<10))
		}
		fmt.Println("written", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "files": // as many as the limit allows
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(manyFiles(ctx, b))
	}
	return 0
}

// manyFiles opens objects until that fails, and checks that the store goes on
// when they are dropped.
func manyFiles(ctx context.Context, b *Backend) error {
	var open []backends.Object
	var failed error
	for i := 0; failed == nil && i < 1000; i++ {
		o, err := b.Create(ctx, fmt.Sprint("x", i), backends.CreateOptions{})
		if err != nil {
			failed = err
			break
		}
		open = append(open, o)
	}
	_, errOpen := b.Open(ctx, "x0")
	if errors.Is(errOpen, inflight.ErrNotExist) || len(open) < 32 {
		return fmt.Errorf("%d files, then %v", len(open), errOpen)
	}
	for _, o := range open {
		if err := o.Abort(ctx); err != nil {
			return err
		}
	}
	if err := tryPut(ctx, b, "after", "x", true); err != nil {
		return err
	}
	return failed
}

// run runs the child and returns what it printed.
func run(t *testing.T, mode, dir string, as *syscall.Credential) string {
	t.Helper()
	cmd := childCommand(t, mode, dir, as)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

func childCommand(t *testing.T, mode, dir string, as *syscall.Credential) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	if as != nil { // who may not reach the build's folder
		program, err := os.ReadFile(self)
		require.NoError(t, err)
		self = filepath.Join(open755(t), "child")
		require.NoError(t, os.WriteFile(self, program, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childMode+"="+mode, childDir+"="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	return cmd
}

// open755 returns a new folder that everybody can reach.
func open755(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

func needRoot(t *testing.T, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + why)
	}
}

// tmpfs mounts a small disk.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	needRoot(t, "mounts a tmpfs with "+options)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs root with the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

func TestMissingRoot(t *testing.T) {
	ctx, root := t.Context(), filepath.Join(t.TempDir(), "nothing")
	b := open(t, root)
	for _, err := range b.List(ctx, "") {
		require.ErrorIs(t, err, inflight.ErrNotExist)
		require.ErrorContains(t, err, root)
		require.ErrorContains(t, err, "check the path")
	}
	for _, err := range b.Children(ctx, "") {
		require.ErrorIs(t, err, inflight.ErrNotExist)
	}
	require.Empty(t, list(t, b, "job/"))
	require.Empty(t, list(t, b, "job"))
	require.Empty(t, children(t, b, "job"))
	_, err := b.Open(ctx, "job/x")
	require.ErrorIs(t, err, inflight.ErrNotExist)
	require.NoError(t, b.Remove(ctx, "job/x"))
	require.NoError(t, b.RemoveAll(ctx, "job"))
	require.NoError(t, b.RemoveAll(ctx, ""))
	require.NoError(t, b.SyncNames(ctx, "job"))
	space, err := b.Space(ctx)
	require.NoError(t, err)
	require.Positive(t, space.Total, "of the disk where it will be")
	require.NoDirExists(t, root, "nothing of this makes the root")
	put(t, b, "job/x", "x")
	require.Equal(t, []string{"job"}, children(t, b, ""))
	require.NoError(t, b.RemoveAll(ctx, ""))
	require.DirExists(t, root, "the root stays")
}

func TestRootIsAFile(t *testing.T) {
	ctx, root := t.Context(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(root, nil, 0o600))
	b := open(t, root)
	for _, err := range b.List(ctx, "") {
		require.ErrorIs(t, err, inflight.ErrConfig)
	}
	err := tryPut(ctx, b, "x", "x", false)
	require.ErrorIs(t, err, inflight.ErrConfig)
	require.ErrorContains(t, err, "a file stands where a folder should be")
}

func TestFolderAndObjectOfOneName(t *testing.T) {
	ctx, b := t.Context(), open(t, t.TempDir())
	put(t, b, "d/x", "x")
	require.ErrorIs(t, tryPut(ctx, b, "d", "x", true), inflight.ErrExist)
	require.ErrorIs(t, tryPut(ctx, b, "d", "x", false), inflight.ErrConfig)
	require.ErrorIs(t, tryPut(ctx, b, "d/x/y", "x", false), inflight.ErrConfig)
	_, err := b.Open(ctx, "d/x/y")
	require.ErrorIs(t, err, inflight.ErrNotExist)
	require.Equal(t, []string{"d/x"}, list(t, b, ""))
	require.Empty(t, leftovers(t, b, ""))
}

// TestNoRegularFile: opening a pipe waits for its other end, and reading a
// device may never end.
func TestNoRegularFile(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	b := open(t, root)
	put(t, b, "d/x", "x")
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "d/pipe"), 0o600))
	require.NoError(t, os.Symlink("pipe", filepath.Join(root, "d/link")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(root, "d/device")))
	socket, err := net.Listen("unix", filepath.Join(root, "d/socket"))
	require.NoError(t, err)
	defer socket.Close()
	for _, name := range []string{"d/pipe", "d/link", "d/device", "d/socket"} {
		_, err := b.Open(ctx, name)
		require.ErrorIs(t, err, inflight.ErrConfig, name)
		require.ErrorContains(t, err, "a pipe, socket or device")
		_, err = b.Stat(ctx, name)
		require.ErrorIs(t, err, inflight.ErrConfig, name)
		_, err = b.Open(ctx, name+"/x")
		require.ErrorIs(t, err, inflight.ErrNotExist, name)
		require.Empty(t, list(t, b, name+"/"))
		require.Empty(t, children(t, b, name))
		require.Empty(t, leftovers(t, b, name))
		require.NoError(t, b.RemoveAll(ctx, name))
		require.ErrorIs(t, b.SyncNames(ctx, name), inflight.ErrConfig, name)
		require.ErrorIs(t, tryPut(ctx, b, name, "x", true), inflight.ErrExist, name)
	}
	require.Equal(t, []string{"d/x"}, list(t, b, ""))
	b = open(t, filepath.Join(root, "d/pipe"))
	for _, err := range b.List(ctx, "") {
		require.ErrorIs(t, err, inflight.ErrConfig)
	}
}

func TestNoPermission(t *testing.T) {
	needRoot(t, "becomes another user") // whom modes concern
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	root := open755(t)
	b := open(t, root)
	got := run(t, "put", root, nobody)
	require.Regexp(t, `^create `+root+`/job/x: permission denied \(give user (nobody|65534) access to `+root+` \(owner root, mode 0755\), or choose another directory\)$`, got)
	put(t, b, "job/x", "x")
	require.NoError(t, os.Chmod(filepath.Join(root, "job"), 0o755))
	got = run(t, "read", root, nobody)
	require.Regexp(t, `^open `+root+`/job/x: permission denied \(give user (nobody|65534) access to `+root+`/job/x \(owner root, mode 0600\)`, got)
}

func TestNoPermissionAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		return // modes do not concern root: TestNoPermission becomes another user
	}
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o500))
	t.Cleanup(func() { _ = os.Chmod(root, 0o700) })
	err := tryPut(t.Context(), open(t, root), "x", "x", false)
	require.ErrorIs(t, err, inflight.ErrPermission)
	require.ErrorContains(t, err, "mode 0500")
}

func TestFullDisk(t *testing.T) {
	ctx, b := t.Context(), New(tmpfs(t, "size=4m"))
	defer b.Close()
	o, err := b.Create(ctx, "job/x", backends.CreateOptions{})
	require.NoError(t, err)
	piece := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	var taken int
	for range 40 {
		var n int
		n, err = o.Write(piece)
		taken += n
		if err != nil {
			break
		}
	}
	require.ErrorIs(t, err, inflight.ErrNoSpace)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "free space")
	_, again := o.Write(piece[:1])
	require.Equal(t, err, again, "a failed write is final")

	back := make([]byte, taken)
	_, errBack := o.(io.ReaderAt).ReadAt(back, 0)
	require.NoError(t, errBack, "what was taken can be read back")
	require.True(t, bytes.Equal(bytes.Repeat(piece, taken/len(piece)+1)[:taken], back))

	_, again = o.Finish(ctx)
	require.Equal(t, err, again)
	require.Empty(t, list(t, b, ""))
	require.Empty(t, leftovers(t, b, ""))
	space, err := b.Space(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 4<<20, space.Total)
	require.Greater(t, space.Free, int64(3<<20), "the space is free again")
	put(t, b, "job/y", "y")
}

func TestNoInodes(t *testing.T) {
	ctx, b := t.Context(), New(tmpfs(t, "nr_inodes=4"))
	defer b.Close()
	var err error
	for i := range 4 {
		if err = tryPut(ctx, b, fmt.Sprint("x", i), "x", false); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, inflight.ErrNoSpace)
	require.ErrorContains(t, err, "inodes")
}

func TestReadOnlyDisk(t *testing.T) {
	dir := tmpfs(t, "size=1m")
	ctx, b := t.Context(), New(dir)
	defer b.Close()
	put(t, b, "job/x", "x")
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, name := range []string{"job/y", "new/y"} {
		err := tryPut(ctx, b, name, "y", true)
		require.ErrorIs(t, err, inflight.ErrReadOnly, name)
		require.ErrorContains(t, err, "for writing", name)
	}
	require.ErrorIs(t, b.Remove(ctx, "job/x"), inflight.ErrReadOnly)
	require.NoError(t, b.Remove(ctx, "job/z"))
	require.Equal(t, []string{"job/x"}, list(t, b, ""))
	require.NoError(t, b.SyncNames(ctx, "job"))
}

func TestTooManyFiles(t *testing.T) {
	got := run(t, "files", t.TempDir(), nil)
	require.Contains(t, got, "too many open files (raise the limit with `ulimit -n`)")
}

func TestKilledWriter(t *testing.T) {
	root := t.TempDir()
	cmd := childCommand(t, "hang", root, nil)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make([]byte, len("written <nil>"))
	_, err = io.ReadFull(out, said)
	require.NoError(t, err)
	require.Equal(t, "written <nil>", string(said))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed

	b := open(t, root)
	require.Empty(t, list(t, b, ""))
	require.Equal(t, []string{"chk-1"}, children(t, b, "job"), "the folder counts before there is anything in it")
	require.Empty(t, children(t, b, "job/chk-1"))
	left := leftovers(t, b, "job")
	require.Len(t, left, 1)
	require.Equal(t, "job/chk-1/x.cstate", left[0].Name)
	require.Equal(t, "temporary file", left[0].Kind)
	require.EqualValues(t, 300<<10, left[0].Size)
	require.False(t, left[0].Modified.IsZero())
	require.Empty(t, leftovers(t, b, "other"))
	require.NoError(t, left[0].Remove(t.Context()))
	require.Empty(t, children(t, b, ""))
}

func TestEmptyFolderIsALeftover(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "job", "chk-1"), 0o700))
	b := open(t, root)
	left := leftovers(t, b, "")
	require.Len(t, left, 1)
	require.Equal(t, "job/chk-1", left[0].Name)
	require.Equal(t, "empty folder", left[0].Kind)
	put(t, b, "job/chk-1/x", "x")
	require.NoError(t, left[0].Remove(t.Context()))
	require.Equal(t, []string{"job/chk-1/x"}, list(t, b, ""), "it was no longer empty")
	require.NoError(t, b.Remove(t.Context(), "job/chk-1/x"))
	require.NoError(t, left[0].Remove(t.Context()))
	require.Empty(t, children(t, b, ""))
}
