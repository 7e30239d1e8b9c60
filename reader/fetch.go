package reader

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// block is a data block that somebody wants. uses, pins, span and alone are
// guarded by Reader.mu; dec by mu, and by being pinned.
type block struct {
	f     *file
	ref   format.BlockRef // with File 0
	uses  int             // visits still to come
	pins  int             // visits going on
	span  *span           // where its bytes are or will be; nil: not read
	alone bool            // a read with its neighbours failed

	mu  sync.Mutex
	dec *decoded
}

func (b *block) end() int64 { return b.ref.Offset + int64(b.ref.Stored) }

// Requests are as long as possible, since each costs a round trip, and often a
// connection. What they bring is handed on and given back in pieces.
const (
	pieceSize  = 576 << 10 // stays in a cache until it is checked, and has two blocks of the usual size
	modestRead = 4 << 20   // of a request, where memory is short; of a file that is read as a whole
)

// span is what lies in one piece of memory: blocks, and gaps between them. One
// request reads one or several of a file.
type span struct {
	f       *file
	offset  int64
	length  int
	blocks  []*block
	by      *cursor // that has asked for it
	pins    int
	seen    bool // somebody has been here
	claimed bool // somebody reads it, or has
	ready   bool
	err     error
	done    chan struct{} // closed when ready or err is set
	mem     *memory
	self    [1]*span // memory for a request for this span alone
}

// only returns sp as a request.
func (sp *span) only() []*span {
	sp.self[0] = sp
	return sp.self[:]
}

// decoded is a block that was checked.
type decoded struct {
	format.Block
	table format.Table
	mem   *memory // holds Data
}

var decodedPool = sync.Pool{New: func() any { return new(decoded) }}

func (d *decoded) drop() {
	d.mem.release()
	d.mem, d.Block = nil, format.Block{}
	decodedPool.Put(d)
}

// visit is one look into a block: the extents [from, to) of a plan.
type visit struct {
	block    *block
	from, to int
}

// want counts visits, so that their blocks are kept for them.
func (r *Reader) want(visits []visit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range visits {
		v.block.uses++
	}
}

// forget takes back visits that will not come.
func (r *Reader) forget(visits []visit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range visits {
		v.block.uses--
		r.tidy(v.block)
	}
}

// count adds n to the number of iterations.
func (r *Reader) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cursors += n
}

// blocksOf returns the blocks at refs; BlockRef.File is an index into files.
// Subtasks that share a block get the same one.
func (r *Reader) blocksOf(files []*file, refs []format.BlockRef) []*block {
	fresh, blocks := make([]block, len(refs)), make([]*block, len(refs))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, ref := range refs {
		f := files[ref.File]
		ref.File = 0
		b := f.blocks[ref]
		if b == nil {
			b = &fresh[i]
			b.f, b.ref = f, ref
			if f.blocks == nil {
				f.blocks = make(map[format.BlockRef]*block, len(refs))
			}
			f.blocks[ref] = b
			f.order, f.sorted = append(f.order, b), false
		}
		blocks[i] = b
	}
	return blocks
}

// pin returns the block of next[0], read and checked. It stays until unpin. The
// visits behind it, of iteration c, say what is worth reading along; c may be nil.
func (r *Reader) pin(ctx context.Context, next []visit, c *cursor) (*decoded, error) {
	b := next[0].block
	for {
		sp, mine, err := r.spanFor(ctx, next, c)
		if err != nil {
			return nil, err
		}
		switch len(mine) {
		case 0:
		case 1:
			r.fill(ctx, mine, nil)
		default:
			c.fetch(mine)
		}
		select {
		case <-sp.done:
			err = sp.err
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			d, err := r.decode(ctx, b, sp)
			if err != nil {
				r.unpin(b, sp)
			}
			return d, err
		}
		r.unpin(b, sp)
		// What somebody else's read, or a read with others, failed at is tried again.
		if ctx.Err() != nil || len(mine) == 1 && sp.length == int(b.ref.Stored) {
			return nil, fail("read", b.f.ref.Name, err)
		}
	}
}

