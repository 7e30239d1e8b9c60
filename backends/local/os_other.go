//go:build !linux

package local

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// earlyWriteOut does nothing here: the sync at the end writes all.
type earlyWriteOut struct{}

func (*earlyWriteOut) upTo(*os.File, int64) error { return nil }

func rename(from, to string) error {
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrExist) {
		err = syscall.EISDIR // that is what os.Rename means
	}
	return err
}

func renameNoReplace(string, string) error { return errors.ErrUnsupported }

// openFolder opens a folder; it does not wait for the other end of a pipe.
func openFolder(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func identify(*os.File) folderID { return folderID{} }

// readFolder returns what is in dir, in no order.
func readFolder(dir string) ([]entry, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(list))
	for i, e := range list {
		entries[i] = entry{name: e.Name(), typ: typeOf(e.Type())}
	}
	return entries, nil
}

func typeOf(mode fs.FileMode) entryType {
	switch {
	case mode.IsRegular():
		return isFile
	case mode.IsDir():
		return isFolder
	case mode&fs.ModeSymlink != 0:
		return isUnknown
	}
	return isOther
}
