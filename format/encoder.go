package format

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/inflight"
)

// DefaultBlock is the default size of a data block in bytes of buffers.
const DefaultBlock = 256 << 10

// EncoderOptions are the options of NewEncoder; the zero value is the default.
type EncoderOptions struct {
	// BlockSize is how many bytes of buffers a block holds before the next one
	// is begun. 1 to MaxBlock/2, default DefaultBlock.
	BlockSize int
	// LargestBlock is the payload that no block exceeds; larger buffers
	// continue. 2*BlockSize to MaxBlock, default MaxBlock.
	LargestBlock int
	// PageSize is the largest payload of a section block. Default MaxPage.
	PageSize int
	// Codec compresses the blocks. Default CodecNone.
	Codec Codec
	// Pool lends memory. Default DefaultPool.
	Pool *Pool
}

func (o *EncoderOptions) check() error {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultBlock
	}
	if o.LargestBlock == 0 {
		o.LargestBlock = max(min(MaxBlock, 16*o.BlockSize), 4096)
	}
	if o.PageSize == 0 {
		o.PageSize = MaxPage
	}
	if o.Pool == nil {
		o.Pool = DefaultPool
	}
	if o.BlockSize < 1 || o.LargestBlock < 2*o.BlockSize || o.LargestBlock > MaxBlock || o.PageSize <= pageHead || o.PageSize > MaxPage {
		return fmt.Errorf("%w: block size %d, largest block %d, page size %d", inflight.ErrConfig, o.BlockSize, o.LargestBlock, o.PageSize)
	}
	return nil
}

// Member is a subtask within one Encoder.
type Member int

// Encoder writes one channel-state file, front to back. It is used by one
// goroutine at a time.
//
// It works in one of two ways. Given a writer, it writes to it, and the first
// error sticks. Without one it does no I/O: the caller fetches what is encoded
// by Take, writes it, and gives the memory back by Recycle; so a lock that
// guards the encoder need not be held during I/O.
type Encoder struct {
	name   string
	header FileHeader
	o      EncoderOptions
	w      io.Writer
	err    error
	closed bool

	// Encoded bytes: [base, base+len(buf)) of the file lie in buf. tail is what
	// follows the newest chunk in that chunk's own memory, while buf is nil.
	base  int64
	buf   []byte
	tail  []byte
	owner *byte // first byte of the memory that tail lies in
	spare []byte
	out   []Chunk
	step  int

	// The open block: its header is reserved at start, data follows.
	open     bool
	start    int
	dataSize int
	tabSize  int // estimate
	*blockTable
	runStart int // of the open run, in buf
	runEntry *entry
	runTail  bool
	files    []FileRef // of this block
	sampler  sampler
	scratch  []byte

	blocks   uint32     // headers written
	data     []BlockRef // data blocks, in order
	members  []*member
	byTask   map[inflight.Task]Member
	pending  []*member // finished, section not yet written
	sections uint32
	dir      []DirEntry

	lastMember  Member
	lastAddress inflight.Address
	last        *entry
}

// blockTable is memory for the table of the open block.
type blockTable struct {
	runs    []Run
	lengths []uint32
	touched []*member // members of this block, in order of their local index

	entries []Entry // of the section that is being written
	extents []Extent
}

// keptEntries bounds the memory for sections that is used again.
const keptEntries = 1024

var blockTables = sync.Pool{New: func() any { return new(blockTable) }}

// member is the state of one subtask.
type member struct {
	task    inflight.Task
	status  Status // 0: open
	prior   []inflight.Segment
	refs    []FileRef // in this file and the prior ones
	entries []*entry
	recent  int                         // index of the entry that was looked up last
	index   map[inflight.Address]*entry // of more than few entries
	slab    []entry                     // memory for the next ones
	local   int                         // index in the open block's table
	segment inflight.Segment
}

// entry is the state of one address.
type entry struct {
	Entry
	member  *member
	next    inflight.Pos
	extents []place
	first   [1]place // memory for extents
}

// place is an extent before its section is written.
type place struct {
	Extent
	reference *reference // nil: it lies in this file, in block Extent.Block of it
}

// reference is where an extent lies in another file.
type reference struct {
	file FileRef
	ref  BlockRef
}

