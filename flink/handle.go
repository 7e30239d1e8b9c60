package flink

import (
	"encoding/binary"
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// HandleKind is the tag of a handle that a stream can be opened from. The
// numbers are Flink's.
type HandleKind uint8

// The kinds of stream handles.
const (
	KindNull         HandleKind = 0
	KindByteStream   HandleKind = 1  // the data itself
	KindFile         HandleKind = 2  // a file by absolute path
	KindKeyGroups    HandleKind = 3  // keyed state used as a stream
	KindRelativeFile HandleKind = 6  // a file beside _metadata
	KindSegment      HandleKind = 15 // a part of a file by absolute path: file merging
	KindEmptySegment HandleKind = 16
)

// String returns the name of Flink's class.
func (k HandleKind) String() string {
	switch k {
	case KindNull:
		return "null"
	case KindByteStream:
		return "ByteStreamStateHandle"
	case KindFile:
		return "FileStateHandle"
	case KindKeyGroups:
		return "KeyGroupsStateHandle"
	case KindRelativeFile:
		return "RelativeFileStateHandle"
	case KindSegment:
		return "SegmentFileStateHandle"
	case KindEmptySegment:
		return "EmptySegmentFileStateHandle"
	}
	return fmt.Sprintf("handle(%d)", uint8(k))
}

// Scope says who shares a file of file merging.
type Scope uint8

// The scopes of a segment.
const (
	ScopeExclusive Scope = 0
	ScopeShared    Scope = 1
)

// String returns Flink's name of the scope.
func (s Scope) String() string {
	if s == ScopeShared {
		return "SHARED"
	}
	return "EXCLUSIVE"
}

// StreamHandle says where a stream of bytes lies. It is the bytes of the handle
// as they stand in _metadata; methods that do not fit its kind return zero.
type StreamHandle struct {
	raw []byte // tag first; nil is null
	at  int    // in _metadata
}

// Kind returns what kind of handle h is.
func (h StreamHandle) Kind() HandleKind {
	if len(h.raw) == 0 {
		return KindNull
	}
	return HandleKind(h.raw[0])
}

// IsNull reports whether h points nowhere.
func (h StreamHandle) IsNull() bool { return h.Kind() == KindNull }

// Bytes returns h as it stands in _metadata. It must not be changed.
func (h StreamHandle) Bytes() []byte { return h.raw }

// Offset returns where in _metadata h begins.
func (h StreamHandle) Offset() int64 { return int64(h.at) }

// field returns the string at offset at of h, and the offset behind it.
func (h StreamHandle) field(at int) ([]byte, int) {
	n := int(binary.BigEndian.Uint16(h.raw[at:]))
	return h.raw[at+2 : at+2+n], at + 2 + n
}

func (h StreamHandle) i64(at int) int64 { return int64(binary.BigEndian.Uint64(h.raw[at:])) }

// Size returns the length of the stream as the handle says; -1 is unknown.
func (h StreamHandle) Size() int64 {
	switch h.Kind() {
	case KindByteStream:
		return int64(len(h.Data()))
	case KindFile:
		return h.i64(1)
	case KindRelativeFile:
		_, at := h.field(1)
		return h.i64(at)
	case KindSegment:
		return h.i64(9)
	case KindKeyGroups:
		return h.Inner().Size()
	}
	return 0
}

// Path returns the absolute URI of a file or segment, or the path of a relative
// file.
func (h StreamHandle) Path() string {
	at := 0
	switch h.Kind() {
	case KindFile:
		at = 9
	case KindRelativeFile:
		at = 1
	case KindSegment:
		at = 21
	default:
		return ""
	}
	p, _ := h.field(at)
	return utfString(p)
}

// Name returns the name of an inline handle: what Flink tells it from others by.
func (h StreamHandle) Name() string {
	if h.Kind() != KindByteStream {
		return ""
	}
	p, _ := h.field(1)
	return utfString(p)
}

// Data returns the bytes of an inline handle. They must not be changed.
func (h StreamHandle) Data() []byte {
	if h.Kind() != KindByteStream {
		return nil
	}
	_, at := h.field(1)
	return h.raw[at+4:]
}

// Payload returns how many bytes of a channel lie in h whose handle says so many
// bytes in so many chunks: without their lengths and, of inline state, without
// the header that Flink counts there.
func (h StreamHandle) Payload(stateSize int64, chunks int) int64 {
	n := stateSize - lengthSize*int64(chunks)
	if h.Kind() == KindByteStream {
		n -= headerSize
	}
	return max(n, 0)
}

// DataOffset returns where in _metadata the data of an inline handle begins.
func (h StreamHandle) DataOffset() int64 {
	if h.Kind() != KindByteStream {
		return 0
	}
	_, at := h.field(1)
	return int64(h.at + at + 4)
}

// StartPos returns where in its file a segment begins.
func (h StreamHandle) StartPos() int64 {
	if h.Kind() != KindSegment {
		return 0
	}
	return h.i64(1)
}

// Scope returns who shares the file of a segment.
func (h StreamHandle) Scope() Scope {
	if h.Kind() != KindSegment {
		return 0
	}
	return Scope(h.raw[20])
}

// LogicalID returns the logical file id of a segment.
func (h StreamHandle) LogicalID() string {
	if h.Kind() != KindSegment {
		return ""
	}
	_, at := h.field(21)
	p, _ := h.field(at)
	return utfString(p)
}

// Inner returns the handle that a KindKeyGroups handle wraps.
func (h StreamHandle) Inner() StreamHandle {
	if h.Kind() != KindKeyGroups {
		return StreamHandle{}
	}
	at := 9 + 8*int(binary.BigEndian.Uint32(h.raw[5:]))
	return StreamHandle{raw: h.raw[at:], at: h.at + at}
}

// Key returns what Flink compares handles by: the name of an inline handle, the
// path of a file, all of a segment. Handles with equal keys are one stream.
func (h StreamHandle) Key() string {
	switch h.Kind() {
	case KindByteStream, KindRelativeFile:
		_, at := h.field(1)
		return string(h.raw[:at])
	case KindFile:
		return string(h.raw[:1]) + string(h.raw[9:])
	}
	return string(h.raw)
}

// String names the place for people.
func (h StreamHandle) String() string {
	switch h.Kind() {
	case KindByteStream:
		return "inline " + h.Name()
	case KindFile, KindRelativeFile:
		return h.Path()
	case KindSegment:
		return fmt.Sprintf("%s@%d", h.Path(), h.StartPos())
	case KindKeyGroups:
		return h.Inner().String()
	}
	return h.Kind().String()
}

// maxNesting bounds handles inside handles.
const maxNesting = 64

// streamHandle reads a handle; it may be null.
func (d *decoder) streamHandle(depth int) StreamHandle {
	at := d.at
	switch tag := d.u8(fieldTag); HandleKind(tag) {
	case KindNull, KindEmptySegment:
	case KindByteStream:
		d.utf(fieldHandleName)
		d.bytes(fieldInlineData)
	case KindFile:
		d.size()
		d.utf(fieldPath)
	case KindRelativeFile:
		d.utf(fieldPath)
		d.size()
	case KindSegment:
		d.i64(fieldSegment)
		d.i64(fieldSegment)
		scopeAt := d.at
		if s := d.i32(fieldScope); s != int(ScopeExclusive) && s != int(ScopeShared) {
			d.fail(scopeAt, "unknown scope of a segment: %d", s)
		}
		d.utf(fieldPath)
		d.utf(fieldLogicalID)
	case KindKeyGroups:
		d.keyGroups()
		if depth >= maxNesting {
			d.fail(at, "handles nested more than %d deep", maxNesting)
			return StreamHandle{}
		}
		d.streamHandle(depth + 1)
	default:
		d.fail(at, "unknown tag of a stream handle: %d", tag)
	}
	if d.err != nil {
		return StreamHandle{}
	}
	return StreamHandle{raw: d.b[at:d.at], at: at}
}

// size reads the size of a file; -1 is unknown.
func (d *decoder) size() {
	at := d.at
	if n := d.i64(fieldSize); n < -1 {
		d.fail(at, "size of a handle: %d", n)
	}
}

// keyGroups reads a range of key groups and an offset for each.
func (d *decoder) keyGroups() (first, n int, offsets Int64s) {
	first, n = d.keyGroupRange()
	return first, n, d.offsets(fieldKeyGroupOffset, n)
}

func (d *decoder) keyGroupRange() (first, n int) {
	at := d.at
	first, n = d.i32(fieldKeyGroup), d.i32(fieldKeyGroup)
	if first < 0 || n < 0 {
		d.fail(at, "range of %d key groups from %d on", n, first)
		return 0, 0
	}
	return first, n
}

// NewByteStream returns an inline handle. Flink takes handles of one name for one
// stream, so name must be unique in a checkpoint.
func NewByteStream(name string, data []byte) (StreamHandle, error) {
	b, err := appendUTF([]byte{byte(KindByteStream)}, name)
	if err != nil {
		return StreamHandle{}, err
	}
	return StreamHandle{raw: append(appendI32(b, len(data)), data...)}, nil
}

// NewRelativeFile returns the handle of a file of size bytes beside _metadata.
func NewRelativeFile(name string, size int64) (StreamHandle, error) {
	b, err := appendUTF([]byte{byte(KindRelativeFile)}, name)
	return newHandle(appendI64(b, size), err)
}

// NewFile returns the handle of a file of size bytes by its absolute URI.
func NewFile(uri string, size int64) (StreamHandle, error) {
	return newHandle(appendUTF(appendI64([]byte{byte(KindFile)}, size), uri))
}

// NewSegment returns the handle of size bytes from start on of the file with an
// absolute URI.
func NewSegment(uri string, start, size int64, scope Scope, logicalID string) (StreamHandle, error) {
	b := appendI64(appendI64([]byte{byte(KindSegment)}, start), size)
	b, err := appendUTF(appendI32(b, int(scope)), uri)
	if err != nil {
		return StreamHandle{}, err
	}
	return newHandle(appendUTF(b, logicalID))
}

func newHandle(b []byte, err error) (StreamHandle, error) {
	if err != nil {
		return StreamHandle{}, err
	}
	return StreamHandle{raw: b}, nil
}

// ParseStreamHandle reads a handle that takes all of b.
func ParseStreamHandle(b []byte) (StreamHandle, error) {
	d := decoder{b: b, code: CodeMetadata}
	h := d.streamHandle(0)
	if d.err == nil && d.left() > 0 {
		d.fail(d.at, "%d bytes behind the handle", d.left())
	}
	if d.err != nil {
		return StreamHandle{}, &inflight.Error{Op: "parse", Object: "handle", Err: d.err}
	}
	return h, nil
}
