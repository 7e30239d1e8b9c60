package hdfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"

	hdfs "github.com/colinmarc/hdfs/v2"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// stat looks at one path. What lies below a file does not exist; the namenode
// calls it forbidden, except for its superuser.
func (c *client) stat(at string) (*hdfs.FileInfo, error) {
	st, err := c.Stat(at)
	if errors.Is(err, fs.ErrPermission) {
		for above := path.Dir(at); above != "/"; above = path.Dir(above) {
			if st, err := c.Stat(above); err == nil && !st.IsDir() {
				return nil, fs.ErrNotExist
			} else if err == nil {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	info, ok := st.(*hdfs.FileInfo)
	if !ok {
		return nil, fmt.Errorf("%s: not understood: %T", at, st)
	}
	return info, nil
}

// find looks at the object at a path, whichever form it has. file is where its
// bytes are.
func (c *client) find(at string) (file string, st *hdfs.FileInfo, err error) {
	isPayload := path.Base(at) == payload
	if st, err = c.stat(at); err == nil && st.IsDir() {
		at += "/" + payload
		st, err = c.stat(at)
	} else if isPayload {
		err = cmp.Or(err, fs.ErrNotExist) // the file o is the object above it
	}
	if err == nil && st.IsDir() {
		err = fs.ErrNotExist
	}
	return at, st, err
}

// id returns the number of the file at the namenode; it stays through renames.
func id(st *hdfs.FileInfo) uint64 {
	status, ok := st.Sys().(interface{ GetFileId() uint64 })
	if !ok {
		return 0
	}
	return status.GetFileId()
}

func info(name string, st *hdfs.FileInfo) backends.Info {
	return backends.Info{Name: name, Size: st.Size(), Modified: st.ModTime(), ETag: strconv.FormatUint(id(st), 10)}
}

// isMissing reports whether err says that there is nothing at a path: a path
// below a file does not exist.
func isMissing(err error) bool {
	if remote := hdfs.Error(nil); errors.As(err, &remote) {
		return strings.HasSuffix(remote.Exception(), ".ParentNotDirectoryException") || strings.HasSuffix(remote.Exception(), ".FileNotFoundException")
	}
	return errors.Is(err, fs.ErrNotExist)
}

// missing makes what isMissing means an error of its own.
func missing(err error) error {
	if isMissing(err) {
		return &kindError{inflight.ErrNotExist, fmt.Errorf("no file of that name: %w", inflight.ErrNotExist), ""}
	}
	return err
}

// Stat looks at one file.
func (b *Backend) Stat(ctx context.Context, name string) (backends.Info, error) {
	at, err := b.lookUp("stat", name)
	if err != nil {
		return backends.Info{}, err
	}
	return do(ctx, b, "stat", name, func(c *client) (backends.Info, error) {
		_, st, err := c.find(at)
		if err != nil {
			return backends.Info{}, missing(err)
		}
		return info(name, st), nil
	})
}

// entry is a name in a folder.
type entry struct {
	name string
	st   *hdfs.FileInfo
}

// readFolder returns what is in a folder, in ascending order: nothing if it does
// not exist, except for the root. The namenode answers a thousand names at a time;
// the whole is an ascending scan.
func (b *Backend) readFolder(ctx context.Context, op, at, name string) ([]entry, error) {
	return do(ctx, b, op, name, func(c *client) ([]entry, error) {
		found, err := c.ReadDir(at)
		switch {
		case err == nil:
		case isMissing(err) && at == b.o.Dir:
			return nil, &kindError{inflight.ErrNotExist, fmt.Errorf("the directory does not exist: %w", inflight.ErrNotExist), "check the path, and the user"}
		case isMissing(err), c.isFile(at):
			return nil, nil
		default:
			return nil, err
		}
		var entries []entry
		for _, f := range found {
			if st, ok := f.(*hdfs.FileInfo); ok {
				entries = append(entries, entry{st.Name(), st})
			}
		}
		slices.SortFunc(entries, func(x, y entry) int { return cmp.Compare(x.name, y.name) })
		return entries, nil
	})
}

func (c *client) isFile(at string) bool {
	st, err := c.stat(at)
	return err == nil && !st.IsDir()
}

// Children reads one folder.
func (b *Backend) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		at, name, err := b.folder("list", dir)
		var entries []entry
		if err == nil {
			entries, err = b.readFolder(ctx, "list", at, name)
		}
		if err != nil {
			yield("", err)
			return
		}
		for _, e := range entries {
			if !isTemp(e.name) && !e.isPayload() && !yield(e.name, nil) {
				return
			}
		}
	}
}

// isPayload reports whether the entry is the file of the object that its folder
// is.
func (e entry) isPayload() bool { return e.name == payload && !e.st.IsDir() }

// List walks the tree in the order of full names.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
		err := b.walk(ctx, "list", folder, visitor{
			enter: func(name string) bool {
				return strings.HasPrefix(name+"/", prefix) && !isTemp(name)
			},
			object: func(name string, st *hdfs.FileInfo) error {
				if strings.HasPrefix(name, prefix) && !isTemp(name) && !yield(info(name, st), nil) {
					return errStop
				}
				return nil
			},
		})
		if prefix != "" && errors.Is(err, fs.ErrNotExist) {
			return // the root is missing, but it was not what was asked for
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(backends.Info{}, err)
		}
	}
}