// few is how many addresses, or blocks, are found by looking at each: mostly
// they come in the same order again and again. More have a map.
const few = 32

// find returns the entry of address a, or nil.
func (m *member) find(a inflight.Address) *entry {
	if m.index != nil {
		return m.index[a]
	}
	for range m.entries {
		if m.recent++; m.recent >= len(m.entries) {
			m.recent = 0
		}
		if n := m.entries[m.recent]; n.Address == a {
			return n
		}
	}
	return nil
}

// add adds an entry for an address that has none.
func (m *member) add(e Entry, next inflight.Pos) *entry {
	if len(m.slab) == 0 {
		m.slab = make([]entry, min(max(8, len(m.entries)), 256))
	}
	n := &m.slab[0]
	m.slab = m.slab[1:]
	n.Entry, n.member, n.next = e, m, next
	n.extents = n.first[:0]
	if m.entries == nil {
		m.entries = make([]*entry, 0, few/2)
	}
	m.recent = len(m.entries)
	m.entries = append(m.entries, n)
	switch {
	case m.index != nil:
		m.index[n.Address] = n
	case len(m.entries) > few:
		m.index = make(map[inflight.Address]*entry, 2*few)
		for _, n := range m.entries {
			m.index[n.Address] = n
		}
	}
	return n
}

// Chunk is a piece of an encoded file on its way to the store.
type Chunk struct {
	Bytes []byte
	mem   []byte
}

// NewEncoder returns an encoder of the file name (relative to the job
// directory). With w nil the caller drives the I/O, see Encoder.
func NewEncoder(w io.Writer, name string, h FileHeader, o EncoderOptions) (*Encoder, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e := &Encoder{name: name, header: h, o: o, w: w, byTask: map[inflight.Task]Member{}, blockTable: blockTables.Get().(*blockTable)}
	e.step = o.Pool.step(0)
	e.reserve(maxHeader)
	var err error
	e.buf, err = h.append(e.buf)
	return e, err
}

// Carry is what an encoder hands over to the encoder of the next file of the
// same checkpoint when a subtask continues there.
type Carry struct {
	prior   []inflight.Segment
	refs    []FileRef
	entries []*entry
}

// Begin adds a subtask, with the carry of the file that it continues, or nil.
// A subtask can be added once.
func (e *Encoder) Begin(t inflight.Task, c *Carry) (Member, error) {
	if _, dup := e.byTask[t]; dup {
		return 0, fmt.Errorf("%w: %s was added before", inflight.ErrOrder, t)
	}
	if len(t.Vertex) > maxName || t.Subtask < 0 {
		return 0, fmt.Errorf("%w: task %s", inflight.ErrConfig, t)
	}
	m := &member{task: t, local: -1}
	if c != nil {
		m.prior, m.refs = c.prior, slices.Clone(c.refs)
		for _, o := range c.entries {
			m.add(o.Entry, o.next)
		}
	}
	id := Member(len(e.members))
	e.members = append(e.members, m)
	e.byTask[t] = id
	return id, nil
}

// Append adds one buffer of address a of member m: pos is the position of its
// first byte. b is copied. Empty buffers are dropped. Where pos does not go on
// from the previous buffer of the address, a gap is marked.
func (e *Encoder) Append(m Member, a inflight.Address, pos inflight.Pos, b []byte) error {
	if len(b) == 0 {
		return e.err
	}
	n, err := e.entry(m, a)
	if err != nil {
		return err
	}
	head := false
	for {
		piece := e.room(n, len(b))
		r := e.run(n, pos, head)
		e.buf = append(e.buf, b[:piece]...)
		e.lengths = append(e.lengths, uint32(piece))
		r.Pieces++
		r.Length += uint64(piece)
		e.dataSize += piece
		e.tabSize += 3
		if b = b[piece:]; len(b) == 0 {
			n.next = pos.Advance(uint64(piece), btoi(!head))
			return e.err
		}
		pos = pos.Advance(uint64(piece), btoi(!head))
		n.next = pos // no gap within a buffer
		head, e.runTail = true, true
	}
}

