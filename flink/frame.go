package flink

import (
	"encoding/binary"
	"fmt"
)

// ElementKind is the tag of a stream element. The numbers are Flink's.
type ElementKind uint8

// The kinds of stream elements.
const (
	ElementTimestamped       ElementKind = 0 // a record with a timestamp
	ElementRecord            ElementKind = 1 // a record without one
	ElementWatermark         ElementKind = 2
	ElementLatencyMarker     ElementKind = 3
	ElementWatermarkStatus   ElementKind = 4
	ElementAttributes        ElementKind = 5
	ElementInternalWatermark ElementKind = 6

	elementKinds = 7
)

// String returns a word for the kind, as used in JSON.
func (k ElementKind) String() string {
	if k < elementKinds {
		return [elementKinds]string{"record", "record", "watermark", "latency-marker", "watermark-status", "attributes", "internal-watermark"}[k]
	}
	return fmt.Sprintf("element(%d)", uint8(k))
}

// IsRecord reports whether the element carries a value of the user's.
func (k ElementKind) IsRecord() bool { return k <= ElementRecord }

// Element is one decoded stream element.
type Element struct {
	Kind ElementKind
	// Timestamp of a record or watermark, or when a latency marker was made.
	Timestamp int64
	Value     []byte // of a record: as the serializer of the edge wrote it
	// Operator and Subtask are the origin of a latency marker.
	Operator OperatorID
	Subtask  int
	Idle     bool // of a watermark status
	Backlog  bool // of attributes
	// Subpartition of an internal watermark.
	Subpartition int
}

// DecodeElement decodes a stream element, given without its length. The value
// is part of b.
func DecodeElement(b []byte) (Element, error) {
	if len(b) == 0 {
		return Element{}, corrupt(CodeElement, 0, "a stream element of 0 bytes")
	}
	var head [elementHead]byte
	copy(head[:], b)
	if text := checkElement(int64(len(b)), head); text != "" {
		return Element{}, corrupt(CodeElement, 0, "%s", text)
	}
	d := decoder{b: b, at: 1}
	e := Element{Kind: ElementKind(b[0])}
	switch e.Kind {
	case ElementTimestamped:
		e.Timestamp, e.Value = d.i64(fieldInlineData), b[d.at:]
	case ElementRecord:
		e.Value = b[d.at:]
	case ElementWatermark:
		e.Timestamp = d.i64(fieldInlineData)
	case ElementLatencyMarker:
		e.Timestamp = d.i64(fieldInlineData)
		copy(e.Operator[:], d.take(fieldInlineData, 16))
		e.Subtask = d.i32(fieldInlineData)
	case ElementWatermarkStatus:
		e.Idle = d.i32(fieldInlineData) != 0
	case ElementAttributes:
		e.Backlog = d.u8(fieldInlineData) != 0
	case ElementInternalWatermark:
		e.Subpartition = d.i32(fieldInlineData)
		e.Timestamp = d.i64(fieldInlineData)
	}
	return e, nil
}

// elementHead is how many bytes of an element say whether it can be one.
const elementHead = 5

// checkElement returns what is wrong with an element of n bytes that begins with
// head, as far as it is there.
func checkElement(n int64, head [elementHead]byte) string {
	want := int64(0)
	switch k := ElementKind(head[0]); k {
	case ElementTimestamped:
		if n < 9 {
			return fmt.Sprintf("a record with a timestamp in %d bytes", n)
		}
	case ElementRecord:
	case ElementWatermark:
		want = 9
	case ElementLatencyMarker:
		want = 29
	case ElementWatermarkStatus:
		want = 5
	case ElementAttributes:
		want = 2
	case ElementInternalWatermark:
		want = 13
	default:
		return fmt.Sprintf("unknown tag of a stream element: %d", head[0])
	}
	if want != 0 && n != want {
		return fmt.Sprintf("a %s of %d bytes instead of %d", ElementKind(head[0]), n, want)
	}
	value := binary.BigEndian.Uint32(head[1:])
	switch {
	case ElementKind(head[0]) == ElementWatermarkStatus && value != 0 && value != 1<<32-1:
		return fmt.Sprintf("unknown watermark status: %d", int32(value))
	case ElementKind(head[0]) == ElementAttributes && head[1] > 1:
		return fmt.Sprintf("unknown record attributes: %d", head[1])
	}
	return ""
}

