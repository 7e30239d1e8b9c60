package flink

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

// store puts files into a store in memory.
func store(t testing.TB, files map[string][]byte) backends.Backend {
	b := mem.New(mem.Options{})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	for name, p := range files {
		require.NoError(t, writeFile(t.Context(), b, name, p))
	}
	return b
}

// texts lists the elements of channels.
func texts(t testing.TB, c *Checkpoint, x *Index, channels ...int) (list []string) {
	for e, err := range c.Elements(context.WithoutCancel(t.Context()), x, channels...) {
		if err != nil {
			return append(list, err.Error())
		}
		list = append(list, fmt.Sprintf("%s %d %x", e.Kind, e.Timestamp, e.Value))
	}
	return list
}

func TestVectorOfState(t *testing.T) {
	b := store(t, map[string][]byte{"chk-9/_metadata": unhex(t, vectorMerged), "chk-9/cs0": unhex(t, vectorState)})
	c, err := Open(t.Context(), b, "chk-9", OpenOptions{})
	require.NoError(t, err)
	x := c.Index()
	require.Equal(t, []string{"record 1000 0000002a", "record 0 00000007"}, texts(t, c, x, 0))
	require.Equal(t, []string{"watermark 500 "}, texts(t, c, x, 1))
	require.Equal(t, []string{"record 0 00000007"}, texts(t, c, x, 2))
	r, err := c.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, "1 × warning operator", codes(r.Findings)) // its id is not that of its uid

	// The metadata file itself may be what is pointed at, under any name.
	b = store(t, map[string][]byte{"here/metadata": unhex(t, vectorMerged), "here/cs0": unhex(t, vectorState)})
	c, err = Open(t.Context(), b, "here/metadata", OpenOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"here", "metadata"}, []string{c.Dir, c.Name})
	r, err = c.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, "1 × warning operator", codes(r.Findings))
	_, err = Open(t.Context(), b, "there", OpenOptions{})
	require.ErrorIs(t, err, inflight.ErrNotExist)
}

func TestStateWriter(t *testing.T) {
	var buf bytes.Buffer
	w := NewStateWriter(&buf)
	require.Zero(t, w.Size())
	want := unhex(t, vectorState)
	var offsets []int64
	for _, p := range [][]byte{want[8:14], want[18:31], want[35:55], want[59:68]} {
		off, err := w.Append(p)
		require.NoError(t, err)
		offsets = append(offsets, off)
	}
	require.Equal(t, want, buf.Bytes())
	require.Equal(t, []int64{4, 14, 31, 55}, offsets)
	require.EqualValues(t, 68, w.Size())
}

func TestElements(t *testing.T) {
	for _, tc := range []struct {
		hex  string
		want Element
		text string
	}{
		{"00 0000000000000001 aabb", Element{Kind: ElementTimestamped, Timestamp: 1, Value: []byte{0xaa, 0xbb}}, ""},
		{"01", Element{Kind: ElementRecord, Value: []byte{}}, ""},
		{"02 7fffffffffffffff", Element{Kind: ElementWatermark, Timestamp: 1<<63 - 1}, ""},
		{"03 0000000000000005 0102030405060708 1112131415161718 00000003", Element{Kind: ElementLatencyMarker, Timestamp: 5, Operator: OperatorID{1, 2, 3, 4, 5, 6, 7, 8, 17, 18, 19, 20, 21, 22, 23, 24}, Subtask: 3}, ""},
		{"04 00000000", Element{Kind: ElementWatermarkStatus}, ""},
		{"04 ffffffff", Element{Kind: ElementWatermarkStatus, Idle: true}, ""},
		{"05 01", Element{Kind: ElementAttributes, Backlog: true}, ""},
		{"06 00000002 0000000000000009", Element{Kind: ElementInternalWatermark, Subpartition: 2, Timestamp: 9}, ""},
		{"", Element{}, "0 bytes"},
		{"00 00", Element{}, "a record with a timestamp in 2 bytes"},
		{"02 00", Element{}, "a watermark of 2 bytes instead of 9"},
		{"04 00000001", Element{}, "unknown watermark status: 1"},
		{"05 02", Element{}, "unknown record attributes: 2"},
		{"07", Element{}, "unknown tag of a stream element: 7"},
	} {
		e, err := DecodeElement(unhex(t, tc.hex))
		if tc.text != "" {
			require.ErrorContains(t, err, tc.text)
			require.ErrorIs(t, err, inflight.ErrCorrupt)
			continue
		}
		require.NoError(t, err, tc.hex)
		require.Equal(t, tc.want, e)
	}
}
