package format

import (
	"fmt"
	"io"
	"testing"

	"github.com/spillway-io/spillway/inflight"
)

// BenchmarkEncoder packs 16 channels of one subtask, without I/O.
func BenchmarkEncoder(b *testing.B) {
	for _, size := range []int{200, 4096, 32768} {
		for _, codec := range []Codec{CodecNone, CodecS2} {
			b.Run(fmt.Sprintf("%d/%s", size, codec), func(b *testing.B) {
				const total = 4 << 20
				buf := fill("payload", size)
				n := total / size / 16
				b.SetBytes(int64(n * size * 16))
				b.ReportAllocs()
				for b.Loop() {
					e, err := NewEncoder(io.Discard, "chk-0000000001/g0-a.cstate", FileHeader{Job: "job"}, EncoderOptions{Codec: codec})
					if err != nil {
						b.Fatal(err)
					}
					m, _ := e.Begin(inflight.Task{Vertex: "count"}, nil)
					for c := range 16 {
						a := inflight.InputChannel{Channel: c}.Address()
						pos := inflight.Pos{}
						for range n {
							if err := e.Append(m, a, pos, buf); err != nil {
								b.Fatal(err)
							}
							pos = pos.Advance(uint64(size), 1)
						}
					}
					_ = e.Complete(m) // sticks
					if _, err := e.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkSection encodes and decodes the index of 10,000 channels.
func BenchmarkSection(b *testing.B) {
	s := &Section{Task: inflight.Task{Vertex: "count"}, Status: StatusComplete}
	for c := range 10000 {
		s.Blocks = append(s.Blocks, BlockRef{Offset: int64(100 + c*300000), Stored: 262300})
		a := inflight.InputChannel{Channel: c}.Address()
		pos := inflight.Pos{Epoch: 1, Offset: uint64(c) * 262144, Seq: uint64(c) * 8}
		s.Entries = append(s.Entries, Entry{Address: a, Buffers: 8, Bytes: 262144, Digest: Digest(c) * 0x9e3779b97f4a7c15,
			Extents: []Extent{{Block: c, Length: 262144, Pieces: 8, Flags: RunKnown, Pos: pos}}})
		s.Entries[c].SetCut(inflight.Cut{Epoch: 1, Bytes: pos.Offset, Records: uint64(c) * 100, RecordsKnown: true})
	}
	p := appendSection(nil, s)
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			p = appendSection(p[:0], s)
		}
		b.ReportMetric(float64(len(p))/10000, "B/channel")
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := parseSection(p, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
