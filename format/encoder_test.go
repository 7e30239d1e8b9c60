package format

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

// write is one call of Append.
type write struct {
	member int
	addr   inflight.Address
	data   []byte
}

type channelKey struct {
	member int
	addr   inflight.Address
}

// drawWrites draws calls, with positions that follow on each other.
func drawWrites(t *rapid.T) (tasks []inflight.Task, writes []write) {
	for i := range rapid.IntRange(1, 5).Draw(t, "members") {
		tasks = append(tasks, inflight.Task{Vertex: rapid.SampledFrom([]string{"src", "count", ""}).Draw(t, "vertex"), Subtask: i})
	}
	addr := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) inflight.Address {
			return inflight.InputChannel{Gate: rapid.IntRange(0, 2).Draw(t, "gate"), Channel: rapid.IntRange(0, 3).Draw(t, "channel")}.Address()
		}),
		rapid.Custom(func(t *rapid.T) inflight.Address {
			return inflight.Subpartition{Partition: rapid.IntRange(0, 1).Draw(t, "partition"), Subpartition: rapid.IntRange(0, 3).Draw(t, "sub")}.Address()
		}),
		rapid.Map(rapid.SampledFrom([]string{"counts", "offsets"}), func(s string) inflight.Address { return inflight.StateName(s).Address() }),
	)
	size := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 3000))
	for range rapid.IntRange(0, 60).Draw(t, "writes") {
		n := size.Draw(t, "size")
		b := bytes.Repeat([]byte{byte(len(writes))}, n)
		for i := 0; i < n && rapid.Bool().Draw(t, "mixed"); i += 7 {
			b[i] = byte(i * n)
		}
		writes = append(writes, write{rapid.IntRange(0, len(tasks)-1).Draw(t, "member"), addr.Draw(t, "addr"), b})
	}
	return tasks, writes
}

func TestEncoderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks, writes := drawWrites(t)
		o := EncoderOptions{
			BlockSize: rapid.SampledFrom([]int{64, 512, 4096, DefaultBlock}).Draw(t, "block"),
			PageSize:  rapid.SampledFrom([]int{64, 1024, MaxPage}).Draw(t, "page"),
			Codec:     rapid.SampledFrom([]Codec{CodecNone, CodecS2, CodecZstd, CodecAuto}).Draw(t, "codec"),
			Pool:      NewPool(1 << 20),
		}
		var file bytes.Buffer
		id := inflight.NewFileID()
		e, err := NewEncoder(&file, "chk-0000000007/g0-a.cstate", FileHeader{FileID: id, Job: "job", Checkpoint: 7, Epoch: 3, Group: "g0"}, o)
		require.NoError(t, err)
		var ms []Member
		for _, task := range tasks {
			m, err := e.Begin(task, nil)
			require.NoError(t, err)
			ms = append(ms, m)
		}
		known := rapid.Bool().Draw(t, "known")
		want := map[channelKey][][]byte{}
		pos := map[channelKey]inflight.Pos{}
		for _, w := range writes {
			k := channelKey{w.member, w.addr}
			p := inflight.PosUnknown
			if known {
				p = pos[k]
				p.Epoch = 3
			}
			require.NoError(t, e.Append(ms[w.member], w.addr, p, w.data))
			if len(w.data) > 0 {
				want[k] = append(want[k], w.data)
				pos[k] = p.Advance(uint64(len(w.data)), 1)
			}
		}
		for _, m := range ms {
			require.NoError(t, e.Complete(m))
		}
		info, err := e.Close()
		require.NoError(t, err)
		require.EqualValues(t, file.Len(), info.Size)
		require.Zero(t, o.Pool.InUse())

		got := map[channelKey][][]byte{}
		r := bytes.NewReader(file.Bytes())
		h, _, err := ReadFileHeader(r, info.Size)
		require.NoError(t, err)
		require.Equal(t, FileHeader{FileID: id, Job: "job", Checkpoint: 7, Epoch: 3, Group: "g0"}, h)
		trailer, err := ReadTrailer(r, info.Size)
		require.NoError(t, err)
		dir, err := ReadDirectory(r, trailer)
		require.NoError(t, err)
		require.Len(t, dir, len(tasks))
		for i, task := range tasks {
			seg := e.Handle(ms[i]).Segments[0]
			require.Contains(t, dir, DirEntry{Hash: TaskHash(task), Offset: seg.Offset, Length: seg.Length, CRC: seg.CRC, Status: StatusComplete})
			s, err := ReadSection(r, seg)
			require.NoError(t, err)
			require.Equal(t, task, s.Task)
			for _, entry := range s.Entries {
				k := channelKey{i, entry.Address}
				got[k] = readEntry(t, file.Bytes(), id, s, &entry)
				require.EqualValues(t, len(got[k]), entry.Buffers)
			}
		}
		require.Equal(t, want, got)
	})
}

