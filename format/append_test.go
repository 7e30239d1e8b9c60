package format

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

// TestAppendBuffers demands the same file as from Append, buffer by buffer.
func TestAppendBuffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks, writes := drawWrites(t)
		o := EncoderOptions{BlockSize: rapid.SampledFrom([]int{64, 4096, DefaultBlock}).Draw(t, "block"), Pool: NewPool(1 << 20)}
		h := FileHeader{Job: "job"}
		known := rapid.Bool().Draw(t, "known")
		one, all := &bytes.Buffer{}, &bytes.Buffer{}
		a, err := NewEncoder(one, "x", h, o)
		require.NoError(t, err)
		b, err := NewEncoder(nil, "x", h, o)
		require.NoError(t, err)
		take := func() {
			for c, ok := b.Take(); ok; c, ok = b.Take() {
				all.Write(c.Bytes)
				b.Recycle(c)
			}
		}
		for _, k := range tasks {
			_, err := a.Begin(k, nil)
			require.NoError(t, err)
			_, err = b.Begin(k, nil)
			require.NoError(t, err)
		}
		pos := map[channelKey]inflight.Pos{}
		for len(writes) > 0 { // calls for one channel after the other are one call
			w, bufs := writes[0], []inflight.Buffer{}
			at := inflight.PosUnknown
			if known {
				at = pos[channelKey{w.member, w.addr}]
			}
			next := at
			for ; len(writes) > 0 && writes[0].member == w.member && writes[0].addr == w.addr; writes = writes[1:] {
				p := writes[0].data
				require.NoError(t, a.Append(Member(w.member), w.addr, next, p))
				bufs = append(bufs, inflight.Bytes(p))
				next = next.Advance(uint64(len(p)), btoi(len(p) > 0))
			}
			end := at
			for len(bufs) > 0 {
				var n int
				n, end, err = b.AppendBuffers(Member(w.member), w.addr, end, bufs)
				require.NoError(t, err)
				bufs = bufs[n:]
				take()
			}
			require.Equal(t, next, end)
			pos[channelKey{w.member, w.addr}] = next
		}
		for i := range tasks {
			require.NoError(t, a.Complete(Member(i)))
			require.NoError(t, b.Complete(Member(i)))
			require.Equal(t, a.Handle(Member(i)), b.Handle(Member(i)))
		}
		infoA, err := a.Close()
		require.NoError(t, err)
		infoB, err := b.Close()
		require.NoError(t, err)
		take()
		require.Equal(t, infoA, infoB)
		require.Equal(t, one.Bytes(), all.Bytes())
	})
}
