package format

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/inflight"
)

// Status is the mark that a section is: what became of its subtask in its file.
// The numbers are frozen.
type Status uint8

// The statuses. A subtask without StatusComplete is never restored.
const (
	StatusComplete  Status = 1 // all that was captured is in this file and the Prior ones
	StatusContinued Status = 2 // this file was sealed early: more follows in another one
	StatusAborted   Status = 3 // the capture was given up: its runs are dead
)

// String returns "complete", "continued" or "aborted".
func (s Status) String() string {
	switch s {
	case StatusComplete:
		return "complete"
	case StatusContinued:
		return "continued"
	case StatusAborted:
		return "aborted"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Section is the index of one subtask in one file.
type Section struct {
	Task       inflight.Task
	Checkpoint inflight.CheckpointID
	Status     Status
	Prior      []inflight.Segment // sections of the same subtask in files sealed earlier, in order
	Files      []FileRef          // other files that extents lie in: BlockRef.File is an index from 1 on
	Blocks     []BlockRef
	Entries    []Entry // in ascending order of their addresses
}

// BlockRef places a block: Stored bytes (header included) at Offset of a file.
type BlockRef struct {
	File   int // 0: this file; otherwise Section.Files[File-1]
	Offset int64
	Stored uint32
}

// Entry is one address of a subtask. The totals count everything captured for
// it in this checkpoint, in this file and the Prior ones; Extents only what
// lies in this file or is referenced from it.
type Entry struct {
	Address inflight.Address
	Buffers uint64
	Bytes   uint64
	Digest  Digest
	Extents []Extent

	cutBytes, cutRecords    uint64
	cutEpoch                inflight.Epoch
	hasCut, hasRecordsInCut bool
}

// Cut returns where the connection stood at the snapshot, if that was recorded.
func (e *Entry) Cut() (c inflight.Cut, ok bool) {
	if !e.hasCut {
		return c, false
	}
	return inflight.Cut{Address: e.Address, Epoch: e.cutEpoch, Bytes: e.cutBytes, Records: e.cutRecords, RecordsKnown: e.hasRecordsInCut}, true
}

// SetCut records c; its address is that of the entry.
func (e *Entry) SetCut(c inflight.Cut) {
	e.cutEpoch, e.cutBytes, e.cutRecords, e.hasCut, e.hasRecordsInCut = c.Epoch, c.Bytes, c.Records, true, c.RecordsKnown
}

// Extent is a piece of an address's stream: Length bytes from Offset on in the
// data of a block.
type Extent struct {
	Block  int // index into Section.Blocks
	Offset uint32
	Length uint32
	Pieces int
	Flags  RunFlags // RunKnown, RunGap, RunHead, RunTail, RunReference
	Pos    inflight.Pos
}

// Buffers counts the buffers that begin in x.
func (x *Extent) Buffers() int {
	if x.Flags&RunHead != 0 {
		return x.Pieces - 1
	}
	return x.Pieces
}

// Flags of an entry on disk; the lowest two bits are the side.
const (
	entryNext     = 1 << 2 // the address is the previous one plus one channel or subpartition
	entryCut      = 1 << 3 // a cut follows
	entryRecords  = 1 << 4 // the cut counts records
	entryDerived  = 1 << 5 // the cut stands at the start (input) or end (output) of the data
	entrySame     = 1 << 6 // as many buffers and bytes as the previous entry
	entrySimple   = 1 << 7 // one extent: all of the data, in the next block, from offset 0
	entrySameAge  = 1 << 8 // the simple extent has the epoch of the previous entry's data
	extentNext    = 1 << 0 // in the flags of an extent: in the block after the previous extent's
	extentSame    = 1 << 1 // in the block of the previous extent
	extentFollows = 1 << 4 // the position is where the previous extent ended
	extentKept    = RunKnown | RunGap | RunHead | RunTail | RunReference
	minExtent     = 4
	maxPages      = 1<<16 - 1
	pageHead      = 8 // section number, page, pages
)

// appendSection encodes s.
func appendSection(b []byte, s *Section) []byte {
	b = append(b, byte(s.Status))
	b = appendString(b, s.Task.Vertex)
	b = binary.AppendUvarint(b, uint64(s.Task.Subtask))
	b = binary.AppendUvarint(b, uint64(s.Checkpoint))
	b = binary.AppendUvarint(b, uint64(len(s.Prior)))
	for _, seg := range s.Prior {
		b = append(appendString(b, seg.File), seg.FileID[:]...)
		b = binary.AppendUvarint(b, uint64(seg.Offset))
		b = binary.AppendUvarint(b, uint64(seg.Length))
		b = binary.LittleEndian.AppendUint32(b, seg.CRC)
	}
	b = appendFileRefs(b, s.Files)
	b = appendBlockRefs(b, s.Blocks)
	b = binary.AppendUvarint(b, uint64(len(s.Entries)))
	c := newEntryCoder()
	for i := range s.Entries {
		b = c.append(b, &s.Entries[i])
	}
	return b
}

// appendBlockRefs encodes blocks as gaps between them; a change of file costs a
// field of its own.
func appendBlockRefs(b []byte, refs []BlockRef) []byte {
	b = binary.AppendUvarint(b, uint64(len(refs)))
	file, end := 0, int64(0)
	for _, r := range refs {
		changed := int64(0)
		if r.File != file {
			changed, end = 1, 0
		}
		b = appendVarint(b, (r.Offset-end)<<1|changed)
		if changed == 1 {
			file = r.File
			b = binary.AppendUvarint(b, uint64(file))
		}
		b = binary.AppendUvarint(b, uint64(r.Stored))
		end = r.Offset + int64(r.Stored)
	}
	return b
}

func readBlockRefs(w *wire, files int) []BlockRef {
	refs := make([]BlockRef, 0, w.count(2))
	file, end := 0, int64(0)
	for range cap(refs) {
		gap := w.varint()
		if gap&1 != 0 {
			file, end = w.index(), 0
		}
		r := BlockRef{File: file, Offset: end + gap>>1, Stored: uint32(w.number(BlockHeaderSize + MaxBlock))}
		end = r.Offset + int64(r.Stored)
		if r.Offset < 0 || end < 0 || file > files || r.Stored <= BlockHeaderSize {
			w.fail()
			return nil
		}
		refs = append(refs, r)
	}
	return refs
}

// entryCoder holds what one entry takes over from the one before it.
type entryCoder struct {
	last  *Entry
	epoch inflight.Epoch
	block int // of the previous extent, plus one
}

func newEntryCoder() entryCoder { return entryCoder{last: new(Entry)} }

// follows returns the address after a, on the same side.
func follows(a inflight.Address) inflight.Address {
	switch a.Side {
	case inflight.Input:
		a.Input.Channel++
	case inflight.Output:
		a.Output.Subpartition++
	}
	return a
}

// follow reports whether b is what follows a.
func follow(a, b *inflight.Address) bool {
	switch {
	case a.Side != b.Side:
		return false
	case a.Side == inflight.Input:
		return a.Input.Gate == b.Input.Gate && a.Input.Channel+1 == b.Input.Channel && b.Input.Channel > 0
	case a.Side == inflight.Output:
		return a.Output.Partition == b.Output.Partition && a.Output.Subpartition+1 == b.Output.Subpartition && b.Output.Subpartition > 0
	}
	return false
}

// derivedCut returns the cut that the extents of e imply: what was consumed
// ends where the captured input begins, what was emitted ends where the
// captured output does.
func (e *Entry) derivedCut() (epoch inflight.Epoch, bytes uint64, ok bool) {
	if len(e.Extents) == 0 {
		return 0, 0, false
	}
	first, last := &e.Extents[0], &e.Extents[len(e.Extents)-1]
	switch {
	case e.Address.Side == inflight.Input && first.Flags&RunKnown != 0:
		return first.Pos.Epoch, first.Pos.Offset, true
	case e.Address.Side == inflight.Output && last.Flags&RunKnown != 0:
		return last.Pos.Epoch, last.Pos.Offset + uint64(last.Length), true
	}
	return 0, 0, false
}

// simple reports whether e has the one extent that entrySimple stands for.
func (e *Entry) simple(block int) bool {
	if len(e.Extents) != 1 {
		return false
	}
	x := &e.Extents[0]
	return x.Block == block && x.Offset == 0 && uint64(x.Length) == e.Bytes && uint64(x.Pieces) == e.Buffers && x.Flags == RunKnown
}

func (c *entryCoder) append(b []byte, e *Entry) []byte {
	flags := uint64(e.Address.Side)
	if follow(&c.last.Address, &e.Address) {
		flags |= entryNext
	}
	epoch, bytes, ok := e.derivedCut()
	derived := ok && epoch == e.cutEpoch && bytes == e.cutBytes
	if e.hasCut {
		flags |= entryCut
		if e.hasRecordsInCut {
			flags |= entryRecords
		}
		if derived {
			flags |= entryDerived
		}
	}
	if e.Buffers == c.last.Buffers && e.Bytes == c.last.Bytes {
		flags |= entrySame
	}
	if e.simple(c.block) {
		flags |= entrySimple
		if e.Extents[0].Pos.Epoch == c.epoch {
			flags |= entrySameAge
		}
	}
	b = binary.AppendUvarint(b, flags)
	if flags&entryNext == 0 {
		b = appendAddress(b, e.Address)
	}
	if flags&entrySame == 0 {
		b = binary.AppendUvarint(b, e.Buffers)
		b = binary.AppendUvarint(b, e.Bytes)
	}
	if e.Bytes > 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Digest))
	}
	b = c.appendExtents(b, e, flags)
	if e.hasCut {
		if !derived {
			b = binary.AppendUvarint(b, uint64(e.cutEpoch))
			b = binary.AppendUvarint(b, e.cutBytes)
		}
		if e.hasRecordsInCut {
			b = binary.AppendUvarint(b, e.cutRecords)
		}
	}
	c.last = e
	return b
}

