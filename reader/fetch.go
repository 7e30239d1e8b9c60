package reader

import (
	"cmp"
	"context"
	"errors"
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

// span is what one request reads: blocks, and gaps between them.
type span struct {
	f       *file
	offset  int64
	length  int
	blocks  []*block
	pins    int
	claimed bool // somebody reads it, or has
	ready   bool
	err     error
	done    chan struct{} // closed when ready or err is set
	mem     *memory
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
// visits behind it say what is worth reading along.
func (r *Reader) pin(ctx context.Context, next []visit) (*decoded, error) {
	b := next[0].block
	for {
		sp, mine, err := r.spanFor(ctx, next)
		if err != nil {
			return nil, err
		}
		if mine {
			r.read(ctx, sp)
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
		if ctx.Err() != nil || mine && sp.length == int(b.ref.Stored) {
			return nil, fail("read", b.f.ref.Name, err)
		}
	}
}

// spanFor returns the span with the block of next[0], pinned, and whether the
// caller has to read it.
func (r *Reader) spanFor(ctx context.Context, next []visit) (sp *span, mine bool, err error) {
	b := next[0].block
	r.mu.Lock()
	if b.span == nil {
		r.mu.Unlock()
		size, err := r.sizeOf(ctx, b.f)
		if err != nil {
			return nil, false, err
		}
		if b.end() > size {
			return nil, false, fail("read", b.f.ref.Name, r.explain(ctx, b.f, &format.FormatError{Code: format.CodeTorn, Offset: b.ref.Offset, Err: inflight.ErrTorn,
				Text: "the file ends before the end of this block"}))
		}
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	if b.span == nil {
		r.newSpan(next)
	}
	b.pins++
	b.span.pins++
	return b.span, b.span.claimLocked(), nil
}

// claim reports whether the caller is to read sp: the first one is.
func (r *Reader) claim(sp *span) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sp.claimLocked()
}

func (sp *span) claimLocked() bool {
	first := !sp.claimed
	sp.claimed = true
	return first
}

// newSpan gives the block of next[0] a span, which nobody reads yet. The size of
// the file is known.
func (r *Reader) newSpan(next []visit) {
	b := next[0].block
	f := b.f
	if !b.alone && f.size <= int64(r.o.ReadSize) {
		if sp := r.wholeSpan(f); sp != nil {
			b.span = sp
			sp.blocks = append(sp.blocks, b)
			return
		}
	}
	end := b.end()
	if !b.alone && r.makeRoom(int64(r.o.ReadSize)) {
		for _, v := range next[1:] {
			n := v.block
			if n == b {
				continue
			}
			if n.f != f || n.span != nil || n.alone || n.ref.Offset < end || n.ref.Offset-end > int64(r.o.Gap) ||
				n.end()-b.ref.Offset > int64(r.o.ReadSize) || n.end() > f.size {
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
}

func (r *Reader) addSpan(f *file, from, to int64) *span {
	sp := &span{f: f, offset: from, length: int(to - from), done: make(chan struct{})}
	r.spans = append(r.spans, sp)
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
// what nobody looks at now has been dropped if need be.
func (r *Reader) makeRoom(size int64) bool {
	for i := 0; !r.pool.room(size); {
		if i == len(r.spans) {
			return false
		}
		if sp := r.spans[i]; sp.ready && sp.pins == 0 {
			r.drop(sp)
		} else {
			i++
		}
	}
	return true
}

// read fills sp.
func (r *Reader) read(ctx context.Context, sp *span) {
	sp.mem = r.pool.get(sp.length)
	err := r.readAt(ctx, sp.f, sp.mem.b, sp.offset)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(sp.done)
	if err == nil {
		sp.ready = true
		r.tidySpan(sp)
		return
	}
	sp.err = err
	for _, b := range sp.blocks {
		b.alone = b.alone || sp.length > int(b.ref.Stored) && ctx.Err() == nil
	}
	r.drop(sp)
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
	if sp.mem != nil {
		sp.mem.release()
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
			mine = sp.claimLocked()
		}
		r.mu.Unlock()
		if sp == nil {
			return nil, nil
		}
		if mine {
			r.read(ctx, sp)
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
	d, err := r.parse(b, sp.mem, sp.mem.b[b.ref.Offset-sp.offset:][:b.ref.Stored])
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
