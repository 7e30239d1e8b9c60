package flink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

// nowhere opens no store: what is fuzzed must not lead to files of this machine.
func nowhere(context.Context, string) (backends.Backend, error) {
	return nil, &inflight.Error{Op: "open", Err: inflight.ErrConfig}
}

func FuzzParse(f *testing.F) {
	for _, v := range []string{vectorMerged, vectorV3, vectorV6Single, vectorV6Inline, vectorFinished, vectorV2, vectorV6Single + vectorProperties} {
		f.Add(unhex(f, v))
	}
	for _, name := range []string{"aligned-2x2", "file-merging", "stateful-rocksdb-incremental", "finished-subtask", "flink-1.17.2-keyed-2x2"} {
		c, _ := openFixture(f, name)
		f.Add(c.raw)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			var bad *FormatError
			require.ErrorAs(t, err, &bad)
			require.True(t, inflight.IsCorruption(err) || errors.Is(err, inflight.ErrUnknownVersion), err)
			return
		}
		again, err := m.Rewrite(Changes{})
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, again))
		keep := func(_ *Operator, s *Subtask) (in, out []ChannelHandle, changed bool) { return s.Input, s.Output, true }
		if again, err = m.Rewrite(Changes{Channels: keep, NullProperties: true}); err == nil {
			n, err := Parse(again)
			require.NoError(t, err)
			require.Len(t, n.Index().Channels, len(m.Index().Channels))
		}
		store := mem.New(mem.Options{})
		defer store.Close()
		require.NoError(t, writeFile(t.Context(), store, "chk-7/_metadata", b))
		_, err = Verify(t.Context(), store, "chk-7", VerifyOptions{OpenOptions: OpenOptions{OpenURL: nowhere}})
		require.NoError(t, err)
	})
}

// FuzzState puts any bytes in the place of the channel-state file of vector
// 11.1, read by the metadata of 11.2.
func FuzzState(f *testing.F) {
	f.Add(unhex(f, vectorState))
	f.Add(unhex(f, vectorState)[:40])
	meta := unhex(f, vectorMerged)
	f.Fuzz(func(t *testing.T, b []byte) {
		store := mem.New(mem.Options{})
		defer store.Close()
		require.NoError(t, writeFile(t.Context(), store, "chk-9/_metadata", meta))
		require.NoError(t, writeFile(t.Context(), store, "chk-9/cs0", b))
		o := VerifyOptions{OpenOptions: OpenOptions{OpenURL: nowhere}}
		r, err := Verify(t.Context(), store, "chk-9", o)
		require.NoError(t, err)
		if len(r.Findings) == 0 {
			require.Len(t, b, 68)
		}
	})
}

func FuzzProperties(f *testing.F) {
	f.Add(unhex(f, vectorProperties))
	f.Add(nullProperties)
	c, _ := openFixture(f, "savepoint-native")
	f.Add(c.raw[c.tail:])
	f.Fuzz(func(_ *testing.T, b []byte) {
		if p, err := parseProperties(b, 0); err == nil {
			p.problem(b[:p.end])
			_ = p.String()
		}
	})
}

// FuzzFramer cuts a stream into pieces in any way: the records are the same.
func FuzzFramer(f *testing.F) {
	record := func(b ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	f.Add(slices.Concat(record(1, 2), record(2, 0, 0, 0, 0, 0, 0, 0, 1), record(5, 1), record(4, 0, 0, 0, 0), record(1)), uint16(3))
	f.Add(unhex(f, vectorState)[35:55], uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint16) {
		var whole, cut framer
		whole.add(b)
		for p := range slices.Chunk(b, int(step)%37+1) {
			cut.add(p)
		}
		require.Equal(t, whole, cut)
		require.LessOrEqual(t, whole.whole, whole.pos)
		require.EqualValues(t, len(b), whole.pos)
		if !whole.bad {
			n := int64(0)
			for p := b; n < whole.elements(); n++ {
				size := binary.BigEndian.Uint32(p)
				_, err := DecodeElement(p[4 : 4+size])
				require.NoError(t, err)
				p = p[4+size:]
			}
		}
	})
}

func FuzzSeal(f *testing.F) {
	s := Seal{Format: sealFormat, Version: SealVersion, Checkpoint: 7, Streams: []SealedStream{{Stream: "a", Size: 9, Rest: 1, Chunks: []SealedChunk{{4, 1, 0xdeadbeef}}}}}
	b, err := s.Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSeal(b)
		if err != nil {
			return
		}
		again, err := s.Encode()
		require.NoError(t, err)
		_, err = DecodeSeal(again)
		require.NoError(t, err)
	})
}
