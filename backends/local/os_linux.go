package local

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/inflight"
)

// earlyStep is the unit of the early write-out. What is not a whole step is
// left to the sync at the end: written out early, the tail would be written
// twice, and small files gain nothing.
const earlyStep = 256 << 10

// earlyWriteOut has the disk work while the file is still being written: the
// largest single gain on the way of a checkpoint (bench/README.md).
type earlyWriteOut struct {
	conn    syscall.RawConn  // of the first whole step on
	call    func(fd uintptr) // made once, so that a Write allocates nothing
	sent, n int64
	err     error
	off     bool
}

// upTo sends the whole steps of the first written bytes that were not sent yet.
func (e *earlyWriteOut) upTo(file *os.File, written int64) (err error) {
	e.n = written&^(earlyStep-1) - e.sent
	if e.off || e.n <= 0 {
		return nil
	}
	if e.conn == nil {
		if e.conn, err = file.SyscallConn(); err != nil {
			return err
		}
		e.call = func(fd uintptr) {
			e.err = unix.SyncFileRange(int(fd), e.sent, e.n, unix.SYNC_FILE_RANGE_WRITE)
		}
	}
	if e.conn.Control(e.call) != nil {
		return os.ErrClosed // by Abort: its only reason
	}
	switch e.err {
	case nil:
		e.sent += e.n
		return nil
	case unix.EINVAL, unix.ENOSYS, unix.ESPIPE, unix.EOPNOTSUPP, unix.EPERM:
		e.off = true // not here, or a sandbox forbids it: the sync at the end does it
		return nil
	}
	return e.err
}

// rename is os.Rename without its look at what is there.
func rename(from, to string) error {
	for {
		if err := unix.Rename(from, to); err != unix.EINTR {
			return err
		}
	}
}

// renameNoReplace renames, or answers fs.ErrExist; errors.ErrUnsupported where
// the kernel or the file system cannot.
func renameNoReplace(from, to string) error {
	for {
		err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EINVAL, unix.ENOSYS:
			return errors.ErrUnsupported
		default:
			return err
		}
	}
}

// openFolder opens a folder, and nothing else.
func openFolder(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// identify returns what folder f is.
func identify(f *os.File) folderID {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return folderID{} // an inode alone is soon used again
	}
	return folderID{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino, born: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}
}

var direntBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// readFolder returns what is in dir at one moment, in no order.
//
// The kernel holds the folder's lock during one getdents call, so what fits
// into one buffer is read atomically; os.ReadDir takes buffers of 8 KiB. A
// larger folder gets a larger buffer, and where even that takes several calls
// (very large ones, FUSE) two readings must agree.
func readFolder(dir string) ([]entry, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := direntBuffers.Get().(*[]byte)
	defer direntBuffers.Put(buf)
	entries, calls, err := readEntries(f, *buf)
	if err != nil || calls <= 1 {
		return entries, err
	}
	large := make([]byte, 1<<20)
	var before []entry
	for range 16 {
		if _, err := f.Seek(0, 0); err != nil {
			return nil, err
		}
		before = entries
		if entries, calls, err = readEntries(f, large); err != nil || calls <= 1 {
			return entries, err
		}
		if sameNames(before, entries) {
			return entries, nil
		}
	}
	return nil, &fs.PathError{Op: "read", Path: dir, Err: inflight.ErrUnavailable}
}

func sameNames(a, b []entry) bool {
	byName := func(x, y entry) int { return strings.Compare(x.name, y.name) }
	slices.SortFunc(a, byName)
	slices.SortFunc(b, byName)
	return slices.EqualFunc(a, b, func(x, y entry) bool { return x.name == y.name })
}

// readEntries reads the rest of f, and tells in how many calls.
func readEntries(f *os.File, buf []byte) (entries []entry, calls int, err error) {
	for {
		n, err := unix.ReadDirent(int(f.Fd()), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return entries, calls, err
		}
		calls++
		entries = appendDirents(entries, buf[:n])
	}
}

// appendDirents decodes linux_dirent64: inode (8 bytes), offset (8), record
// length (2), type (1), name, NUL.
func appendDirents(entries []entry, b []byte) []entry {
	const header = 19
	for len(b) > header {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size <= header || size > len(b) {
			break // the kernel does not do that
		}
		name, _, _ := strings.Cut(string(b[header:size]), "\x00")
		if name != "." && name != ".." && binary.NativeEndian.Uint64(b) != 0 {
			entries = append(entries, entry{name: name, typ: direntType(b[18])})
		}
		b = b[size:]
	}
	return entries
}

func direntType(t byte) entryType {
	switch t {
	case unix.DT_REG:
		return isFile
	case unix.DT_DIR:
		return isFolder
	case unix.DT_LNK, unix.DT_UNKNOWN:
		return isUnknown
	}
	return isOther
}
