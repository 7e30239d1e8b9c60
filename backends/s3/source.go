package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/minio/minio-go/v7"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// source is an object as it was when it was opened.
type source struct {
	b      *Backend
	key    string
	info   backends.Info
	closed atomic.Bool
}

// Open looks at an object, and pins the version that it has now.
func (b *Backend) Open(ctx context.Context, name string) (backends.Source, error) {
	key := b.prefix + name
	st, err := b.head(ctx, "open", key)
	if err != nil {
		return nil, err
	}
	return &source{b: b, key: key, info: info(name, st)}, nil
}

func (s *source) Info() backends.Info { return s.info }

func (s *source) Close() error {
	s.closed.Store(true)
	return nil
}

// check refuses ranges that are not within the object.
func (s *source) check(op string, off, n int64) error {
	switch {
	case s.closed.Load():
		return s.b.fail(op, s.key, inflight.ErrClosed)
	case off < 0 || off > s.info.Size || n > s.info.Size-off:
		return s.b.fail(op, s.key, fmt.Errorf("%w: %d bytes at %d, and the object has %d", inflight.ErrTorn, n, off, s.info.Size))
	}
	return nil
}

// ReadAt reads len(p) bytes, or fails. Where an answer is cut off, the rest is
// asked for.
func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	ctx, end, err := s.b.begin(ctx, "read", s.key)
	if err != nil {
		return err
	}
	defer end()
	if err := s.check("read", off, int64(len(p))); err != nil {
		return err
	}
	t := s.b.tries("read", s.key)
	for len(p) > 0 {
		n, err := s.readOnce(t.next(ctx), p, off)
		p, off = p[n:], off+int64(n)
		if n > 0 && len(p) > 0 {
			s.b.wire.count.resumed.Add(1)
			t.progress()
		}
		if len(p) == 0 {
			return nil
		}
		if err = t.again(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) readOnce(ctx context.Context, p []byte, off int64) (int, error) {
	body, err := s.get(ctx, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, err := io.ReadFull(body, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCut
	}
	return n, err
}

// get asks for n bytes at off of the version that is pinned. N is not 0.
func (s *source) get(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	var opt minio.GetObjectOptions
	if s.info.ETag != "" {
		if err := opt.SetMatchETag(s.info.ETag); err != nil {
			return nil, err
		}
	}
	if off > 0 || n < s.info.Size {
		opt.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	}
	body, st, header, err := s.b.core.GetObject(ctx, s.b.opt.Bucket, s.key, opt)
	switch r, _ := errors.AsType[minio.ErrorResponse](err); {
	case r.StatusCode == http.StatusPreconditionFailed:
		return nil, s.replaced()
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return nil, s.replaced()
	case err != nil:
		return nil, err
	case st.ETag != "" && s.info.ETag != "" && strings.Trim(st.ETag, `"`) != s.info.ETag: // the store minds no If-Match
		err = s.replaced()
	case header.Get("Content-Range") == "" && (off > 0 || n < s.info.Size):
		err = s.b.fail("read", s.key, fmt.Errorf("%w: the store answers a part with the whole", inflight.ErrUnsupported))
	}
	if err != nil {
		body.Close()
		return nil, err
	}
	return body, nil
}

func (s *source) replaced() error {
	return s.b.fail("read", s.key, fmt.Errorf("%w: the object was replaced after it was opened", inflight.ErrCorrupt))
}

// Stream asks for n bytes at off at once.
func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if n < 0 {
		n = max(s.info.Size-off, 0)
	}
	ctx, end, err := s.b.begin(ctx, "stream", s.key)
	if err != nil {
		return nil, err
	}
	if err := s.check("stream", off, n); err != nil {
		end()
		return nil, err
	}
	r := &stream{s: s, ctx: ctx, end: end, off: off, to: off + n, tries: s.b.tries("read", s.key)}
	s.b.wire.slots.add(r)
	for r.off < r.to && r.body == nil {
		if err := r.open(); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// stream reads a range in order.
type stream struct {
	s     *source
	ctx   context.Context
	end   context.CancelFunc
	tries *tries

	mu      sync.Mutex // is held by Read; interrupt takes the body only while nobody reads
	off, to int64
	body    io.ReadCloser
	closed  bool
}

// open makes one try to ask for what is left. It leaves body nil where there
// should be another.
func (r *stream) open() error {
	body, err := r.s.get(r.tries.next(r.ctx), r.off, r.to-r.off)
	if err != nil {
		return r.tries.again(r.ctx, err)
	}
	r.body = body
	return nil
}

func (r *stream) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || r.s.closed.Load():
		return 0, r.s.b.fail("read", r.s.key, inflight.ErrClosed)
	case r.ctx.Err() != nil:
		return 0, r.s.b.fail("read", r.s.key, endOf(r.ctx))
	case r.off == r.to:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	p = p[:min(int64(len(p)), r.to-r.off)]
	for {
		if r.body == nil {
			if err := r.open(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := r.body.Read(p)
		if r.off += int64(n); r.off == r.to {
			r.drop()
			return n, nil
		}
		if err != nil {
			r.drop()
			r.s.b.wire.count.resumed.Add(1)
		}
		if n > 0 {
			r.tries.progress()
			return n, nil
		}
		if err == io.EOF {
			err = errCut
		}
		if err != nil {
			if err = r.tries.again(r.ctx, err); err != nil {
				return 0, err
			}
		}
	}
}

func (r *stream) drop() {
	if r.body != nil {
		r.body.Close()
		r.body = nil
	}
}

// rest gives up the connection if nobody is reading, and reports whether there
// was one.
func (r *stream) rest() bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	had := r.body != nil
	r.drop()
	return had
}

func (r *stream) Close() error {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.drop()
	r.s.b.wire.slots.remove(r)
	return nil
}
