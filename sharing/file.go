package sharing

import (
	"context"
	"encoding/hex"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// File is a shared channel-state file. Its goroutine packs what the streams of
// its members hold into blocks, and writes them to the store; while that waits
// for a slow store, the hub's overflow goroutine goes on packing.
type File struct {
	hub     *Hub
	session *session
	number  int    // in the session
	name    string // relative to the job
	path    string // on the store
	id      inflight.FileID
	born    time.Time
	ctx     context.Context // ends when nobody needs the file any more
	stop    context.CancelFunc
	wake    chan struct{}
	idle    atomic.Bool

	pack   sync.Mutex
	enc    *format.Encoder // made for the first bytes
	size   int64           // encoded bytes that are accounted for
	full   bool
	closed atomic.Bool // encoded to its end, or given up
	moving bool        // chunks get memory of their own
	info   format.FileInfo
	broken []broken

	mu      sync.Mutex
	parts   []*part
	ready   []*part
	current *part // is being packed; changes with pack locked as well
	sealing bool
	output
}

// part is what one stream has in one file. All but the first two are guarded by
// the file's pack lock.
type part struct {
	file   *File
	stream *Stream

	member   format.Member
	begun    bool  // the encoder knows it
	complete bool  // and has its complete mark
	closed   bool  // nothing more comes
	since    int64 // bytes packed since the last chunk
}

// broken is a stream that the encoder refused.
type broken struct {
	stream *Stream
	err    error
}

func (s *session) newFile(n int) *File {
	h := s.group.hub
	f := &File{hub: h, session: s, number: n, id: inflight.NewFileID(), born: time.Now(), wake: make(chan struct{}, 1)}
	// The id is unique, so the name is, in all processes of the attempt.
	f.name = format.StateFileName(s.key.Checkpoint, s.group.name+"."+hex.EncodeToString(f.id[:8]), s.key.Attempt)
	f.path = path.Join(h.Job, f.name)
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.output.init(f)
	h.adopt(f)
	h.crew.run(f.run)
	return f
}

// join adds a stream.
func (f *File) join(s *Stream) *part {
	p := &part{file: f, stream: s}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts = append(f.parts, p)
	return p
}

func (f *File) observe(e inflight.Event) {
	e.Checkpoint, e.Object = f.session.key.Checkpoint, f.name
	f.hub.Observer.Observe(e)
}

// members returns the parts so far.
func (f *File) members() []*part {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.parts[:len(f.parts):len(f.parts)]
}

// notify says that the stream of p has something to do.
func (f *File) notify(p *part) {
	f.mu.Lock()
	f.ready = append(f.ready, p)
	ahead := f.busy && (f.slow || f.hub.held || f.hub.pressed())
	f.mu.Unlock()
	if ahead {
		f.hub.overflow.add(f)
	}
	f.signal()
}

// press has somebody pack, since memory is short.
func (f *File) press() {
	f.mu.Lock()
	busy := f.busy
	f.mu.Unlock()
	if busy {
		f.hub.overflow.add(f)
	}
}

func (f *File) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// seal has the file end once what has finished is packed.
func (f *File) seal() {
	f.mu.Lock()
	f.sealing = true
	f.mu.Unlock()
	f.signal()
}

// state tells how many bytes the file holds in memory, and whether that will
// change by itself.
func (f *File) state() (held int64, sealing, packing, idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holding.Load(), f.sealing, f.current != nil || len(f.ready) > 0, f.idle.Load()
}

// run is the file's goroutine.
func (f *File) run() {
	defer f.hub.forget(f)
	f.openEarly()
	for {
		worked, closed := f.work()
		err := f.writeQueue()
		switch {
		case f.ctx.Err() != nil:
			f.abandon()
			return
		case err != nil:
			f.fail(err)
			return
		case closed:
			f.finish()
			return
		case !worked:
			f.park()
		}
	}
}

// park waits for something to do.
func (f *File) park() {
	f.idle.Store(true)
	f.hub.budget.look()
	select {
	case <-f.wake:
	case <-f.ctx.Done():
	}
	f.idle.Store(false)
}

// work packs up to one chunk, or ends the encoder; it reports whether there was
// something to do, and whether all is in the queue now.
func (f *File) work() (worked, closed bool) {
	f.pack.Lock()
	defer f.unpack()
	worked = f.packChunk() || f.endSealed()
	return worked, f.closed.Load() // under the lock: closed is set before all is in the queue
}

// endSealed ends the encoder of a file that is to be sealed, and reports whether
// that is so.
func (f *File) endSealed() bool {
	f.mu.Lock()
	sealing := f.sealing
	f.mu.Unlock()
	if sealing && !f.closed.Load() && f.ctx.Err() == nil {
		f.end()
	}
	return sealing
}

// packAhead packs for a goroutine that is busy with the store, and reports
// whether there is more.
func (f *File) packAhead() (more bool) {
	const turn = 16
	for range turn {
		yes, own := f.mayPackAhead()
		if !yes {
			return false
		}
		f.pack.Lock()
		f.moving = own
		if more = f.packChunk(); !more {
			f.endSealed() // the next file can begin while this one is written
		}
		f.moving = false
		f.unpack()
		f.spillOver()
		if !more {
			f.hub.budget.look()
			break
		}
	}
	return more
}

// unpack unlocks the encoder, and gives up the streams that it refused.
func (f *File) unpack() {
	list := f.broken
	f.broken = nil
	f.pack.Unlock()
	for _, b := range list {
		b.stream.Cancel(b.err)
	}
}

// packChunk packs until a chunk is encoded, and reports whether one was. The
// streams are packed one after the other, which makes long runs.
func (f *File) packChunk() bool {
	for !f.closed.Load() {
		if f.enc != nil && f.take() {
			return true
		}
		p := f.next()
		switch {
		case p == nil:
			return false
		case p.closed || p.stream.work == nil && !f.fetch(p):
			f.turnTo(nil)
		case f.packSlab(p):
			return true
		}
	}
	return false
}

// next turns to a stream that has something to do. Once the file is to be
// sealed, only those count from which nothing more comes; once it is full, none.
func (f *File) next() *part {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.full:
		f.current = nil
	case f.sealing:
		i := slices.IndexFunc(f.parts, func(p *part) bool { return !p.closed && p.stream.last.Load() })
		if f.current = nil; i >= 0 {
			f.current = f.parts[i]
		}
	case f.current == nil && len(f.ready) > 0:
		f.current = f.ready[0]
		f.ready = slices.Delete(f.ready, 0, 1)
	}
	return f.current
}