// readEntry reads the buffers of one address the simple way.
func readEntry(t require.TestingT, file []byte, id inflight.FileID, s *Section, e *Entry) (buffers [][]byte) {
	var digest Digest
	var table Table
	for _, x := range e.Extents {
		ref := s.Blocks[x.Block]
		b, _, err := DecodeBlock(file[ref.Offset:ref.Offset+int64(ref.Stored)], id, ref.Offset, nil)
		require.NoError(t, err)
		require.NoError(t, b.ReadTable(&table))
		for _, r := range table.Runs {
			if r.Offset != int(x.Offset) || r.Address != e.Address || table.Members[r.Member] != s.Task {
				continue
			}
			require.EqualValues(t, x.Length, r.Length)
			require.Equal(t, x.Pos, r.Pos)
			at := r.Offset
			for i := range r.Pieces {
				p := b.Data[at : at+r.PieceLength(i)]
				at += len(p)
				if i == 0 && r.Flags&RunHead != 0 {
					last := &buffers[len(buffers)-1]
					*last = append(*last, p...)
				} else {
					buffers = append(buffers, bytes.Clone(p))
				}
			}
			digest = digest.Join(r.Digest, r.Length)
			require.Equal(t, r.Digest, Digest(0).Add(b.Data[r.Offset:at]))
		}
	}
	require.Equal(t, digest, e.Digest)
	return buffers
}

func TestDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SliceOf(rapid.Byte()).Draw(t, "a"), rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		da, db := Digest(0).Add(a), Digest(0).Add(b)
		whole := da.Add(b)
		require.Equal(t, whole, da.Join(db, uint64(len(b))))
		require.Equal(t, db, whole.Without(da, uint64(len(b))))
	})
}

// TestEncoderMany captures more addresses than are found by looking at each, in
// more blocks, in an order that comes back to old ones, over two files.
func TestEncoderMany(t *testing.T) {
	task := inflight.Task{Vertex: "count"}
	o := EncoderOptions{BlockSize: 64, LargestBlock: 4096, PageSize: 256, Pool: NewPool(1 << 20)}
	var carry *Carry
	want := map[inflight.Address]Entry{}
	for name, n := range []int{20, 200} {
		var file bytes.Buffer
		id := inflight.NewFileID()
		e, err := NewEncoder(&file, StateFileName(7, string(rune('a'+name)), "x"), FileHeader{FileID: id, Checkpoint: 7}, o)
		require.NoError(t, err)
		m, err := e.Begin(task, carry)
		require.NoError(t, err)
		here := map[inflight.Address]uint64{}
		for i := range 5 * n {
			a := inflight.InputChannel{Channel: i * 7 % n}.Address()
			p := bytes.Repeat([]byte{byte(i)}, 1+i%50)
			w := want[a]
			require.NoError(t, e.Append(m, a, inflight.Pos{Offset: w.Bytes, Seq: w.Buffers}, p))
			want[a] = Entry{Address: a, Buffers: w.Buffers + 1, Bytes: w.Bytes + uint64(len(p)), Digest: w.Digest.Add(p)}
			here[a] += uint64(len(p))
		}
		require.NoError(t, e.finish(m, []Status{StatusContinued, StatusComplete}[name]))
		_, err = e.Close()
		require.NoError(t, err)
		carry = e.Carry(m)
		s, err := ReadSection(bytes.NewReader(file.Bytes()), carry.prior[name])
		require.NoError(t, err)
		require.Len(t, s.Entries, n)
		require.Greater(t, len(s.Blocks), few)
		for i := range s.Entries {
			got := s.Entries[i]
			for _, x := range got.Extents {
				here[got.Address] -= uint64(x.Length)
				b, _, err := DecodeBlock(file.Bytes()[s.Blocks[x.Block].Offset:], id, s.Blocks[x.Block].Offset, nil)
				require.NoError(t, err)
				require.LessOrEqual(t, int(x.Offset+x.Length), len(b.Data))
			}
			require.Zero(t, here[got.Address])
			got.Extents = nil
			require.Equal(t, want[got.Address], got)
		}
	}
}
