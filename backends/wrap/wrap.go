// Package wrap holds backends around backends: Observe, ReadOnly, Retry,
// Throttle and Faults. Each can be asked for the one below it by Unwrap.
package wrap

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Op names a call to a backend, its objects, sources and leftovers.
type Op string

// The calls. OpStreamRead is one Read of a stream.
const (
	OpCreate         Op = "create"
	OpWrite          Op = "write"
	OpFinish         Op = "finish"
	OpAbort          Op = "abort"
	OpOpen           Op = "open"
	OpReadAt         Op = "read-at"
	OpStream         Op = "stream"
	OpStreamRead     Op = "stream-read"
	OpStat           Op = "stat"
	OpList           Op = "list"
	OpChildren       Op = "children"
	OpRemove         Op = "remove"
	OpRemoveAll      Op = "remove-all"
	OpLeftovers      Op = "leftovers"
	OpRemoveLeftover Op = "remove-leftover"
	OpSyncNames      Op = "sync-names"
	OpSpace          Op = "space"
)

// writes are the calls that change the store.
var writes = map[Op]bool{OpCreate: true, OpWrite: true, OpFinish: true, OpRemove: true, OpRemoveAll: true, OpRemoveLeftover: true}

// Call is one call, as a wrapper sees it.
type Call struct {
	Op    Op
	Name  string // of the object, or the prefix; the first of several names
	Bytes int64  // to be written or read
	N     int    // as Faults counts calls, from 1

	short func(n int) error // of a Write: takes n bytes only
}

// Unwrapper is a backend around another one.
type Unwrapper interface{ Unwrap() backends.Backend }

// As returns the first of b and the backends below it that is a T.
func As[T any](b backends.Backend) (t T, ok bool) {
	for b != nil {
		if t, ok = b.(T); ok {
			return t, true
		}
		u, wrapped := b.(Unwrapper)
		if !wrapped {
			break
		}
		b = u.Unwrap()
	}
	return t, false
}

// around is called for every call: it calls do, once, or several times where the
// call can be repeated, or not at all; and answers for it.
type around func(ctx context.Context, c *Call, do func() error) error

// layer passes every call of a backend through around.
type layer struct {
	backends.Backend
	around around
	killed func() bool // of Faults: nothing below may be touched any more
}

// Unwrap returns the backend below.
func (l *layer) Unwrap() backends.Backend { return l.Backend }

func (l *layer) Create(ctx context.Context, name string, opt backends.CreateOptions) (o backends.Object, err error) {
	var inner backends.Object
	err = l.around(ctx, &Call{Op: OpCreate, Name: name}, func() (err error) {
		inner, err = l.Backend.Create(ctx, name, opt)
		return err
	})
	if err != nil {
		if inner != nil { // it was made, and the answer to that was lost
			l.drop(ctx, inner)
		}
		return nil, err
	}
	w := &object{l: l, inner: inner, name: name}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if back, ok := inner.(io.ReaderAt); ok {
		return struct {
			*object
			io.ReaderAt
		}{w, back}, nil
	}
	return w, nil
}

// drop aborts an object that the caller does not have.
func (l *layer) drop(ctx context.Context, o backends.Object) {
	if l.killed == nil || !l.killed() {
		_ = o.Abort(context.WithoutCancel(ctx)) // what stays is a leftover
	}
}

func (l *layer) Open(ctx context.Context, name string) (s backends.Source, err error) {
	var inner backends.Source
	err = l.around(ctx, &Call{Op: OpOpen, Name: name}, func() (err error) {
		inner, err = l.Backend.Open(ctx, name)
		return err
	})
	if err != nil {
		if inner != nil {
			inner.Close()
		}
		return nil, err
	}
	return &source{Source: inner, l: l, name: name}, nil
}

func (l *layer) Stat(ctx context.Context, name string) (info backends.Info, err error) {
	err = l.around(ctx, &Call{Op: OpStat, Name: name}, func() (err error) {
		info, err = l.Backend.Stat(ctx, name)
		return err
	})
	return info, err
}

func (l *layer) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return scan(ctx, l, &Call{Op: OpList, Name: prefix}, func() iter.Seq2[backends.Info, error] { return l.Backend.List(ctx, prefix) },
		func(info backends.Info) string { return info.Name })
}

func (l *layer) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return scan(ctx, l, &Call{Op: OpChildren, Name: dir}, func() iter.Seq2[string, error] { return l.Backend.Children(ctx, dir) },
		func(name string) string { return name })
}

