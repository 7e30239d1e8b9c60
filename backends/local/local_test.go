//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode, os.Getenv(childDir)))
	}
	goleak.VerifyTestMain(m)
}

func TestAcceptance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backends.Backend { return New(t.TempDir()) }, backendtest.Options{})
}

// open returns a store that is closed with the test.
func open(t *testing.T, dir string) *Backend {
	b := New(dir)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func put(t *testing.T, b *Backend, name, data string) {
	t.Helper()
	require.NoError(t, tryPut(t.Context(), b, name, data, false))
}

func tryPut(ctx context.Context, b *Backend, name, data string, exclusive bool) error {
	o, err := b.Create(ctx, name, backends.CreateOptions{Exclusive: exclusive})
	if err != nil {
		return err
	}
	if _, err := o.Write([]byte(data)); err != nil {
		return errors.Join(err, o.Abort(ctx))
	}
	_, err = o.Finish(ctx)
	return err
}

func list(t *testing.T, b *Backend, prefix string) (names []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), prefix) {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	return names
}

func children(t *testing.T, b *Backend, dir string) (names []string) {
	t.Helper()
	for name, err := range b.Children(t.Context(), dir) {
		require.NoError(t, err)
		names = append(names, name)
	}
	return names
}

func leftovers(t *testing.T, b *Backend, prefix string) (found []backends.Leftover) {
	t.Helper()
	for l, err := range b.Leftovers(t.Context(), prefix) {
		require.NoError(t, err)
		found = append(found, l)
	}
	return found
}

func TestOpenURL(t *testing.T) {
	ctx := t.Context()
	for in, want := range map[string]string{
		"/a/b":              "file:///a/b",
		"file:///a/b/":      "file:///a/b",
		"file://localhost/": "file:///",
		"file:///a%20b":     "file:///a%20b",
		"/a b":              "file:///a%20b",
	} {
		b, err := backends.Open(ctx, in)
		require.NoError(t, err, in)
		require.Equal(t, want, b.URL(), in)
		require.NoError(t, b.Close())
	}
	wd, err := os.Getwd()
	require.NoError(t, err)
	b, err := backends.Open(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, (&url.URL{Scheme: "file", Path: filepath.Join(wd, "x")}).String(), b.URL())
	require.NoError(t, b.Close())
	for in, mend := range map[string]string{"file://a/b": "file:///a/b", "file://": "file:///directory", "file:///a?b=c": "%3F"} {
		_, err := backends.Open(ctx, in)
		require.ErrorIs(t, err, inflight.ErrConfig, in)
		require.ErrorContains(t, err, mend)
	}
}

func TestModes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "new", "root")
	b := open(t, root)
	put(t, b, "d/x", "x")
	for path, want := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "d": 0o700 | os.ModeDir, "d/x": 0o600} {
		st, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, want, st.Mode(), path)
	}
}

// syncs has b note what is synced, by the path relative to dir.
func syncs(t *testing.T, b *Backend, dir string) func() []string {
	var mu sync.Mutex
	var noted []string
	b.sync = func(f *os.File) error {
		rel, err := filepath.Rel(dir, f.Name())
		if err != nil {
			return err
		}
		if isTemp(rel) {
			rel = filepath.Join(filepath.Dir(rel), "TEMP")
		}
		mu.Lock()
		defer mu.Unlock()
		noted = append(noted, rel)
		return f.Sync()
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { noted = nil }()
		return slices.Clone(noted)
	}
}

func TestWhatIsSynced(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := open(t, filepath.Join(dir, "above/store"))
	synced := syncs(t, b, dir)

	put(t, b, "job/chk-1/data", "x")
	require.Equal(t, []string{"above", ".", "above/store/job/chk-1/TEMP"}, synced(), "a new root's name, then the file")
	require.NoError(t, tryPut(ctx, b, "job/chk-1/m", "x", true))
	require.Equal(t, []string{"above/store/job/chk-1/TEMP", "above/store/job/chk-1", "above/store/job", "above/store"}, synced(), "exclusive: the names too")
	require.ErrorIs(t, tryPut(ctx, b, "job/chk-1/m", "y", true), inflight.ErrExist)
	require.Equal(t, []string{"above/store/job/chk-1/TEMP"}, synced())
	require.NoError(t, b.SyncNames(ctx, "job/chk-1/"))
	require.Equal(t, []string{"above/store/job/chk-1"}, synced(), "its own name is durable already")
	require.NoError(t, b.SyncNames(ctx, "job/chk-2"))
	require.Equal(t, []string{"above/store/job"}, synced(), "a missing folder's parent")

	put(t, b, "job/chk-2/data", "x")
	synced()
	require.NoError(t, b.SyncNames(ctx, "job/chk-2"))
	require.Equal(t, []string{"above/store/job/chk-2", "above/store/job"}, synced(), "a new folder's name")

	other := open(t, filepath.Join(dir, "above/store"))
	require.NoError(t, other.RemoveAll(ctx, "job/chk-1"))
	put(t, other, "job/chk-1/data", "x")
	require.NoError(t, b.SyncNames(ctx, "job/chk-1"))
	require.Equal(t, []string{"above/store/job/chk-1", "above/store/job"}, synced(), "a folder that somebody else has made again")
	require.NoError(t, other.RemoveAll(ctx, "job"))
	put(t, other, "job/chk-1/data", "x")
	require.NoError(t, b.SyncNames(ctx, "job/chk-1"))
	require.Equal(t, []string{"above/store/job/chk-1", "above/store/job", "above/store"}, synced(), "and the one above it")
}