func (f *File) turnTo(p *part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = p
}

// fetch gets the next slab of p's stream, or does what comes instead of it.
func (f *File) fetch(p *part) bool {
	s := p.stream
	s.mu.Lock()
	switch {
	case s.err != nil:
		s.mu.Unlock()
		f.cut(p)
	case s.head != nil:
		s.work = s.head
		if s.head = s.head.next; s.head == nil {
			s.tail = nil
		}
		s.work.next = nil
		s.mu.Unlock()
		return true
	case s.ended:
		s.mu.Unlock()
		f.complete(p)
	default:
		s.ready = false
		s.mu.Unlock()
	}
	return false
}

// packSlab packs the slab at hand, and stops when a chunk is encoded.
func (f *File) packSlab(p *part) (encoded bool) {
	if p.stream.gone.Load() || !f.begin(p) {
		f.cut(p)
		return false
	}
	w := p.stream.work
	packed := int64(0)
	for w.atReq < w.nreq && !encoded && !p.stream.gone.Load() {
		var n int64
		if n, encoded = f.packRequest(p, w); !encoded {
			w.atReq++
		}
		packed += n
	}
	p.since += packed
	f.account(packed)
	switch {
	case p.stream.gone.Load():
		f.cut(p)
	case w.atReq == w.nreq:
		w.recycle()
		p.stream.work = nil
	}
	return encoded
}

// packRequest packs the request at hand, and stops when a chunk is encoded.
func (f *File) packRequest(p *part, w *slab) (packed int64, encoded bool) {
	r := &w.requests[w.atReq]
	if r.ref != nil {
		f.check(p, f.enc.Reference(p.member, r.addr, r.ref.file, r.ref.run))
		return 0, false
	}
	for r.n > 0 {
		bufs := w.buffers[w.atBuf : w.atBuf+r.n]
		n, end, err := f.enc.AppendBuffers(p.member, r.addr, r.pos, bufs)
		if err != nil {
			f.check(p, err)
			n = r.n // they are of no use any more
		}
		for _, b := range bufs[:n] {
			packed += int64(len(b.Bytes()))
			b.Release()
		}
		w.atBuf += n
		r.n -= n
		r.pos = end
		if f.take() {
			return packed, true
		}
	}
	return packed, false
}

// begin makes p known to the encoder, which is made for the first one.
func (f *File) begin(p *part) bool {
	if p.begun {
		return true
	}
	key := f.session.key
	err := error(nil)
	if f.enc == nil {
		h := format.FileHeader{FileID: f.id, Job: f.hub.Job, Checkpoint: key.Checkpoint, Epoch: key.Epoch, Group: f.session.group.name}
		f.enc, err = format.NewEncoder(nil, f.name, h, f.hub.Encoder)
	}
	if err == nil {
		p.member, err = f.enc.Begin(p.stream.task, p.stream.carry)
	}
	f.check(p, err)
	p.begun = err == nil
	return p.begun
}

// check has the stream of p given up once the encoder is unlocked.
func (f *File) check(p *part, err error) {
	if err != nil {
		f.broken = append(f.broken, broken{p.stream, err})
	}
}

// complete sets the complete mark.
func (f *File) complete(p *part) {
	if f.begin(p) {
		for _, c := range p.stream.cuts {
			f.check(p, f.enc.SetCut(p.member, c))
		}
		f.check(p, f.enc.Complete(p.member))
		p.complete = true
		f.account(0)
	}
	p.closed = true
}

