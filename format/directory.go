package format

import (
	"encoding/binary"
	"io"

	"github.com/spillway-io/spillway/inflight"
)

// TrailerSize is the length of the trailer in bytes.
const TrailerSize = 64

const (
	trailerMagic = 0x72745053 // "SPtr"
	endMagic     = "\x8aSPWCE\r\n"
	dirEntrySize = 32
	dirPerBlock  = MaxPage / dirEntrySize
)

// Trailer is the fixed-size end of a sealed file.
type Trailer struct {
	DirOffset int64
	DirLength int64
	DirCRC    uint32 // CRC-32C of the directory's blocks
	Size      int64  // of the file, trailer included
	FileID    inflight.FileID
	Blocks    uint32 // number of blocks of all kinds
}

func (t *Trailer) append(b []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, trailerMagic)
	b = binary.LittleEndian.AppendUint16(b, Version)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.DirOffset))
	b = binary.LittleEndian.AppendUint32(b, uint32(t.DirLength))
	b = binary.LittleEndian.AppendUint32(b, t.DirCRC)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Size))
	b = append(b, t.FileID[:]...)
	b = binary.LittleEndian.AppendUint32(b, t.Blocks)
	b = binary.LittleEndian.AppendUint32(b, Checksum(b[start:]))
	return append(b, endMagic...)
}

// DecodeTrailer decodes the trailer p at offset.
func DecodeTrailer(p []byte, offset int64) (t Trailer, err error) {
	if len(p) < TrailerSize {
		return t, torn(offset, "the file ends inside its trailer")
	}
	if binary.LittleEndian.Uint32(p) != trailerMagic || string(p[56:64]) != endMagic || Checksum(p[:52]) != binary.LittleEndian.Uint32(p[52:]) {
		return t, corrupt(CodeTrailer, offset, "there is no intact trailer")
	}
	t = Trailer{
		DirOffset: int64(binary.LittleEndian.Uint64(p[8:])), DirLength: int64(binary.LittleEndian.Uint32(p[16:])),
		DirCRC: binary.LittleEndian.Uint32(p[20:]), Size: int64(binary.LittleEndian.Uint64(p[24:])), Blocks: binary.LittleEndian.Uint32(p[48:]),
	}
	copy(t.FileID[:], p[32:])
	if t.DirOffset < minHeader || t.DirOffset+t.DirLength+TrailerSize != t.Size || t.Size != offset+TrailerSize {
		return t, corrupt(CodeTrailer, offset, "the trailer does not fit the file: %+v", t)
	}
	return t, nil
}

// ReadTrailer reads the trailer of a file of size bytes. A file without one is
// ErrTorn: it was never sealed, or its tail is gone.
func ReadTrailer(r io.ReaderAt, size int64) (Trailer, error) {
	if size < minHeader+TrailerSize {
		return Trailer{}, torn(size, "the file has %d bytes: too few for header and trailer", size)
	}
	p := make([]byte, TrailerSize)
	if err := readFull(r, p, size-TrailerSize); err != nil {
		return Trailer{}, err
	}
	t, err := DecodeTrailer(p, size-TrailerSize)
	if err != nil && string(p[56:]) != endMagic {
		return t, torn(size, "the file does not end with a trailer: it was never sealed, or its tail is gone")
	}
	return t, err
}

// DirEntry points at the section of one subtask. Hash is of the task, so that
// one of many is found without reading all sections.
type DirEntry struct {
	Hash   uint64
	Offset int64
	Length int64
	CRC    uint32
	Status Status
}

// TaskHash is the hash of t in a directory entry.
func TaskHash(t inflight.Task) uint64 {
	b := appendString(nil, t.Vertex)
	return uint64(Digest(0).Add(binary.AppendUvarint(b, uint64(t.Subtask))))
}

func (d *DirEntry) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, d.Hash)
	b = binary.LittleEndian.AppendUint64(b, uint64(d.Offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(d.Length))
	b = binary.LittleEndian.AppendUint32(b, d.CRC)
	return append(b, byte(d.Status), 0, 0, 0, 0, 0, 0, 0)
}

func decodeDirEntries(p []byte, offset int64, dir []DirEntry) ([]DirEntry, error) {
	if len(p)%dirEntrySize != 0 {
		return nil, corrupt(CodeDirectory, offset, "a directory block of %d bytes", len(p))
	}
	for ; len(p) > 0; p = p[dirEntrySize:] {
		d := DirEntry{
			Hash: binary.LittleEndian.Uint64(p), Offset: int64(binary.LittleEndian.Uint64(p[8:])), Length: int64(binary.LittleEndian.Uint32(p[16:])),
			CRC: binary.LittleEndian.Uint32(p[20:]), Status: Status(p[24]),
		}
		if d.Offset < minHeader || d.Length < BlockHeaderSize || d.Status < StatusComplete || d.Status > StatusAborted {
			return nil, corrupt(CodeDirectory, offset, "a directory entry makes no sense: %+v", d)
		}
		dir = append(dir, d)
	}
	return dir, nil
}

// ReadDirectory reads the directory that t names, in one read.
func ReadDirectory(r io.ReaderAt, t Trailer) ([]DirEntry, error) {
	p, err := readBounded(nil, r, t.DirOffset, t.DirLength)
	if err != nil {
		return nil, err
	}
	if Checksum(p) != t.DirCRC {
		return nil, corrupt(CodeDirectory, t.DirOffset, "directory checksum does not match")
	}
	dir := make([]DirEntry, 0, len(p)/dirEntrySize)
	for offset := t.DirOffset; len(p) > 0; {
		h, err := DecodeBlockHeader(p, t.FileID, offset)
		if err != nil {
			return nil, err
		}
		stored, err := payload(p, h, offset)
		if err != nil {
			return nil, err
		}
		if h.Kind != KindDirectory {
			return nil, corrupt(CodeDirectory, offset, "a block of kind %d in the directory", h.Kind)
		}
		if dir, err = decodeDirEntries(stored, offset, dir); err != nil {
			return nil, err
		}
		n := BlockHeaderSize + len(stored)
		p, offset = p[n:], offset+int64(n)
	}
	return dir, nil
}