// spanFor returns the span with the block of next[0], pinned, and the spans that
// the caller has to read with one request, if any.
func (r *Reader) spanFor(ctx context.Context, next []visit, c *cursor) (sp *span, mine []*span, err error) {
	b := next[0].block
	r.mu.Lock()
	if b.span == nil {
		r.mu.Unlock()
		size, err := r.sizeOf(ctx, b.f)
		if err != nil {
			return nil, nil, err
		}
		if b.end() > size {
			return nil, nil, fail("read", b.f.ref.Name, r.explain(ctx, b.f, &format.FormatError{Code: format.CodeTorn, Offset: b.ref.Offset, Err: inflight.ErrTorn,
				Text: "the file ends before the end of this block"}))
		}
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	if b.span == nil {
		mine = r.request(next, c, r.makeRoom(r.modest()))
	} else if b.span.claim() {
		mine = b.span.only()
	}
	b.pins++
	b.span.pins++
	return b.span, mine, nil
}

// requestAhead returns what should be read with one request to have next[0]
// ready when it is needed; nil if there is nothing to do. full: there is no
// memory for it now, or the others need theirs.
func (r *Reader) requestAhead(next []visit, c *cursor) (spans []*span, full bool) {
	b := next[0].block
	r.mu.Lock()
	defer r.mu.Unlock()
	switch size := r.requestSize(); {
	case b.span != nil || b.f.size == 0 || b.end() > b.f.size:
		return nil, false
	case !r.pool.room(size), c.held > 0 && c.held+size > r.share():
		return nil, true
	}
	return r.request(next, c, true), false
}

// claim reports whether the caller is to read sp: the first one is.
func (sp *span) claim() bool {
	first := !sp.claimed
	sp.claimed = true
	return first
}

// share is how much memory each iteration should have.
func (r *Reader) share() int64 { return r.o.Memory / int64(max(r.cursors, 1)) }

// requestSize is the memory of a request such that each iteration has one under
// way and, if they are few, another one that is being used up.
func (r *Reader) requestSize() int64 {
	share, most := r.share(), int64(r.o.ReadSize)
	return min(most, max(share/2, min(share, most/2), r.modest()))
}

// modest is the memory of a request where memory is short, and the size up to
// which a file is read as a whole.
func (r *Reader) modest() int64 { return min(int64(r.o.ReadSize), modestRead) }

// pieceSize is the length up to which a span has several blocks.
func (r *Reader) pieceSize() int {
	if r.o.ReadAhead <= 0 && r.remote {
		return r.o.ReadSize // a request is one span
	}
	return min(r.o.ReadSize, pieceSize)
}

// request gives the block of next[0] a span, and the blocks behind it as far as
// they should be read with the same request. The caller has to read the spans
// that it returns. The size of the file is known. Without room, only the block
// itself is asked for.
func (r *Reader) request(next []visit, c *cursor, room bool) []*span {
	b := next[0].block
	last := r.newSpan(next, c, room)
	held := heldFor(last.length)
	if !last.claim() {
		return nil
	}
	spans := last.only()
	f, first, size, piece := b.f, last, r.requestSize(), heldFor(r.pieceSize())
	if c == nil || c.ctx == nil || !room || b.alone || f.whole == first {
		return spans
	}
	for i := range next {
		n, end := next[i].block, last.offset+int64(last.length)
		if n.span == last {
			continue
		}
		if n.f != f || n.span != nil || n.alone || n.ref.Offset < end || n.ref.Offset-end > int64(r.o.Gap) ||
			n.end()-first.offset > int64(r.o.ReadSize) || n.end() > f.size || held+piece > size || !r.pool.room(piece) {
			break
		}
		last = r.newSpan(next[i:], c, true)
		last.claim()
		held += heldFor(last.length)
		spans = append(spans, last)
	}
	return spans
}

// newSpan gives the block of next[0] a span, which nobody reads yet.
func (r *Reader) newSpan(next []visit, c *cursor, room bool) *span {
	b := next[0].block
	f := b.f
	if !b.alone && f.size <= r.modest() {
		if sp := r.wholeSpan(f); sp != nil {
			b.span = sp
			sp.blocks = append(sp.blocks, b)
			return sp
		}
	}
	end := b.end()
	if !b.alone && room {
		for _, v := range next[1:] {
			n := v.block
			if n == b {
				continue
			}
			if n.f != f || n.span != nil || n.alone || n.ref.Offset < end || n.ref.Offset-end > int64(r.o.Gap) ||
				n.end()-b.ref.Offset > int64(r.pieceSize()) || n.end() > f.size {
				break
			}
			end = n.end()
		}
	}
	sp := r.addSpan(f, b.ref.Offset, end)
	for _, n := range f.within(b.ref.Offset, end) {
		if n == b || n.uses > 0 && n.span == nil {
			n.span = sp
			sp.blocks = append(sp.blocks, n)
		}
	}
	if c != nil {
		sp.by = c
		c.held += heldFor(sp.length)
	}
	return sp
}

func (r *Reader) addSpan(f *file, from, to int64) *span {
	sp := &span{f: f, offset: from, length: int(to - from), done: make(chan struct{})}
	r.spans = append(r.spans, sp)
	r.pool.reserve(sp.length)
	return sp
}

// within returns the blocks of f that lie between from and to.
func (f *file) within(from, to int64) []*block {
	if !f.sorted {
		slices.SortFunc(f.order, func(a, b *block) int {
			return cmp.Or(cmp.Compare(a.ref.Offset, b.ref.Offset), cmp.Compare(a.ref.Stored, b.ref.Stored))
		})
		f.sorted = true
	}
	i, _ := slices.BinarySearchFunc(f.order, from, func(b *block, off int64) int { return cmp.Compare(b.ref.Offset, off) })
	var in []*block
	for _, b := range f.order[i:] {
		if b.ref.Offset >= to {
			break
		}
		if b.end() <= to {
			in = append(in, b)
		}
	}
	return in
}

// makeRoom reports whether size bytes more stay within the memory bound, after
// what nobody looks at now has been dropped if need be: first what somebody has
// seen, then what is still new to all.
func (r *Reader) makeRoom(size int64) bool {
	for _, unseen := range []bool{false, true} {
		for i := 0; i < len(r.spans) && !r.pool.room(size); {
			if sp := r.spans[i]; sp.ready && sp.pins == 0 && (sp.seen || unseen) {
				r.drop(sp)
			} else {
				i++
			}
		}
	}
	return r.pool.room(size)
}

// fill reads spans of one file with one request. What has arrived is there for
// everybody while the rest is on its way, and is checked in the background, in
// goroutines of checks; with nil by who needs it.
func (r *Reader) fill(ctx context.Context, spans []*span, checks *sync.WaitGroup) {
	first, last := spans[0], spans[len(spans)-1]
	read := func(sp *span) error { return r.readAt(ctx, sp.f, sp.mem.b, sp.offset) }
	if len(spans) > 1 {
		src, err := r.source(ctx, first.f)
		var body io.ReadCloser
		if err == nil {
			defer r.done(first.f)
			if body, err = src.Stream(ctx, first.offset, last.offset+int64(last.length)-first.offset); err == nil {
				defer body.Close()
			}
		}
		at := first.offset
		read = func(sp *span) error {
			if err == nil {
				_, err = io.CopyN(io.Discard, body, sp.offset-at)
			}
			if err == nil {
				_, err = io.ReadFull(body, sp.mem.b)
			}
			at = sp.offset + int64(sp.length)
			return err
		}
	}
	for _, sp := range spans {
		sp.mem = r.pool.take(sp.length)
		blocks := r.filled(ctx, sp, read(sp), len(spans) > 1, checks != nil)
		switch {
		case len(blocks) == 0:
		case sp.compressed(blocks[0]): // which takes longer than to read it
			checks.Go(func() { r.check(ctx, sp, blocks) })
		default:
			r.check(ctx, sp, blocks)
		}
	}
}

// filled says how the read of a span has ended. It returns the blocks to be
// checked, pinned, if that is wanted.
func (r *Reader) filled(ctx context.Context, sp *span, err error, several, check bool) (blocks []*block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(sp.done)
	if err != nil {
		sp.err = err
		for _, b := range sp.blocks {
			b.alone = b.alone || (several || sp.length > int(b.ref.Stored)) && ctx.Err() == nil
		}
		r.drop(sp)
		return nil
	}
	sp.ready = true
	if check {
		blocks = slices.Clone(sp.blocks)
		for _, b := range blocks {
			b.pins++
			sp.pins++
		}
	}
	r.tidySpan(sp)
	return blocks
}

// bytes returns those of block b.
func (sp *span) bytes(b *block) []byte { return sp.mem.b[b.ref.Offset-sp.offset:][:b.ref.Stored] }

func (sp *span) compressed(b *block) bool {
	h, err := format.DecodeBlockHeader(sp.bytes(b), b.f.ref.FileID, b.ref.Offset)
	return err == nil && h.Codec != format.CodecNone
}

// check decodes blocks of sp. What fails here, whoever needs it tries again and
// reports.
func (r *Reader) check(ctx context.Context, sp *span, blocks []*block) {
	for _, b := range blocks {
		h, _ := format.DecodeBlockHeader(sp.bytes(b), b.f.ref.FileID, b.ref.Offset)
		if ctx.Err() == nil && (h.Codec == format.CodecNone || r.pool.room(int64(h.Raw))) {
			_, _ = r.decode(ctx, b, sp)
		}
		r.unpin(b, sp)
	}
}

// unpin ends a visit, which may come again.
func (r *Reader) unpin(b *block, sp *span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.pins--
	r.unpinLocked(sp)
	r.tidy(b)
}

// finish ends a visit for good.
func (r *Reader) finish(b *block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.uses--
	b.pins--
	b.span.seen = true
	r.unpinLocked(b.span)
	r.tidy(b)
}

func (r *Reader) unpinSpan(sp *span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unpinLocked(sp)
}

func (r *Reader) unpinLocked(sp *span) {
	sp.pins--
	r.tidySpan(sp)
}

// tidy lets go of what b holds, if nobody will look at it again.
func (r *Reader) tidy(b *block) {
	if b.uses > 0 || b.pins > 0 || b.span == nil {
		return
	}
	sp := b.span
	if b.dec != nil {
		b.dec.drop()
		b.dec = nil
	}
	b.span = nil
	sp.blocks = slices.DeleteFunc(sp.blocks, func(o *block) bool { return o == b })
	r.tidySpan(sp)
}

// tidySpan drops sp when no block of it is wanted. A whole file stays as long
// as it has users: its sections lie there too.
func (r *Reader) tidySpan(sp *span) {
	if (sp.ready || !sp.claimed) && sp.pins == 0 && len(sp.blocks) == 0 && (sp.f.whole != sp || sp.f.users == 0) {
		r.drop(sp)
	}
}

// drop takes the bytes of sp away; nobody looks at them.
func (r *Reader) drop(sp *span) {
	i := slices.Index(r.spans, sp)
	if i < 0 {
		return
	}
	r.spans = slices.Delete(r.spans, i, i+1)
	if sp.f.whole == sp {
		sp.f.whole = nil
	}
	for _, b := range sp.blocks {
		if b.dec != nil {
			b.dec.drop()
			b.dec = nil
		}
		b.span = nil
	}
	if sp.by != nil {
		sp.by.held -= heldFor(sp.length)
	}
	if sp.mem != nil {
		sp.mem.release()
	} else {
		r.pool.unreserve(sp.length)
	}
}

// wholeSpan returns the span of all of a small file; nil if there is no memory
// for it.
func (r *Reader) wholeSpan(f *file) *span {
	if f.whole == nil && r.makeRoom(f.size) {
		f.whole = r.addSpan(f, 0, f.size)
	}
	return f.whole
}

// wholeFile returns all of a small file, pinned; nil if there is no memory for
// it.
func (r *Reader) wholeFile(ctx context.Context, f *file) (*span, error) {
	for {
		r.mu.Lock()
		sp, mine := r.wholeSpan(f), false
		if sp != nil {
			sp.pins++
			mine = sp.claim()
		}
		r.mu.Unlock()
		if sp == nil {
			return nil, nil
		}
		if mine {
			r.fill(ctx, sp.only(), nil)
		}
		var err error
		select {
		case <-sp.done:
			err = sp.err
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			return sp, nil
		}
		r.unpinSpan(sp)
		if mine || ctx.Err() != nil {
			return nil, fail("read", f.ref.Name, err)
		}
	}
}

// decode checks b, whose bytes lie in sp. A block that is not right is read a
// second time, by itself.
func (r *Reader) decode(ctx context.Context, b *block, sp *span) (*decoded, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dec != nil {
		return b.dec, nil
	}
	d, err := r.parse(b, sp.mem, sp.bytes(b))
	if err != nil {
		m := r.pool.get(int(b.ref.Stored))
		defer m.release()
		if err := r.readAt(ctx, b.f, m.b, b.ref.Offset); err != nil {
			return nil, fail("read", b.f.ref.Name, err)
		}
		first := err
		if d, err = r.parse(b, m, m.b); err != nil {
			return nil, fail("read", b.f.ref.Name, r.explain(ctx, b.f, err))
		}
		r.transient(b.f, b.ref.Offset, first)
	}
	b.dec = d
	return d, nil
}

// parse checks and decodes the block p, which lies in m.
func (r *Reader) parse(b *block, m *memory, p []byte) (*decoded, error) {
	h, err := format.DecodeBlockHeader(p, b.f.ref.FileID, b.ref.Offset)
	if err != nil {
		return nil, err
	}
	if format.BlockHeaderSize+h.Stored != b.ref.Stored {
		return nil, corrupt(CodeIndex, b.ref.Offset, "the block has %d bytes, its index says %d", format.BlockHeaderSize+h.Stored, b.ref.Stored)
	}
	d := decodedPool.Get().(*decoded)
	var scratch []byte
	if h.Codec != format.CodecNone {
		m = r.pool.get(int(max(h.Raw, 1)))
		scratch = m.b[:0]
	} else {
		m.retain()
	}
	d.mem = m
	if d.Block, _, err = format.DecodeBlock(p, b.f.ref.FileID, b.ref.Offset, scratch); err == nil {
		err = d.ReadTable(&d.table)
	}
	if err != nil {
		d.drop()
		return nil, err
	}
	// References have no bytes here; without them runs are in order of offsets.
	d.table.Runs = slices.DeleteFunc(d.table.Runs, func(run format.Run) bool { return run.Flags&format.RunReference != 0 })
	return d, nil
}

// explain turns damage into ErrForeign when the file itself says that it is
// another one.
func (r *Reader) explain(ctx context.Context, f *file, err error) error {
	if errors.Is(err, inflight.ErrForeign) {
		return err
	}
	size, serr := r.sizeOf(ctx, f)
	if serr != nil {
		return err
	}
	h, _, herr := format.ReadFileHeader(f.reader(ctx, size), size)
	if herr == nil && h.FileID != f.ref.FileID {
		return &format.FormatError{Code: format.CodeForeign, Offset: 0, Err: inflight.ErrForeign,
			Text: "the file is " + h.FileID.String() + " of " + format.CheckpointDir(h.Checkpoint) + ", job " + h.Job + "; " + f.ref.FileID.String() + " was expected"}
	}
	return err
}