// AppendBuffers is Append for buffers that follow on each other; pos is the
// position of the first. It stops when a chunk waits for Take. It returns how
// many buffers it has copied, and the position behind them.
func (e *Encoder) AppendBuffers(m Member, a inflight.Address, pos inflight.Pos, bufs []inflight.Buffer) (n int, end inflight.Pos, err error) {
	for n < len(bufs) && len(e.out) == 0 {
		b := bufs[n].Bytes()
		if err := e.Append(m, a, pos, b); err != nil {
			return n, pos, err
		}
		n++
		if len(b) > 0 {
			more, bytes := e.extend(bufs[n:])
			pos = pos.Advance(uint64(len(b))+bytes, 1+more)
			n += more
		}
	}
	return n, pos, nil
}

// extend appends to the open run, which Append has just appended to, as many of
// bufs as fit into its block.
func (e *Encoder) extend(bufs []inflight.Buffer) (n int, bytes uint64) {
	buf, lengths := e.buf, e.lengths
	room := min(e.o.BlockSize, e.step) - e.dataSize
	table := e.o.LargestBlock/8 - e.tabSize
	for n < len(bufs) && 3*n <= table {
		b := bufs[n].Bytes()
		if len(b) == 0 || len(b) > room || len(b) > cap(buf)-len(buf) {
			break
		}
		buf = append(buf, b...)
		lengths = append(lengths, uint32(len(b)))
		room -= len(b)
		n++
	}
	bytes = uint64(len(buf) - len(e.buf))
	r := &e.runs[len(e.runs)-1]
	r.Pieces += n
	r.Length += bytes
	e.buf, e.lengths = buf, lengths
	e.dataSize += int(bytes)
	e.tabSize += 3 * n
	e.last.next = e.last.next.Advance(bytes, n)
	return n, bytes
}

// Reference adds bytes of an older file to address a: run says what they are
// (Flags RunHead and RunTail, Pos, Pieces, Length, Digest), target where they
// lie in file; Target.File is set here.
func (e *Encoder) Reference(m Member, a inflight.Address, file FileRef, run Run) error {
	n, err := e.entry(m, a)
	if err != nil {
		return err
	}
	if run.Length == 0 || run.Length > MaxBlock || run.Pieces <= 0 {
		return fmt.Errorf("%w: a reference of %d bytes in %d pieces", inflight.ErrConfig, run.Length, run.Pieces)
	}
	e.room(n, 0)
	e.closeRun()
	i := slices.Index(e.files, file)
	if i < 0 {
		i = len(e.files)
		e.files = append(e.files, file)
		e.tabSize += len(file.Name) + 20
	}
	if !slices.Contains(n.member.refs, file) {
		n.member.refs = append(n.member.refs, file)
	}
	run.Target.File = i
	run.Address = a
	run.Flags = run.Flags&(RunHead|RunTail) | RunReference | e.place(n, run.Pos)
	run.Member = e.local(n.member)
	e.runs = append(e.runs, run)
	e.tabSize += 64
	n.next = run.End()
	x := Extent{Offset: run.Target.Offset, Length: uint32(run.Length), Pieces: run.Pieces, Flags: run.Flags, Pos: run.Pos}
	n.extents = append(n.extents, place{x, &reference{file, BlockRef{Offset: run.Target.BlockOffset, Stored: run.Target.Stored}}})
	n.add(&run)
	return e.err
}

// SetCut records where the connection c.Address stood at the snapshot.
func (e *Encoder) SetCut(m Member, c inflight.Cut) error {
	n, err := e.entry(m, c.Address)
	if err != nil {
		return err
	}
	n.Entry.SetCut(c)
	return e.err
}

// Complete marks member m as wholly captured, in this file and the ones before.
func (e *Encoder) Complete(m Member) error { return e.finish(m, StatusComplete) }

// Continue marks that more of member m follows in another file.
func (e *Encoder) Continue(m Member) error { return e.finish(m, StatusContinued) }

// Abort marks all runs of member m in this file as dead.
func (e *Encoder) Abort(m Member) error { return e.finish(m, StatusAborted) }

func (e *Encoder) finish(m Member, s Status) error {
	k := e.members[m]
	if k.status != 0 {
		return fmt.Errorf("%w: %s is %s already", inflight.ErrOrder, k.task, k.status)
	}
	k.status = s
	e.last = nil
	e.pending = append(e.pending, k)
	if !e.open {
		e.writeSections()
	}
	return e.err
}

