package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/spillway-io/spillway/inflight"
)

// osError is an error of the system that also is a sentinel of ours. It reads
// as the system's.
type osError struct{ sentinel, cause error }

func (e *osError) Error() string   { return e.cause.Error() }
func (e *osError) Unwrap() []error { return []error{e.sentinel, e.cause} }

// fail says what was being done to path, of which kind err is, and what helps.
func fail(op, path string, err error) error {
	if already, ok := errors.AsType[*inflight.Error](err); ok {
		return already
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok && err == error(pathErr) {
		err = pathErr.Err // the path is in Object
	} else if linkErr, ok := errors.AsType[*os.LinkError](err); ok && err == error(linkErr) {
		err = linkErr.Err
	}
	sentinel, mend := classify(path, err)
	if sentinel != nil && !errors.Is(err, sentinel) {
		err = &osError{sentinel, err}
	}
	return &inflight.Error{Op: op, Object: path, Err: err, Mend: mend}
}

// failRead is fail for a name that is looked up: a name below a file does not
// exist.
func failRead(op, path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return notAFile(op, path)
	case errors.Is(err, syscall.ENXIO): // a socket is not even opened
		return notRegular(op, path, fs.ModeSocket)
	}
	return fail(op, path, err)
}

// notRegular refuses what is no object: a folder of that name means that there
// is none; a pipe, socket or device is in the way.
func notRegular(op, path string, mode fs.FileMode) error {
	if mode.IsDir() {
		return notAFile(op, path)
	}
	return &inflight.Error{Op: op, Object: path, Err: fmt.Errorf("%w: a pipe, socket or device", inflight.ErrConfig), Mend: "choose another name: a file is needed"}
}

func notAFile(op, path string) error {
	return &inflight.Error{Op: op, Object: path, Err: fmt.Errorf("no file of that name: %w", inflight.ErrNotExist)}
}

// classify returns the sentinel for err, nil where there is none (an EIO, say),
// and what the user can do.
func classify(path string, err error) (sentinel error, mend string) {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case is(context.Canceled, context.DeadlineExceeded):
	case is(os.ErrClosed):
		return inflight.ErrClosed, ""
	case is(syscall.ENOSPC):
		return inflight.ErrNoSpace, "free space or inodes on the disk of " + existing(path) + ", or retain fewer checkpoints"
	case is(syscall.EDQUOT):
		return inflight.ErrNoSpace, "raise the quota on the disk of " + existing(path) + ", or retain fewer checkpoints"
	case is(syscall.EROFS):
		return inflight.ErrReadOnly, "mount the disk of " + existing(path) + " for writing, or choose another directory"
	case is(syscall.EMFILE):
		return inflight.ErrTooManyFiles, "raise the limit with `ulimit -n`"
	case is(syscall.ENFILE):
		return inflight.ErrTooManyFiles, "raise the limit of the system (fs.file-max)"
	case is(fs.ErrPermission):
		return inflight.ErrPermission, permissionMend(path)
	case is(syscall.ENOTDIR):
		return inflight.ErrConfig, "a file stands where a folder should be: choose another directory"
	case is(syscall.EISDIR, syscall.ENOTEMPTY):
		return inflight.ErrConfig, "a folder stands where a file should be: choose another name"
	case is(syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL):
		return inflight.ErrConfig, "choose another directory"
	case is(syscall.EFBIG):
		return inflight.ErrTooLarge, "raise the limit with `ulimit -f`"
	case is(syscall.ETIMEDOUT):
		return inflight.ErrTimeout, ""
	case is(syscall.ESTALE):
		return inflight.ErrUnavailable, "mount the disk again"
	}
	return nil, ""
}

// permissionMend says who may do what with the nearest thing that exists.
func permissionMend(path string) string {
	path = existing(path)
	who := "this user"
	if uid := os.Geteuid(); uid >= 0 {
		who = "user " + userName(uid)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "give " + who + " access to " + path
	}
	owner := ""
	if uid, ok := ownerOf(st); ok {
		owner = "owner " + userName(uid) + ", "
	}
	return fmt.Sprintf("give %s access to %s (%smode %04o), or choose another directory", who, path, owner, st.Mode().Perm())
}

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
