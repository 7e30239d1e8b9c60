// Package backends declares what Spillway needs of a store, and opens stores by
// URL. Drivers live below it; what differs between stores is declared in
// Capabilities, and wrappers (wrap) are backends themselves.
//
// # Names
//
// A name is a slash-separated path below the root of the backend, of the
// characters [A-Za-z0-9._-] and '/', each part 1 to 255 bytes long, no part
// "." or "..". CheckName tells; Create refuses any other with ErrConfig. No name
// may be a folder of another name: some stores refuse that. What others put
// below the root may have other names: List yields it, and Open, Stat and Remove
// take what List yields.
//
// A folder is "" (the root) or a name, with or without a slash at its end.
package backends

import (
	"context"
	"io"
	"iter"
	"time"
)

// Backend is a store of immutable objects.
//
// All methods may be called by several goroutines at once. No call outlives its
// context by more than a second. Errors are *inflight.Error over the sentinels
// of package inflight; the end of the context is reported as the context's
// error.
type Backend interface {
	// Create opens a new object for writing; ctx bounds this call, not the life
	// of the object. Nothing is visible under name before Finish. With
	// Exclusive, Finish answers ErrExist if the name was taken meanwhile, and of
	// several racing writers exactly one wins. Without it the last Finish of a
	// name may win or fail with ErrExist: names that are written once are the
	// caller's business.
	Create(ctx context.Context, name string, opt CreateOptions) (Object, error)

	// Open opens an object for reading, pinned to the version it has now. A
	// missing object is ErrNotExist here, not at the first read; so is a folder.
	Open(ctx context.Context, name string) (Source, error)

	// Stat returns what List would.
	Stat(ctx context.Context, name string) (Info, error)

	// List yields the finished objects whose name begins with prefix, which may
	// end in the middle of a part, in ascending order of the bytes of their
	// names ("a.b" comes before "a/b"). A prefix with nothing below it yields
	// nothing; but a root that does not exist is ErrNotExist where the prefix is
	// "", so that a mistyped URL does not look like an empty store. The listing
	// is either atomic or an ascending scan: an object that exists throughout is
	// yielded, and what is created in front of the scan is too. An error ends
	// it.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]

	// Children yields the names of the parts directly below dir ("" is the
	// root), objects and folders alike, without a trailing slash, in ascending
	// order, atomically or by an ascending scan. A folder that has no object is
	// yielded where the store has such folders. A missing dir yields nothing; a
	// missing root is ErrNotExist as with List.
	Children(ctx context.Context, dir string) iter.Seq2[string, error]

	// Remove removes objects. A missing object is not an error. All are tried;
	// the errors are joined. Folders that become empty are removed where the
	// store has folders.
	Remove(ctx context.Context, names ...string) error

	// RemoveAll removes every object below the folder prefix, leftovers too. It
	// is idempotent.
	RemoveAll(ctx context.Context, prefix string) error

	// Leftovers yields what crashed or unfinished writers left below the folder
	// prefix: temporary files, multipart uploads, open leases, empty folders. It
	// removes nothing: the Leftover's Remove does. Objects still being written are
	// among them.
	Leftovers(ctx context.Context, prefix string) iter.Seq2[Leftover, error]

	// SyncNames makes the names of the objects directly in the folder prefix,
	// and of its parents, survive a power cut. It is free where Finish already
	// did. A folder that does not exist is not an error.
	SyncNames(ctx context.Context, prefix string) error

	// Space tells what is free. A store that cannot tell answers
	// ErrUnsupported.
	Space(ctx context.Context) (Space, error)

	// Capabilities declares what the store promises. It does no I/O.
	Capabilities() Capabilities

	// URL returns the URL of the root, without secrets.
	URL() string

	// Close releases what the backend holds. Objects and sources still open
	// fail, and so do later calls, with ErrClosed. It is idempotent.
	io.Closer
}

