package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// source is an open file: that pins the version.
type source struct {
	b    *Backend
	file *os.File
	path string
	info backends.Info
}

// Open opens a file.
func (b *Backend) Open(ctx context.Context, name string) (backends.Source, error) {
	if err := b.ready(ctx, "open", name); err != nil {
		return nil, err
	}
	path, err := b.path("open", name)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would wait for its other end
	if err != nil {
		return nil, failRead("open", path, err)
	}
	s := &source{b: b, file: file, path: path}
	st, err := file.Stat()
	switch {
	case err != nil:
		err = fail("open", path, err)
	case !st.Mode().IsRegular():
		err = notRegular("open", path, st.Mode())
	default:
		s.info = backends.Info{Name: name, Size: st.Size(), Modified: st.ModTime()}
		if err = b.adopt(s); err != nil {
			err = fail("open", path, err)
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return s, nil
}

func (s *source) Info() backends.Info { return s.info }

func (s *source) Close() error {
	s.b.forget(s)
	_ = s.file.Close() // it was only read; a second Close is no error
	return nil
}

// ReadAt reads len(p) bytes, or fails.
func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.check(ctx, "read", off, int64(len(p))); err != nil {
		return err
	}
	if n, err := s.file.ReadAt(p, off); n < len(p) {
		return s.short(err, off+int64(n))
	}
	return nil
}

// Stream reads n bytes from off.
func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if n < 0 {
		n = max(s.info.Size-off, 0)
	}
	if err := s.check(ctx, "stream", off, n); err != nil {
		return nil, err
	}
	return &stream{s: s, ctx: ctx, off: off, end: off + n}, nil
}

// check refuses ranges that are not within the file.
func (s *source) check(ctx context.Context, op string, off, n int64) error {
	switch {
	case ctx.Err() != nil:
		return fail(op, s.path, ctx.Err())
	case off < 0 || off > s.info.Size || n > s.info.Size-off:
		return &inflight.Error{Op: op, Object: s.path, Err: fmt.Errorf("%w: %d bytes at %d, and the file has %d", inflight.ErrTorn, n, off, s.info.Size)}
	}
	return nil
}

// short explains a read that ended at off. The size was right at Open: if the
// file ends, it was cut under us.
func (s *source) short(err error, off int64) error {
	if err == nil || err == io.EOF {
		err = fmt.Errorf("%w: it ends at %d, and had %d bytes when it was opened", inflight.ErrTorn, off, s.info.Size)
	}
	return fail("read", s.path, err)
}

type stream struct {
	s        *source
	ctx      context.Context
	off, end int64
	closed   bool
}

func (r *stream) Read(p []byte) (int, error) {
	switch {
	case r.closed:
		return 0, fail("read", r.s.path, os.ErrClosed)
	case r.ctx.Err() != nil:
		return 0, fail("read", r.s.path, r.ctx.Err())
	case r.off == r.end:
		return 0, io.EOF
	}
	n, err := r.s.file.ReadAt(p[:min(int64(len(p)), r.end-r.off)], r.off)
	r.off += int64(n)
	if err != nil && (n == 0 || err != io.EOF) && len(p) > 0 {
		return n, r.s.short(err, r.off)
	}
	return n, nil
}

func (r *stream) Close() error {
	r.closed = true
	return nil
}
