package flink

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// TestFindings makes one thing wrong at a time in the handles of vector 11.2.
func TestFindings(t *testing.T) {
	file := func(size int64) StreamHandle {
		h, err := NewRelativeFile("cs0", size)
		require.NoError(t, err)
		return h
	}
	inline := func(name string, data ...byte) StreamHandle {
		h, err := NewByteStream(name, data)
		require.NoError(t, err)
		return h
	}
	must := func(h StreamHandle, err error) StreamHandle { require.NoError(t, err); return h }
	in := func(subtask, gate, channel int, size int64, offsets ...int64) Channel {
		return Channel{Subtask: subtask, Address: inflight.InputChannel{Gate: gate, Channel: channel}.Address(), StateSize: size, Offsets: MakeInt64s(offsets...)}
	}
	out := Channel{Address: inflight.Subpartition{}.Address(), StateSize: 17, Offsets: MakeInt64s(14)}
	one := func(h StreamHandle, c ...Channel) ChannelHandle { return NewChannelHandle(h, c, true) }
	right := [][]ChannelHandle{{one(file(68), in(0, 0, 1, 34, 4, 31))}, {one(file(68), out)}, {one(file(68), in(1, 0, 0, 13, 55))}}
	seven := []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5, 1, 0, 0, 0, 7} // record 7, inline
	for _, tc := range []struct {
		name string
		in0  []ChannelHandle
		out0 []ChannelHandle
		in1  []ChannelHandle
		want string
	}{
		{"right", right[0], right[1], right[2], "right"},
		{"a chunk of two channels", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 55), in(1, 0, 1, 13, 55))}, "1 × error chunk-overlap"},
		{"a chunk inside another", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 55), in(1, 0, 1, 9, 59))}, "1 × error chunk-overlap, 1 × error record-framing"},
		{"a channel twice", right[0], right[1], append(slices.Clone(right[2]), right[2]...), "1 × error chunk-overlap, 1 × error duplicate-channel"},
		{"a chunk in the header", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 0, 55))}, "1 × error chunk-range"},
		{"a negative offset", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, -5, 55))}, "1 × error chunk-range"},
		{"a chunk at the end", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 55, 68))}, "1 × error chunk-range"},
		{"a chunk beyond the end", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 55, 1<<40))}, "1 × error chunk-range"},
		{"no chunk", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 13, 55), in(1, 0, 1, 0))}, "1 × warning empty-handle"},
		{"a chunk of nobody", right[0], right[1], nil, "1 × warning dead-bytes"},
		{"another subtask", right[0], right[1], []ChannelHandle{one(file(68), in(0, 0, 0, 13, 55))}, "1 × error channel-subtask"},
		{"no such channel", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 2, 13, 55))}, "1 × error channel-index"},
		{"a negative gate", right[0], right[1], []ChannelHandle{one(file(68), in(1, -1, 0, 13, 55))}, "1 × error channel-index"},
		{"another size of the channel", right[0], right[1], []ChannelHandle{one(file(68), in(1, 0, 0, 14, 55))}, "1 × warning state-size"},
		{"another size of the file", right[0], right[1], []ChannelHandle{one(file(69), in(1, 0, 0, 13, 55))}, "2 × error wrong-size"},
		{"inline", right[0], right[1], []ChannelHandle{one(inline("a", seven...), in(1, 0, 0, 17, 4))}, "1 × warning dead-bytes"},
		{"inline, one name", []ChannelHandle{one(inline("a", seven...), in(0, 0, 0, 17, 4))}, nil,
			[]ChannelHandle{one(inline("a", slices.Concat(seven[:16], []byte{8})...), in(1, 0, 0, 17, 4))}, "1 × error chunk-overlap, 1 × error inline-name, 1 × warning foreign-file"},
		{"a missing file", right[0], right[1], []ChannelHandle{one(must(NewRelativeFile("cs1", 9)), in(1, 0, 0, 13, 4))}, "1 × error missing-file, 1 × warning dead-bytes"},
		{"a path upwards", right[0], right[1], []ChannelHandle{one(must(NewRelativeFile("../../../etc/passwd", 9)), in(1, 0, 0, 13, 4))}, "1 × error unresolvable, 1 × warning dead-bytes"},
		{"an unknown store", right[0], right[1], []ChannelHandle{one(must(NewFile("oss://bucket/x", 9)), in(1, 0, 0, 13, 4))}, "1 × error unresolvable, 1 × warning dead-bytes"},
		{"no path", right[0], right[1], []ChannelHandle{one(must(NewFile("x", 9)), in(1, 0, 0, 13, 4))}, "1 × error unresolvable, 1 × warning dead-bytes"},
		{"the middle of a record", right[0], []ChannelHandle{one(file(68), out, Channel{Address: inflight.Subpartition{Subpartition: 1}.Address(), StateSize: 13, Offsets: MakeInt64s(55)})},
			[]ChannelHandle{one(inline("a", append([]byte{0, 0, 0, 0, 0, 0, 0, 6}, seven[8:14]...)...), in(1, 0, 0, 14, 4))}, "1 × error record-framing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := Parse(unhex(t, vectorMerged))
			require.NoError(t, err)
			raw, err := m.Rewrite(Changes{Channels: func(_ *Operator, s *Subtask) (input, output []ChannelHandle, changed bool) {
				if s.Index == 0 {
					return tc.in0, tc.out0, true
				}
				return tc.in1, nil, true
			}})
			require.NoError(t, err)
			raw = bytes.Replace(raw, m.Operators[0].ID[:], idOf("uid-1"), 1)
			b := store(t, map[string][]byte{"chk-9/_metadata": raw, "chk-9/cs0": unhex(t, vectorState)})
			r, err := Verify(t.Context(), b, "chk-9", VerifyOptions{OpenOptions: OpenOptions{OpenURL: nowhere}})
			require.NoError(t, err)
			require.Equal(t, tc.want, codes(r.Findings), r.Findings)
		})
	}
}

