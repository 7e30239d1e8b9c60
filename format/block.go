package format

import (
	"encoding/binary"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// Sizes that are part of the format.
const (
	BlockHeaderSize = 32
	// MaxBlock is the largest payload of a block in bytes, before compression:
	// buffers that do not fit continue in the next block.
	MaxBlock = 4 << 20
	// MaxPage is the largest payload of a section block.
	MaxPage = 64 << 10
)

// blockMagic begins every block; its bytes spell "SPbk".
const blockMagic = 0x6b625053

// BlockKind says what the payload of a block is. The numbers are frozen.
type BlockKind uint8

// The kinds. Zero is invalid, so that a block of zeros is.
const (
	KindData      BlockKind = 1
	KindSection   BlockKind = 2
	KindDirectory BlockKind = 3
)

// BlockHeader stands before each payload.
type BlockHeader struct {
	Kind   BlockKind
	Codec  Codec
	Flags  uint16
	Number uint32 // of the block in its file, from 0
	Stored uint32 // bytes of payload that follow
	Raw    uint32 // bytes of payload after decompression
	Table  uint32 // bytes of run table at the end of a data payload
	CRC    uint32 // CRC-32C of the stored payload
}

// put encodes h, the header of the block at offset of file id, into p.
func (h *BlockHeader) put(p []byte, id inflight.FileID, offset int64) {
	_ = p[BlockHeaderSize-1]
	binary.LittleEndian.PutUint32(p[0:], blockMagic)
	p[4], p[5] = byte(h.Kind), byte(h.Codec)
	binary.LittleEndian.PutUint16(p[6:], h.Flags)
	binary.LittleEndian.PutUint32(p[8:], h.Number)
	binary.LittleEndian.PutUint32(p[12:], h.Stored)
	binary.LittleEndian.PutUint32(p[16:], h.Raw)
	binary.LittleEndian.PutUint32(p[20:], h.Table)
	binary.LittleEndian.PutUint32(p[24:], h.CRC)
	binary.LittleEndian.PutUint32(p[28:], blockChecksum(id, offset, p[:28]))
}

// sealBlock puts the header of a block that is not a data block, and will stand
// at offset, before its payload in p.
func sealBlock(p []byte, kind BlockKind, id inflight.FileID, offset int64, number uint32) {
	n := uint32(len(p) - BlockHeaderSize)
	h := BlockHeader{Kind: kind, Number: number, Stored: n, Raw: n, CRC: Checksum(p[BlockHeaderSize:])}
	h.put(p, id, offset)
}

// DecodeBlockHeader decodes the header of the block at offset of file id. A
// header that is intact but belongs to another file or place is corrupt here.
func DecodeBlockHeader(p []byte, id inflight.FileID, offset int64) (h BlockHeader, err error) {
	if len(p) < BlockHeaderSize {
		return h, torn(offset, "the file ends inside a block header, after %d bytes", len(p))
	}
	if binary.LittleEndian.Uint32(p[28:]) != blockChecksum(id, offset, p[:28]) || binary.LittleEndian.Uint32(p) != blockMagic {
		return h, corrupt(CodeBlockHeader, offset, "there is no block header of this file")
	}
	h = BlockHeader{
		Kind: BlockKind(p[4]), Codec: Codec(p[5]), Flags: binary.LittleEndian.Uint16(p[6:]),
		Number: binary.LittleEndian.Uint32(p[8:]), Stored: binary.LittleEndian.Uint32(p[12:]), Raw: binary.LittleEndian.Uint32(p[16:]),
		Table: binary.LittleEndian.Uint32(p[20:]), CRC: binary.LittleEndian.Uint32(p[24:]),
	}
	limit := uint32(MaxBlock)
	if h.Kind == KindSection {
		limit = MaxPage
	}
	switch {
	case h.Kind < KindData || h.Kind > KindDirectory, h.Codec > CodecZstd, h.Kind != KindData && (h.Codec != CodecNone || h.Table != 0),
		h.Raw > limit, h.Stored > h.Raw, h.Codec == CodecNone && h.Stored != h.Raw, h.Table > h.Raw:
		return h, corrupt(CodeBlockHeader, offset, "the block header makes no sense: %+v", h)
	}
	return h, nil
}

// Block is a decoded data block.
type Block struct {
	Offset int64
	Header BlockHeader
	Data   []byte // bytes of the buffers of all runs
	table  []byte
}

// DecodeBlock decodes the data block at the front of p, which lies at offset of
// file id: header, checksum, decompression. Data and the table lie in p itself
// when the block is not compressed, otherwise in scratch, which is grown as
// needed and returned.
func DecodeBlock(p []byte, id inflight.FileID, offset int64, scratch []byte) (Block, []byte, error) {
	h, err := DecodeBlockHeader(p, id, offset)
	if err != nil {
		return Block{}, scratch, err
	}
	if h.Kind != KindData {
		return Block{}, scratch, corrupt(CodeBlockHeader, offset, "a data block was expected, kind %d is there", h.Kind)
	}
	stored, err := payload(p, h, offset)
	if err != nil {
		return Block{}, scratch, err
	}
	if h.Codec != CodecNone {
		scratch = slices.Grow(scratch[:0], int(h.Raw))[:h.Raw]
		if err := h.Codec.decompress(scratch, stored); err != nil {
			return Block{}, scratch, corrupt(CodePayload, offset, "the payload cannot be decompressed: %v", err)
		}
		stored = scratch
	}
	n := len(stored) - int(h.Table)
	return Block{Offset: offset, Header: h, Data: stored[:n:n], table: stored[n:]}, scratch, nil
}

// payload returns the stored payload behind the header, after its checksum.
func payload(p []byte, h BlockHeader, offset int64) ([]byte, error) {
	if len(p) < BlockHeaderSize+int(h.Stored) {
		return nil, torn(offset, "the block claims %d bytes, %d are there", h.Stored, len(p)-BlockHeaderSize)
	}
	p = p[BlockHeaderSize : BlockHeaderSize+int(h.Stored)]
	if Checksum(p) != h.CRC {
		return nil, corrupt(CodePayload, offset, "payload checksum does not match")
	}
	return p, nil
}

// RunFlags qualify a run.
type RunFlags uint8

// The flags. The lowest two bits of the byte on disk are the side.
const (
	RunKnown     RunFlags = 1 << 2 // the run has a position
	RunGap       RunFlags = 1 << 3 // the run does not continue its predecessor: bytes are missing before it
	runUniform   RunFlags = 1 << 4 // all buffers have one length
	RunHead      RunFlags = 1 << 5 // the first piece continues the buffer that the previous run ended with
	RunTail      RunFlags = 1 << 6 // the last piece goes on in the next run of the address
	RunReference RunFlags = 1 << 7 // the bytes lie in an older file
)

// Run is a piece of one address's byte stream within a block: consecutive
// pieces of buffers. With RunReference the bytes are those of Target instead.
type Run struct {
	Member  int // index into Table.Members
	Address inflight.Address
	Flags   RunFlags
	Pos     inflight.Pos // of the first byte; PosUnknown without RunKnown
	Pieces  int          // buffers, and parts of buffers with RunHead and RunTail
	Offset  int          // of the first byte in Block.Data
	Length  uint64       // bytes in all
	Digest  Digest       // of the bytes
	Target  Target       // with RunReference

	uniform int      // length of every piece, with runUniform
	lengths []uint32 // otherwise
}

// Target is where the bytes of a reference lie: Run.Length bytes from Offset on
// in the data of the block of Stored bytes (header included) at BlockOffset of
// a file.
type Target struct {
	File        int // index into the table's or section's files
	BlockOffset int64
	Stored      uint32
	Offset      uint32
}

// PieceLength returns the length of piece i. References have no pieces of their
// own: the run they point into has them.
func (r *Run) PieceLength(i int) int {
	if r.Flags&runUniform != 0 {
		return r.uniform
	}
	return int(r.lengths[i])
}

// Buffers counts the buffers that begin in r.
func (r *Run) Buffers() int {
	if r.Flags&RunHead != 0 {
		return r.Pieces - 1
	}
	return r.Pieces
}

// End returns the position behind r.
func (r *Run) End() inflight.Pos { return r.Pos.Advance(r.Length, r.Buffers()) }

// FileRef names another channel-state file.
type FileRef = inflight.FileRef

// Table is the run table of a block. It can be used again for the next block:
// what ReadTable fills then is overwritten.
type Table struct {
	Members []inflight.Task
	Files   []FileRef
	Runs    []Run
	lengths []uint32
}

// ReadTable decodes the run table of b into t. Everything is checked against
// the block: an error is corrupt.
func (b *Block) ReadTable(t *Table) error {
	w := wire{p: b.table}
	old := t.Members
	t.Members = t.Members[:0]
	for i := range w.count(2) {
		last := ""
		if i < len(old) {
			last = old[i].Vertex
		}
		t.Members = append(t.Members, inflight.Task{Vertex: w.string(last), Subtask: w.index()})
	}
	t.Files = readFileRefs(&w, t.Files[:0])
	t.Runs, t.lengths = t.Runs[:0], t.lengths[:0]
	offset, n := uint64(0), w.count(minRun)
	for range n {
		r := t.readRun(&w)
		if w.err != nil {
			break
		}
		if r.Flags&RunReference == 0 {
			if r.Length > uint64(len(b.Data))-offset {
				w.fail()
				break
			}
			r.Offset = int(offset)
			offset += r.Length
		}
		t.Runs = append(t.Runs, r)
	}
	if w.err != nil || w.left() != 0 || offset != uint64(len(b.Data)) || n == 0 {
		return corrupt(CodeRunTable, b.Offset, "the run table makes no sense")
	}
	return nil
}

// minRun is the size of the smallest run: flags, member, name length, count,
// length, digest.
const minRun = 5 + 8

func (t *Table) readRun(w *wire) (r Run) {
	flags := w.byte()
	r.Flags = RunFlags(flags &^ 3)
	r.Member = w.index()
	if r.Member >= len(t.Members) {
		w.fail()
	}
	last := inflight.StateName("")
	if len(t.Runs) > 0 {
		last = t.Runs[len(t.Runs)-1].Address.State
	}
	r.Address = readAddress(w, inflight.Side(flags&3), last)
	r.Pos = inflight.PosUnknown
	if r.Flags&RunKnown != 0 {
		r.Pos = readPos(w)
	}
	if r.Flags&RunReference != 0 {
		r.Pieces = w.index()
		r.Length = w.number(maxReference)
		r.Target = readTarget(w, len(t.Files))
		if r.Length == 0 || r.Flags&runUniform != 0 {
			w.fail()
		}
	} else {
		t.readLengths(w, &r)
	}
	r.Digest = Digest(w.uint64())
	if r.Pieces == 0 {
		w.fail()
	}
	return r
}

// readLengths reads the lengths of the pieces. Uniform runs are not expanded,
// so a table of a few bytes cannot ask for memory.
func (t *Table) readLengths(w *wire, r *Run) {
	if r.Flags&runUniform != 0 {
		r.Pieces = int(w.number(MaxBlock))
		r.uniform = int(w.number(MaxBlock))
		r.Length = uint64(r.Pieces) * uint64(r.uniform)
		if r.uniform == 0 {
			w.fail()
		}
		return
	}
	r.Pieces = w.count(1)
	start := len(t.lengths)
	for range r.Pieces {
		n := w.number(MaxBlock)
		if n == 0 {
			w.fail()
			return
		}
		r.Length += n
		t.lengths = append(t.lengths, uint32(n))
	}
	r.lengths = t.lengths[start:len(t.lengths):len(t.lengths)]
}

// append encodes r.
func (r *Run) append(b []byte) []byte {
	b = append(b, byte(r.Flags)|byte(r.Address.Side))
	b = binary.AppendUvarint(b, uint64(r.Member))
	b = appendAddress(b, r.Address)
	if r.Flags&RunKnown != 0 {
		b = appendPos(b, r.Pos)
	}
	b = binary.AppendUvarint(b, uint64(r.Pieces))
	switch {
	case r.Flags&RunReference != 0:
		b = binary.AppendUvarint(b, r.Length)
		b = appendTarget(b, r.Target)
	case r.Flags&runUniform != 0:
		b = binary.AppendUvarint(b, uint64(r.uniform))
	default:
		for _, n := range r.lengths {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return binary.LittleEndian.AppendUint64(b, uint64(r.Digest))
}

// maxReference is the longest run of references, and the largest sum of lengths
// that is believed.
const maxReference = 1 << 48

func readAddress(w *wire, side inflight.Side, last inflight.StateName) inflight.Address {
	a := inflight.Address{Side: side}
	switch side {
	case inflight.Input:
		a.Input = inflight.InputChannel{Gate: w.index(), Channel: w.index()}
	case inflight.Output:
		a.Output = inflight.Subpartition{Partition: w.index(), Subpartition: w.index()}
	case inflight.State:
		a.State = inflight.StateName(w.string(string(last)))
	default:
		w.fail()
	}
	return a
}

func appendAddress(b []byte, a inflight.Address) []byte {
	switch a.Side {
	case inflight.Input:
		b = binary.AppendUvarint(b, uint64(a.Input.Gate))
		return binary.AppendUvarint(b, uint64(a.Input.Channel))
	case inflight.Output:
		b = binary.AppendUvarint(b, uint64(a.Output.Partition))
		return binary.AppendUvarint(b, uint64(a.Output.Subpartition))
	}
	return appendString(b, string(a.State))
}

func readPos(w *wire) inflight.Pos {
	p := inflight.Pos{Epoch: inflight.Epoch(w.number(1<<32 - 1)), Offset: w.uvarint(), Seq: w.uvarint()}
	if !p.Known() {
		w.fail()
	}
	return p
}

func appendPos(b []byte, p inflight.Pos) []byte {
	b = binary.AppendUvarint(b, uint64(p.Epoch))
	b = binary.AppendUvarint(b, p.Offset)
	return binary.AppendUvarint(b, p.Seq)
}

func readFileRefs(w *wire, refs []FileRef) []FileRef {
	for range w.count(1 + len(inflight.FileID{})) {
		r := FileRef{Name: w.string("")}
		copy(r.FileID[:], w.bytes(len(r.FileID)))
		refs = append(refs, r)
	}
	return refs
}

func appendFileRefs(b []byte, refs []FileRef) []byte {
	b = binary.AppendUvarint(b, uint64(len(refs)))
	for _, r := range refs {
		b = append(appendString(b, r.Name), r.FileID[:]...)
	}
	return b
}

func readTarget(w *wire, files int) Target {
	t := Target{File: w.index(), BlockOffset: int64(w.number(1<<62 - 1)), Stored: uint32(w.number(BlockHeaderSize + MaxBlock)), Offset: uint32(w.number(MaxBlock))}
	if t.File >= files || t.Stored <= BlockHeaderSize {
		w.fail()
	}
	return t
}

func appendTarget(b []byte, t Target) []byte {
	b = binary.AppendUvarint(b, uint64(t.File))
	b = binary.AppendUvarint(b, uint64(t.BlockOffset))
	b = binary.AppendUvarint(b, uint64(t.Stored))
	return binary.AppendUvarint(b, uint64(t.Offset))
}
