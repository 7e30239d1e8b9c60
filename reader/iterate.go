package reader

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sort"
	"sync"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Buffer is one captured buffer. It is valid until the next step of the
// iteration.
type Buffer struct {
	Task    inflight.Task
	Address inflight.Address
	Entry   int // number of the address in Subtask.Entries, from 0
	Pos     inflight.Pos
	Gap     bool   // bytes are missing between the previous buffer of the address and this one
	File    string // where it lies, relative to the job
	Offset  int64  // in File: of its first byte, or of its block if that is compressed
	Bytes   []byte // not to be changed

	mem *memory
}

// held is a Buffer that somebody owns.
type held struct {
	bytes []byte
	mem   *memory
}

var heldPool = sync.Pool{New: func() any { return new(held) }}

// Retain returns the bytes of b as a buffer that the caller owns and releases.
// They are not copied: what was read with them, up to a MiB or so, stays in
// memory until then. Who keeps buffers for long copies them.
func (b *Buffer) Retain() inflight.Buffer {
	h := heldPool.Get().(*held)
	b.mem.retain()
	h.bytes, h.mem = b.Bytes, b.mem
	return h
}

// Bytes implements inflight.Buffer.
func (h *held) Bytes() []byte { return h.bytes }

// Release implements inflight.Buffer.
func (h *held) Release() {
	m := h.mem
	h.bytes, h.mem = nil, nil
	heldPool.Put(h)
	m.release()
}

// Buffers returns the buffers of the given sides, one side after the other; all
// sides together without any. Those of one address come in order; addresses are
// mixed as they are in the files. An error ends the iteration. Breaking off
// releases everything.
//
// What several subtasks share is read once if Buffers is called on all of them
// before the first one is iterated.
func (s *Subtask) Buffers(ctx context.Context, sides ...inflight.Side) iter.Seq2[*Buffer, error] {
	return s.Select(ctx, nil, sides...)
}

// Select is Buffers for the addresses that keep wants; nil wants all. What only
// others need is not read.
func (s *Subtask) Select(ctx context.Context, keep func(inflight.Address) bool, sides ...inflight.Side) iter.Seq2[*Buffer, error] {
	l := s.Selection(keep, sides...)
	return func(yield func(*Buffer, error) bool) {
		for b, err := range l.Batches(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			for b.Next() {
				if !yield(&b.Buffer, nil) {
					return
				}
			}
		}
	}
}

// Selection is what will be read of a Subtask: what several of them share is
// read once if all are there before the first one is iterated.
type Selection struct {
	s     *Subtask
	keep  func(inflight.Address) bool
	sides []inflight.Side
	first *cursor
}

// Selection returns what Select reads.
func (s *Subtask) Selection(keep func(inflight.Address) bool, sides ...inflight.Side) *Selection {
	return &Selection{s: s, keep: keep, sides: sides, first: s.cursor(keep, sides)}
}

// Batches returns the buffers of l, those of one address that lie side by side
// at a time. It is Select for who takes so many that a call for each counts.
func (l *Selection) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		s, c := l.s, l.first
		if !s.begin(c) { // iterated before: once more
			c = s.cursor(l.keep, l.sides)
			if !s.begin(c) {
				yield(nil, fail("read", s.Task.String(), inflight.ErrClosed))
				return
			}
		}
		c.run(ctx, yield)
	}
}

// Batch is several buffers of one address. It is valid until the next step of
// the iteration; so is its Buffer until the next call of Next.
type Batch struct {
	Buffer // where Next went

	run    *format.Run // that has the lengths; nil: there is one, data
	piece  int         // of run, the first one
	n      int         // buffers
	next   int         // of them
	data   []byte
	at     int          // of the next one, in data
	pos    inflight.Pos // of the first one
	gap    bool         // before the first one
	offset int64        // Buffer.Offset of the first one
	moves  int          // -1: Offset goes on with the bytes; 0: it does not
}

// Next goes to the next buffer, at first the first one. It reports whether there
// is one.
func (b *Batch) Next() bool {
	i, at := b.next, b.at
	if i == b.n {
		return false
	}
	n := len(b.data)
	if b.run != nil {
		n = b.run.PieceLength(b.piece + i)
	}
	b.next, b.at = i+1, at+n
	b.Bytes = b.data[at : at+n : at+n]
	if b.pos.Known() {
		b.Pos.Offset, b.Pos.Seq = b.pos.Offset+uint64(at), b.pos.Seq+uint64(i)
	}
	b.Gap = b.gap && i == 0
	b.Offset = b.offset + int64(at&b.moves)
	return true
}

