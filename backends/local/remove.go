package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Remove deletes files, and the folders that become empty.
func (b *Backend) Remove(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		err := b.ready(ctx, "remove", name)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		path, err := b.path("remove", name)
		if err == nil {
			err = b.removeFile("remove", path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeFile deletes one file; a folder is left alone: it is no object.
func (b *Backend) removeFile(op, path string) error {
	err := syscall.Unlink(path)
	if err != nil {
		if st, statErr := os.Lstat(path); statErr == nil && st.IsDir() || isMissing(statErr) {
			err = nil
		}
	}
	if err != nil {
		return fail(op, path, err)
	}
	b.removeEmpty(filepath.Dir(path))
	return nil
}

// removeEmpty removes dir and the folders above it while they are empty, never
// the root. A Create that finds its folder gone makes it again.
func (b *Backend) removeEmpty(dir string) {
	for ; len(dir) > len(b.root); dir = filepath.Dir(dir) {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}

// RemoveAll deletes a folder; of the root, all that is in it.
func (b *Backend) RemoveAll(ctx context.Context, prefix string) error {
	path, name, err := b.folder("remove all", prefix)
	if err != nil {
		return err
	}
	if err := b.ready(ctx, "remove all", name); err != nil {
		return err
	}
	entries, err := readFolder(path) // not of a file that has the name
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fail("remove all", path, err)
	}
	for _, e := range entries {
		if err := b.ready(ctx, "remove all", name); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(path, e.name)); err != nil {
			return fail("remove all", path, err)
		}
	}
	b.removeEmpty(path)
	return nil
}

// isMissing reports whether err says that there is nothing under a name.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
