package sharing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

const (
	// A call to the store that takes longer is slow: others pack meanwhile, up to
	// aheadLimit. One that takes much longer is stuck, and they pack whatever
	// comes; that costs a copy and memory for all of it.
	slowAfter  = 5 * time.Millisecond
	stuckAfter = 100 * time.Millisecond
	aheadLimit = 4 << 20

	maxTries  = 3 // objects that are begun for one file
	abortTime = 5 * time.Second
)

// output is the side of a file that faces the store: chunks on their way, and
// the object that they go to. The object belongs to the file's goroutine; the
// rest is guarded by File.mu.
type output struct {
	file    *File
	object  backends.Object // is set under the lock, since cancel looks at it
	written int64           // bytes that it has taken
	tries   int
	early   error // of openEarly
	failed  error
	holding atomic.Int64 // encoded bytes in memory
	timer   *time.Timer  // nil until a call may be slow

	busy  bool // the goroutine is in a call to the store
	slow  bool // and has been for slowAfter
	stuck bool // or stuckAfter
	queue []*chunk
	kept  []*chunk // written, and kept until the file is finished
	moved sync.Cond
	spill spill
}

// chunk is a piece of the encoded file.
type chunk struct {
	bytes  []byte
	lent   format.Chunk // the encoder's memory, where isLent
	isLent bool
	busy   bool // somebody is spilling it
	size   int
	ahead  int64 // of the store, while it waits
	at     int64 // in the spill file, where bytes is nil
	shares []share
}

// share is how many bytes of a stream a chunk stands for.
type share struct {
	stream *Stream
	bytes  int64
}

func (o *output) init(f *File) {
	o.file = f
	o.moved.L = &f.mu
	o.spill.dir = f.hub.SpillDir
}

// isSlow is called when a call to the store takes long.
func (f *File) isSlow() {
	f.mu.Lock()
	busy := f.busy
	if busy && !f.slow {
		f.timer.Reset(stuckAfter - slowAfter)
	}
	f.slow, f.stuck = busy, busy && f.slow
	f.mu.Unlock()
	if busy {
		f.hub.overflow.add(f)
	}
}

// call makes a call to the store. Nobody needs to know how long it takes when
// nothing is left to be packed: setting a timer can wake a thread.
func (f *File) call(do func() error) error {
	closed := f.closed.Load()
	f.mu.Lock()
	f.busy = true
	switch {
	case closed:
	case f.timer == nil:
		f.timer = time.AfterFunc(slowAfter, f.isSlow)
	default:
		f.timer.Reset(slowAfter)
	}
	f.mu.Unlock()
	if f.hub.held && !closed {
		f.hub.overflow.add(f) // what will be kept may as well be packed
	}
	err := f.ctx.Err() // cancel looks at busy after it has ended the context
	if err == nil {
		err = do()
	}
	f.mu.Lock()
	f.busy, f.slow, f.stuck = false, false, false
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	return err
}

// push queues a chunk.
func (f *File) push(k *chunk) {
	k.size = len(k.bytes)
	k.ahead = int64(cap(k.bytes))
	f.hub.ahead.Add(k.ahead)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, k)
}

// mayPackAhead reports whether to go on packing while the goroutine is in a call
// to the store, and whether chunks then need memory of their own: that of the
// encoders is for what is being encoded.
func (f *File) mayPackAhead() (yes, own bool) {
	far, pressed := f.hub.ahead.Load() >= aheadLimit, f.hub.pressed()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.busy && (!far || f.stuck || f.hub.held || pressed), far || f.hub.held || pressed
}

// pop returns the next chunk to be written, or nil.
func (f *File) pop() *chunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) > 0 && f.queue[0].busy {
		f.moved.Wait()
	}
	if len(f.queue) == 0 {
		return nil
	}
	k := f.queue[0]
	f.queue = slices.Delete(f.queue, 0, 1)
	f.hub.ahead.Add(-k.ahead)
	k.ahead = 0
	return k
}

// writeQueue writes the chunks that are ready.
func (f *File) writeQueue() error {
	for k := f.pop(); k != nil; k = f.pop() {
		err := f.write(k)
		if err == nil && f.hub.held {
			f.keep(k)
			continue
		}
		f.free(k)
		if err != nil {
			return err
		}
	}
	return nil
}

// keep keeps a chunk that the store can still lose.
func (f *File) keep(k *chunk) {
	f.pack.Lock()
	f.own(k)
	f.pack.Unlock()
	f.mu.Lock()
	f.kept = append(f.kept, k)
	f.mu.Unlock()
	f.spillOver()
}