// Carry returns what the next file of member m needs, after Continue and Close.
func (e *Encoder) Carry(m Member) *Carry {
	k := e.members[m]
	return &Carry{prior: append(slices.Clone(k.prior), k.segment), refs: k.refs, entries: k.entries}
}

// Handle returns the handle of member m, after Complete and Close.
func (e *Encoder) Handle(m Member) inflight.Handle {
	k := e.members[m]
	h := inflight.Handle{Task: k.task, Checkpoint: e.header.Checkpoint, Segments: append(slices.Clone(k.prior), k.segment), References: k.refs}
	for _, n := range k.entries {
		switch n.Address.Side {
		case inflight.Input:
			h.InputBytes += n.Bytes
		case inflight.Output:
			h.OutputBytes += n.Bytes
		case inflight.State:
			h.StateBytes += n.Bytes
		}
	}
	return h
}

// Size returns the number of bytes encoded so far.
func (e *Encoder) Size() int64 { return e.base + int64(len(e.buf)+len(e.tail)) }

// FileInfo describes a sealed file, for the manifest.
type FileInfo struct {
	Name      string
	FileID    inflight.FileID
	Size      int64
	DirOffset int64
	DirLength int64
	DirCRC    uint32
}

// Flush closes the open block, so that everything appended is encoded. Sections
// of finished members follow it.
func (e *Encoder) Flush() error {
	if e.open {
		e.closeBlock()
	}
	return e.err
}

// Close ends the file: open block, sections, directory, trailer. Members that
// were not finished get no section and are not restorable. Chunks may still
// wait for Take.
func (e *Encoder) Close() (FileInfo, error) {
	if e.closed {
		return FileInfo{}, inflight.ErrClosed
	}
	e.closed = true
	_ = e.Flush() // sticks in e.err
	info := FileInfo{Name: e.name, FileID: e.header.FileID, DirOffset: e.Size()}
	start := e.reserve(BlockHeaderSize*(len(e.dir)/dirPerBlock+1) + len(e.dir)*dirEntrySize + TrailerSize)
	for dir := e.dir; ; {
		n := min(len(dir), dirPerBlock)
		at := len(e.buf)
		offset := e.base + int64(at)
		e.buf = append(e.buf, make([]byte, BlockHeaderSize)...)
		for i := range dir[:n] {
			e.buf = dir[i].append(e.buf)
		}
		sealBlock(e.buf[at:], KindDirectory, e.header.FileID, offset, e.blocks)
		e.blocks++
		if dir = dir[n:]; len(dir) == 0 {
			break
		}
	}
	info.DirLength = e.Size() - info.DirOffset
	info.DirCRC = Checksum(e.buf[start:])
	info.Size = e.Size() + TrailerSize
	t := Trailer{DirOffset: info.DirOffset, DirLength: info.DirLength, DirCRC: info.DirCRC, Size: info.Size, FileID: info.FileID, Blocks: e.blocks}
	e.buf = t.append(e.buf)
	e.cut(1)
	e.drop()
	return info, e.err
}

// Discard gives up the file and its memory. Chunks taken must still be recycled.
func (e *Encoder) Discard() {
	e.closed = true
	for _, c := range e.out {
		e.Recycle(c)
	}
	e.out = nil
	e.drop()
}

// drop gives memory back.
func (e *Encoder) drop() {
	for _, b := range [][]byte{e.buf, e.spare, e.scratch} {
		if b != nil {
			e.o.Pool.put(b)
		}
	}
	e.buf, e.spare, e.scratch, e.tail, e.owner = nil, nil, nil, nil, nil
	e.open, e.last = false, nil
	if e.blockTable != nil {
		e.clearTable()
		clear(e.entries)
		if cap(e.entries) <= keptEntries && cap(e.extents) <= keptEntries {
			blockTables.Put(e.blockTable)
		}
		e.blockTable = nil
	}
}

// clearTable forgets the runs of a block.
func (e *Encoder) clearTable() {
	clear(e.runs)
	clear(e.touched)
	e.runs, e.lengths, e.touched = e.runs[:0], e.lengths[:0], e.touched[:0]
}

// Take returns the next chunk to be written, in the order of the file. Its
// length is a multiple of a step, except for the last one after Close.
func (e *Encoder) Take() (Chunk, bool) {
	if len(e.out) == 0 {
		return Chunk{}, false
	}
	c := e.out[0]
	e.out = slices.Delete(e.out, 0, 1)
	return c, true
}