// cursor is one iteration.
type cursor struct {
	s      *Subtask
	plan   []int // indices of extents, in the order in which they are read
	visits []visit
	// skip is told what could not be read; the iteration then goes on without
	// it. With nil it ends there.
	skip func(block *block, extents []int, err error)
	full bool // compute all digests from the bytes

	next    int             // visit
	ahead   int             // visits up to here are being read
	ctx     context.Context // of what is read ahead; nil: nothing is
	reads   sync.WaitGroup  // of those
	held    int64           // by spans that it has asked for; guarded by Reader.mu
	entries []progress
	batch   Batch
}

// progress is how far one address has got.
type progress struct {
	left   int // extents
	digest format.Digest
	broken bool
	joined *joined
}

// joined is a buffer that continues over several blocks.
type joined struct {
	mem    *memory
	n      int
	pos    inflight.Pos
	gap    bool
	file   string
	offset int64
}

// cursor plans an iteration, and registers what it will want.
func (s *Subtask) cursor(keep func(inflight.Address) bool, sides []inflight.Side) *cursor {
	s.lay()
	c := &cursor{s: s, full: s.r.o.Digests, entries: make([]progress, len(s.entries)), plan: make([]int, 0, len(s.extents))}
	var rank [4]int // of a side
	for i := range rank {
		if len(sides) > 0 {
			rank[i] = slices.Index(sides, inflight.Side(i))
		}
	}
	c.visits = make([]visit, 0, min(len(s.blocks)+len(sides), 64))
	for k := range max(len(sides), 1) {
		from := len(c.plan)
		for e := range s.entries {
			if a := &s.entries[e].Address; rank[a.Side] == k && (keep == nil || keep(*a)) {
				c.entries[e].left = s.first[e+1] - s.first[e]
				for i := s.first[e]; i < s.first[e+1]; i++ {
					c.plan = append(c.plan, i)
				}
			}
		}
		order := func(i, j int) int { return compareExtents(&s.extents[i], &s.extents[j]) }
		if plan := c.plan[from:]; !slices.IsSortedFunc(plan, order) {
			slices.SortStableFunc(plan, order)
		}
		for i := from; i < len(c.plan); i++ {
			x := &s.extents[c.plan[i]]
			if i > from {
				if last := &s.extents[c.plan[i-1]]; last.block == x.block && last.phase == x.phase {
					c.visits[len(c.visits)-1].to++
					continue
				}
			}
			c.visits = append(c.visits, visit{block: x.block, from: i, to: i + 1})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		if s.open == nil {
			s.open = map[*cursor]struct{}{}
		}
		s.open[c] = struct{}{}
		s.r.want(c.visits)
		s.r.count(1)
	}
	return c
}

// begin takes c over from the subtask: from here on the iteration itself gives
// back what it wants.
func (s *Subtask) begin(c *cursor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.open[c]
	delete(s.open, c)
	return ok
}

// run makes the iteration.
func (c *cursor) run(ctx context.Context, yield func(*Batch, error) bool) {
	r := c.s.r
	if r.o.ReadAhead > 0 {
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithCancel(ctx)
		defer c.reads.Wait()
		defer cancel()
	}
	defer func() {
		r.forget(c.visits[c.next:])
		r.count(-1)
		for i := range c.entries {
			c.entries[i].drop()
		}
	}()
	c.batch.Task = c.s.Task
	for c.next < len(c.visits) {
		v := c.visits[c.next]
		if err := ctx.Err(); err != nil {
			yield(nil, fail("read", c.s.Task.String(), err))
			return
		}
		d, err := r.pin(ctx, c.visits[c.next:], c)
		if err != nil {
			if !c.failed(ctx, v, err) {
				yield(nil, err)
				return
			}
			r.forget(c.visits[c.next : c.next+1])
			c.next++
			continue
		}
		if c.ctx != nil {
			c.readAhead()
		}
		c.next++
		ok := c.visit(d, v, yield)
		r.finish(v.block)
		if !ok {
			return
		}
	}
}

// failed reports whether the iteration can go on without the visit.
func (c *cursor) failed(ctx context.Context, v visit, err error) bool {
	if c.skip == nil || ctx.Err() != nil || errors.Is(err, inflight.ErrClosed) {
		return false
	}
	for _, i := range c.plan[v.from:v.to] {
		p := &c.entries[c.s.extents[i].entry]
		p.broken = true
		p.drop()
	}
	c.skip(v.block, c.plan[v.from:v.to], err)
	return true
}

func (p *progress) drop() {
	if p.joined != nil {
		p.joined.mem.release()
		p.joined = nil
	}
}

// readAhead starts to read and check what the next visits need.
func (c *cursor) readAhead() {
	r, bytes := c.s.r, int64(0)
	for i := c.next + 1; i < len(c.visits) && bytes < r.o.ReadAhead; i++ {
		v := c.visits[i]
		bytes += int64(v.block.ref.Stored)
		if i < c.ahead {
			continue
		}
		spans, full := r.requestAhead(c.visits[i:], c)
		if full {
			return
		}
		c.ahead = i + 1
		if spans != nil {
			c.fetch(spans)
		}
	}
}

// fetch reads spans in the background.
func (c *cursor) fetch(spans []*span) {
	c.reads.Go(func() { c.s.r.fill(c.ctx, spans, &c.reads) })
}

// visit yields what v wants of the block d. It reports whether to go on.
func (c *cursor) visit(d *decoded, v visit, yield func(*Batch, error) bool) bool {
	c.batch.File, c.batch.mem = v.block.f.ref.Name, d.mem
	for k := v.from; k < v.to; k++ {
		x := &c.s.extents[c.plan[k]]
		p := &c.entries[x.entry]
		if p.broken {
			continue
		}
		run, piece, err := d.locate(c.s.Task, c.s.entries[x.entry].Address, x.Extent)
		if err == nil {
			err = c.digest(c.plan[k], run, d.Data[x.Offset:x.Offset+x.Length])
		}
		if err != nil {
			err = fail("read", v.block.f.ref.Name, err)
			if c.skip == nil {
				yield(nil, err)
				return false
			}
			p.broken = true
			c.skip(v.block, c.plan[k:k+1], err)
			continue
		}
		c.batch.Address, c.batch.Entry = c.s.entries[x.entry].Address, int(x.entry)
		if !c.pieces(d, x, run, piece, yield) {
			return false
		}
	}
	return true
}

// joinFrom is the length from which on joining digests costs less than reading
// bytes.
const joinFrom = 4 << 10

// digest adds the bytes of an extent, which lie in run, to the digest of its
// address, and compares that when they are the last ones. The digest of a whole
// run can be joined instead: the checksum of the block covers it together with
// the bytes.
func (c *cursor) digest(index int, run *format.Run, data []byte) error {
	s := c.s
	x := &s.extents[index]
	p := &c.entries[x.entry]
	if whole := run.Length == uint64(x.Length); whole && len(data) >= joinFrom && !c.full {
		p.digest = p.digest.Join(run.Digest, run.Length)
	} else {
		p.digest = p.digest.Add(data)
	}
	p.left--
	if e := &s.entries[x.entry]; p.left == 0 && p.digest != e.Digest && !s.partial {
		return corrupt(format.CodeDigest, x.block.ref.Offset, "the bytes of %s have the digest %016x, the index says %016x", e.Address, uint64(p.digest), uint64(e.Digest))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digests[index] = known{p.digest, true}
	return nil
}

// pieces yields the buffers of extent x, which begins with a piece of run.
func (c *cursor) pieces(d *decoded, x *extent, run *format.Run, piece int, yield func(*Batch, error) bool) bool {
	p, b := &c.entries[x.entry], &c.batch
	b.run, b.data, b.pos, b.gap = run, d.Data[x.Offset:x.Offset+x.Length], x.Pos, x.Flags&format.RunGap != 0
	b.offset, b.moves = d.Offset, 0
	if d.Header.Codec == format.CodecNone {
		b.offset, b.moves = d.Offset+format.BlockHeaderSize+int64(x.Offset), -1
	}
	goesOn := x.Flags&format.RunTail != 0 && p.left > 0
	if x.Flags&format.RunHead == 0 {
		p.drop() // the rest of that buffer was not found
	}
	for i := 0; i < x.Pieces; {
		to, begun := x.Pieces, 0
		switch {
		case i == 0 && x.Flags&format.RunHead != 0:
			to, begun = 1, -1
		case goesOn && i < to-1:
			to--
		}
		b.piece, b.n, b.next, b.at, b.Pos = piece+i, to-i, 0, 0, b.pos
		head, tail := i == 0 && p.joined != nil, goesOn && to == x.Pieces
		if head || tail {
			b.Next()
			if !c.join(p, head, tail, yield) {
				return false
			}
		} else if !yield(b, nil) {
			return false
		}
		if to < x.Pieces {
			n := 0
			for ; i < to; i++ {
				n, begun = n+run.PieceLength(piece+i), begun+1
			}
			b.data, b.pos, b.gap, b.offset = b.data[n:], b.pos.Advance(uint64(n), begun), false, b.offset+int64(n&b.moves)
		}
		i = to
	}
	return true
}

// join adds the buffer of the batch to the continued one of p, and yields that
// when it is complete.
func (c *cursor) join(p *progress, head, tail bool, yield func(*Batch, error) bool) bool {
	pool, b := &c.s.r.pool, &c.batch.Buffer
	if !head {
		p.joined = &joined{mem: pool.get(2 * len(b.Bytes)), pos: b.Pos, gap: b.Gap, file: b.File, offset: b.Offset}
	}
	j := p.joined
	if need := j.n + len(b.Bytes); need > len(j.mem.b) {
		m := pool.get(2 * need)
		copy(m.b, j.mem.b[:j.n])
		j.mem.release()
		j.mem = m
	}
	j.n += copy(j.mem.b[j.n:], b.Bytes)
	if tail {
		return true
	}
	whole := Batch{Buffer: *b, n: 1, data: j.mem.b[:j.n], pos: j.pos, gap: j.gap, offset: j.offset}
	whole.Pos, whole.File, whole.mem = j.pos, j.file, j.mem
	ok := yield(&whole, nil)
	p.drop()
	return ok
}

// locate finds the pieces that extent x of address a of task t stands for: they
// begin with that piece of run. Everything that index and block both say must
// agree.
func (d *decoded) locate(t inflight.Task, a inflight.Address, x *format.Extent) (run *format.Run, piece int, err error) {
	runs := d.table.Runs
	i := sort.Search(len(runs), func(i int) bool { return runs[i].Offset > int(x.Offset) }) - 1
	if i < 0 {
		return nil, 0, d.disagree(t, a, x)
	}
	run = &runs[i]
	pos, at := run.Pos, run.Offset
	first := 0
	for ; at < int(x.Offset) && first < run.Pieces; first++ {
		n := run.PieceLength(first)
		begun := 1
		if first == 0 && run.Flags&format.RunHead != 0 {
			begun = 0
		}
		pos, at = pos.Advance(uint64(n), begun), at+n
	}
	end, last := at, first
	if first == 0 && x.Pieces == run.Pieces {
		end, last = at+int(run.Length), run.Pieces
	} else if x.Pieces <= run.Pieces-first {
		for ; last < first+x.Pieces; last++ {
			end += run.PieceLength(last)
		}
	}
	const ends = format.RunHead | format.RunTail
	flags := run.Flags & (ends | format.RunKnown)
	if first > 0 {
		flags &^= format.RunHead
	}
	if last < run.Pieces {
		flags &^= format.RunTail
	}
	whole := first == 0 && last == run.Pieces
	if at != int(x.Offset) || last != first+x.Pieces || end != at+int(x.Length) || x.Flags&(ends|format.RunKnown) != flags || x.Pos != pos ||
		run.Address != a || d.table.Members[run.Member] != t ||
		x.Flags&format.RunReference == 0 && (!whole || (x.Flags^run.Flags)&format.RunGap != 0) {
		return nil, 0, d.disagree(t, a, x)
	}
	return run, first, nil
}

func (d *decoded) disagree(t inflight.Task, a inflight.Address, x *format.Extent) error {
	return corrupt(CodeIndex, d.Offset, "the index of %s says that %d bytes of %s lie at %d in this block; the block does not", t, x.Length, a, x.Offset)
}
