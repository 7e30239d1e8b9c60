package dataflow

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

// TestDeserializer cuts a stream of elements at any bytes: they come out whole
// and in order, what is lent is always exactly what was not handed out, and
// stays what it is.
func TestDeserializer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 20).Draw(t, "bodies")
		var stream []byte
		var starts []int
		for _, b := range bodies {
			starts = append(starts, len(stream))
			stream = append(appendElement(stream, tagPlain, 0, len(b)), b...)
		}
		var d deserializer
		released := 0
		fed, out := 0, 0
		type loan struct {
			views []view
			want  []byte
		}
		var loans []loan
		lend := func() {
			from := len(stream)
			if out < len(bodies) {
				from = starts[out]
			}
			require.Equal(t, fed-from, d.rest())
			loans = append(loans, loan{d.lend(), stream[from:fed]})
		}
		for fed < len(stream) {
			n := rapid.IntRange(1, min(30, len(stream)-fed)).Draw(t, "cut")
			seg := heapSegment(stream[fed:fed+n:fed+n], 0)
			seg.home = recyclerFunc(func(*segment) { released++ })
			d.feed(view{seg, 0, n})
			fed += n
			for d.has() {
				if rapid.IntRange(0, 3).Draw(t, "lend") == 0 {
					lend()
				}
				p, err := d.next()
				require.NoError(t, err)
				if p == nil {
					continue
				}
				e, err := parseElement(p)
				require.NoError(t, err)
				require.Equal(t, string(bodies[out]), string(e.record.Body))
				out++
				d.done()
			}
			if rapid.Bool().Draw(t, "lend at the end") {
				lend()
			}
		}
		require.Len(t, bodies, out)
		require.Zero(t, d.rest())
		for _, l := range loans {
			var got []byte
			for _, v := range l.views {
				got = append(got, v.Bytes()...)
			}
			require.Equal(t, string(l.want), string(got))
		}
	})
}

type recyclerFunc func(*segment)

func (f recyclerFunc) recycle(s *segment) { f(s) }

func TestDeserializerRefuses(t *testing.T) {
	var d deserializer
	huge := binary.BigEndian.AppendUint32(nil, maxElement+1)
	d.feed(view{heapSegment(huge, 0), 0, len(huge)})
	_, err := d.next()
	require.ErrorIs(t, err, inflight.ErrTooLarge)
	for _, bad := range [][]byte{{}, {0, 1}, {2, 1}, {4}, {9, 1, 1}} {
		_, err := parseElement(bad)
		require.ErrorIs(t, err, inflight.ErrCorrupt, "% x", bad)
	}
}

// appendElement appends the head of an element with n bytes of body.
func appendElement(dst []byte, tag byte, time int64, n int) []byte {
	var head [lengthBytes + 1 + timeBytes]byte
	return append(dst, head[:putHead(head[:], tag, time, elementSize(tag, n))]...)
}