// Recycle takes the memory of a chunk back. It must be the last use of it.
func (e *Encoder) Recycle(c Chunk) {
	switch {
	case e.owner != nil && e.owner == &c.mem[:1][0]:
		e.spare = c.mem // tail still lies in it
	default:
		e.o.Pool.put(c.mem)
	}
}

// entry returns the state of address a of member m.
func (e *Encoder) entry(m Member, a inflight.Address) (*entry, error) {
	if e.last != nil && m == e.lastMember && a == e.lastAddress {
		return e.last, nil
	}
	if e.closed {
		return nil, inflight.ErrClosed
	}
	k := e.members[m]
	if k.status != 0 {
		return nil, fmt.Errorf("%w: %s is %s", inflight.ErrOrder, k.task, k.status)
	}
	n := k.find(a)
	if n == nil {
		if len(a.State) > maxName || min(a.Input.Gate, a.Input.Channel, a.Output.Partition, a.Output.Subpartition) < 0 || a.Side < inflight.Input || a.Side > inflight.State {
			return nil, fmt.Errorf("%w: address %s", inflight.ErrConfig, a)
		}
		n = k.add(Entry{Address: a}, inflight.PosUnknown)
	}
	e.lastMember, e.lastAddress, e.last = m, a, n
	return n, nil
}

// room makes an open block that can take data of n, and returns how many of
// size bytes it takes: all, unless they exceed the largest block.
func (e *Encoder) room(n *entry, size int) int {
	largest := e.o.LargestBlock * 3 / 4 // the rest is for the table
	if e.open && (e.dataSize > 0 && e.dataSize+size > min(e.o.BlockSize, e.step) || e.tabSize > e.o.LargestBlock/8) {
		e.closeBlock()
	}
	size = min(size, largest)
	if !e.open {
		e.step = e.o.Pool.step(e.base)
		e.reserve(BlockHeaderSize + max(size, min(e.o.BlockSize, e.step)) + min(e.o.BlockSize, tableRoom))
		e.start = len(e.buf)
		e.buf = e.buf[:e.start+BlockHeaderSize]
		e.open = true
	}
	if cap(e.buf)-len(e.buf) < size {
		e.reserve(size)
	}
	return size
}

// reserve makes room for n bytes in buf, and returns its length.
func (e *Encoder) reserve(n int) int {
	have := len(e.buf) + len(e.tail)
	want := max(have+n, bufferFor(e.step))
	switch {
	case e.buf != nil && cap(e.buf)-len(e.buf) >= n:
	case e.buf != nil:
		b := append(e.o.Pool.get(want), e.buf...)
		e.o.Pool.put(e.buf)
		e.buf = b
	case e.spare != nil && cap(e.spare) >= want:
		e.buf = append(e.spare[:0], e.tail...) // overlaps: moves to the front
		e.spare, e.tail, e.owner = nil, nil, nil
	default:
		e.buf = append(e.o.Pool.get(want), e.tail...)
		if e.spare != nil {
			e.o.Pool.put(e.spare)
		}
		e.spare, e.tail, e.owner = nil, nil, nil
	}
	return len(e.buf)
}

// run returns the open run of n at pos, beginning one if needed.
func (e *Encoder) run(n *entry, pos inflight.Pos, head bool) *Run {
	if k := len(e.runs); k > 0 && !head && !e.runTail {
		r := &e.runs[k-1]
		if r.Flags&RunReference == 0 && e.runEntry == n && pos == n.next && (pos.Known() == (r.Flags&RunKnown != 0)) {
			return r
		}
	}
	e.closeRun()
	r := Run{Member: e.local(n.member), Address: n.Address, Pos: pos, Offset: len(e.lengths), Flags: e.place(n, pos)}
	if head {
		r.Flags |= RunHead
	}
	e.runs = append(e.runs, r)
	e.runStart, e.runEntry = len(e.buf), n
	e.tabSize += 48 + len(n.Address.State)
	return &e.runs[len(e.runs)-1]
}