func (c *entryCoder) appendExtents(b []byte, e *Entry, flags uint64) []byte {
	if flags&entrySimple != 0 {
		x := &e.Extents[0]
		if flags&entrySameAge == 0 {
			b = binary.AppendUvarint(b, uint64(x.Pos.Epoch))
		}
		c.epoch, c.block = x.Pos.Epoch, x.Block+1
		b = binary.AppendUvarint(b, x.Pos.Offset)
		return binary.AppendUvarint(b, x.Pos.Seq)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Extents)))
	end := inflight.PosUnknown
	for i := range e.Extents {
		x := &e.Extents[i]
		xf := byte(x.Flags & extentKept)
		switch x.Block {
		case c.block:
			xf |= extentNext
		case c.block - 1:
			xf |= extentSame
		}
		if x.Flags&RunKnown != 0 && x.Pos == end {
			xf |= extentFollows
		}
		b = append(b, xf)
		if xf&(extentNext|extentSame) == 0 {
			b = binary.AppendUvarint(b, uint64(x.Block))
		}
		b = binary.AppendUvarint(b, uint64(x.Offset))
		b = binary.AppendUvarint(b, uint64(x.Length))
		b = binary.AppendUvarint(b, uint64(x.Pieces))
		if x.Flags&RunKnown != 0 {
			if xf&extentFollows == 0 {
				b = appendPos(b, x.Pos)
			}
			c.epoch = x.Pos.Epoch
		}
		end = x.Pos.Advance(uint64(x.Length), x.Buffers())
		c.block = x.Block + 1
	}
	return b
}