// TestNamesAreForgotten: what is remembered of folders is bounded, and a failed
// sync is not remembered.
func TestNamesAreForgotten(t *testing.T) {
	b := open(t, t.TempDir())
	put(t, b, "d/e/x", "x")
	b.sync = func(f *os.File) error {
		if f.Name() == b.root {
			return syscall.EIO
		}
		return nil
	}
	require.ErrorIs(t, b.SyncNames(t.Context(), "d/e"), syscall.EIO)
	require.Empty(t, b.names)
	b.sync = func(*os.File) error { return nil }
	for i := range 2 * namesKept {
		b.durable([]namedFolder{{fmt.Sprint(i), folderID{inode: 1}}})
		require.LessOrEqual(t, len(b.names), namesKept)
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		b, calls := open(t, t.TempDir()), 0
		b.sync = func(*os.File) error { calls++; return syscall.EIO }
		err := tryPut(t.Context(), b, "d/x", "x", exclusive)
		require.ErrorIs(t, err, syscall.EIO)
		require.NotErrorIs(t, err, inflight.ErrOutcomeUnknown)
		require.False(t, inflight.Retryable(err))
		require.ErrorContains(t, err, "finish "+b.root+"/d/x: input/output error")
		require.Equal(t, 1, calls)
		require.Empty(t, list(t, b, ""))
		require.Empty(t, children(t, b, ""), "the folder went too")
		require.Empty(t, leftovers(t, b, ""))
	}
}

func TestFailedFolderSyncIsUnknown(t *testing.T) {
	b := open(t, t.TempDir())
	b.sync = func(f *os.File) error {
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return &os.PathError{Op: "sync", Path: f.Name(), Err: syscall.EIO}
		}
		return nil
	}
	require.NoError(t, tryPut(t.Context(), b, "d/x", "x", false), "no folder is synced")
	err := tryPut(t.Context(), b, "d/y", "x", true)
	require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, []string{"d/x", "d/y"}, list(t, b, ""))
	err = b.SyncNames(t.Context(), "d")
	require.ErrorIs(t, err, syscall.EIO)

	b.sync = func(*os.File) error { return syscall.EINVAL }
	require.NoError(t, b.SyncNames(t.Context(), "d"), "a file system without such a call")
}

// hang has the sync of files or of folders hang until the test ends or calls
// the function that it returns.
func hang(b *Backend, folders bool) (began chan struct{}, release func()) {
	began, gate := make(chan struct{}), make(chan struct{})
	b.sync = func(f *os.File) error {
		if st, err := f.Stat(); err == nil && st.IsDir() == folders {
			close(began)
			<-gate
		}
		return nil
	}
	return began, func() { close(gate) }
}

func TestFinishDoesNotOutliveItsContext(t *testing.T) {
	b := New(t.TempDir())
	began, release := hang(b, false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	err := tryPut(ctx, b, "d/x", "x", true)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, inflight.ErrOutcomeUnknown)
	release()
	require.NoError(t, b.Close()) // waits for the background
	require.Empty(t, list(t, open(t, b.root), ""), "nothing appears later")
	require.Empty(t, leftovers(t, open(t, b.root), ""))
}

func TestFinishEndedByAbort(t *testing.T) {
	b := New(t.TempDir())
	began, release := hang(b, false)
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	go func() { <-began; _ = o.Abort(context.Background()) }()
	_, err = o.Finish(t.Context())
	require.ErrorIs(t, err, inflight.ErrClosed)
	release()
	require.NoError(t, b.Close())
	require.Empty(t, list(t, open(t, b.root), ""))
}