// CreateOptions are the options of Backend.Create. The zero value is a plain,
// replaceable object.
type CreateOptions struct {
	// Exclusive makes Finish fail with ErrExist if the name is taken: an atomic
	// create-if-absent.
	Exclusive bool
	// Attempt is the writer's random id; a driver may keep it beside the object
	// to recognise its own object when an answer was lost.
	Attempt string
	// SizeHint is the size to expect in bytes, 0 if unknown.
	SizeHint int64
}

// Object is an object being written. Exactly one of Finish and Abort ends it;
// a call after that answers ErrClosed. It is used by one goroutine at a time,
// except that Abort may be called while Write or Finish runs, and ends it.
//
// After a failed Write every further Write and Finish fails.
//
// An Object that also implements io.ReaderAt can give back, until it ends, what
// Write has taken, also after a Write failed.
type Object interface {
	// Write appends p. Empty writes are no-ops. p is not kept.
	io.Writer

	// Finish makes the object visible under its name, and ends it whatever it
	// answers. Nil: the
	// object survives a crash of the process and of the machine; where
	// Capabilities.SyncNames is set, its name survives the machine only if it was
	// created with Exclusive, or after SyncNames. An error: nothing of this writer
	// is visible. ErrOutcomeUnknown: either may be the case, now or later.
	Finish(ctx context.Context) (Info, error)

	// Abort drops the object, also when ctx has ended. It is idempotent, and does
	// nothing after Finish.
	Abort(ctx context.Context) error
}

// Source is an object being read. Its methods may be called by several
// goroutines at once. What it reads is one version of the object, or an error:
// ErrCorrupt when the object was replaced under it.
type Source interface {
	// ReadAt fills p from offset off: all of it or an error; a read that goes
	// beyond the end is ErrTorn, and never returns partial data.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Stream reads n bytes from off on, in order; n < 0 means to the end. A range
	// that goes beyond the end is ErrTorn, here or at the latest when the reader
	// gets there. The reader fails when ctx ends.
	Stream(ctx context.Context, off, n int64) (io.ReadCloser, error)
	// Info returns what Stat returned when the source was opened.
	Info() Info
	io.Closer
}

// Info describes a finished object.
type Info struct {
	Name     string
	Size     int64
	Modified time.Time // when it was finished; zero where the store does not tell
	CRC32C   *uint32   // of the whole object, where the store keeps one
	ETag     string    // the store's own version tag, where it has one
}

// Leftover is something that an unfinished writer left behind.
type Leftover struct {
	Name     string // the name that it would have got, or its own where that is not known
	Kind     string // "temporary file", "multipart upload", "open lease", "empty folder"
	Size     int64
	Modified time.Time
	Remove   func(context.Context) error
}

// Space is what a store can still take, in bytes.
type Space struct {
	Free  int64
	Total int64 // 0 where unknown
}

// Capabilities declares what a store promises.
type Capabilities struct {
	// Exclusive: CreateOptions.Exclusive is atomic among all writers of the store.
	Exclusive bool
	// AtomicList: List and Children are atomic or ascending scans (see there).
	AtomicList bool
	// SyncNames: names need SyncNames to survive a power cut.
	SyncNames bool
	// HeldUntilFinish: the store can lose what Write has taken until Finish
	// answers; whoever wants to retry keeps the bytes until then.
	HeldUntilFinish bool
	// AbortsFinish: Abort keeps a Finish that waits for the store from making the
	// object visible, without the end of its context. A Finish whose context cannot
	// end waits on the goroutine of its caller, for as long as the store takes: that
	// is quicker.
	AbortsFinish bool
	// Remote: bytes cross a network, so that compression pays.
	Remote bool
	// FreeSpace: Space works.
	FreeSpace bool
	// ServerChecksum: Info.CRC32C is set.
	ServerChecksum bool
	// MaxObject is the largest object in bytes; 0: no limit known.
	MaxObject int64
}
