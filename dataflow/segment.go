package dataflow

import (
	"sync/atomic"

	"github.com/spillway-io/spillway/inflight"
)

// segment is a piece of memory, 32 KiB by default. It goes home when the last
// view of it is released.
type segment struct {
	b     []byte
	refs  atomic.Int32
	home  recycler       // nil: nobody counts it
	sub   int            // what home knows it by
	epoch inflight.Epoch // in which its bytes were emitted
}

// recycler takes segments back.
type recycler interface{ recycle(*segment) }

// heapSegment returns a segment around b that no pool counts.
func heapSegment(b []byte, epoch inflight.Epoch) *segment {
	s := &segment{b: b, epoch: epoch}
	s.refs.Store(1)
	return s
}

func (s *segment) release() {
	if s.refs.Add(-1) == 0 && s.home != nil {
		s.home.recycle(s)
	}
}

// view is the part of a segment from off to end; whoever holds a view holds a
// reference. Bytes behind end may be written meanwhile, bytes in it never.
type view struct {
	seg      *segment
	off, end int
}

func (v view) len() int      { return v.end - v.off }
func (v view) bytes() []byte { return v.seg.b[v.off:v.end] }

// retain returns v with a reference of its own.
func (v view) retain() view {
	v.seg.refs.Add(1)
	return v
}

// Bytes implements inflight.Buffer for captured views.
func (v view) Bytes() []byte { return v.bytes() }

// Release implements inflight.Buffer.
func (v view) Release() { v.seg.release() }

// entry is an element of a queue: a view of data, or an event.
type entry struct {
	view
	ev  *event
	seq uint32 // given by the network, see conn
}

func (e entry) isData() bool { return e.ev == nil }

// free drops what the entry holds.
func (e entry) free() {
	if e.isData() {
		e.seg.release()
	}
}

// ring is a queue of entries that reuses its memory.
type ring struct {
	buf  []entry // its length is a power of two
	head int
	n    int
	data int // of n: how many are data
}

// at returns the i-th entry from the front.
func (r *ring) at(i int) *entry { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring) push(e entry) {
	if r.n == len(r.buf) {
		bigger := make([]entry, max(8, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = *r.at(i)
		}
		r.buf, r.head = bigger, 0
	}
	r.n++
	*r.at(r.n - 1) = e
	if e.isData() {
		r.data++
	}
}

func (r *ring) pop() entry {
	e := *r.at(0)
	*r.at(0) = entry{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	if e.isData() {
		r.data--
	}
	return e
}

// remove takes the i-th entry out.
func (r *ring) remove(i int) entry {
	e := *r.at(i)
	for ; i > 0; i-- {
		*r.at(i) = *r.at(i - 1)
	}
	*r.at(0) = e
	return r.pop()
}

// views returns the first n entries' data, each with a reference of its own.
func (r *ring) views(n int) (vs []view) {
	for i := range n {
		if e := r.at(i); e.isData() {
			vs = append(vs, e.retain())
		}
	}
	return vs
}

// bytes is how much data is in the queue.
func (r *ring) bytes() (n uint64) {
	for i := range r.n {
		n += uint64(r.at(i).len())
	}
	return n
}

func (r *ring) clear() {
	for r.n > 0 {
		r.pop().free()
	}
}
