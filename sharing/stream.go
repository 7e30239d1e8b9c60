package sharing

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Result is what became of a stream.
type Result struct {
	Handle inflight.Handle
	Files  []format.FileInfo // that hold bytes of it, in order
	Err    error
}

// Stream is what one subtask captures for one checkpoint, on its way into
// shared files. Its methods may be called by several goroutines at once; the
// order of two calls for one address is the caller's business.
type Stream struct {
	task    inflight.Task
	session *session
	done    func(Result)  // called once, without a lock
	held    *atomic.Int64 // bytes of the subtask that are held; nil where nobody asks
	gone    atomic.Bool   // err is set
	last    atomic.Bool   // nothing more comes: ended, or err is set

	mu         sync.Mutex
	head, tail *slab // waits to be packed
	cuts       []inflight.Cut
	ended      bool
	err        error // given up
	part       *part // in the file that packs it; nil before the first byte and between files
	ready      bool  // that file knows that there is something to do
	carry      *format.Carry
	result     Result
	complete   bool // the complete mark is encoded
	unsafe     int  // files with bytes of it that are not durable yet
	over       bool // done was called, or is going to be

	work *slab // is being packed; guarded by the pack lock of part's file
}

// request is one call's worth of buffers, or a reference.
type request struct {
	addr inflight.Address
	pos  inflight.Pos // of the next buffer
	n    int          // buffers still to be packed
	ref  *reference
}

// reference is bytes of an older file.
type reference struct {
	file format.FileRef
	run  format.Run
}

const (
	slabRequests = 64
	slabBuffers  = 256
)

// slab is a piece of the queue. Slabs are pooled, so that queueing a buffer
// allocates nothing.
type slab struct {
	next         *slab
	requests     [slabRequests]request
	buffers      [slabBuffers]inflight.Buffer
	nreq, nbuf   int // filled
	atReq, atBuf int // packed
}

var slabs = sync.Pool{New: func() any { return new(slab) }}

// recycle gives w back. All its buffers are packed or released.
func (w *slab) recycle() {
	clear(w.requests[:w.nreq])
	clear(w.buffers[:w.nbuf])
	w.next, w.nreq, w.nbuf, w.atReq, w.atBuf = nil, 0, 0, 0, 0
	slabs.Put(w)
}

// release releases what is left in w and in the slabs behind it, and returns
// the number of bytes.
func (w *slab) release() (n int64) {
	for w != nil {
		next := w.next
		for _, b := range w.buffers[w.atBuf:w.nbuf] {
			n += int64(len(b.Bytes()))
			b.Release()
		}
		w.recycle()
		w = next
	}
	return n
}

// room returns the last slab, with room for a request of one buffer.
func (s *Stream) room() *slab {
	if s.tail == nil || s.tail.nreq == slabRequests || s.tail.nbuf == slabBuffers {
		w := slabs.Get().(*slab)
		if s.tail == nil {
			s.head = w
		} else {
			s.tail.next = w
		}
		s.tail = w
	}
	return s.tail
}

// Push queues buffers and counts their bytes. pos is the position of the first,
// end the one behind the last. The stream owns the buffers if n, the number of
// those that are not empty, is positive; otherwise they stay the caller's. The
// slice always does.
//
// An *OverBudgetError says that they are too many: the caller must cancel the
// stream. Any other error says that the stream takes nothing any more, and why.
func (s *Stream) Push(a inflight.Address, pos inflight.Pos, bufs ...inflight.Buffer) (n int, end inflight.Pos, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse(); err != nil {
		return 0, pos, err
	}
	if !slices.ContainsFunc(bufs, func(b inflight.Buffer) bool { return len(b.Bytes()) > 0 }) {
		return 0, pos, nil
	}
	var bytes int64
	var r *request
	end = pos
	for _, b := range bufs {
		if r == nil || s.tail.nbuf == slabBuffers {
			w := s.room()
			r = &w.requests[w.nreq]
			r.addr, r.pos = a, end
			w.nreq++
		}
		s.tail.buffers[s.tail.nbuf] = b
		s.tail.nbuf++
		r.n++
		if size := len(b.Bytes()); size > 0 {
			n++
			bytes += int64(size)
			end = end.Advance(uint64(size), 1)
		}
	}
	if err = s.Take(bytes); err == nil {
		s.tell()
	}
	return n, end, err
}

// refuse answers why nothing can be queued any more, or nil.
func (s *Stream) refuse() error {
	if s.err == nil && s.ended {
		return inflight.ErrOrder
	}
	return s.err
}

// OverBudgetError says that more bytes came than may be held.
type OverBudgetError struct {
	Held, More, Limit int64
	PerTask           bool // of one subtask
}

// Error tells the numbers.
func (e *OverBudgetError) Error() string {
	who := "in all"
	if e.PerTask {
		who = "by this subtask"
	}
	return fmt.Sprintf("%v: %d bytes are held %s, %d more came, and the limit is %d", inflight.ErrOverBudget, e.Held, who, e.More, e.Limit)
}

