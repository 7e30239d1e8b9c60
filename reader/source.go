package reader

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// file is one channel-state file that subtasks have a use for. Everything but
// its names is guarded by Reader.mu; size is fixed by the first open.
type file struct {
	r     *Reader
	key   fileKey
	ref   format.FileRef
	users int // subtasks

	src     backends.Source
	size    int64
	opening chan struct{} // closed when a call of Open has ended
	busy    int           // reads that use src
	used    uint64        // when, in opens

	blocks map[format.BlockRef]*block
	order  []*block // by offset, once sorted
	sorted bool
	whole  *span // of a small file, all of it
}

// source returns the open source of f, which stays open until the call of
// done(f) that belongs to it.
func (r *Reader) source(ctx context.Context, f *file) (backends.Source, error) {
	for {
		r.mu.Lock()
		switch {
		case r.closed:
			r.mu.Unlock()
			return nil, fail("open", f.ref.Name, inflight.ErrClosed)
		case f.src != nil:
			src := r.take(f)
			r.mu.Unlock()
			return src, nil
		case f.opening == nil:
			f.opening = make(chan struct{})
			r.mu.Unlock()
			return r.openSource(ctx, f)
		}
		other := f.opening
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *Reader) take(f *file) backends.Source {
	f.busy++
	r.clock++
	f.used = r.clock
	return f.src
}

func (r *Reader) openSource(ctx context.Context, f *file) (backends.Source, error) {
	src, err := r.openFile(ctx, f.key.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(f.opening)
	f.opening = nil
	if err != nil {
		return nil, fail("open", f.ref.Name, err)
	}
	f.src, f.size = src, src.Info().Size
	r.opened = append(r.opened, f)
	return r.take(f), nil
}

// openFile opens a source in a slot, which closeFile gives back.
func (r *Reader) openFile(ctx context.Context, name string) (backends.Source, error) {
	if err := r.slot(ctx); err != nil {
		return nil, err
	}
	src, err := r.b.Open(ctx, name)
	if errors.Is(err, inflight.ErrTooManyFiles) {
		for r.closeIdle() {
		}
		src, err = r.b.Open(ctx, name)
	}
	if err != nil {
		<-r.slots
	}
	return src, err
}

// closeFile closes a source, or nil. The lock is not held: it may take a while.
func (r *Reader) closeFile(src backends.Source) {
	if src != nil {
		_ = src.Close() // it was only read
		<-r.slots
	}
}

// slot takes a slot, for which an idle source is closed. While somebody waits
// because all are busy, each is closed as soon as it is idle.
func (r *Reader) slot(ctx context.Context) error {
	for ok := true; ok; ok = r.closeIdle() {
		select {
		case r.slots <- struct{}{}:
			return nil
		default:
		}
	}
	r.mu.Lock()
	r.waiting++
	r.mu.Unlock()
	r.closeIdle()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waiting--
	}()
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// done ends a use of the source.
func (r *Reader) done(f *file) {
	r.mu.Lock()
	var src backends.Source
	if f.busy--; f.busy == 0 && (f.users == 0 || r.closed || r.waiting > 0) {
		src = r.detach(f)
		if f.users == 0 && r.files[f.key] == f {
			delete(r.files, f.key)
		}
	}
	r.mu.Unlock()
	r.closeFile(src)
}

// closeIdle closes the idle source that has not been used for longest, if there
// is one.
func (r *Reader) closeIdle() bool {
	r.mu.Lock()
	var oldest *file
	for _, f := range r.opened {
		if f.busy == 0 && (oldest == nil || f.used < oldest.used) {
			oldest = f
		}
	}
	var src backends.Source
	if oldest != nil {
		src = r.detach(oldest)
	}
	r.mu.Unlock()
	r.closeFile(src)
	return src != nil
}

// detach takes the source of f away, for closeFile; nil if it has none, or that
// is busy.
func (r *Reader) detach(f *file) backends.Source {
	src := f.src
	if src == nil || f.busy > 0 {
		return nil
	}
	f.src = nil
	i := slices.Index(r.opened, f)
	r.opened = slices.Delete(r.opened, i, i+1)
	return src
}

// readAt fills p from off: one request.
func (r *Reader) readAt(ctx context.Context, f *file, p []byte, off int64) error {
	src, err := r.source(ctx, f)
	if err != nil {
		return err
	}
	defer r.done(f)
	return src.ReadAt(ctx, p, off)
}

// sizeOf returns the size of f, opening it if need be.
func (r *Reader) sizeOf(ctx context.Context, f *file) (int64, error) {
	if _, err := r.source(ctx, f); err != nil {
		return 0, err
	}
	defer r.done(f)
	return f.size, nil
}

// readerAt gives package format what it wants: ReadAt as in package io.
type readerAt struct {
	size int64
	read func(p []byte, off int64) error
}

// ReadAt implements io.ReaderAt.
func (a readerAt) ReadAt(p []byte, off int64) (int, error) {
	n := max(0, min(int64(len(p)), a.size-off))
	if n > 0 {
		if err := a.read(p[:n], off); err != nil {
			return 0, err
		}
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// reader returns f, which has that size, as a readerAt.
func (f *file) reader(ctx context.Context, size int64) readerAt {
	return readerAt{size, func(p []byte, off int64) error { return f.r.readAt(ctx, f, p, off) }}
}

// section reads the section that seg names. What cannot be right at rest is
// read a second time.
func (r *Reader) section(ctx context.Context, f *file, seg inflight.Segment) (*format.Section, error) {
	src, err := r.source(ctx, f)
	if err != nil {
		return nil, err
	}
	defer r.done(f)
	size := src.Info().Size
	if size == 0 {
		return nil, fail("read section", f.ref.Name, &format.FormatError{Code: format.CodeEmpty, Offset: -1, Text: "the file has no bytes", Err: inflight.ErrEmpty})
	}
	var direct io.ReaderAt = readerAt{size, func(p []byte, off int64) error { return src.ReadAt(ctx, p, off) }}
	from := direct
	if size <= r.modest() {
		sp, err := r.wholeFile(ctx, f)
		if err != nil {
			return nil, err
		}
		if sp != nil {
			defer r.unpinSpan(sp)
			from = bytes.NewReader(sp.mem.b)
		}
	}
	s, err := format.ReadSection(from, seg)
	if err == nil {
		return s, nil
	}
	if !errors.As(err, new(*format.FormatError)) {
		return nil, fail("read section", f.ref.Name, err)
	}
	again, err2 := format.ReadSection(direct, seg)
	if err2 != nil {
		return nil, fail("read section", f.ref.Name, r.explain(ctx, f, err2))
	}
	r.transient(f, seg.Offset, err)
	return again, nil
}

// CodeTransient is the code of the finding that data was damaged when it was
// read first, and right when it was read again.
const CodeTransient = "transient-read"

func (r *Reader) transient(f *file, offset int64, err error) {
	r.o.Report(inflight.Finding{Severity: inflight.SeverityWarning, Code: CodeTransient, Object: f.ref.Name, Offset: offset, Err: err,
		Text: "damaged when it was read first, right when it was read again: the file is whole; look at memory, disk or network"})
}