// read decodes e, which is zero; its extents go to the end of arena.
func (c *entryCoder) read(w *wire, e *Entry, arena []Extent, blocks int) []Extent {
	flags := w.uvarint()
	if flags&entryNext != 0 {
		e.Address = follows(c.last.Address)
		if flags&3 != uint64(e.Address.Side) || e.Address.Side == inflight.State {
			w.fail()
		}
	} else {
		e.Address = readAddress(w, inflight.Side(flags&3), c.last.Address.State)
	}
	if flags&entrySame != 0 {
		e.Buffers, e.Bytes = c.last.Buffers, c.last.Bytes
	} else {
		e.Buffers, e.Bytes = w.uvarint(), w.number(maxReference)
	}
	if e.Bytes > 0 {
		e.Digest = Digest(w.uint64())
	}
	start := len(arena)
	arena = c.readExtents(w, arena, e, flags, blocks)
	e.Extents = arena[start:len(arena):len(arena)]
	if flags&entryCut != 0 {
		e.hasCut, e.hasRecordsInCut = true, flags&entryRecords != 0
		if flags&entryDerived != 0 {
			var ok bool
			if e.cutEpoch, e.cutBytes, ok = e.derivedCut(); !ok {
				w.fail()
			}
		} else {
			e.cutEpoch, e.cutBytes = inflight.Epoch(w.number(1<<32-1)), w.uvarint()
		}
		if e.hasRecordsInCut {
			e.cutRecords = w.uvarint()
		}
	}
	c.last = e
	return arena
}

