package reader

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Options are the options of Open; the zero value is the default.
type Options struct {
	// ReadSize is the length up to which neighbouring blocks are read in one
	// request. Default 1 MiB; 16 MiB on remote stores, as long as all subtasks
	// that are read have as much of Memory, and 4 MiB there without ReadAhead.
	ReadSize int
	// Gap is how many unwanted bytes between two blocks are read along rather
	// than sending a second request. Default 128 KiB, on remote stores 1 MiB.
	Gap int
	// ReadAhead is how many bytes are read and checked before they are needed,
	// for each subtask. Default 16 MiB on remote stores, and none on local disk,
	// where the kernel reads ahead; negative: none.
	ReadAhead int64
	// Memory bounds what is held of files beyond what is needed at the moment:
	// read-ahead, and blocks that another subtask will want. Default 32 MiB, on
	// remote stores 64 MiB.
	Memory int64
	// OpenFiles bounds how many files are open at once. A read that would need
	// one more waits for another one to end. Default 32.
	OpenFiles int
	// Digests computes the digest of every channel from its bytes. Default: the
	// digests of its runs, which the checksums of their blocks cover together
	// with the bytes, are joined; that shows as well that nothing is missing.
	// Verification always does it.
	Digests bool
	// Report receives what is worth knowing and did not stop anything: data that
	// was damaged when it was read first and right when it was read again. It may
	// be called by several goroutines at once, and must not use the Reader.
	Report func(inflight.Finding)
}

func (o *Options) fill(remote bool) {
	set := func(p *int, local, far int) {
		if *p == 0 {
			*p = local
			if remote {
				*p = far
			}
		}
	}
	if o.ReadAhead == 0 && remote {
		o.ReadAhead = 16 << 20
	}
	far := 16 << 20
	if o.ReadAhead <= 0 {
		far = modestRead // it is all held at once
	}
	set(&o.ReadSize, 1<<20, far)
	set(&o.Gap, 128<<10, 1<<20)
	set(&o.OpenFiles, 32, 32)
	if o.Memory == 0 {
		if o.Memory = 32 << 20; remote {
			o.Memory = 64 << 20
		}
	}
	if o.Report == nil {
		o.Report = func(inflight.Finding) {}
	}
}

// Reader reads the checkpoints of one job. Its methods may be called by several
// goroutines at once.
type Reader struct {
	b    backends.Backend
	job  string
	o    Options
	pool arena

	remote bool

	// slots has an element for each source that is open or about to be. Nobody
	// who uses a source waits for another one, so each gets his turn.
	slots chan struct{}

	mu      sync.Mutex
	cursors int // iterations that are planned and not over
	files   map[fileKey]*file
	opened  []*file // those with a source
	spans   []*span // with bytes, the least recently used first
	waiting int     // for a slot
	clock   uint64
	closed  bool
}

// fileKey names a file by where it lies and which one it should be: two files
// that were swapped are two files here.
type fileKey struct {
	name string
	id   inflight.FileID
}

// Open returns a Reader of the job in folder job of b. It does no I/O. The
// backend stays the caller's.
func Open(b backends.Backend, job string, o Options) *Reader {
	remote := b.Capabilities().Remote
	o.fill(remote)
	r := &Reader{b: b, job: job, o: o, remote: remote, files: map[fileKey]*file{}, slots: make(chan struct{}, max(o.OpenFiles, 1))}
	r.pool.limit = o.Memory
	return r
}

// Close closes the sources. Iterations that run fail with ErrClosed. It is
// idempotent.
func (r *Reader) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for r.closeIdle() {
	}
	return nil
}

// resolver says where a file that is named relative to the job lies on the
// backend.
type resolver func(name string) string

// inJob resolves names in the job directory.
func (r *Reader) inJob(name string) string { return path.Join(r.job, name) }

// file returns the file of that name and id, and counts the caller as a user.
func (r *Reader) file(at resolver, ref format.FileRef) (*file, error) {
	if _, _, err := format.SplitFileName(ref.Name); err != nil {
		return nil, fail("open", ref.Name, err)
	}
	return r.fileAt(at(ref.Name), ref)
}

// fileAt is file for a place on the backend.
func (r *Reader) fileAt(full string, ref format.FileRef) (*file, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fail("open", ref.Name, inflight.ErrClosed)
	}
	key := fileKey{full, ref.FileID}
	f := r.files[key]
	if f == nil {
		f = &file{r: r, key: key, ref: ref}
		r.files[key] = f
	}
	f.users++
	return f, nil
}

// leave ends one use of f.
func (r *Reader) leave(f *file) {
	r.mu.Lock()
	var src backends.Source
	if f.users--; f.users == 0 {
		if f.whole != nil {
			r.tidySpan(f.whole)
		}
		src = r.detach(f)
		if f.busy == 0 && r.files[f.key] == f {
			delete(r.files, f.key)
		}
	}
	r.mu.Unlock()
	r.closeFile(src)
}

// fail wraps err once, with the object that it is about and what can be done.
func fail(op, object string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*inflight.Error)(nil); errors.As(err, &e) {
		return err
	}
	return &inflight.Error{Op: op, Object: object, Err: err, Mend: mend(err)}
}

func mend(err error) string {
	switch {
	case errors.Is(err, inflight.ErrForeign):
		return "put the right file back"
	case errors.Is(err, inflight.ErrUnknownVersion):
		return "read it with the version that wrote it"
	case errors.Is(err, inflight.ErrIncomplete), errors.Is(err, inflight.ErrMismatch):
		return "take the handle from the checkpoint's manifest"
	case inflight.IsCorruption(err):
		return "restore an older checkpoint, or salvage what is whole"
	}
	return ""
}

// corrupt returns an error about bytes that are intact and do not fit.
func corrupt(code string, offset int64, format_ string, args ...any) error {
	return &format.FormatError{Code: code, Offset: offset, Text: fmt.Sprintf(format_, args...), Err: inflight.ErrCorrupt}
}