// free gives the memory of a chunk back.
func (f *File) free(k *chunk) {
	if k.isLent {
		f.pack.Lock()
		f.enc.Recycle(k.lent)
		f.pack.Unlock()
	}
	f.forgo(k)
}

// forgo is free without the encoder's part in it.
func (f *File) forgo(k *chunk) {
	if k.bytes == nil {
		return
	}
	if !k.isLent {
		f.hub.memory.put(k.bytes)
	}
	k.bytes = nil
	f.holding.Add(-int64(k.size))
	f.hub.budget.add(-int64(k.size))
	for _, s := range k.shares {
		s.stream.held.Add(-s.bytes)
	}
}

// clear gives back everything that the file holds. Its pack lock is held, or the
// encoder is closed and nothing waits.
func (f *File) clear() {
	f.mu.Lock()
	for _, k := range f.queue {
		f.hub.ahead.Add(-k.ahead)
	}
	chunks := append(f.kept, f.queue...)
	f.kept, f.queue = nil, nil
	for slices.ContainsFunc(chunks, func(k *chunk) bool { return k.busy }) {
		f.moved.Wait()
	}
	f.mu.Unlock()
	for _, k := range chunks {
		if k.isLent {
			f.enc.Recycle(k.lent)
		}
		f.forgo(k)
	}
	rest := f.holding.Swap(0) // in the encoder
	f.hub.budget.add(-rest)
	for _, p := range f.members() {
		if p.stream.held != nil {
			p.stream.held.Add(-p.since)
		}
		p.since = 0
	}
	f.spill.close()
}

// write writes a chunk; where the store fails, once more into a fresh object.
func (f *File) write(k *chunk) error {
	b, err := f.load(k)
	if err != nil {
		return err
	}
	if k.bytes == nil {
		defer f.hub.memory.put(b)
	}
	for {
		err := f.open()
		if err == nil {
			err = f.call(func() error { _, err := f.object.Write(b); return err })
		}
		if err == nil {
			f.written += int64(len(b))
			return nil
		}
		if err := f.again(err); err != nil {
			return err
		}
	}
}

// load returns the bytes of a chunk.
func (f *File) load(k *chunk) ([]byte, error) {
	if k.bytes != nil {
		return k.bytes, nil
	}
	b := f.hub.memory.get(k.size)
	err := f.spill.read(b, k.at)
	return b, err
}

// openEarly creates the object while the first bytes are still being handed over.
// The first write hears of a failure.
func (f *File) openEarly() { f.early = f.open() }

// open creates the object, if there is none.
func (f *File) open() error {
	if err := f.early; err != nil || f.object != nil {
		f.early = nil
		return err
	}
	f.tries++
	return f.call(func() error {
		o, err := f.hub.Backend.Create(f.ctx, f.path, backends.CreateOptions{Attempt: f.session.key.Attempt})
		if err == nil {
			f.setObject(o)
		}
		return err
	})
}

func (f *File) setObject(o backends.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.object = o
}

// again begins a fresh object after a failure, and gives it what the failed one
// had taken. It answers the failure where that cannot be, or cannot help.
//
// The new object has the same name and will have the same bytes: should the
// failed one become visible after all, it does no harm.
func (f *File) again(cause error) error {
	old, written := f.object, f.written
	defer func() {
		if old != nil {
			abort(old)
		}
	}()
	for f.tries < maxTries && f.ctx.Err() == nil && mayHelp(cause) {
		replay := f.replayFrom(old, written)
		if replay == nil {
			return cause
		}
		f.observe(inflight.Event{Name: inflight.EventFileRetried, Err: cause})
		if f.object != nil && f.object != old {
			abort(f.object)
		}
		f.setObject(nil)
		f.written = 0
		if cause = f.open(); cause == nil {
			cause = replay()
		}
		if cause == nil {
			return nil
		}
	}
	return cause
}

// mayHelp reports whether a failure may be one of this object only.
func mayHelp(err error) bool {
	for _, lasting := range []error{inflight.ErrNoSpace, inflight.ErrReadOnly, inflight.ErrPermission, inflight.ErrAuth,
		inflight.ErrConfig, inflight.ErrUnsupported, inflight.ErrClosed, context.Canceled} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return true
}

