// Package local stores objects as files below a directory.
//
// An object is written to a temporary file beside its final name, ".NAME~RANDOM.tmp"
// (no name has a '~'), which is synced and then renamed. An exclusive create
// renames without overwriting and syncs the folders up to the root before it
// answers; other names become durable by SyncNames. A writer that is killed
// leaves at most its temporary file and an empty folder; Leftovers lists them.
//
// Finish and SyncNames, which wait for the disk, answer as soon as their context
// ends and leave the rest to the background. Other calls look at their context
// first and are as quick as the file system: one that hangs, as a hard NFS mount
// may, cannot be interrupted.
package local

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

func init() { backends.Register("file", openURL) }

func openURL(_ context.Context, u *url.URL) (backends.Backend, error) {
	config := func(cause, mend string) error {
		return &inflight.Error{Op: "open", Object: u.Redacted(), Err: fmt.Errorf("%w: %s", inflight.ErrConfig, cause), Mend: mend}
	}
	switch {
	case u.Host != "" && u.Host != "localhost":
		return nil, config("a file URL has no host", "use three slashes: file:///"+u.Host+u.Path)
	case u.Path == "":
		return nil, config("no directory", "use file:///directory")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, config("a file URL has no options", "write '?' as %3F and '#' as %23, or give a plain path")
	}
	return New(filepath.FromSlash(u.Path)), nil
}

// Backend is the tree below one directory.
type Backend struct {
	root string               // absolute
	sync func(*os.File) error // fsync, but for tests

	mu         sync.Mutex
	closed     bool
	open       map[io.Closer]struct{} // objects and sources
	names      map[string]folderID    // of folders, that are durable
	background sync.WaitGroup         // what waits for the disk
}

// New returns the store in directory dir, which is made by the first Create if
// it does not exist.
func New(dir string) *Backend {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return &Backend{root: dir, sync: (*os.File).Sync, open: map[io.Closer]struct{}{}, names: map[string]folderID{}}
}

// URL returns the root as a file URL.
func (b *Backend) URL() string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(b.root)}).String()
}

// Capabilities declares what a directory promises.
func (b *Backend) Capabilities() backends.Capabilities {
	return backends.Capabilities{Exclusive: true, AtomicList: true, SyncNames: true, AbortsFinish: true, FreeSpace: hasSpace}
}

// Close drops the objects that are still open and closes the sources. It waits
// at most a second for the disk.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	open := b.open
	b.open = nil
	b.mu.Unlock()
	for c := range open {
		_ = c.Close() // a source that was only read, or an object that is dropped
	}
	quiet := make(chan struct{})
	go func() { b.background.Wait(); close(quiet) }()
	select {
	case <-quiet:
	case <-time.After(time.Second):
	}
	return nil
}

// adopt remembers c, to be closed with the backend.
func (b *Backend) adopt(c io.Closer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return inflight.ErrClosed
	}
	b.open[c] = struct{}{}
	return nil
}

func (b *Backend) forget(c io.Closer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, c)
}

// enter counts what waits for the disk, so that Close waits for it too; leave ends
// that. Once the backend is closed nobody counts.
func (b *Backend) enter() (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return func() {}
	}
	b.background.Add(1)
	return b.background.Done
}

// aside runs f in the background.
func (b *Backend) aside(f func()) {
	leave := b.enter()
	go func() {
		defer leave()
		f()
	}()
}

// ready is asked first by every call.
func (b *Backend) ready(ctx context.Context, op, name string) error {
	err := ctx.Err()
	b.mu.Lock()
	if b.closed {
		err = inflight.ErrClosed
	}
	b.mu.Unlock()
	if err != nil {
		return &inflight.Error{Op: op, Object: filepath.Join(b.root, name), Err: err}
	}
	return nil
}

// path returns where name lies. A name that would lead out of the root, or that
// is a temporary file's, is refused.
func (b *Backend) path(op, name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || isTemp(name) {
		return "", &inflight.Error{Op: op, Object: fmt.Sprintf("%q", name), Err: fmt.Errorf("%w: not a name", inflight.ErrConfig)}
	}
	return filepath.Join(b.root, filepath.FromSlash(name)), nil
}

// folder returns where the folder prefix lies, and its name without slashes at
// the end.
func (b *Backend) folder(op, prefix string) (path, name string, err error) {
	if name = strings.TrimRight(prefix, "/"); name == "" {
		return b.root, "", nil
	}
	path, err = b.path(op, name)
	return path, name, err
}

