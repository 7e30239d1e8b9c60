package flink

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// The vectors were written, or read back, by classes of Flink 2.3.0.

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

const (
	vectorState = `00000000000000060000000d00000000000d000000090200000000000001f400000014000000000003e80000002a00000005010000000700000009000000050100000007`

	vectorMerged = `4960672d000000060000000000000009000000000000000100036d617000057569642d3101020304050607081112131415161718
		000000020000008000000000020000000000000000000000000000000000010300000000000000000000002206000363733000000000000000440000
		00280000000100000000000000010000000000000022000000020000000000000004000000000000001f00000001040000000000000000000000110600
		03637330000000000000004400000020000000010000000000000000000000000000001100000001000000000000000e00000001000000000000000000
		00000000010300000001000000000000000d060003637330000000000000004400000020000000010000000000000000000000000000000d0000000100
		0000000000003700000000aced000570`

	vectorV3 = `4960672d0000000300000000000000070000000000000001010203040506070811121314151617180000000100000080000000000100000000000000
		00000000000000000000010000000000000000000000010000000200000000000000040000000000000012000000000000001006000363733000000000
		00000027000000010000000000000000000000000000000100000000000000 0b00000000000000070600036373300000000000000027`

	vectorV6Single = `4960672d000000060000000000000007000000000000000100036d617000057569642d310102030405060708111213141516171800000001000000
		800000000001000000000000000000000000000000000001010000000000000000000000010000000200000000000000040000000000000012000000000000
		00100600036373300000000000000027000000010200000000000000000000000000000001000000000000000b00000000000000070600036373300000000000000027`

	vectorV6Inline = `4960672d000000060000000000000007000000000000000100036d617000057569642d310102030405060708111213141516171800000001000000
		8000000000010000000000000000000000000000000000010300000000000000000000000d010003682d310000000d000000000000000568656c6c6f00000020
		000000010000000000000001000000000000000d00000001000000000000000400000000`

	vectorFinished = `4960672d00000006000000000000000500000001c96b16960000000d0000000300026d7300000001070000000200016e000000000000000000010000
		00000000000200000002000000040100016e000000030102030000000200000000000000000000000000000000000000000000fffffffe0000000675c080e282ac
		00000000000000030000000000000004000000020000000400ffffffffaced000570`

	vectorV2 = `4960672d0000000200000000000000050000000000000001000000000000000100000000000000020000000100000004000000010000000100000000ffff
		ffffffffffff0000000000000000000000000000`

	vectorProperties = `aced0005737200386f72672e6170616368652e666c696e6b2e72756e74696d652e636865636b706f696e742e436865636b706f696e7450726f706572
		7469657300000000000000020200085a00106469736361726443616e63656c6c65645a000d646973636172644661696c65645a000f64697363617264
		46696e69736865645a000f6469736361726453756273756d65645a00106469736361726453757370656e6465645a0006666f726365645a0009756e63
		6c61696d65644c000e636865636b706f696e74547970657400324c6f72672f6170616368652f666c696e6b2f72756e74696d652f636865636b706f69
		6e742f536e617073686f74547970653b787000000101000000737200326f72672e6170616368652e666c696e6b2e72756e74696d652e636865636b70
		6f696e742e436865636b706f696e7454797065d6de4f0305ae1d3a0200024c00046e616d657400124c6a6176612f6c616e672f537472696e673b4c00
		1473686172696e6746696c657353747261746567797400474c6f72672f6170616368652f666c696e6b2f72756e74696d652f636865636b706f696e74
		2f536e617073686f74547970652453686172696e6746696c657353747261746567793b787074000a436865636b706f696e747e7200456f72672e6170
		616368652e666c696e6b2e72756e74696d652e636865636b706f696e742e536e617073686f74547970652453686172696e6746696c65735374726174
		65677900000000000000001200007872000e6a6176612e6c616e672e456e756d00000000000000001200007870740010464f52574152445f4241434b
		57415244`
)