// cut takes out a stream that was given up.
func (f *File) cut(p *part) {
	p.stream.Give(p.stream.work.release())
	p.stream.work = nil
	if p.begun && !p.closed {
		f.check(p, f.enc.Abort(p.member))
		f.account(0)
	}
	p.closed = true
}

// account moves packed bytes from what waits to what is encoded.
func (f *File) account(packed int64) {
	grown := f.enc.Size() - f.size
	f.size += grown
	f.holding.Add(grown)
	f.hub.budget.add(grown - packed)
	if f.size >= f.hub.Target && !f.full && !f.closed.Load() {
		f.full = true
		f.session.on(Event{Kind: Filled, File: f.number})
	}
}

// take hands the next chunk that is encoded over to the output.
func (f *File) take() bool {
	c, ok := f.enc.Take()
	if !ok {
		return false
	}
	k := &chunk{bytes: c.Bytes, lent: c, isLent: true}
	if f.hub.PerTask > 0 {
		for _, p := range f.members() {
			if p.since > 0 && p.stream.held != nil {
				k.shares = append(k.shares, share{p.stream, p.since})
				p.since = 0
			}
		}
	}
	if f.moving {
		f.own(k)
	}
	f.push(k)
	return true
}

// own moves a chunk out of the memory of the encoder, which is needed.
func (f *File) own(k *chunk) {
	if k.isLent {
		k.bytes = append(f.hub.memory.get(len(k.bytes))[:0], k.bytes...)
		f.enc.Recycle(k.lent)
		k.isLent, k.lent = false, format.Chunk{}
	}
}

// end ends the encoder: what is not complete goes on in the next file.
func (f *File) end() {
	parts := f.members()
	var moved []*part
	event := Event{Kind: Sealed, File: f.number}
	for _, p := range parts {
		if !p.closed && p.stream.gone.Load() {
			f.cut(p)
		}
		if !p.closed {
			moved = append(moved, p)
			event.Moved = append(event.Moved, p.stream.task)
			if p.begun {
				f.check(p, f.enc.Continue(p.member))
			}
			p.closed = true
		}
	}
	f.closed.Store(true)
	f.turnTo(nil)
	if f.enc != nil {
		info, err := f.enc.Close()
		if err != nil {
			f.failed = err
		}
		f.info = info
		for f.take() {
		}
		f.account(0)
	}
	f.session.on(event)
	f.handOver(parts, moved)
}

// handOver tells the streams what the file has of them.
func (f *File) handOver(parts, moved []*part) {
	for _, p := range parts {
		if p.begun {
			p.stream.holds(f.info)
		}
		if p.complete {
			p.stream.completed(f.enc.Handle(p.member))
		}
	}
	for _, p := range moved {
		carry := p.stream.carry
		if p.begun {
			carry = f.enc.Carry(p.member)
		}
		p.stream.moveOn(carry)
	}
}

// finish makes the file durable.
func (f *File) finish() {
	if f.enc == nil {
		f.abandon() // its members left before they had a byte in it
		return
	}
	if f.failed == nil {
		f.failed = f.commit()
	}
	switch {
	case f.ctx.Err() != nil:
		f.abandon()
		return
	case f.failed != nil:
		f.fail(f.failed)
		return
	}
	f.clear()
	f.stop()
	f.session.on(Event{Kind: FileEnded, File: f.number})
	f.observe(inflight.Event{Name: inflight.EventFileSealed, Bytes: f.info.Size, Duration: time.Since(f.born)})
	f.hub.Observer.Observe(inflight.Event{Name: inflight.EventBuffered, Bytes: f.hub.budget.Used()})
	for _, p := range f.members() {
		if p.begun {
			p.stream.durable()
		}
	}
}

// fail gives up the file, and with it all that have bytes in it.
func (f *File) fail(err error) {
	f.observe(inflight.Event{Name: inflight.EventFileFailed, Err: err})
	f.session.on(Event{Kind: FileEnded, File: f.number}) // nobody joins any more
	f.pack.Lock()
	f.closed.Store(true)
	var victims []*Stream
	for _, p := range f.members() {
		if p.begun || !p.closed {
			victims = append(victims, p.stream)
		}
	}
	f.unpack()
	for _, s := range victims {
		s.Cancel(err)
	}
	f.abandon()
}

// cancel ends a file that nobody needs. It may be waiting for the store.
func (f *File) cancel() {
	f.stop()
	f.mu.Lock()
	object, busy := f.object, f.busy
	f.mu.Unlock()
	if busy && object != nil {
		f.hub.crew.run(func() { abort(object) })
	}
}

// abandon drops everything. Its streams have been given up.
func (f *File) abandon() {
	f.pack.Lock()
	f.closed.Store(true)
	for _, p := range f.members() {
		if !p.closed {
			f.cut(p)
		}
	}
	f.clear()
	if f.enc != nil {
		f.enc.Discard()
	}
	f.broken = nil
	f.unpack()
	if f.object != nil {
		abort(f.object)
	}
	f.stop()
	f.session.on(Event{Kind: FileEnded, File: f.number})
}