// place returns the flags that say how pos stands to what came before.
func (e *Encoder) place(n *entry, pos inflight.Pos) RunFlags {
	if !pos.Known() {
		return 0
	}
	if n.next.Known() && n.next.Offset != pos.Offset {
		return RunKnown | RunGap
	}
	return RunKnown
}

// local returns the index of m in the open block's table.
func (e *Encoder) local(m *member) int {
	if m.local < 0 {
		m.local = len(e.touched)
		e.touched = append(e.touched, m)
		e.tabSize += len(m.task.Vertex) + 8
	}
	return m.local
}

// closeRun ends the open run: digest and extent. Run.Offset is the index of its
// first length until then.
func (e *Encoder) closeRun() {
	k := len(e.runs)
	if k == 0 || e.runs[k-1].Flags&RunReference != 0 || e.runs[k-1].lengths != nil {
		return
	}
	r := &e.runs[k-1]
	r.lengths = e.lengths[r.Offset:len(e.lengths):len(e.lengths)]
	r.Offset = e.runStart - e.start - BlockHeaderSize
	r.Digest = Digest(0).Add(e.buf[e.runStart:])
	if e.runTail {
		r.Flags |= RunTail
		e.runTail = false
	}
	r.uniform = int(r.lengths[0])
	if !slices.ContainsFunc(r.lengths, func(n uint32) bool { return n != r.lengths[0] }) {
		r.Flags |= runUniform
	}
	n := e.runEntry
	n.extents = append(n.extents, place{Extent: Extent{Block: len(e.data), Offset: uint32(r.Offset), Length: uint32(r.Length), Pieces: r.Pieces, Flags: r.Flags & extentKept, Pos: r.Pos}})
	n.add(r)
}

// add counts r.
func (n *entry) add(r *Run) {
	n.Buffers += uint64(r.Buffers())
	n.Digest = n.Digest.Join(r.Digest, r.Length)
	n.Bytes += r.Length
}

// closeBlock ends the open data block and writes the sections that waited.
func (e *Encoder) closeBlock() {
	e.closeRun()
	tableStart := e.reserve(e.tabSize + 64)
	before := cap(e.buf)
	e.buf = e.appendTable(e.buf)
	e.o.Pool.resized(before, cap(e.buf))
	raw := e.buf[e.start+BlockHeaderSize:]
	h := BlockHeader{Kind: KindData, Raw: uint32(len(raw)), Table: uint32(len(e.buf) - tableStart), Number: e.blocks}
	if h.Codec = e.compress(raw); h.Codec != CodecNone {
		e.buf = append(e.buf[:e.start+BlockHeaderSize], e.scratch...)
		raw = e.buf[e.start+BlockHeaderSize:]
	}
	h.Stored, h.CRC = uint32(len(raw)), Checksum(raw)
	offset := e.base + int64(e.start)
	h.put(e.buf[e.start:], e.header.FileID, offset)
	e.blocks++
	e.data = append(e.data, BlockRef{Offset: offset, Stored: BlockHeaderSize + h.Stored})
	for _, m := range e.touched {
		m.local = -1
	}
	e.clearTable()
	e.open, e.dataSize, e.tabSize, e.files = false, 0, 0, e.files[:0]
	e.writeSections()
	e.cut(e.step)
}

// compress fills scratch with the compressed payload if the codec is to be
// used and pays, and returns the codec.
func (e *Encoder) compress(raw []byte) Codec {
	c := e.o.Codec
	if c == CodecNone || c == CodecAuto && !e.sampler.try() {
		return CodecNone
	}
	if c == CodecAuto {
		c = CodecS2
	}
	if e.scratch == nil {
		e.scratch = e.o.Pool.get(len(raw) + len(raw)/4)
	}
	before := cap(e.scratch)
	e.scratch = c.compress(e.scratch[:0], raw)
	e.o.Pool.resized(before, cap(e.scratch))
	pays := float64(len(e.scratch)) < worthwhile*float64(len(raw))
	e.sampler.learn(pays)
	if !pays {
		return CodecNone
	}
	return c
}

func (e *Encoder) appendTable(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(e.touched)))
	for _, m := range e.touched {
		b = appendString(b, m.task.Vertex)
		b = binary.AppendUvarint(b, uint64(m.task.Subtask))
	}
	b = appendFileRefs(b, e.files)
	b = binary.AppendUvarint(b, uint64(len(e.runs)))
	for i := range e.runs {
		b = e.runs[i].append(b)
	}
	return b
}