func (c *entryCoder) readExtents(w *wire, arena []Extent, e *Entry, flags uint64, blocks int) []Extent {
	if flags&entrySimple != 0 {
		x := Extent{Block: c.block, Length: uint32(min(e.Bytes, 1<<31)), Pieces: int(min(e.Buffers, 1<<31)), Flags: RunKnown}
		x.Pos.Epoch = c.epoch
		if flags&entrySameAge == 0 {
			x.Pos.Epoch = inflight.Epoch(w.number(1<<32 - 1))
		}
		x.Pos.Offset, x.Pos.Seq = w.uvarint(), w.uvarint()
		return c.check(w, arena, x, blocks)
	}
	end := inflight.PosUnknown
	for range w.count(minExtent) {
		xf := w.byte()
		x := Extent{Flags: RunFlags(xf) & extentKept, Pos: inflight.PosUnknown}
		switch {
		case xf&extentNext != 0:
			x.Block = c.block
		case xf&extentSame != 0:
			x.Block = c.block - 1
		default:
			x.Block = w.index()
		}
		x.Offset, x.Length, x.Pieces = uint32(w.number(MaxBlock)), uint32(w.number(MaxBlock)), w.index()
		switch {
		case x.Flags&RunKnown == 0:
		case xf&extentFollows != 0:
			x.Pos = end
		default:
			x.Pos = readPos(w)
		}
		end = x.Pos.Advance(uint64(x.Length), x.Buffers())
		arena = c.check(w, arena, x, blocks)
	}
	return arena
}

func (c *entryCoder) check(w *wire, arena []Extent, x Extent, blocks int) []Extent {
	if x.Block < 0 || x.Block >= blocks || x.Length == 0 || x.Length+x.Offset > MaxBlock || x.Pieces <= 0 ||
		x.Flags&RunKnown != 0 && !x.Pos.Known() {
		w.fail()
		return arena
	}
	if x.Flags&RunKnown != 0 {
		c.epoch = x.Pos.Epoch
	}
	c.block = x.Block + 1
	return append(arena, x)
}

