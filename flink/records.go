package flink

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/spillway-io/spillway/inflight"
)

// MaxElement is the largest stream element that Elements puts together, in bytes.
const MaxElement = 256 << 20

// Elements yields the stream elements in channels of x, one after the other: for
// a connection, its input channel and then its subpartition. The value of an
// element is valid until the next step. Bytes that are no element, and a last
// element that does not end, are an error, which ends the iteration.
func (c *Checkpoint) Elements(ctx context.Context, x *Index, channels ...int) iter.Seq2[Element, error] {
	return func(yield func(Element, error) bool) {
		var rest []byte // of a record that began in an earlier buffer
		r := c.Reader(x)
		defer r.Close()
		for _, i := range channels {
			for b, err := range r.Buffers(ctx, i) {
				if err != nil {
					yield(Element{}, err)
					return
				}
				data := b.Bytes
				if len(rest) > 0 {
					rest = append(rest, data...)
					data = rest
				}
				n, ok := elements(data, yield)
				if !ok {
					return
				}
				rest = append(rest[:0], data[n:]...)
			}
		}
		if len(rest) > 0 {
			yield(Element{}, corrupt(CodeRecordFraming, -1, "the last %d bytes are the beginning of a record", len(rest)))
		}
	}
}

// elements yields the elements that lie whole in p and returns how many bytes
// they take; ok is false when the iteration has ended.
func elements(p []byte, yield func(Element, error) bool) (n int, ok bool) {
	for len(p)-n >= 4 {
		size := int64(int32(binary.BigEndian.Uint32(p[n:])))
		if size <= 0 || size > MaxElement {
			yield(Element{}, &FormatError{Code: CodeElement, Offset: -1, Text: fmt.Sprintf("a record of %d bytes", size), Err: inflight.ErrCorrupt})
			return n, false
		}
		if size > int64(len(p)-n-4) {
			break
		}
		e, err := DecodeElement(p[n+4 : n+4+int(size)])
		if !yield(e, err) || err != nil {
			return n, false
		}
		n += 4 + int(size)
	}
	return n, true
}
