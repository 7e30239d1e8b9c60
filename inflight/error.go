package inflight

import (
	"context"
	"errors"
	"io/fs"
	"strings"
)

// Errors about what lies on a store.
var (
	// ErrNotExist: there is nothing under that name.
	ErrNotExist = fs.ErrNotExist
	// ErrExist: an exclusive create found the name taken.
	ErrExist = fs.ErrExist
	// ErrCorrupt: bytes are there and are not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrTorn: a file ends before its end: its writer died, or its tail was cut off.
	ErrTorn = errors.New("torn")
	// ErrEmpty: a file without a byte.
	ErrEmpty = errors.New("empty")
	// ErrForeign: not one of our files, or a file of ours that belongs elsewhere.
	ErrForeign = errors.New("foreign file")
	// ErrUnknownVersion: intact, and written by a newer version or with a feature not known here.
	ErrUnknownVersion = errors.New("unknown version")
	// ErrIncomplete: intact, but the subtask's complete mark is missing: it must not be restored.
	ErrIncomplete = errors.New("incomplete")
	// ErrDamaged: the manifest of a checkpoint exists and does not verify.
	ErrDamaged = errors.New("damaged manifest")
	// ErrTooLarge: a length exceeds its documented limit.
	ErrTooLarge = errors.New("too large")
)

// Errors of stores.
var (
	// ErrPermission: the user may not do that.
	ErrPermission = fs.ErrPermission
	// ErrAuth: the store does not accept who we say we are.
	ErrAuth = errors.New("authentication failed")
	// ErrNoSpace: the store is full, or a quota is.
	ErrNoSpace = errors.New("no space left")
	// ErrReadOnly: the store or the backend does not take writes.
	ErrReadOnly = errors.New("read-only")
	// ErrTooManyFiles: the process has no file descriptor left.
	ErrTooManyFiles = errors.New("too many open files")
	// ErrUnavailable: the store cannot be reached or asks to come again.
	ErrUnavailable = errors.New("unavailable")
	// ErrTimeout: the store did not answer in time.
	ErrTimeout = errors.New("timeout")
	// ErrConfig: a URL, option or setting that cannot work.
	ErrConfig = errors.New("configuration")
	// ErrOutcomeUnknown: the answer to a write was lost: it may or may not have been applied.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrUnsupported: the store cannot do that.
	ErrUnsupported = errors.New("not supported")
)

// Errors of capture, commit and restore.
var (
	// ErrSubsumed: a newer checkpoint has taken the place of this one.
	ErrSubsumed = errors.New("subsumed")
	// ErrAborted: the checkpoint was given up.
	ErrAborted = errors.New("aborted")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("closed")
	// ErrOrder: buffers of one channel do not follow on each other, or a call came at the wrong time.
	ErrOrder = errors.New("out of order")
	// ErrOverBudget: more would be in flight in memory than allowed; the checkpoint is declined as a whole.
	ErrOverBudget = errors.New("over max-buffered-data")
	// ErrRecovering: cannot be captured yet, since old state is still being replayed.
	ErrRecovering = errors.New("still recovering")
	// ErrFenced: another coordinator has taken over.
	ErrFenced = errors.New("fenced")
	// ErrMismatch: the checkpoint does not fit the job that wants to restore it.
	ErrMismatch = errors.New("does not fit")
	// ErrRetired: the checkpoint is no longer kept.
	ErrRetired = errors.New("retired")
)

// Error names the operation, the object and, where there is one, the mend.
type Error struct {
	Op     string // what was being done: "create", "commit", "verify"
	Object string // URL, file name or subtask
	Mend   string // what the user can do; may be empty
	Err    error
}

// Error returns "op object: cause (mend)" on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Object != "" {
		b.WriteByte(' ')
		b.WriteString(e.Object)
	}
	cause := e.Err
	if p, ok := cause.(*fs.PathError); ok && p.Path == e.Object {
		cause = p.Err // the path stands there already
	}
	b.WriteString(": ")
	b.WriteString(cause.Error())
	if e.Mend != "" {
		b.WriteString(" (")
		b.WriteString(e.Mend)
		b.WriteByte(')')
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether trying again later may help. The end of a context
// is permanent: whoever ended it does not want another try.
func Retryable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrTimeout)
}

// IsCorruption reports whether err says that bytes are not what was written:
// corrupt, torn, empty, or another file than was meant.
func IsCorruption(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTorn) || errors.Is(err, ErrEmpty) ||
		errors.Is(err, ErrForeign) || errors.Is(err, ErrDamaged)
}