// replayFrom returns what writes the first bytes of the file to the object
// again: from what was kept, or from what the failed object gives back. Nil:
// they are gone.
func (f *File) replayFrom(old backends.Object, written int64) func() error {
	if written == 0 {
		return func() error { return nil }
	}
	if f.hub.held {
		return f.replayKept
	}
	r, ok := old.(io.ReaderAt)
	if !ok {
		return nil
	}
	return func() error {
		const step = 1 << 20
		b := f.hub.memory.get(step)
		defer f.hub.memory.put(b)
		for f.written < written {
			b = b[:min(step, written-f.written)]
			if n, err := r.ReadAt(b, f.written); n < len(b) {
				return fmt.Errorf("reading back what was written: %w", err)
			}
			if err := f.call(func() error { _, err := f.object.Write(b); return err }); err != nil {
				return err
			}
			f.written += int64(len(b))
		}
		return nil
	}
}

func (f *File) replayKept() error {
	f.mu.Lock()
	kept := f.kept[:len(f.kept):len(f.kept)]
	f.mu.Unlock()
	for _, k := range kept {
		f.mu.Lock()
		for k.busy {
			f.moved.Wait()
		}
		k.busy = true // nobody spills it now
		f.mu.Unlock()
		b, err := f.load(k)
		if err == nil {
			err = f.call(func() error { _, err := f.object.Write(b); return err })
		}
		if k.bytes == nil && b != nil {
			f.hub.memory.put(b)
		}
		f.mu.Lock()
		k.busy = false
		f.moved.Broadcast()
		f.mu.Unlock()
		if err != nil {
			return err
		}
		f.written += int64(k.size)
	}
	return nil
}

// commit makes the object durable. A store that keeps what it was given is not
// asked twice: what it could not sync is lost.
func (f *File) commit() error {
	ctx := f.ctx
	if f.hub.abortsFinish {
		ctx = context.WithoutCancel(ctx)
	}
	for unknown := false; ; {
		var info backends.Info
		err := f.call(func() (err error) { info, err = f.object.Finish(ctx); return err })
		if unknown && errors.Is(err, inflight.ErrExist) {
			// The first object has appeared; names are never used twice, so it is ours.
			info, err = f.hub.Backend.Stat(f.ctx, f.path)
		}
		if err == nil {
			f.setObject(nil)
			if info.Size != f.info.Size {
				return &inflight.Error{Op: "finish", Object: f.name, Err: fmt.Errorf("%w: the store has %d bytes, and %d were written", inflight.ErrCorrupt, info.Size, f.info.Size)}
			}
			return nil
		}
		unknown = unknown || errors.Is(err, inflight.ErrOutcomeUnknown)
		if !f.hub.held {
			return err
		}
		if err := f.again(err); err != nil {
			return err
		}
	}
}

func abort(o backends.Object) {
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	_ = o.Abort(ctx) // what stays is a leftover, which gc lists
}

// spillOver moves chunks to the spill file while memory is short, first those
// that are needed last.
func (f *File) spillOver() {
	for f.hub.pressed() && f.spill.usable() {
		k := f.spillable()
		if k == nil {
			return
		}
		at, err := f.spill.write(k.bytes)
		if err == nil {
			k.at = at
			f.hub.ahead.Add(-k.ahead)
			k.ahead = 0
			f.forgo(k)
		}
		f.mu.Lock()
		k.busy = false
		f.moved.Broadcast()
		f.mu.Unlock()
		f.observe(inflight.Event{Name: inflight.EventSpilled, Bytes: int64(k.size), Err: err})
		if err != nil {
			return
		}
	}
}

// spills reports whether what the file keeps goes to the spill file while memory
// is short.
func (f *File) spills() bool { return f.spill.dir != "" && f.spill.usable() }

// spillable returns a chunk that can go to the spill file, and marks it busy.
func (f *File) spillable() *chunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, list := range [][]*chunk{f.kept, f.queue} {
		for _, k := range slices.Backward(list) {
			if !k.busy && !k.isLent && k.bytes != nil {
				k.busy = true
				return k
			}
		}
	}
	return nil
}

// spill is a local file for chunks that memory is too short for. It has no name
// where the system allows that, so that a crash leaves nothing.
type spill struct {
	dir string

	mu   sync.Mutex
	file *os.File
	size int64
	err  error
}

// usable reports whether nothing has failed yet. Once something has, chunks stay
// in memory.
func (s *spill) usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil
}

func (s *spill) write(b []byte) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil && s.err == nil {
		if s.file, s.err = os.CreateTemp(s.dir, "spillway-*.spill"); s.err == nil {
			_ = os.Remove(s.file.Name()) // where it is refused, close does it
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	at = s.size
	n, err := s.file.WriteAt(b, at)
	s.size += int64(n)
	s.err = err
	return at, err
}

func (s *spill) read(b []byte, at int64) error {
	_, err := s.file.ReadAt(b, at)
	return err
}

func (s *spill) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.file.Close()
		_ = os.Remove(s.file.Name())
		s.file = nil
	}
}