// scan passes an ascending listing through around. If that repeats it, it goes
// on behind what was yielded.
func scan[T any](ctx context.Context, l *layer, c *Call, list func() iter.Seq2[T, error], key func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		last, some, stopped := "", false, false
		err := l.around(ctx, c, func() error {
			for v, err := range list() {
				if err != nil {
					return err
				}
				if some && key(v) <= last {
					continue
				}
				last, some = key(v), true
				if !yield(v, nil) {
					stopped = true
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			var zero T
			yield(zero, err)
		}
	}
}

func (l *layer) Remove(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	return l.around(ctx, &Call{Op: OpRemove, Name: names[0]}, func() error { return l.Backend.Remove(ctx, names...) })
}

func (l *layer) RemoveAll(ctx context.Context, prefix string) error {
	return l.around(ctx, &Call{Op: OpRemoveAll, Name: prefix}, func() error { return l.Backend.RemoveAll(ctx, prefix) })
}

func (l *layer) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		stopped := false
		err := l.around(ctx, &Call{Op: OpLeftovers, Name: prefix}, func() error {
			for left, err := range l.Backend.Leftovers(ctx, prefix) {
				if err != nil {
					return err
				}
				remove := left.Remove
				left.Remove = func(ctx context.Context) error {
					return l.around(ctx, &Call{Op: OpRemoveLeftover, Name: left.Name}, func() error { return remove(ctx) })
				}
				if !yield(left, nil) {
					stopped = true
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(backends.Leftover{}, err)
		}
	}
}

func (l *layer) SyncNames(ctx context.Context, prefix string) error {
	return l.around(ctx, &Call{Op: OpSyncNames, Name: prefix}, func() error { return l.Backend.SyncNames(ctx, prefix) })
}

func (l *layer) Space(ctx context.Context) (space backends.Space, err error) {
	err = l.around(ctx, &Call{Op: OpSpace}, func() (err error) {
		space, err = l.Backend.Space(ctx)
		return err
	})
	return space, err
}

// object is an object being written through a layer.
type object struct {
	l      *layer
	inner  backends.Object
	name   string
	ctx    context.Context // ends with the object: what a Write waits for
	cancel context.CancelFunc

	failed error // of the first Write that failed
	mu     sync.Mutex
	ended  bool
}

func (o *object) Write(p []byte) (n int, err error) {
	if err := o.usable("write"); err != nil {
		return 0, err
	}
	if o.failed != nil {
		return 0, o.failed
	}
	if len(p) == 0 {
		return 0, nil
	}
	take := func(k int) error {
		m, err := o.inner.Write(p[:k])
		n = m
		return err
	}
	c := &Call{Op: OpWrite, Name: o.name, Bytes: int64(len(p)), short: take}
	o.failed = o.l.around(o.ctx, c, func() error { return take(len(p)) })
	if o.failed != nil && o.usable("write") != nil {
		o.failed = o.usable("write") // Abort ended it
	}
	return n, o.failed
}

func (o *object) usable(op string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return &inflight.Error{Op: op, Object: o.name, Err: inflight.ErrClosed}
	}
	return nil
}

// end reports whether this call ended o.
func (o *object) end() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := !o.ended
	o.ended = true
	return first
}

func (o *object) Finish(ctx context.Context) (info backends.Info, err error) {
	if !o.end() {
		return info, o.usable("finish")
	}
	defer o.cancel()
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.ctx, cancel)() // by Abort
	reached := false
	err = o.failed
	if err == nil {
		err = o.l.around(until, &Call{Op: OpFinish, Name: o.name}, func() (err error) {
			reached = true
			info, err = o.inner.Finish(until)
			return err
		})
	}
	if !reached {
		o.l.drop(ctx, o.inner)
	}
	switch {
	case err == nil:
		return info, nil
	case o.ctx.Err() != nil && ctx.Err() == nil && !errors.Is(err, inflight.ErrOutcomeUnknown):
		err = o.usable("finish")
	}
	return backends.Info{}, err
}

func (o *object) Abort(ctx context.Context) error {
	first := o.end() // before a Write that waits is woken: it asks why
	o.cancel()
	if !first {
		return nil
	}
	return o.l.around(ctx, &Call{Op: OpAbort, Name: o.name}, func() error { return o.inner.Abort(ctx) })
}

// source is an object being read through a layer.
type source struct {
	backends.Source
	l    *layer
	name string
}

func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	return s.l.around(ctx, &Call{Op: OpReadAt, Name: s.name, Bytes: int64(len(p))}, func() error { return s.Source.ReadAt(ctx, p, off) })
}

func (s *source) Stream(ctx context.Context, off, n int64) (r io.ReadCloser, err error) {
	size := n
	if n < 0 {
		size = max(s.Info().Size-off, 0)
	}
	var inner io.ReadCloser
	err = s.l.around(ctx, &Call{Op: OpStream, Name: s.name, Bytes: size}, func() (err error) {
		inner, err = s.Source.Stream(ctx, off, n)
		return err
	})
	if err != nil {
		if inner != nil {
			inner.Close()
		}
		return nil, err
	}
	return &stream{ReadCloser: inner, s: s, ctx: ctx, left: size}, nil
}

type stream struct {
	io.ReadCloser
	s    *source
	ctx  context.Context
	left int64
}

func (r *stream) Read(p []byte) (n int, err error) {
	c := &Call{Op: OpStreamRead, Name: r.s.name, Bytes: min(int64(len(p)), r.left)}
	err = r.s.l.around(r.ctx, c, func() (err error) {
		n, err = r.ReadCloser.Read(p)
		r.left -= int64(n)
		return err
	})
	return n, err
}
