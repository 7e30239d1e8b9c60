package dataflow

import (
	"encoding/binary"
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// The byte stream of a connection is a sequence of elements, as in Flink
// (docs/semantics.md). These constants are in channel state and must not be
// changed.
//
//	length  uint32, big-endian, of what follows
//	tag     1 byte
//	time    int64, tags 0, 2 and 3 only
//	body    the rest, tag 1 and 0 only
//
// Buffers cut the stream at any byte, also inside a length.
const (
	tagTimed     = 0 // a record with a timestamp
	tagPlain     = 1 // a record without one
	tagWatermark = 2
	tagMarker    = 3 // marks the time at a source, in nanoseconds since the Unix epoch
	tagStatus    = 4 // an int32: 0 active, -1 idle

	lengthBytes = 4
	timeBytes   = 8
)

// maxElement bounds the length of an element before memory is taken for it.
const maxElement = 64 << 20

// Record is what flows. Body is valid only during the call that is given the
// record; Emit copies it.
type Record struct {
	Body  []byte
	Time  int64 // event time in milliseconds, if Timed
	Timed bool
}

// elementSize is how many bytes an element with n bytes of body takes.
func elementSize(tag byte, n int) int {
	if hasTime(tag) {
		n += timeBytes
	}
	return lengthBytes + 1 + n
}

func hasTime(tag byte) bool { return tag == tagTimed || tag == tagWatermark || tag == tagMarker }

// putHead writes the head of an element of size bytes, and returns its length.
func putHead(b []byte, tag byte, time int64, size int) int {
	binary.BigEndian.PutUint32(b, uint32(size-lengthBytes))
	b[lengthBytes] = tag
	if hasTime(tag) {
		binary.BigEndian.PutUint64(b[lengthBytes+1:], uint64(time))
		return lengthBytes + 1 + timeBytes
	}
	return lengthBytes + 1
}

// element is a decoded element; its record's body points into a buffer.
type element struct {
	tag    byte
	record Record
	status int32
}

// parseElement decodes p, an element without its length.
func parseElement(p []byte) (e element, err error) {
	if len(p) == 0 {
		return e, fmt.Errorf("an element of no bytes: %w", inflight.ErrCorrupt)
	}
	e.tag, p = p[0], p[1:]
	switch {
	case e.tag == tagPlain:
		e.record.Body = p
	case e.tag == tagTimed && len(p) >= timeBytes, (e.tag == tagWatermark || e.tag == tagMarker) && len(p) == timeBytes:
		e.record = Record{Time: int64(binary.BigEndian.Uint64(p)), Body: p[timeBytes:], Timed: true}
	case e.tag == tagStatus && len(p) == 4:
		e.status = int32(binary.BigEndian.Uint32(p))
	default:
		return e, fmt.Errorf("tag %d with %d bytes: %w", e.tag, len(p), inflight.ErrCorrupt)
	}
	return e, nil
}

// deserializer cuts the buffers of one channel into elements. At any time it
// holds at most one buffer, and the beginning of an element that goes on in
// the next one.
type deserializer struct {
	cur  view // what is not read yet; seg nil: none
	span []byte
	// lent: the span was given to a capture, so its memory is not reused.
	lent  bool
	epoch inflight.Epoch // of the first byte of span
}

// feed gives the deserializer its next buffer; the last one must be exhausted.
func (d *deserializer) feed(v view) { d.cur = v }

// has reports whether there is a buffer to read from.
func (d *deserializer) has() bool { return d.cur.seg != nil }

// next returns the next whole element, valid until done is called. When the
// buffer is exhausted it is released, and next returns nil.
func (d *deserializer) next() ([]byte, error) {
	if !d.has() {
		return nil, nil
	}
	if p := d.whole(); p != nil {
		return p, nil
	}
	return d.spanning(d.cur.bytes())
}

// whole returns the next element if it lies in one buffer, as nearly all do.
func (d *deserializer) whole() []byte {
	p := d.cur.seg.b[d.cur.off:d.cur.end]
	if len(d.span) > 0 || len(p) < lengthBytes {
		return nil
	}
	n := uint64(binary.BigEndian.Uint32(p)) + lengthBytes
	if n > uint64(len(p)) {
		return nil
	}
	d.cur.off += int(n)
	return p[lengthBytes:n]
}

// spanning collects an element that lies in more than one buffer.
func (d *deserializer) spanning(p []byte) ([]byte, error) {
	if n := min(lengthBytes-len(d.span), len(p)); n > 0 {
		if len(d.span) == 0 {
			d.epoch = d.cur.seg.epoch
		}
		d.span = append(d.span, p[:n]...)
		d.cur.off += n
		p = p[n:]
	}
	if len(d.span) >= lengthBytes {
		size := binary.BigEndian.Uint32(d.span)
		if size > maxElement {
			return nil, fmt.Errorf("an element of %d bytes: %w", size, inflight.ErrTooLarge)
		}
		n := min(lengthBytes+int(size)-len(d.span), len(p))
		d.span = append(d.span, p[:n]...)
		d.cur.off += n
		if len(d.span) == lengthBytes+int(size) {
			return d.span[lengthBytes:], nil
		}
	}
	d.drop()
	return nil, nil
}

// done ends the use of the element that next returned. An element that was
// handed to the operator must not be captured any more: it would be replayed.
func (d *deserializer) done() {
	if len(d.span) > 0 {
		d.forget()
	}
	if d.cur.off == d.cur.end {
		d.drop()
	}
}

// forget empties the span.
func (d *deserializer) forget() {
	if d.lent {
		d.span, d.lent = nil, false
	}
	d.span = d.span[:0]
}

func (d *deserializer) drop() {
	if d.cur.seg != nil {
		d.cur.seg.release()
		d.cur = view{}
	}
}

// rest is how many bytes were taken in and not handed out.
func (d *deserializer) rest() int { return d.cur.len() + len(d.span) }

// lend returns what rest counts, for a capture: the partial element first,
// then what is left of the buffer.
func (d *deserializer) lend() (vs []view) {
	if n := len(d.span); n > 0 {
		d.lent = true
		seg := heapSegment(d.span[:n:n], d.epoch)
		vs = append(vs, view{seg, 0, n})
	}
	if d.cur.len() > 0 {
		vs = append(vs, d.cur.retain())
	}
	return vs
}
