// Package payload makes the bytes that the benchmarks capture: the same for
// every implementation, so that files and digests can be compared (see
// bench/README.md).
package payload

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// Side tells the two ends of a connection apart. The numbers are part of the
// payload's seed.
type Side int

// The sides of a channel.
const (
	Input  Side = 0
	Output Side = 1
)

// Kind says what the bytes look like.
type Kind string

// The kinds of payload.
const (
	Random Kind = "random" // incompressible
	JSON   Kind = "json"   // records of about 1,000 bytes, each behind its big-endian length
)

const seed = 0x464C494E4B323033 // "FLINK203"

var events = [8]string{"click", "view", "cart", "purchase", "login", "logout", "search", "refund"}

var words = strings.Fields("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november" +
	" oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu stream state channel buffer" +
	" barrier checkpoint window operator source sink key group value record event time watermark latency" +
	" throughput network memory segment pool task slot manager job vertex subtask parallel restore snapshot" +
	" aligned unaligned offset handle metadata commit")

// splitMix64 is the generator of that name.
type splitMix64 uint64

func (r *splitMix64) next() uint64 {
	*r += 0x9E3779B97F4A7C15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// Fill fills p with the beginning of a channel's byte stream.
func Fill(p []byte, kind Kind, subtask int, side Side, channel int) {
	r := splitMix64(seed ^ (uint64(subtask)<<32 | uint64(side)<<16 | uint64(channel)))
	if kind == JSON {
		fillJSON(p, &r)
		return
	}
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, r.next())
	}
	if len(p) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.next())
		copy(p, last[:])
	}
}

// fillJSON writes records until p is full; the last one is cut.
func fillJSON(p []byte, r *splitMix64) {
	var rec []byte
	for n := 0; len(p) > 0; n++ {
		rec = append(rec[:0], 0, 0, 0, 0)
		rec = fmt.Appendf(rec, `{"id":"%016x","ts":%d,"user":"user_`, r.next(), 1700000000000+n)
		rec = fmt.Appendf(rec, `%05d","event":"`, r.next()%100000)
		rec = append(rec, events[r.next()%8]...)
		a := r.next() % 1000000
		rec = fmt.Appendf(rec, `","amount":%d.%02d,"msg":"`, a/100, a%100)
		start := len(rec)
		for len(rec)-start < 880 {
			if len(rec) > start {
				rec = append(rec, ' ')
			}
			rec = append(rec, words[r.next()%64]...)
		}
		rec = append(rec, `"}`...)
		binary.BigEndian.PutUint32(rec, uint32(len(rec)-4))
		p = p[copy(p, rec):]
	}
}

// Channel returns the first n bytes of a channel's stream.
func Channel(kind Kind, subtask int, side Side, channel, n int) []byte {
	p := make([]byte, n)
	Fill(p, kind, subtask, side, channel)
	return p
}

// Check returns the SHA-256 of six channels, a line each, in the form in which
// every generator of this payload prints them.
func Check() string {
	var b strings.Builder
	for _, kind := range []Kind{Random, JSON} {
		for _, c := range []struct {
			sub  int
			side Side
			ch   int
			n    int
		}{{0, Input, 0, 262144}, {63, Output, 7, 25600}, {5, Output, 3, 262144}} {
			fmt.Fprintf(&b, "%s sub=%d dir=%d ch=%d n=%d %x\n", kind, c.sub, c.side, c.ch, c.n,
				sha256.Sum256(Channel(kind, c.sub, c.side, c.ch, c.n)))
		}
	}
	return b.String()
}