func idOf(uid string) []byte { id := OperatorIDOf(uid); return id[:] }

// TestSavepoints has savepoints with what they cannot have.
func TestSavepoints(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fixture string
		change  func(m *Metadata) []byte
		want    string
	}{
		{"channel state", "savepoint-native", func(m *Metadata) []byte {
			data := []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5, 1, 0, 0, 0, 7}
			h, _ := NewByteStream("x", data)
			raw, err := m.Rewrite(Changes{Channels: func(o *Operator, s *Subtask) (in, out []ChannelHandle, changed bool) {
				c := Channel{Address: inflight.InputChannel{}.Address(), StateSize: int64(len(data)), Offsets: MakeInt64s(4)}
				return []ChannelHandle{NewChannelHandle(h, []Channel{c}, true)}, nil, o.ID == m.Operators[0].ID && s.Index == 0
			}})
			require.NoError(t, err)
			return raw
		}, "1 × error savepoint"},
		{"null properties", "savepoint-native", func(m *Metadata) []byte {
			raw, err := m.Rewrite(Changes{NullProperties: true})
			require.NoError(t, err)
			return raw
		}, "1 × warning savepoint"},
		{"a checkpoint with null properties", "aligned-2x2", func(m *Metadata) []byte {
			raw, err := m.Rewrite(Changes{NullProperties: true})
			require.NoError(t, err)
			return raw
		}, "right"},
		{"another release", "savepoint-canonical", func(m *Metadata) []byte {
			return bytes.Replace(m.raw, []byte("SavepointType\xa0\x87"), []byte("SavepointType\xa0\x88"), 1)
		}, "1 × error properties"},
		{"an unknown constant", "savepoint-canonical", func(m *Metadata) []byte {
			return bytes.Replace(m.raw, []byte("\x00\x09CANONICAL"), []byte("\x00\x09CANONICAI"), 1)
		}, "1 × error properties"},
		{"another class", "aligned-2x2", func(m *Metadata) []byte {
			return bytes.Replace(m.raw, []byte("checkpoint.CheckpointProperties"), []byte("checkpoint.CheckpointPropertied"), 1)
		}, "1 × error properties"},
		{"no stream", "aligned-2x2", func(m *Metadata) []byte {
			return bytes.Replace(m.raw, []byte{0xAC, 0xED, 0, 5}, []byte{0xAC, 0xED, 0, 6}, 1)
		}, "1 × error properties"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := flinktest.Unpack(t, tc.fixture)
			b := local.New(root)
			defer b.Close()
			dir := flinktest.CheckpointDir(t, root)
			c, err := Open(t.Context(), b, dir, OpenOptions{})
			require.NoError(t, err)
			raw := tc.change(c.Metadata)
			require.NotEqual(t, c.raw, raw)
			r, err := Verify(t.Context(), &overlay{Backend: b, name: dir + "/_metadata", bytes: raw}, dir, VerifyOptions{})
			require.NoError(t, err)
			require.Equal(t, tc.want, codes(r.Findings), r.Findings)
		})
	}
}