// Create opens a temporary file beside name.
func (b *Backend) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	if err := b.ready(ctx, "create", name); err != nil {
		return nil, err
	}
	if err := backends.CheckName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(b.root, filepath.FromSlash(name))
	dir, base := filepath.Split(path)
	temp := dir + tempName(base)
	for try := 1; ; try++ {
		file, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrNotExist) && try < 100 {
			// The folder is missing; or somebody who deleted the last object in
			// it has just removed it again. That can happen to folders above it
			// too, and to one that somebody else has just made.
			err = b.makeFolder(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
				continue
			}
		}
		if err != nil {
			return nil, fail("create", path, err)
		}
		return b.newObject(file, name, path, temp, opt.Exclusive)
	}
}

// makeFolder makes dir. When it makes the root, the names of the root and of
// the new folders above it become durable at once, since SyncNames ends at the
// root.
func (b *Backend) makeFolder(dir string) error {
	_, err := os.Stat(b.root)
	if !errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(dir, 0o700)
	}
	above := existing(b.root)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for p := b.root; p != above; {
		p = filepath.Dir(p)
		if _, err := b.syncFolder(p); err != nil {
			return err
		}
	}
	return nil
}

// existing returns path or the nearest folder above it that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

// SyncNames syncs the folder prefix and each folder above it, up to the root.
func (b *Backend) SyncNames(ctx context.Context, prefix string) error {
	path, name, err := b.folder("sync names", prefix)
	if err != nil {
		return err
	}
	if err := b.ready(ctx, "sync names", name); err != nil {
		return err
	}
	done := make(chan error, 1)
	b.aside(func() { done <- b.syncUp(path) })
	select {
	case err := <-done:
		if err != nil {
			return fail("sync names", path, err)
		}
		return nil
	case <-ctx.Done():
		return fail("sync names", path, ctx.Err())
	}
}

// syncUp syncs dir and the folders above it, up to the root or to one of which it
// is known that its name, and those above it, are durable. A folder that is not
// there has no name to lose.
func (b *Backend) syncUp(dir string) error {
	var made []namedFolder
	for {
		id, err := b.syncFolder(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		n := namedFolder{dir, id}
		if len(dir) <= len(b.root) || b.isDurable(n) {
			b.durable(made)
			return nil
		}
		if id != (folderID{}) {
			made = append(made, n)
		}
		dir = filepath.Dir(dir)
	}
}

// namedFolder is a folder under a name. The same name may be another folder's
// later.
type namedFolder struct {
	path string
	id   folderID
}

// folderID tells a folder from those that had its name before it, unless it was
// removed and made again within the tick of its birth, a few milliseconds. Zero
// where the file system cannot.
type folderID struct {
	device, inode uint64
	born          int64 // in ns
}

// namesKept bounds what is remembered of folders: those of old checkpoints are of
// no use.
const namesKept = 1024

func (b *Backend) isDurable(n namedFolder) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return n.id != (folderID{}) && b.names[n.path] == n.id
}

func (b *Backend) durable(list []namedFolder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.names)+len(list) > namesKept {
		clear(b.names)
	}
	for _, n := range list {
		b.names[n.path] = n.id
	}
}

// syncFolder makes the names in dir durable, where the file system can; Windows
// has no such call. It returns what dir was before.
func (b *Backend) syncFolder(dir string) (id folderID, err error) {
	f, err := openFolder(dir)
	if err != nil || runtime.GOOS == "windows" {
		return id, err
	}
	defer f.Close()
	id = identify(f)
	err = b.sync(f)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return id, nil
	}
	return id, err
}

const (
	tempPrefix = "."
	tempMark   = "~"
	tempSuffix = ".tmp"
	maxPart    = 255
)

// tempName returns a fresh temporary name for the file base. A name that would
// become too long is cut; the second mark tells.
func tempName(base string) string {
	tail := tempMark + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, rand.Uint64())) + tempSuffix
	if room := maxPart - len(tempPrefix) - len(tail); len(base) > room {
		base = base[:room-len(tempMark)] + tempMark
	}
	return tempPrefix + base + tail
}

// isTemp reports whether the last part of name has the form of a temporary
// file's.
func isTemp(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	return strings.HasPrefix(base, tempPrefix) && strings.HasSuffix(base, tempSuffix) && strings.Contains(base, tempMark)
}

// tempTarget returns the name that the temporary file base would have got, or
// base where that cannot be told.
func tempTarget(base string) string {
	target, _, _ := strings.Cut(strings.TrimPrefix(base, tempPrefix), tempMark)
	if strings.Count(base, tempMark) != 1 || target == "" {
		return base
	}
	return target
}
