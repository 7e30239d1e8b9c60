package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// The states of an object. Whoever moves it on does what goes with it: Abort or
// a Finish that gives up moves it to ended, and then nothing may be renamed.
const (
	writing    = iota // until Finish or Abort
	finishing         // Finish waits for the disk; it can still be given up
	syncing           // the same, on the goroutine of the caller: Abort gives it up
	publishing        // the rename is under way or done
	ended
)

type object struct {
	b         *Backend
	file      *os.File
	name      string // of the object
	path      string // of the object
	temp      string // of the file, until it is renamed
	exclusive bool

	written int64
	failed  error // of the first Write that failed
	early   earlyWriteOut

	state    atomic.Int32
	stop     chan struct{} // closed by Abort
	stopOnce sync.Once
}

func (b *Backend) newObject(file *os.File, name, path, temp string, exclusive bool) (backends.Object, error) {
	o := &object{b: b, file: file, name: name, path: path, temp: temp, exclusive: exclusive, stop: make(chan struct{})}
	if err := b.adopt(closer{o}); err != nil {
		o.discard()
		return nil, fail("create", path, err)
	}
	return o, nil
}

// closer is an object as the backend closes it.
type closer struct{ o *object }

func (c closer) Close() error { return c.o.Abort(context.Background()) }

// Write appends p to the file and has the disk begin with it.
func (o *object) Write(p []byte) (int, error) {
	if o.failed != nil {
		return 0, o.failed
	}
	if o.state.Load() != writing {
		return 0, o.closedError("write")
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := o.file.Write(p)
	o.written += int64(n)
	if err == nil {
		err = o.early.upTo(o.file, o.written)
	}
	if err != nil {
		o.failed = fail("write", o.path, err)
	}
	return n, o.failed
}

// ReadAt gives back what Write has taken.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	if o.state.Load() != writing {
		return 0, o.closedError("read back")
	}
	want := p
	if left := o.written - off; off >= 0 && int64(len(want)) > left {
		want = want[:max(left, 0)]
	}
	n, err := o.file.ReadAt(want, off)
	switch {
	case err != nil && err != io.EOF:
		return n, fail("read back", o.path, err)
	case n < len(p):
		return n, io.EOF
	}
	return n, nil
}

// Finish syncs the file and renames it.
func (o *object) Finish(ctx context.Context) (backends.Info, error) {
	waits := int32(finishing)
	if ctx.Done() == nil {
		waits = syncing
	}
	if !o.state.CompareAndSwap(writing, waits) {
		return backends.Info{}, o.closedError("finish")
	}
	err := o.failed
	if err == nil && ctx.Err() != nil {
		err = fail("finish", o.path, ctx.Err())
	}
	if err != nil {
		o.state.Store(ended)
		o.discard()
		return backends.Info{}, err
	}
	if waits == syncing {
		defer o.b.enter()()
		return o.publish(waits)
	}
	type answer struct {
		info backends.Info
		err  error
	}
	done := make(chan answer, 1)
	o.b.aside(func() {
		info, err := o.publish(waits)
		done <- answer{info, err}
	})
	select {
	case a := <-done:
		return a.info, a.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-o.stop:
		err = inflight.ErrClosed
	}
	if o.state.CompareAndSwap(finishing, ended) {
		return backends.Info{}, fail("finish", o.path, err)
	}
	select { // a sure answer is worth a moment
	case a := <-done:
		return a.info, a.err
	case <-time.After(time.Second / 2):
		return backends.Info{}, fail("finish", o.path, fmt.Errorf("%w: %w", inflight.ErrOutcomeUnknown, err))
	}
}

// publish makes the object durable and then visible. A failed sync is final:
// the kernel may have dropped what it could not write, so that a second one
// would succeed without it.
func (o *object) publish(waits int32) (backends.Info, error) {
	defer o.b.forget(closer{o})
	defer o.file.Close()
	err := o.b.sync(o.file)
	var info backends.Info
	if err == nil {
		info, err = o.info()
	}
	if err == nil && !o.state.CompareAndSwap(waits, publishing) {
		err = inflight.ErrClosed // it was given up
	}
	if err == nil {
		err = o.rename()
	}
	if err != nil {
		o.dropTemp()
		return backends.Info{}, fail("finish", o.path, err)
	}
	if o.exclusive {
		if err := o.b.syncUp(filepath.Dir(o.path)); err != nil {
			return backends.Info{}, fail("finish", o.path, fmt.Errorf("%w: its folder could not be synced: %w", inflight.ErrOutcomeUnknown, err))
		}
	}
	return info, nil
}

func (o *object) info() (backends.Info, error) {
	st, err := o.file.Stat()
	if err != nil {
		return backends.Info{}, err
	}
	return backends.Info{Name: o.name, Size: st.Size(), Modified: st.ModTime()}, nil
}

func (o *object) rename() error {
	if !o.exclusive {
		return rename(o.temp, o.path)
	}
	err := renameNoReplace(o.temp, o.path)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return linkNoReplace(o.temp, o.path)
}

// linkNoReplace is renameNoReplace for file systems that cannot.
func linkNoReplace(temp, path string) error {
	if err := os.Link(temp, path); err != nil {
		// A file server may have answered a repeated request.
		a, errA := os.Lstat(temp)
		b, errB := os.Lstat(path)
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			if errors.Is(err, syscall.EPERM) {
				err = fmt.Errorf("%w: this file system can neither rename without replacing nor link", inflight.ErrUnsupported)
			}
			return err
		}
	}
	_ = os.Remove(temp) // what stays is a leftover
	return nil
}

// Abort removes the temporary file.
func (o *object) Abort(context.Context) error {
	o.stopOnce.Do(func() { close(o.stop) })
	if o.state.CompareAndSwap(writing, ended) {
		o.discard()
	}
	o.state.CompareAndSwap(syncing, ended)
	return nil
}

// discard drops an object that is not being finished.
func (o *object) discard() {
	o.file.Close()
	o.dropTemp()
	o.b.forget(closer{o})
}

// dropTemp removes the temporary file, and the folders that it kept. What
// cannot be removed is a leftover.
func (o *object) dropTemp() {
	_ = os.Remove(o.temp)
	o.b.removeEmpty(filepath.Dir(o.temp))
}

func (o *object) closedError(op string) error {
	return &inflight.Error{Op: op, Object: o.path, Err: inflight.ErrClosed}
}