// writeSections writes the sections of the members that have finished.
func (e *Encoder) writeSections() {
	for _, m := range e.pending {
		sec := e.section(m)
		start := e.reserve(sec.sizeHint())
		offset, before := e.Size(), cap(e.buf)
		var pages int
		e.buf, pages = appendPages(e.buf, sec, e.header.FileID, offset, e.blocks, e.sections, e.o.PageSize)
		e.o.Pool.resized(before, cap(e.buf))
		if pages > maxPages {
			e.fail(fmt.Errorf("%w: the section of %s has %d pages", inflight.ErrTooLarge, m.task, pages))
			break
		}
		e.blocks += uint32(pages)
		e.sections++
		m.segment = inflight.Segment{File: e.name, FileID: e.header.FileID, Offset: offset, Length: e.Size() - offset, CRC: Checksum(e.buf[start:])}
		e.dir = append(e.dir, DirEntry{Hash: TaskHash(m.task), Offset: offset, Length: m.segment.Length, CRC: m.segment.CRC, Status: m.status})
	}
	e.pending = e.pending[:0]
}

// section builds the index of m from what was appended. It holds until the next
// one is built.
func (e *Encoder) section(m *member) *Section {
	s := &Section{Task: m.task, Checkpoint: e.header.Checkpoint, Status: m.status, Prior: m.prior}
	if m.status == StatusAborted {
		return s
	}
	slices.SortFunc(m.entries, func(a, b *entry) int { return a.Address.Compare(b.Address) })
	total := 0
	for _, n := range m.entries {
		total += len(n.extents)
	}
	e.entries, e.extents = slices.Grow(e.entries[:0], len(m.entries)), slices.Grow(e.extents[:0], total)
	var blocks blockIndex
	for _, n := range m.entries {
		start := len(e.extents)
		for k := range n.extents {
			x := n.extents[k].Extent
			x.Block = blocks.of(e.blockRef(s, &n.extents[k]))
			e.extents = append(e.extents, x)
		}
		entry := n.Entry
		entry.Extents = e.extents[start:]
		e.entries = append(e.entries, entry)
		n.extents = nil
	}
	s.Entries, s.Blocks = e.entries, blocks.refs
	return s
}

// blockRef returns the block that p lies in. Its file gets a place in s.Files.
func (e *Encoder) blockRef(s *Section, p *place) BlockRef {
	if p.reference == nil {
		return e.data[p.Block]
	}
	f := slices.Index(s.Files, p.reference.file)
	if f < 0 {
		f = len(s.Files)
		s.Files = append(s.Files, p.reference.file)
	}
	ref := p.reference.ref
	ref.File = f + 1
	return ref
}

// blockIndex numbers the blocks of a section in the order of their first use.
type blockIndex struct {
	refs []BlockRef
	seen map[BlockRef]int // of more than few
}

func (b *blockIndex) of(ref BlockRef) int {
	k := len(b.refs)
	if k > 0 && b.refs[k-1] == ref {
		return k - 1
	}
	if b.seen == nil {
		if i := slices.Index(b.refs, ref); i >= 0 {
			return i
		}
	} else if i, ok := b.seen[ref]; ok {
		return i
	}
	b.refs = append(b.refs, ref)
	switch {
	case b.seen != nil:
		b.seen[ref] = k
	case k == few:
		b.seen = make(map[BlockRef]int, 2*few)
		for i, r := range b.refs {
			b.seen[r] = i
		}
	}
	return k
}

// cut hands out the front of buf, up to the last whole step in the file.
func (e *Encoder) cut(step int) {
	end := (e.base + int64(len(e.buf))) / int64(step) * int64(step)
	n := int(end - e.base)
	if n <= 0 {
		return
	}
	c := Chunk{Bytes: e.buf[:n], mem: e.buf}
	e.tail, e.owner, e.buf, e.base = e.buf[n:], &e.buf[:1][0], nil, end
	if e.w == nil {
		e.out = append(e.out, c)
		return
	}
	if e.err == nil {
		_, err := e.w.Write(c.Bytes)
		e.fail(err)
	}
	e.Recycle(c)
}

func (e *Encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