// summary lists the channels of m, one a line.
func summary(t testing.TB, m *Metadata) (lines []string) {
	for i := range m.Operators {
		for j := range m.Operators[i].Subtasks {
			for h := range m.Operators[i].Subtasks[j].Handles() {
				for c, err := range h.Channels() {
					require.NoError(t, err)
					lines = append(lines, fmt.Sprintf("%d: subtask %d %s %v size %d in %s (%d), merged %t, %d in all",
						m.Operators[i].Subtasks[j].Index, c.Subtask, c.Address, slices.Collect(c.Offsets.All()), c.StateSize, h.Delegate(), h.Delegate().Size(), h.Merged, h.StateSize()))
				}
			}
		}
	}
	return lines
}

func TestVectorsOfMetadata(t *testing.T) {
	null := "aced000570"
	for _, tc := range []struct {
		name, hex string
		size      int
		version   int
		id        inflight.CheckpointID
		channels  []string
	}{
		{"merged", vectorMerged, 311, 6, 9, []string{
			"0: subtask 0 gate 0 channel 1 [4 31] size 34 in cs0 (68), merged true, 34 in all",
			"0: subtask 0 partition 0 subpartition 0 [14] size 17 in cs0 (68), merged true, 17 in all",
			"1: subtask 1 gate 0 channel 0 [55] size 13 in cs0 (68), merged true, 13 in all",
		}},
		{"version 3", vectorV3, 175, 3, 7, []string{
			"0: subtask 0 gate 0 channel 1 [4 18] size 16 in cs0 (39), merged false, 16 in all",
			"0: subtask 0 partition 0 subpartition 0 [11] size 7 in cs0 (39), merged false, 7 in all",
		}},
		{"version 6, single", vectorV6Single + null, 189 + 5, 6, 7, []string{
			"0: subtask 0 gate 0 channel 1 [4 18] size 16 in cs0 (39), merged false, 16 in all",
			"0: subtask 0 partition 0 subpartition 0 [11] size 7 in cs0 (39), merged false, 7 in all",
		}},
		{"inline", vectorV6Inline + null, 159 + 5, 6, 7, []string{
			"0: subtask 0 gate 0 channel 1 [4] size 13 in inline h-1 (13), merged true, 13 in all",
		}},
		{"finished", vectorFinished, 159, 6, 5, nil},
		{"version 2", vectorV2, 82, 2, 5, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := unhex(t, tc.hex)
			require.Len(t, b, tc.size)
			m, err := Parse(b)
			require.NoError(t, err)
			require.Equal(t, tc.version, m.Version)
			require.Equal(t, tc.id, m.CheckpointID)
			require.Equal(t, tc.channels, summary(t, m))
			again, err := m.Rewrite(Changes{})
			require.NoError(t, err)
			require.Equal(t, b, again)
			again, err = m.Rewrite(everythingAnew(t))
			require.NoError(t, err)
			require.Equal(t, b, again)
			if m.Version < 4 {
				require.EqualValues(t, len(b), m.PropertiesOffset())
				return
			}
			require.EqualValues(t, len(b)-5, m.PropertiesOffset())
			p, err := m.Properties()
			require.NoError(t, err)
			require.True(t, p.Null)
		})
	}
}

// everythingAnew asks for what is there already, built from its parts.
func everythingAnew(t testing.TB) Changes {
	anew := func(list []ChannelHandle) (out []ChannelHandle) {
		for _, h := range list {
			var channels []Channel
			for c, err := range h.Channels() {
				require.NoError(t, err)
				channels = append(channels, c)
			}
			n := NewChannelHandle(handleAnew(t, h.Delegate()), channels, h.Merged)
			require.Equal(t, h.raw, n.raw)
			require.Equal(t, h.Delegate().raw, n.Delegate().raw)
			require.Equal(t, h.StateSize(), n.StateSize())
			out = append(out, n)
		}
		return out
	}
	return Changes{
		Channels: func(_ *Operator, s *Subtask) (input, output []ChannelHandle, changed bool) {
			return anew(s.Input), anew(s.Output), true
		},
		Handle:   func(h StreamHandle) (StreamHandle, bool) { return handleAnew(t, h), true },
		Operator: func(s *OperatorState) (*OperatorState, bool) { n := *s; n.raw, n.at = nil, 0; return &n, true },
	}
}