// parseSection decodes the bytes that appendSection made.
func parseSection(p []byte, offset int64) (*Section, error) {
	w := wire{p: p}
	s := &Section{Status: Status(w.byte()), Task: inflight.Task{Vertex: w.string(""), Subtask: w.index()}, Checkpoint: inflight.CheckpointID(w.uvarint())}
	if s.Status < StatusComplete || s.Status > StatusAborted {
		w.fail()
	}
	for range w.count(1 + 16 + 1 + 1 + 4) {
		seg := inflight.Segment{File: w.string("")}
		copy(seg.FileID[:], w.bytes(len(seg.FileID)))
		seg.Offset, seg.Length, seg.CRC = int64(w.number(1<<62-1)), int64(w.number(maxPages*(BlockHeaderSize+MaxPage))), w.uint32()
		s.Prior = append(s.Prior, seg)
	}
	if f := readFileRefs(&w, nil); len(f) > 0 {
		s.Files = f
	}
	s.Blocks = readBlockRefs(&w, len(s.Files))
	s.Entries = make([]Entry, w.count(1))
	// Mostly one extent for each entry, and one more where a block ends.
	arena := make([]Extent, 0, min(len(s.Entries)+len(s.Blocks), w.left()/minExtent+1))
	c := newEntryCoder()
	for i := range s.Entries {
		e := &s.Entries[i]
		arena = c.read(&w, e, arena, len(s.Blocks))
		if w.err != nil || i > 0 && !follow(&s.Entries[i-1].Address, &e.Address) && s.Entries[i-1].Address.Compare(e.Address) >= 0 {
			w.fail()
			break
		}
	}
	if w.err != nil || w.left() != 0 {
		return nil, corrupt(CodeSection, offset, "the section makes no sense")
	}
	return s, nil
}

// DecodeSection decodes the section whose blocks are p, at offset of file id:
// every page's header and checksum, then the index.
func DecodeSection(p []byte, id inflight.FileID, offset int64) (*Section, error) {
	start := offset
	var index []byte
	for page, pages := 0, 1; page < pages; page++ {
		h, err := DecodeBlockHeader(p, id, offset)
		if err != nil {
			return nil, err
		}
		if h.Kind != KindSection {
			return nil, corrupt(CodeSection, offset, "a section was expected, a block of kind %d is there", h.Kind)
		}
		stored, err := payload(p, h, offset)
		if err != nil {
			return nil, err
		}
		_, at, of, rest, err := splitPage(stored, offset)
		if err != nil {
			return nil, err
		}
		if page == 0 {
			pages = of
		}
		if at != page || of != pages {
			return nil, corrupt(CodeSection, offset, "page %d of %d, expected %d of %d", at, of, page, pages)
		}
		if pages == 1 {
			index = rest
		} else {
			index = append(index, rest...)
		}
		n := BlockHeaderSize + len(stored)
		p, offset = p[n:], offset+int64(n)
	}
	if len(p) != 0 {
		return nil, corrupt(CodeSection, offset, "%d bytes behind the section", len(p))
	}
	return parseSection(index, start)
}

// AppendSection appends the blocks of s, which will stand at offset of file id,
// with pages of the default size. It is for tools and benchmarks that make
// sections without an Encoder.
func AppendSection(b []byte, s *Section, id inflight.FileID, offset int64) []byte {
	b, _ = appendPages(b, s, id, offset, 0, 0, MaxPage)
	return b
}

// sizeHint is about what a section takes, so that it is seldom moved while it
// is encoded.
func (s *Section) sizeHint() int {
	return sectionHead + 64 + 64*len(s.Prior) + 48*len(s.Files) + 8*len(s.Blocks) + 32*len(s.Entries)
}

// sectionHead is what stands before each page of a section.
const sectionHead = BlockHeaderSize + pageHead

