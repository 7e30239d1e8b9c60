package flink

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spillway-io/spillway/inflight"
)

// decoder walks over bytes of a Java DataOutputStream. The first error sticks;
// after it every read yields zero. Nothing is allocated on the word of a length:
// what is yielded are parts of b.
type decoder struct {
	b     []byte
	at    int
	base  int64  // what Offset of an error counts from
	code  string // of errors
	err   *FormatError
	trace func(f field, at, end int) // for tests; may be nil
	odd   []*FormatError             // what Flink reads and does not write
}

// note remembers something that Flink reads and does not write.
func (d *decoder) note(at int, format string, args ...any) {
	if d.err == nil && len(d.odd) < maxOdd {
		d.odd = append(d.odd, corrupt(d.code, d.base+int64(at), format, args...))
	}
}

// maxOdd bounds how many oddities are remembered.
const maxOdd = 1000

func (d *decoder) left() int { return len(d.b) - d.at }

func (d *decoder) fail(at int, format string, args ...any) {
	if d.err == nil {
		d.err = corrupt(d.code, d.base+int64(at), format, args...)
	}
}

// take returns the next n bytes.
func (d *decoder) take(f field, n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > d.left() {
		d.err = torn(d.code, d.base+int64(d.at), "%s: %d bytes wanted, %d left", f, n, d.left())
		return nil
	}
	p := d.b[d.at : d.at+n]
	if d.trace != nil && n > 0 {
		d.trace(f, d.at, d.at+n)
	}
	d.at += n
	return p
}

func (d *decoder) u8(f field) byte {
	if p := d.take(f, 1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) i32(f field) int {
	if p := d.take(f, 4); p != nil {
		return int(int32(binary.BigEndian.Uint32(p)))
	}
	return 0
}

func (d *decoder) i64(f field) int64 {
	if p := d.take(f, 8); p != nil {
		return int64(binary.BigEndian.Uint64(p))
	}
	return 0
}

// count reads the number of things that take at least size bytes each.
func (d *decoder) count(what string, size int) int {
	at := d.at
	n := d.i32(fieldCount)
	switch {
	case n < 0:
		d.fail(at, "negative number of %s: %d", what, n)
	case n > d.left()/size:
		if d.err == nil {
			d.err = torn(d.code, d.base+int64(at), "%d %s cannot stand in the %d bytes that are left", n, what, d.left())
		}
	default:
		return n
	}
	return 0
}

// offsets reads n numbers.
func (d *decoder) offsets(f field, n int) Int64s {
	if n > d.left()/8 && d.err == nil {
		d.err = torn(d.code, d.base+int64(d.at), "%d numbers cannot stand in the %d bytes that are left", n, d.left())
		return nil
	}
	return Int64s(d.take(f, 8*n))
}

// bytes reads a length and that many bytes.
func (d *decoder) bytes(f field) []byte {
	at := d.at
	n := d.i32(f)
	if n < 0 {
		d.fail(at, "negative length of %s: %d", f, n)
		return nil
	}
	return d.take(f, n)
}

// utf reads a string of modified UTF-8 and returns its bytes.
func (d *decoder) utf(f field) []byte {
	h := d.take(f, 2)
	if h == nil {
		return nil
	}
	p := d.take(f, int(binary.BigEndian.Uint16(h)))
	for i, c := range p {
		if c >= utf8.RuneSelf {
			if !validUTF(p[i:]) {
				d.fail(d.at-len(p), "%s: malformed modified UTF-8", f)
				return nil
			}
			break
		}
	}
	return p
}

func (d *decoder) text(f field) string { return utfString(d.utf(f)) }

// validUTF reports whether Java's DataInputStream.readUTF takes p.
func validUTF(p []byte) bool {
	for len(p) > 0 {
		n := 1
		switch c := p[0]; {
		case c < 0x80:
		case c>>5 == 0b110:
			n = 2
		case c>>4 == 0b1110:
			n = 3
		default:
			return false
		}
		if len(p) < n {
			return false
		}
		for _, c := range p[1:n] {
			if c>>6 != 0b10 {
				return false
			}
		}
		p = p[n:]
	}
	return true
}

// utfString turns valid modified UTF-8 into a string. Halves of surrogate pairs
// that stand alone become U+FFFD.
func utfString(p []byte) string {
	ascii := true
	for _, c := range p {
		ascii = ascii && c < utf8.RuneSelf
	}
	if ascii {
		return string(p)
	}
	var units []uint16
	for len(p) > 0 {
		switch c := p[0]; {
		case c < 0x80:
			units, p = append(units, uint16(c)), p[1:]
		case c>>5 == 0b110:
			units, p = append(units, uint16(c&0x1f)<<6|uint16(p[1]&0x3f)), p[2:]
		default:
			units, p = append(units, uint16(c&0x0f)<<12|uint16(p[1]&0x3f)<<6|uint16(p[2]&0x3f)), p[3:]
		}
	}
	return string(utf16.Decode(units))
}

// appendUTF appends s as Java's DataOutputStream.writeUTF does.
func appendUTF(b []byte, s string) ([]byte, error) {
	at := len(b)
	b = append(b, 0, 0)
	for _, r := range s {
		units := [2]uint16{uint16(r)}
		n := 1
		if r > 0xFFFF {
			hi, lo := utf16.EncodeRune(r)
			units, n = [2]uint16{uint16(hi), uint16(lo)}, 2
		}
		for _, u := range units[:n] {
			switch {
			case u != 0 && u < 0x80:
				b = append(b, byte(u))
			case u < 0x800:
				b = append(b, 0xC0|byte(u>>6), 0x80|byte(u&0x3f))
			default:
				b = append(b, 0xE0|byte(u>>12), 0x80|byte(u>>6&0x3f), 0x80|byte(u&0x3f))
			}
		}
	}
	n := len(b) - at - 2
	if n > math.MaxUint16 {
		return b[:at], &inflight.Error{Op: "encode", Object: fmt.Sprintf("%.40q…", s), Err: fmt.Errorf("%w: %d bytes of modified UTF-8, 65535 is the most", inflight.ErrTooLarge, n)}
	}
	binary.BigEndian.PutUint16(b[at:], uint16(n))
	return b, nil
}

func appendI32(b []byte, v int) []byte   { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func appendI64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// Int64s is a list of numbers as it stands in a file: big-endian, eight bytes
// each.
type Int64s []byte

// MakeInt64s returns the list of v.
func MakeInt64s(v ...int64) Int64s {
	b := make(Int64s, 0, 8*len(v))
	for _, x := range v {
		b = appendI64(b, x)
	}
	return b
}

// Len returns how many numbers there are.
func (s Int64s) Len() int { return len(s) / 8 }

// At returns the number at index i.
func (s Int64s) At(i int) int64 { return int64(binary.BigEndian.Uint64(s[8*i:])) }

// All yields the numbers.
func (s Int64s) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i := range s.Len() {
			if !yield(s.At(i)) {
				return
			}
		}
	}
}