func handleAnew(t testing.TB, h StreamHandle) (n StreamHandle) {
	var err error
	switch h.Kind() {
	case KindByteStream:
		n, err = NewByteStream(h.Name(), h.Data())
	case KindFile:
		n, err = NewFile(h.Path(), h.Size())
	case KindRelativeFile:
		n, err = NewRelativeFile(h.Path(), h.Size())
	case KindSegment:
		n, err = NewSegment(h.Path(), h.StartPos(), h.Size(), h.Scope(), h.LogicalID())
	default:
		n = h
	}
	require.NoError(t, err)
	require.Equal(t, h.raw, n.raw)
	return n
}

func TestVectorOfFinished(t *testing.T) {
	m, err := Parse(unhex(t, vectorFinished))
	require.NoError(t, err)
	require.Equal(t, []MasterState{{Name: "ms", Version: 3, Payload: []byte{7}}}, m.Masters)
	require.Len(t, m.Operators, 2)
	o := m.Operators[0]
	require.Equal(t, "n", o.Name)
	require.Equal(t, "00000000000000010000000000000002", o.ID.String())
	require.Equal(t, []int{2, 4}, []int{o.Parallelism, o.MaxParallelism})
	require.Equal(t, []byte{1, 2, 3}, o.Coordinator.Data())
	require.False(t, o.Subtask(0).Finished)
	require.True(t, o.Subtask(1).Finished)
	o = m.Operators[1]
	require.Equal(t, "u\x00€", o.UID)
	require.True(t, o.Finished)
	require.Empty(t, o.Subtasks)
}

func TestVectorsOfHandles(t *testing.T) {
	for _, tc := range []struct{ hex, key, text string }{
		{"0100016e00000003010203", "0100016e", "inline n"},
		{"020000000000000005000966696c653a2f612f62", "02000966696c653a2f612f62", "file:/a/b"},
		{"060001620000000000000005", "06000162", "b"},
		{"0f0000000000000064000000000000000500000001000966696c653a2f612f6200026c66", "0f0000000000000064000000000000000500000001000966696c653a2f612f6200026c66", "file:/a/b@100"},
		{"030000000200000002000000000000000a00000000000000140100016e00000003010203", "030000000200000002000000000000000a00000000000000140100016e00000003010203", "inline n"},
		{"10", "10", "EmptySegmentFileStateHandle"},
		{"00", "00", "null"},
	} {
		h, err := ParseStreamHandle(unhex(t, tc.hex))
		require.NoError(t, err, tc.hex)
		require.Equal(t, tc.text, h.String())
		require.Equal(t, tc.key, hex.EncodeToString([]byte(h.Key())))
		handleAnew(t, h)
	}
	h, err := ParseStreamHandle(unhex(t, "0f0000000000000064000000000000000500000001000966696c653a2f612f6200026c66"))
	require.NoError(t, err)
	require.Equal(t, []any{int64(100), int64(5), ScopeShared, "lf"}, []any{h.StartPos(), h.Size(), h.Scope(), h.LogicalID()})
}