// appendPages appends the blocks of s, the first of which has number block. If
// they are more than maxPages, nothing is appended.
func appendPages(b []byte, s *Section, id inflight.FileID, offset int64, block, section uint32, pageSize int) (_ []byte, pages int) {
	start := len(b)
	b = slices.Grow(b, s.sizeHint())
	b = appendSection(append(b, make([]byte, sectionHead)...), s)
	n, page := len(b)-start-sectionHead, pageSize-pageHead
	if pages = max(1, (n+page-1)/page); pages > maxPages {
		return b[:start], pages
	}
	b = append(b, make([]byte, (pages-1)*sectionHead)...)
	for i := pages - 1; i >= 0; i-- { // the last first: the index is moved apart where it stands
		from, at := b[start+sectionHead+i*page:][:min(page, n-i*page)], start+i*(sectionHead+page)
		p := b[at : at+sectionHead+len(from)]
		copy(p[sectionHead:], from)
		binary.LittleEndian.PutUint32(p[BlockHeaderSize:], section)
		binary.LittleEndian.PutUint16(p[BlockHeaderSize+4:], uint16(i))
		binary.LittleEndian.PutUint16(p[BlockHeaderSize+6:], uint16(pages))
		sealBlock(p, KindSection, id, offset+int64(at-start), block+uint32(i))
	}
	return b, pages
}

// splitPage takes the payload of a section block apart.
func splitPage(p []byte, offset int64) (section uint32, page, pages int, rest []byte, err error) {
	if len(p) < pageHead {
		return 0, 0, 0, nil, corrupt(CodeSection, offset, "a page of %d bytes", len(p))
	}
	section, page, pages = binary.LittleEndian.Uint32(p), int(binary.LittleEndian.Uint16(p[4:])), int(binary.LittleEndian.Uint16(p[6:]))
	if page >= pages {
		return 0, 0, 0, nil, corrupt(CodeSection, offset, "page %d of %d", page, pages)
	}
	return section, page, pages, p[pageHead:], nil
}

// ReadSection reads and checks the section that seg names: one read of
// seg.Length bytes. A file that was swapped with another is ErrForeign.
func ReadSection(r io.ReaderAt, seg inflight.Segment) (*Section, error) {
	if seg.Offset < minHeader || seg.Length < BlockHeaderSize || seg.Length > maxPages*(BlockHeaderSize+MaxPage) {
		return nil, corrupt(CodeSection, seg.Offset, "a section of %d bytes", seg.Length)
	}
	mem := sectionMemory.Get().(*[]byte)
	defer sectionMemory.Put(mem)
	p, err := readBounded((*mem)[:0], r, seg.Offset, seg.Length)
	if err != nil {
		return nil, err
	}
	if cap(p) <= MaxPage {
		*mem = p
	}
	s, err := DecodeSection(p, seg.FileID, seg.Offset)
	if err != nil {
		return nil, explain(r, seg.FileID, err)
	}
	if Checksum(p) != seg.CRC {
		return nil, corrupt(CodeSection, seg.Offset, "the section is intact, and not the one that was meant")
	}
	return s, nil
}

// sectionMemory holds bytes of sections while they are decoded.
var sectionMemory = sync.Pool{New: func() any { return new([]byte) }}

// readBounded reads n bytes in steps, into p or new memory, so that a wrong
// length costs no more memory than the file has bytes.
func readBounded(p []byte, r io.ReaderAt, off, n int64) ([]byte, error) {
	const step = 1 << 20
	for int64(len(p)) < n {
		k := int(min(step, n-int64(len(p))))
		p = slices.Grow(p, k)[:len(p)+k]
		if err := readFull(r, p[len(p)-k:], off+int64(len(p)-k)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// explain turns a block that does not belong to file id into ErrForeign when
// the file itself says that it is another one.
func explain(r io.ReaderAt, id inflight.FileID, err error) error {
	p := make([]byte, maxHeader)
	n, _ := r.ReadAt(p, 0)
	h, _, herr := DecodeFileHeader(p[:n])
	if herr == nil && h.FileID != id {
		return &FormatError{Code: CodeForeign, Offset: 0, Err: inflight.ErrForeign,
			Text: fmt.Sprintf("the file is %s of checkpoint %d of job %q; %s was expected", h.FileID, h.Checkpoint, h.Job, id)}
	}
	return err
}
