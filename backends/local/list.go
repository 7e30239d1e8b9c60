package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

type entryType uint8

const (
	isUnknown entryType = iota // a link, or a file system that does not tell
	isFile
	isFolder
	isOther // a device, socket or pipe; or a link to a folder, where folders are walked
)

// entry is a name in a folder.
type entry struct {
	name string
	typ  entryType
}

// key orders entries as the full names of the objects that they stand for.
func (e entry) key() string {
	if e.typ == isFolder {
		return e.name + "/"
	}
	return e.name
}

// List walks the tree in the order of full names.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		stopped := false
		folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
		err := b.walk(ctx, "list", folder, func(name string, e entry) (bool, error) {
			switch {
			case e.typ == isFolder:
				return strings.HasPrefix(name+"/", prefix), nil
			case e.typ != isFile || isTemp(name) || !strings.HasPrefix(name, prefix):
				return false, nil
			}
			info, err := b.stat(name)
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil // deleted since
			}
			if err == nil && !yield(info, nil) {
				stopped, err = true, errStop
			}
			return false, err
		})
		if prefix != "" && errors.Is(err, fs.ErrNotExist) {
			return // the root is missing, but it was not what was asked for
		}
		if err != nil && !stopped {
			yield(backends.Info{}, err)
		}
	}
}

// errStop ends a walk that nobody follows any more.
var errStop = errors.New("stop")

// Children reads one folder.
func (b *Backend) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		path, name, err := b.folder("list", dir)
		if err == nil {
			err = b.ready(ctx, "list", name)
		}
		var entries []entry
		if err == nil {
			entries, err = b.entries("list", path)
		}
		if err != nil {
			yield("", err)
			return
		}
		slices.SortFunc(entries, func(x, y entry) int { return cmp.Compare(x.name, y.name) })
		for _, e := range entries {
			if e.typ != isOther && !isTemp(e.name) && !yield(e.name, nil) {
				return
			}
		}
	}
}

// entries returns what is in the folder path: nothing if it does not exist,
// except for the root.
func (b *Backend) entries(op, path string) ([]entry, error) {
	entries, err := readFolder(path)
	if err == nil {
		return entries, nil
	}
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	switch {
	case missing && path != b.root:
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &inflight.Error{Op: op, Object: path, Err: fmt.Errorf("the directory does not exist: %w", inflight.ErrNotExist), Mend: "check the path, and that the disk is mounted"}
	}
	return nil, fail(op, path, err)
}

// walk visits what lies below folder, in the order of full names; visit tells
// whether to go into a folder. A folder is read again after each folder in it,
// so that the whole is an ascending scan: what was created in front of it
// meanwhile is visited too.
func (b *Backend) walk(ctx context.Context, op, folder string, visit func(name string, e entry) (bool, error)) error {
	path, folder, err := b.folder(op, folder)
	if err != nil {
		return err
	}
	for last, again := "", true; again; {
		again = false
		if err := b.ready(ctx, op, folder); err != nil {
			return err
		}
		entries, err := b.entries(op, path)
		if err != nil {
			return err
		}
		for i := range entries {
			resolve(path, &entries[i])
		}
		slices.SortFunc(entries, func(x, y entry) int { return cmp.Compare(x.key(), y.key()) })
		for _, e := range entries {
			if e.key() <= last {
				continue
			}
			last = e.key()
			name := backends.Below(folder) + e.name
			into, err := visit(name, e)
			if err == nil && into {
				again, err = true, b.walk(ctx, op, name, visit)
			}
			if err != nil {
				return err
			}
			if again {
				break
			}
		}
	}
	return nil
}

// resolve finds the type of an entry where reading the folder did not tell it.
// Links to files are objects; links to folders are not walked, since they may
// lead in a circle.
func resolve(dir string, e *entry) {
	if e.typ != isUnknown {
		return
	}
	e.typ = isOther
	path := filepath.Join(dir, e.name)
	st, err := os.Lstat(path)
	if err != nil {
		return
	}
	if st.IsDir() {
		e.typ = isFolder
	} else if st, err = os.Stat(path); err == nil && st.Mode().IsRegular() {
		e.typ = isFile
	}
}

// Stat looks at one file.
func (b *Backend) Stat(ctx context.Context, name string) (backends.Info, error) {
	if err := b.ready(ctx, "stat", name); err != nil {
		return backends.Info{}, err
	}
	return b.stat(name)
}

func (b *Backend) stat(name string) (backends.Info, error) {
	path, err := b.path("stat", name)
	if err != nil {
		return backends.Info{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return backends.Info{}, failRead("stat", path, err)
	}
	if !st.Mode().IsRegular() {
		return backends.Info{}, notRegular("stat", path, st.Mode())
	}
	return backends.Info{Name: name, Size: st.Size(), Modified: st.ModTime()}, nil
}

// Leftovers yields temporary files, those being written too, and empty folders.
func (b *Backend) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		stopped := false
		send := func(l backends.Leftover) error {
			if !yield(l, nil) {
				stopped = true
				return errStop
			}
			return nil
		}
		err := b.walk(ctx, "list leftovers", prefix, func(name string, e entry) (bool, error) {
			path := filepath.Join(b.root, filepath.FromSlash(name))
			switch {
			case e.typ == isFolder:
				below, err := readFolder(path)
				if errors.Is(err, fs.ErrNotExist) {
					return false, nil
				}
				if err != nil {
					return false, fail("list leftovers", path, err)
				}
				if len(below) == 0 {
					return false, send(b.leftover(name, name, path, "empty folder"))
				}
				return true, nil
			case e.typ == isFile && isTemp(name):
				dir, base := name[:len(name)-len(e.name)], e.name
				return false, send(b.leftover(dir+tempTarget(base), name, path, "temporary file"))
			}
			return false, nil
		})
		if err != nil && !stopped {
			yield(backends.Leftover{}, err)
		}
	}
}

func (b *Backend) leftover(target, name, path, kind string) backends.Leftover {
	l := backends.Leftover{Name: target, Kind: kind}
	if st, err := os.Lstat(path); err == nil {
		l.Modified = st.ModTime()
		if st.Mode().IsRegular() {
			l.Size = st.Size()
		}
	}
	l.Remove = func(ctx context.Context) error {
		if err := b.ready(ctx, "remove leftover", name); err != nil {
			return err
		}
		if kind == "empty folder" {
			b.removeEmpty(path) // if it is still empty
			return nil
		}
		return b.removeFile("remove leftover", path)
	}
	return l
}
