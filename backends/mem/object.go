package mem

import (
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// writer is an object being written.
type writer struct {
	b    *Backend
	id   uint64 // of its temporary
	name string
	opt  backends.CreateOptions
	size atomic.Int64

	mu    sync.Mutex
	data  []byte
	ended bool
}

// Create begins an object.
func (b *Backend) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	if err := b.ready(ctx, "create", name); err != nil {
		return nil, err
	}
	if err := backends.CheckName(name); err != nil {
		return nil, err
	}
	w := &writer{b: b, name: name, opt: opt}
	err := b.store.change(func(st *state) error {
		if st.overFile(name) {
			return b.fail("create", name, fmt.Errorf("%w: an object stands where a folder should be", inflight.ErrConfig))
		}
		w.id = b.store.newID()
		st.temps[w.id] = temp{name: name, size: &w.size, started: b.store.opt.Now(), owner: b}
		st.link(name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if b.store.opt.HeldUntilFinish {
		return struct{ backends.Object }{w}, nil // without ReadAt
	}
	return w, nil
}

// begin locks w for a call, or answers ErrClosed.
func (w *writer) begin(op string) error {
	w.mu.Lock()
	if w.ended || w.b.closed.Load() {
		w.mu.Unlock()
		return w.b.fail(op, w.name, inflight.ErrClosed)
	}
	return nil
}

func (w *writer) Write(p []byte) (int, error) {
	if err := w.begin("write"); err != nil {
		return 0, err
	}
	defer w.mu.Unlock()
	w.data = append(w.data, p...)
	w.size.Store(int64(len(w.data)))
	return len(p), nil
}

func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	if err := w.begin("read back"); err != nil {
		return 0, err
	}
	defer w.mu.Unlock()
	if off < 0 || off > int64(len(w.data)) {
		return 0, io.EOF
	}
	n := copy(p, w.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (w *writer) Abort(context.Context) error {
	if w.begin("abort") == nil {
		w.ended = true
		w.mu.Unlock()
		w.dropTemp()
	}
	return nil
}

func (w *writer) dropTemp() {
	_ = w.b.store.change(func(st *state) error { st.dropTemp(w.id); return nil })
}

// Finish sends the create off; SetFate decides what becomes of it.
func (w *writer) Finish(ctx context.Context) (backends.Info, error) {
	if err := w.begin("finish"); err != nil {
		return backends.Info{}, err
	}
	w.ended = true
	data := w.data
	w.mu.Unlock()
	if err := ctx.Err(); err != nil {
		w.dropTemp()
		return backends.Info{}, w.b.fail("finish", w.name, err)
	}
	s := w.b.store
	p := pending{
		Request: Request{Name: w.name, Exclusive: w.opt.Exclusive, Attempt: w.opt.Attempt, Size: int64(len(data))},
		object:  &object{data: data, hash: maphash.Bytes(seed, data), modified: s.opt.Now()},
	}
	s.mu.Lock()
	p.ID = s.newID()
	s.mu.Unlock()
	fate := Apply
	if f := s.fate.Load(); f != nil {
		fate = (*f)(p.Request)
	}
	if err := s.change(func(st *state) error { return st.finish(w.id, p, fate) }); err != nil {
		return backends.Info{}, w.b.fail("finish", w.name, err)
	}
	return p.object.info(w.name), nil
}

// finish turns the temporary id into the create p, whose fate is decided.
func (st *state) finish(id uint64, p pending, fate Fate) error {
	if _, ok := st.temps[id]; !ok {
		return fmt.Errorf("what was written has been removed: %w", inflight.ErrNotExist)
	}
	st.dropTemp(id)
	if fate == Delay {
		st.inFlight = append(st.inFlight, p)
		return fmt.Errorf("%w: no answer", inflight.ErrOutcomeUnknown)
	}
	err := st.apply(p)
	if fate == LoseAnswer {
		return fmt.Errorf("%w: the answer was lost", inflight.ErrOutcomeUnknown)
	}
	if fate == Double && err == nil {
		st.inFlight = append(st.inFlight, p)
	}
	return err
}

// apply is where a create meets the store.
func (st *state) apply(p pending) error {
	switch {
	case p.Exclusive && (st.live[p.Name] != nil || st.isFolder(p.Name)):
		return inflight.ErrExist
	case st.isFolder(p.Name):
		return fmt.Errorf("%w: a folder has that name", inflight.ErrConfig)
	case st.overFile(p.Name):
		return fmt.Errorf("%w: an object stands where a folder should be", inflight.ErrConfig)
	}
	st.put(p.Name, p.object)
	if p.Exclusive {
		st.syncUp(parent(p.Name))
	}
	return nil
}

// source reads one version of an object.
type source struct {
	b      *Backend
	name   string
	object *object
	closed atomic.Bool
}

// Open pins the object that has the name now.
func (b *Backend) Open(ctx context.Context, name string) (backends.Source, error) {
	o, err := b.lookup(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	return &source{b: b, name: name, object: o}, nil
}

func (s *source) Info() backends.Info { return s.object.info(s.name) }

func (s *source) Close() error {
	s.closed.Store(true)
	return nil
}

// bytes returns n bytes at off, or fails.
func (s *source) bytes(ctx context.Context, off, n int64) ([]byte, error) {
	if err := s.b.ready(ctx, "read", s.name); err != nil {
		return nil, err
	}
	size := int64(len(s.object.data))
	switch {
	case s.closed.Load():
		return nil, s.b.fail("read", s.name, inflight.ErrClosed)
	case off < 0 || off > size || n > size-off:
		return nil, s.b.fail("read", s.name, fmt.Errorf("%w: %d bytes at %d, and the object has %d", inflight.ErrTorn, n, off, size))
	}
	return s.object.data[off : off+n], nil
}

func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	data, err := s.bytes(ctx, off, int64(len(p)))
	copy(p, data)
	return err
}

func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if n < 0 {
		n = max(int64(len(s.object.data))-off, 0)
	}
	if _, err := s.bytes(ctx, off, n); err != nil {
		return nil, err
	}
	return &stream{s: s, ctx: ctx, off: off, end: off + n}, nil
}

type stream struct {
	s        *source
	ctx      context.Context
	off, end int64
	closed   bool
}

func (r *stream) Read(p []byte) (int, error) {
	if r.closed {
		return 0, r.s.b.fail("read", r.s.name, inflight.ErrClosed)
	}
	data, err := r.s.bytes(r.ctx, r.off, min(int64(len(p)), r.end-r.off))
	if err == nil && r.off == r.end {
		err = io.EOF
	}
	r.off += int64(copy(p, data))
	return len(data), err
}

func (r *stream) Close() error {
	r.closed = true
	return nil
}
