package format

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/spillway-io/spillway/inflight"
)

// Version is the version of channel-state files that this package writes.
const Version = 1

// Frozen for every version: magic, version, header length, and the CRC-32C in
// the last four bytes of the header. So "unknown version" and "corrupt" stay
// two answers.
const (
	fileMagic     = "\x8aSPWCS\r\n"
	fixedHeader   = 84                          // bytes before the names
	minHeader     = fixedHeader + 4             // with the checksum
	maxHeader     = fixedHeader + 2*maxName + 4 // a longer one is corrupt
	knownIncompat = 0                           // version 1 has no optional features that readers must know
)

// FileHeader is the self-description at the front of a channel-state file.
type FileHeader struct {
	FileID     inflight.FileID
	Job        string
	Checkpoint inflight.CheckpointID
	Epoch      inflight.Epoch
	Group      string
	KeyID      [16]byte // of the key of encrypted payloads; zero: not encrypted
	Incompat   uint32   // features that a reader must know
	Compat     uint32   // features that a reader may ignore
}

// append encodes h.
func (h *FileHeader) append(b []byte) ([]byte, error) {
	if len(h.Job) > maxName || len(h.Group) > maxName {
		return nil, fmt.Errorf("%w: job or group name of more than %d bytes", inflight.ErrTooLarge, maxName)
	}
	start := len(b)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint16(b, Version)
	b = binary.LittleEndian.AppendUint16(b, uint16(minHeader+len(h.Job)+len(h.Group)))
	b = binary.LittleEndian.AppendUint32(b, h.Incompat)
	b = binary.LittleEndian.AppendUint32(b, h.Compat)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Epoch))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Checkpoint))
	b = append(b, h.FileID[:]...)
	b = append(b, h.KeyID[:]...)
	b = append(b, make([]byte, 16)...) // reserved
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.Job)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.Group)))
	b = append(b, h.Job...)
	b = append(b, h.Group...)
	return binary.LittleEndian.AppendUint32(b, Checksum(b[start:])), nil
}

// ReadFileHeader reads the header of a file of size bytes. It returns the
// header and its length. Errors are *FormatError, or the reader's.
func ReadFileHeader(r io.ReaderAt, size int64) (FileHeader, int64, error) {
	p := make([]byte, min(size, maxHeader))
	if err := readFull(r, p, 0); err != nil {
		return FileHeader{}, 0, err
	}
	return DecodeFileHeader(p)
}

// DecodeFileHeader decodes the header at the front of p and returns its length.
func DecodeFileHeader(p []byte) (h FileHeader, n int64, err error) {
	switch {
	case len(p) == 0:
		return h, 0, &FormatError{Code: CodeEmpty, Offset: -1, Text: "the file has no bytes", Err: inflight.ErrEmpty}
	case len(p) < len(fileMagic) && string(p) == fileMagic[:len(p)]:
		return h, 0, torn(0, "the file ends inside its header, after %d bytes", len(p))
	case len(p) < len(fileMagic) || string(p[:len(fileMagic)]) != fileMagic:
		return h, 0, notOurs(p)
	case len(p) < 12:
		return h, 0, torn(0, "the file ends inside its header, after %d bytes", len(p))
	}
	version, length := binary.LittleEndian.Uint16(p[8:]), int(binary.LittleEndian.Uint16(p[10:]))
	if length < 12+4 || version == Version && (length < minHeader || length > maxHeader) {
		return h, 0, corrupt(CodeFileHeader, 0, "the header claims %d bytes", length)
	}
	if length > len(p) {
		if len(p) < maxHeader {
			return h, 0, torn(0, "the header claims %d bytes, the file has %d", length, len(p))
		}
		return h, 0, corrupt(CodeFileHeader, 0, "the header claims %d bytes", length)
	}
	p = p[:length]
	if Checksum(p[:length-4]) != binary.LittleEndian.Uint32(p[length-4:]) {
		return h, 0, corrupt(CodeFileHeader, 0, "header checksum does not match")
	}
	h.Incompat, h.Compat = binary.LittleEndian.Uint32(p[12:]), binary.LittleEndian.Uint32(p[16:])
	if version != Version || h.Incompat&^knownIncompat != 0 {
		return h, 0, &FormatError{Code: CodeVersion, Offset: 0, Err: inflight.ErrUnknownVersion,
			Text: fmt.Sprintf("version %d, incompat flags %#x; known here: version %d, flags %#x", version, h.Incompat, Version, knownIncompat)}
	}
	h.Epoch = inflight.Epoch(binary.LittleEndian.Uint32(p[20:]))
	h.Checkpoint = inflight.CheckpointID(binary.LittleEndian.Uint64(p[24:]))
	copy(h.FileID[:], p[32:])
	copy(h.KeyID[:], p[48:])
	job, group := int(binary.LittleEndian.Uint16(p[80:])), int(binary.LittleEndian.Uint16(p[82:]))
	if minHeader+job+group != length || job > maxName || group > maxName {
		return h, 0, corrupt(CodeFileHeader, 0, "names of %d and %d bytes in a header of %d", job, group, length)
	}
	h.Job, h.Group = string(p[fixedHeader:fixedHeader+job]), string(p[fixedHeader+job:fixedHeader+job+group])
	return h, int64(length), nil
}

// notOurs tells zeros, which a crash may leave, and single flips from other
// people's files.
func notOurs(p []byte) error {
	wrong := 0
	for i := range min(len(p), len(fileMagic)) {
		if p[i] != fileMagic[i] {
			wrong++
		}
	}
	if wrong <= 2 && len(p) >= len(fileMagic) {
		return corrupt(CodeFileHeader, 0, "the magic is damaged")
	}
	if allZero(p) {
		return corrupt(CodeFileHeader, 0, "the header is zeros")
	}
	return &FormatError{Code: CodeForeign, Offset: 0, Text: "it does not begin as one of our channel-state files", Err: inflight.ErrForeign}
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// readFull reads all of p at off; a short file is ErrTorn.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		return torn(off+int64(n), "%d bytes wanted at %d, %d there", len(p), off, n)
	}
	return err
}