// TestAbortsFinish: a Finish whose context cannot end stays on its goroutine, and
// Abort decides it all the same.
func TestAbortsFinish(t *testing.T) {
	b := New(t.TempDir())
	began, release := hang(b, false)
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	go func() {
		<-began
		_ = o.Abort(context.Background())
		release()
	}()
	_, err = o.Finish(context.Background())
	require.ErrorIs(t, err, inflight.ErrClosed)
	require.Empty(t, list(t, b, ""))
	require.Empty(t, leftovers(t, b, ""))

	b.sync = (*os.File).Sync
	for range 100 {
		o, err := b.Create(t.Context(), "y", backends.CreateOptions{})
		require.NoError(t, err)
		ended := make(chan struct{})
		go func() { _ = o.Abort(context.Background()); close(ended) }()
		_, err = o.Finish(context.Background())
		<-ended
		require.Equal(t, err == nil, slices.Equal(list(t, b, ""), []string{"y"}), err)
		require.NoError(t, b.Remove(t.Context(), "y"))
	}
	require.NoError(t, b.Close())
}

func TestFinishUnknownWhenItsContextEndsBehindTheRename(t *testing.T) {
	synctest.Test(t, finishUnknown) // its half second passes at once
}

func finishUnknown(t *testing.T) {
	b := New(t.TempDir())
	began, release := hang(b, true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	err := tryPut(ctx, b, "x", "x", true)
	require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
	release()
	require.NoError(t, b.Close())
	require.Equal(t, []string{"x"}, list(t, open(t, b.root), ""))
}

func TestSyncNamesDoesNotOutliveItsContext(t *testing.T) {
	b := open(t, t.TempDir())
	began, release := hang(b, true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	require.ErrorIs(t, b.SyncNames(ctx, ""), context.Canceled)
	release()
}

// TestCloseBesideFinish: to finish objects beside Close is no race.
func TestCloseBesideFinish(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		b := New(dir)
		var finishing sync.WaitGroup
		for k := range 4 {
			o, err := b.Create(t.Context(), fmt.Sprintf("%d/%d", i, k), backends.CreateOptions{})
			require.NoError(t, err)
			ctx := t.Context()
			if k%2 == 0 {
				ctx = context.Background()
			}
			finishing.Go(func() { _, _ = o.Finish(ctx) }) // or it is closed
		}
		require.NoError(t, b.Close())
		finishing.Wait()
	}
}

// TestCloseDoesNotWaitForEver: nor does a Finish whose context can end.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	for _, inline := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { closeSoon(t, inline) })
	}
}

func closeSoon(t *testing.T, inline bool) {
	b := New(t.TempDir())
	began, release := hang(b, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if inline {
		ctx = context.Background()
	}
	finished := make(chan error, 1)
	go func() { finished <- tryPut(ctx, b, "x", "x", false) }()
	<-began
	start := time.Now()
	require.NoError(t, b.Close())
	require.Equal(t, time.Second, time.Since(start))
	if inline {
		release()
	}
	require.ErrorIs(t, <-finished, inflight.ErrClosed)
	if !inline {
		release()
	}
	b.background.Wait()
	require.Empty(t, list(t, open(t, b.root), ""))
}

func TestLinkNoReplace(t *testing.T) {
	dir := t.TempDir()
	temp, path := filepath.Join(dir, "temp"), filepath.Join(dir, "path")
	write := func(path, data string) { require.NoError(t, os.WriteFile(path, []byte(data), 0o600)) }
	write(temp, "mine")
	require.NoError(t, linkNoReplace(temp, path))
	require.NoFileExists(t, temp)
	write(temp, "other")
	require.ErrorIs(t, linkNoReplace(temp, path), inflight.ErrExist)
	require.FileExists(t, temp)
	require.NoError(t, os.Remove(temp))
	require.NoError(t, os.Link(path, temp))
	require.NoError(t, linkNoReplace(temp, path), "the link is ours: its answer was lost")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(data))
}

func TestTempNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.StringMatching(`[A-Za-z0-9._-]{1,255}`).Draw(t, "base")
		if backends.CheckName(base) != nil { // "." or ".."
			return
		}
		temp := tempName(base)
		require.False(t, isTemp(base))
		require.False(t, isTemp("~/"+base))
		require.True(t, isTemp("d/"+temp))
		require.LessOrEqual(t, len(temp), 255)
		require.NotEqual(t, temp, tempName(base))
		require.Error(t, backends.CheckName(temp), "no object can have it")
		if len(base) <= 200 {
			require.Equal(t, base, tempTarget(temp))
		} else {
			require.Contains(t, []string{base, temp}, tempTarget(temp))
		}
	})
	require.Equal(t, ".~x.tmp", tempTarget(".~x.tmp"))
}