// Unwrap returns ErrOverBudget.
func (e *OverBudgetError) Unwrap() error { return inflight.ErrOverBudget }

// Take counts n bytes against the budgets. They count even when they are too
// many. What was queued since is given back by the stream; all else by Give.
func (s *Stream) Take(n int64) error {
	h := s.session.group.hub
	over := !h.budget.Take(n)
	if over {
		h.budget.add(n)
	}
	if s.held != nil {
		if held := s.held.Add(n); held > h.PerTask {
			return &OverBudgetError{Held: held - n, More: n, Limit: h.PerTask, PerTask: true}
		}
	}
	if over {
		return &OverBudgetError{Held: h.budget.Used() - n, More: n, Limit: h.budget.limit}
	}
	return nil
}

// Refer queues a reference to bytes of an older file.
func (s *Stream) Refer(a inflight.Address, file format.FileRef, run format.Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse(); err != nil {
		return err
	}
	w := s.room()
	w.requests[w.nreq] = request{addr: a, ref: &reference{file, run}}
	w.nreq++
	s.tell()
	return nil
}

// tell has a file pack what waits. The lock is held.
func (s *Stream) tell() {
	if s.part == nil {
		s.part = s.session.join(s)
	}
	if s.part == nil {
		return // the subtask has left; Cancel is under way
	}
	f := s.part.file
	if s.ready {
		if f.hub.pressed() {
			f.press()
		}
		return
	}
	s.ready = true
	f.notify(s.part)
}

// End says that nothing more comes, with where the connections stood. A stream
// with neither bytes nor cuts is done at once, without a file.
func (s *Stream) End(cuts []inflight.Cut) {
	s.mu.Lock()
	if s.err != nil || s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.cuts = true, cuts
	s.last.Store(true)
	empty := s.part == nil && s.carry == nil && len(cuts) == 0
	if empty {
		s.over = true
		s.result.Handle = inflight.Handle{Task: s.task, Checkpoint: s.session.key.Checkpoint}
	} else {
		s.tell()
	}
	s.mu.Unlock()
	s.session.on(Event{Kind: Finished, Task: s.task})
	if empty {
		s.done(s.result)
	}
}

// Cancel gives the stream up because of err: what waits is released, what is in
// a file is marked as dead. It does nothing once the stream is done.
func (s *Stream) Cancel(err error) {
	s.mu.Lock()
	if s.err != nil || s.over {
		s.mu.Unlock()
		return
	}
	err = s.wrap(err)
	s.err, s.over = err, true
	s.gone.Store(true)
	s.last.Store(true)
	waiting := s.head
	s.head, s.tail = nil, nil
	if s.part != nil && !s.ready {
		s.ready = true
		s.part.file.notify(s.part) // it sets the mark, and releases what it was packing
	}
	s.mu.Unlock()
	s.Give(waiting.release())
	s.session.on(Event{Kind: GivenUp, Task: s.task})
	s.done(Result{Err: err})
}

// wrap says which capture failed.
func (s *Stream) wrap(err error) error {
	e := &inflight.Error{Op: "capture", Object: fmt.Sprintf("checkpoint %d of %s", s.session.key.Checkpoint, s.task), Err: err}
	if errors.Is(err, inflight.ErrOverBudget) {
		e.Mend = "let the next checkpoint be aligned; or raise unaligned.max-buffered-data, or set unaligned.spill-dir"
	}
	return e
}

// Give gives n bytes back to the budgets.
func (s *Stream) Give(n int64) {
	s.session.group.hub.budget.add(-n)
	if s.held != nil {
		s.held.Add(-n)
	}
}

// completed notes that the complete mark is encoded.
func (s *Stream) completed(h inflight.Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete, s.result.Handle = true, h
	s.part = nil
}

// moveOn takes the stream out of a file that was sealed, and into the next one
// where there is more to do.
func (s *Stream) moveOn(carry *format.Carry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part, s.ready = nil, false
	if s.err != nil {
		s.Give(s.work.release())
		s.work = nil
		return
	}
	s.carry = carry
	if s.work != nil || s.head != nil || s.ended {
		s.tell()
	}
}

// holds notes that file has bytes of the stream, which are not durable.
func (s *Stream) holds(file format.FileInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsafe++
	s.result.Files = append(s.result.Files, file)
}

// durable notes that a file with bytes of the stream is durable.
func (s *Stream) durable() {
	s.mu.Lock()
	s.unsafe--
	done := s.complete && s.unsafe == 0 && !s.over
	s.over = s.over || done
	s.mu.Unlock()
	if done {
		s.done(s.result)
	}
}

// Release releases all of bufs.
func Release(bufs []inflight.Buffer) {
	for _, b := range bufs {
		b.Release()
	}
}