func TestVectorsOfKeyedState(t *testing.T) {
	parse := func(s string) *KeyedState {
		d := decoder{b: unhex(t, s), code: CodeMetadata}
		k := d.keyedState(0)
		require.Nil(t, d.err, s)
		require.Zero(t, d.left(), s)
		return k
	}
	k := parse("0c0000000200000002000000000000000a00000000000000140100016e000000030102030003736964")
	require.Equal(t, KeyedKeyGroups, k.Kind)
	require.Equal(t, []any{2, 2, "sid", int64(3)}, []any{k.FirstKeyGroup, k.KeyGroups, k.ID, k.Size()})
	require.Equal(t, MakeInt64s(10, 20), k.Offsets)
	k = parse("070000000200000002000000000000000a00000000000000140100016e00000003010203")
	require.Equal(t, "KeyGroupsSavepointStateHandle", k.Kind.String())
	k = parse(`0b0000000000000007002430303030303030302d303030302d303030312d303030302d303030303030303030303032000000000000000200000000000000630100016e
		0000000301020300000001000a3030303030312e7373740100016e000000030102030000000100084d414e49464553540100016e000000030102030003736964`)
	require.Equal(t, []any{int64(7), "00000000-0000-0001-0000-000000000002", int64(99), "000001.sst", "MANIFEST", "sid"},
		[]any{k.CheckpointID, k.BackendID, k.CheckpointedSize, k.Shared[0].LocalPath, k.Private[0].LocalPath, k.ID})
	require.EqualValues(t, 9, k.Size())
	k = parse("0900000000000000020000000000000001000000000000000200000002ffffffff000000010900000001000000010800016d")
	require.Equal(t, []any{int64(1), int64(2), 2, int64(2), "m"}, []any{k.From, k.To, k.Changes, k.ChangeBytes, k.ID})
	k = parse("0d00000000000000020000000100000000000000040100016e0000000301020300000000000000030000000000000003000166000a66696c6573797374656d")
	require.Equal(t, []any{[]int64{4}, int64(3), int64(3), "f", "filesystem"}, []any{k.FileOffsets, k.Size(), k.CheckpointedSize, k.ID, k.StorageID})
	k = parse(`0e0000000000000002000000000000000d00000001070000000200000002000000000000000a00000000000000140100016e00000003010203000000010d
		00000000000000020000000100000000000000040100016e0000000301020300000000000000030000000000000003000166000a66696c6573797374656d000000000000000c000000000000000b000163`)
	require.Equal(t, []any{int64(13), int64(12), int64(11), "c", 1, 1}, []any{k.CheckpointedSize, k.MaterializationID, k.CheckpointID, k.ID, len(k.Base), len(k.Deltas)})
	require.Len(t, slices.Collect(k.Handles()), 2)
}

func TestVectorsOfOperatorState(t *testing.T) {
	for _, tc := range []struct{ hex, kind string }{
		{"04000000010001780100000002000000000000000100000000000000020100016e00000003010203", "OperatorStreamStateHandle"},
		{`1100000001000178010000000200000000000000010000000000000002000766696c653a2f74000766696c653a2f73000f00000000000000640000000000
			00000500000000000966696c653a2f612f6200026c66`, "FileMergingOperatorStreamStateHandle"},
	} {
		b := unhex(t, tc.hex)
		d := decoder{b: b, code: CodeMetadata}
		s := d.operatorState()
		require.Nil(t, d.err)
		require.Zero(t, d.left())
		require.Equal(t, tc.kind, s.Kind())
		require.Equal(t, []NamedState{{Name: "x", Mode: ModeUnion, Offsets: MakeInt64s(1, 2)}}, s.States)
		again, err := s.append(nil)
		require.NoError(t, err)
		require.Equal(t, b, again)
	}
}

func TestVectorOfProperties(t *testing.T) {
	b := unhex(t, vectorProperties)
	require.Len(t, b, 604)
	p, err := parseProperties(b, 0)
	require.Nil(t, err)
	require.Equal(t, "CheckpointProperties{forced=false, checkpointType=CheckpointType{name='Checkpoint', sharingFilesStrategy=FORWARD_BACKWARD}, "+
		"discardSubsumed=true, discardFinished=true, discardCancelled=false, discardFailed=false, discardSuspended=false}", p.String())
	require.True(t, p.KnownType())
	require.Equal(t, len(b), p.end)
	for n := range len(b) {
		_, err := parseProperties(b[:n], 0)
		require.NotNil(t, err, n)
	}
}

func TestOperatorID(t *testing.T) {
	require.Equal(t, "e7beec23fd9f6ed5e1b8395129d43728", OperatorIDOf("keyed").String())
}

func TestModifiedUTF8(t *testing.T) {
	for s, want := range map[string]string{
		"": "0000", "a": "000161", "\x00": "0002c080", "€": "0003e282ac", "\u07ff": "0002dfbf", "\U0001F600": "0006eda0bdedb880",
	} {
		b, err := appendUTF(nil, s)
		require.NoError(t, err)
		require.Equal(t, want, hex.EncodeToString(b))
		d := decoder{b: b}
		require.Equal(t, s, d.text(fieldPath))
		require.Nil(t, d.err)
	}
	for _, bad := range []string{"0001c0", "000180", "0004f09f9880", "0002e282", "0002c041"} {
		d := decoder{b: unhex(t, bad)}
		d.utf(fieldPath)
		require.NotNil(t, d.err, bad)
	}
	_, err := appendUTF(nil, strings.Repeat("a", 65536))
	require.ErrorIs(t, err, inflight.ErrTooLarge)
	require.Equal(t, "\uFFFDx", utfString([]byte("\xed\xa0\xbdx")))
}