// framer follows the records in the byte stream of a connection: a length and a
// stream element, again and again. Buffers may end anywhere. It is a value: a
// copy goes on by itself. The zero value is at a boundary.
type framer struct {
	pos   int64 // bytes seen
	whole int64 // bytes up to the last boundary
	prev  int64 // bytes up to the boundary before that
	all   int64 // elements
	other int64 // elements that are no records
	within
	last ElementKind
	bad  bool // what follows the last boundary is no record
}

// within is where in a record a framer stands: what the other side of a
// connection goes on from.
type within struct {
	need int64    // bytes of the element still to come, when got is full
	head [9]uint8 // the length, and the first bytes of the element
	got  uint8    // bytes of head
}

// boundary reports whether f is between two records.
func (f *framer) boundary() bool { return f.got == 0 && !f.bad }

// records counts the elements that are records.
func (f *framer) records() int64 { return f.all - f.other }

// elements counts all elements.
func (f *framer) elements() int64 { return f.all }

// text says what is wrong with what follows the last boundary.
func (f *framer) text() string {
	n := int64(int32(binary.BigEndian.Uint32(f.head[:])))
	if n <= 0 {
		return fmt.Sprintf("a record of %d bytes", n)
	}
	return checkElement(n, [elementHead]byte(f.head[4:]))
}

// add goes on over the bytes p.
func (f *framer) add(p []byte) {
	for len(p) > 0 && !f.bad {
		if f.got == 0 {
			if p = p[f.hop(p):]; len(p) == 0 || f.bad {
				break
			}
		}
		p = p[f.step(p):]
	}
	if f.bad {
		f.pos += int64(len(p))
	}
}

// hop goes over records that lie whole in p.
func (f *framer) hop(p []byte) (n int) {
	for n+5 <= len(p) {
		size := int64(int32(binary.BigEndian.Uint32(p[n:])))
		kind := ElementKind(p[n+4])
		if kind > ElementRecord || size < 9 && kind == ElementTimestamped || size < 1 || size > int64(len(p)-n-4) {
			break // not a record, or not whole: the careful way
		}
		f.all++
		f.prev, f.last = f.pos+int64(n), kind
		n += 4 + int(size)
	}
	f.pos += int64(n)
	if n > 0 {
		f.whole = f.pos
	}
	return n
}

// step takes the bytes of one record from p.
func (f *framer) step(p []byte) (n int) {
	for int(f.got) < len(f.head) && n < len(p) {
		if f.got >= 4 && f.need == 0 {
			break
		}
		f.head[f.got] = p[n]
		f.got++
		n++
		if f.got < 4 {
			continue
		}
		if f.got == 4 {
			f.need = int64(int32(binary.BigEndian.Uint32(f.head[:])))
			if f.need <= 0 {
				f.fail(n)
				return n
			}
		} else {
			f.need--
		}
	}
	if full := f.got == uint8(len(f.head)) || f.got > 4 && f.need == 0; !full {
		f.pos += int64(n)
		return n
	}
	size := int64(int32(binary.BigEndian.Uint32(f.head[:])))
	var head [elementHead]byte
	copy(head[:], f.head[4:f.got])
	if checkElement(size, head) != "" {
		f.fail(n)
		return n
	}
	k := int(min(f.need, int64(len(p)-n)))
	f.need, n = f.need-int64(k), n+k
	f.pos += int64(n)
	if f.need == 0 {
		f.last = ElementKind(head[0])
		if f.all++; !f.last.IsRecord() {
			f.other++
		}
		f.prev, f.whole, f.within = f.whole, f.pos, within{}
	}
	return n
}

func (f *framer) fail(n int) {
	f.pos += int64(n)
	f.bad = true
}