func TestForeignFiles(t *testing.T) {
	root, ctx := t.TempDir(), t.Context()
	b := open(t, root)
	put(t, b, "job/x", "x")
	notes := filepath.Join(root, "job", "notes (old).txt")
	require.NoError(t, os.WriteFile(notes, []byte("notes"), 0o644))
	require.Equal(t, []string{"job/notes (old).txt", "job/x"}, list(t, b, ""))
	s, err := b.Open(ctx, "job/notes (old).txt")
	require.NoError(t, err)
	require.EqualValues(t, 5, s.Info().Size)
	require.NoError(t, s.Close())
	require.NoError(t, b.Remove(ctx, "job/notes (old).txt"))
	require.NoFileExists(t, notes)
	for _, name := range []string{"../x", "/etc/passwd", "job/../../x", ".", "", tempName("x")} {
		_, err := b.Open(ctx, name)
		require.ErrorIs(t, err, inflight.ErrConfig, name)
		require.ErrorIs(t, b.Remove(ctx, name), inflight.ErrConfig, name)
	}
	require.ErrorIs(t, b.RemoveAll(ctx, "job/.."), inflight.ErrConfig)
	for _, err := range b.List(ctx, "../") {
		require.ErrorIs(t, err, inflight.ErrConfig)
	}
}

func TestLinks(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	b := open(t, root)
	put(t, b, "job/x", "x")
	put(t, open(t, elsewhere), "far", "far")
	for link, target := range map[string]string{"job/file": "x", "job/circle": "..", "far": elsewhere, "broken": "nothing"} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	require.Equal(t, []string{"job/file", "job/x"}, list(t, b, ""), "links to folders are not walked")
	require.Equal(t, []string{"broken", "far", "job"}, children(t, b, ""))
	require.Equal(t, []string{"far/far"}, list(t, b, "far/"), "but followed when they are named")
	require.NoError(t, b.RemoveAll(t.Context(), "job"))
	require.Equal(t, []string{"far/far"}, list(t, b, "far/"))
}

// TestListIsAnAscendingScan creates in front of the scan and deletes behind it.
func TestListIsAnAscendingScan(t *testing.T) {
	b := open(t, t.TempDir())
	put(t, b, "chk-1/m", "x")
	put(t, b, "chk-3/m", "x")
	var names []string
	for info, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		names = append(names, info.Name)
		if info.Name == "chk-1/m" {
			put(t, b, "chk-2/m", "x")
			put(t, b, "chk-4/m", "x")
			put(t, b, "chk-0/m", "x")
			require.NoError(t, b.Remove(t.Context(), "chk-1/m", "chk-3/m"))
		}
	}
	require.Equal(t, []string{"chk-1/m", "chk-2/m", "chk-4/m"}, names)
}

// TestOneFolder has writers that create and delete in the same folder, which
// comes and goes under them.
func TestOneFolder(t *testing.T) {
	b := open(t, t.TempDir())
	errs := make(chan error, 4)
	for w := range cap(errs) {
		go func() {
			name := fmt.Sprintf("a/b/w%d", w)
			var all error
			for range 100 {
				o, err := b.Create(t.Context(), name, backends.CreateOptions{})
				if err == nil && w%2 == 0 {
					_, err = o.Finish(t.Context())
				} else if err == nil {
					err = o.Abort(t.Context())
				}
				all = errors.Join(all, err, b.Remove(t.Context(), name))
			}
			errs <- all
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.Empty(t, children(t, b, ""))
}

func TestLargeFolder(t *testing.T) {
	for _, n := range []int{10, 500, 4200} { // one call; a larger buffer; more than 1 MiB
		root, err := os.MkdirTemp("/dev/shm", "spillway") // thousands of files on disk take seconds
		if err != nil {
			root = t.TempDir()
		}
		t.Cleanup(func() { _ = os.RemoveAll(root) })
		b := open(t, root)
		var want []string
		for i := range n {
			name := fmt.Sprintf("%06d-%s", i, strings.Repeat("x", 245))
			want = append(want, name)
			require.NoError(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
		}
		require.Equal(t, want, children(t, b, ""))
	}
}

func TestWriteAllocatesNothing(t *testing.T) {
	b := open(t, t.TempDir())
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	piece := make([]byte, 256<<10)
	allocs := testing.AllocsPerRun(20, func() {
		if _, err := o.Write(piece); err != nil {
			t.Error(err)
		}
	})
	require.Zero(t, allocs)
	require.NoError(t, o.Abort(t.Context()))
}