// Every cut and every wrong tag of a vector is an error with a place, except for
// a cut behind the last operator of a version without properties.
func TestParseCuts(t *testing.T) {
	for _, v := range []string{vectorMerged, vectorV3, vectorFinished, vectorV2} {
		b := unhex(t, v)
		for n := range len(b) {
			_, err := Parse(b[:n])
			require.Error(t, err, n)
			require.True(t, inflight.IsCorruption(err), "%d: %v", n, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	at := func(v string, offset int, b ...byte) []byte {
		p := unhex(t, v)
		copy(p[offset:], b)
		return p
	}
	for _, tc := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"empty", nil, inflight.ErrEmpty, "empty"},
		{"magic", at(vectorMerged, 0, 0), inflight.ErrForeign, "no metadata"},
		{"version 1", at(vectorMerged, 7, 1), inflight.ErrUnknownVersion, "version 1"},
		{"version 7", at(vectorMerged, 7, 7), inflight.ErrUnknownVersion, "version 7"},
		{"checkpoint id", at(vectorMerged, 8, 0x80), inflight.ErrCorrupt, "negative checkpoint id"},
		{"master states", at(vectorMerged, 16, 0xff), inflight.ErrCorrupt, "negative number of master states"},
		{"operators", at(vectorMerged, 20, 0x7f), inflight.ErrTorn, "operators cannot stand"},
		{"name", at(vectorMerged, 26, 0xff), inflight.ErrCorrupt, "modified UTF-8"},
		{"parallelism", at(vectorMerged, 52, 0x70), inflight.ErrCorrupt, "parallelism"},
		{"coordinator", at(vectorMerged, 60, 16), inflight.ErrCorrupt, "coordinator state is a EmptySegment"},
		{"subtasks", at(vectorMerged, 61, 0x10), inflight.ErrTorn, "subtasks cannot stand"},
		{"subtask index", at(vectorMerged, 65, 0, 0, 0, 2), inflight.ErrCorrupt, "subtask 2 of 2"},
		{"operator state", at(vectorMerged, 69, 1), inflight.ErrCorrupt, "operator state"},
		{"keyed tag", at(vectorMerged, 77, 99), inflight.ErrCorrupt, "keyed state handle: 99"},
		{"input tag", at(vectorMerged, 83, 4), inflight.ErrCorrupt, "input channel handle: 4"},
		{"null delegate", at(vectorMerged, 96, 0), inflight.ErrCorrupt, "points nowhere"},
		{"delegate", at(vectorMerged, 96, 9), inflight.ErrCorrupt, "stream handle: 9"},
		{"list", at(vectorMerged, 110, 0x70), inflight.ErrTorn, "list of a merged handle"},
		{"negative list", at(vectorMerged, 110, 0xf0), inflight.ErrCorrupt, "negative length"},
		{"offsets", at(vectorV3, 83, 0x40), inflight.ErrTorn, "offsets"},
		{"coordinator of a finished operator", bytes.Replace(unhex(t, vectorFinished), unhex(t, "0000000400ffffffff"), unhex(t, "0000000401000000000000ffffffff"), 1), inflight.ErrCorrupt, "had finished"},
		{"master magic", at(vectorFinished, 20, 0), inflight.ErrCorrupt, "magic number of a master"},
		{"master length", at(vectorFinished, 27, 0), inflight.ErrCorrupt, "length of a master state: 0"},
		{"master rest", at(vectorFinished, 27, 14), inflight.ErrCorrupt, "master state of 14 bytes"},
		{"legacy state", at(vectorV2, 71, 1), inflight.ErrCorrupt, "legacy state"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(tc.b)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			var f *FormatError
			require.ErrorAs(t, err, &f)
			require.Equal(t, CodeMetadata, f.Code)
		})
	}
}

func TestPropertiesEncode(t *testing.T) {
	b := unhex(t, vectorProperties)
	p, err := parseProperties(b, 0)
	require.Nil(t, err)
	require.Equal(t, b, p.encode())
	text, fatal := p.problem(b)
	require.Empty(t, text)
	require.False(t, fatal)
}