// errStop ends a walk that nobody follows any more.
var errStop = errors.New("stop")

// visitor is told what a walk finds.
type visitor struct {
	enter  func(name string) bool // whether to look into a folder, or whether it is an object
	object func(name string, st *hdfs.FileInfo) error
	left   func(name string, e entry) error // optional; for temporary names, and for folders without anything
}

// step is a place in the order of full names: an object comes at its name, what is
// below a folder at the name with a slash. A folder may be either, so that it
// comes at both.
type step struct {
	key string
	entry
}

// walk visits what lies below folder, in the order of full names. A folder is
// read again after each folder in it, so that the whole is an ascending scan: what
// was created in front of it meanwhile is visited too.
func (b *Backend) walk(ctx context.Context, op, folder string, v visitor) error {
	at, folder, err := b.folder(op, folder)
	if err != nil {
		return err
	}
	for last, again := "", true; again; {
		again = false
		entries, err := b.readFolder(ctx, op, at, folder)
		if err != nil {
			return err
		}
		if last == "" && len(entries) == 0 && at != b.o.Dir && v.left != nil {
			return b.emptyFolder(ctx, op, at, folder, v)
		}
		for _, s := range steps(entries) {
			if s.key <= last || s.isPayload() {
				continue
			}
			last = s.key
			if again, err = b.visit(ctx, op, backends.Below(folder)+s.name, s, v); err != nil {
				return err
			}
			if again {
				break
			}
		}
	}
	return nil
}

func steps(entries []entry) (all []step) {
	for _, e := range entries {
		all = append(all, step{e.name, e})
		if e.st.IsDir() && !isTemp(e.name) {
			all = append(all, step{e.name + "/", e})
		}
	}
	slices.SortFunc(all, func(x, y step) int { return cmp.Compare(x.key, y.key) })
	return all
}

// visit makes one step of a walk. deep: it went into a folder.
func (b *Backend) visit(ctx context.Context, op, name string, s step, v visitor) (deep bool, err error) {
	switch {
	case isTemp(s.name):
		if v.left != nil {
			err = v.left(name, s.entry)
		}
		return false, err
	case !s.st.IsDir():
		return false, v.object(name, s.st)
	case !v.enter(name):
		return false, nil
	case strings.HasSuffix(s.key, "/"):
		return true, b.walk(ctx, op, name, v)
	}
	st, err := do(ctx, b, op, name, func(c *client) (*hdfs.FileInfo, error) {
		st, err := c.stat(b.at(name) + "/" + payload)
		if isMissing(err) || err == nil && st.IsDir() {
			return nil, nil
		}
		return st, err
	})
	if st != nil && err == nil {
		err = v.object(name, st)
	}
	return false, err
}

// emptyFolder tells v of a folder without anything, unless it has gone.
func (b *Backend) emptyFolder(ctx context.Context, op, at, name string, v visitor) error {
	st, err := do(ctx, b, op, name, func(c *client) (*hdfs.FileInfo, error) {
		st, err := c.stat(at)
		if isMissing(err) || err == nil && !st.IsDir() {
			return nil, nil
		}
		return st, err
	})
	if st == nil || err != nil {
		return err
	}
	return v.left(name, entry{path.Base(name), st})
}

// Leftovers yields temporary files, those being written too, and empty folders.
// The lease of a file that is still open goes with it.
func (b *Backend) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		err := b.walk(ctx, "list leftovers", prefix, visitor{
			enter:  func(string) bool { return true },
			object: func(string, *hdfs.FileInfo) error { return nil },
			left: func(name string, e entry) error {
				if !yield(b.leftover(name, e), nil) {
					return errStop
				}
				return nil
			},
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(backends.Leftover{}, err)
		}
	}
}

func (b *Backend) leftover(name string, e entry) backends.Leftover {
	l := backends.Leftover{Name: name, Kind: "empty folder", Size: e.st.Size(), Modified: e.st.ModTime()}
	if isTemp(name) {
		l.Name, l.Kind = name[:len(name)-len(e.name)]+tempTarget(e.name), "temporary file"
	}
	l.Remove = func(ctx context.Context) error {
		_, err := do(ctx, b, "remove leftover", name, func(c *client) (any, error) {
			at := b.at(name)
			if isTemp(name) {
				if err := c.RemoveAll(at); err != nil && !isMissing(err) {
					return nil, err
				}
				at = path.Dir(at)
			}
			c.removeEmpty(at) // if it is still empty
			return nil, nil
		})
		return err
	}
	return l
}
