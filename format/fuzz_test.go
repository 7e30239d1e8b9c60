package format

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// seeds adds the golden files to the corpus.
func seeds(f *testing.F, add func(p []byte)) {
	for _, name := range []string{"none.cstate", "s2.cstate", "zstd.cstate", "nested.cstate"} {
		t := &testing.T{}
		add(goldenFile(t, name))
	}
}

// typed fails unless err is nil or says what is wrong with the bytes.
func typed(t *testing.T, err error) {
	var fe *FormatError
	if err != nil && !errors.As(err, &fe) {
		t.Fatalf("not a typed error: %v", err)
	}
}

func FuzzFileHeader(f *testing.F) {
	seeds(f, func(p []byte) { f.Add(p[:200]) })
	f.Fuzz(func(t *testing.T, p []byte) {
		h, n, err := DecodeFileHeader(p)
		typed(t, err)
		if err == nil {
			again, err := h.append(nil)
			require.NoError(t, err)
			require.EqualValues(t, n, len(again))
		}
	})
}

// FuzzBlock mends the checksums of its input, so that what stands behind them
// is reached.
func FuzzBlock(f *testing.F) {
	id := inflight.FileID{0: 0xf1}
	seeds(f, func(p []byte) {
		for off := bytes.Index(p, []byte("SPbk")); off >= 0 && off < len(p); {
			h, err := DecodeBlockHeader(p[off:], inflight.FileID{0: 0xf1, 1: p[33], 15: p[47]}, int64(off))
			if err != nil {
				break
			}
			f.Add(p[off : off+BlockHeaderSize+int(h.Stored)])
			off += BlockHeaderSize + int(h.Stored)
		}
	})
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < BlockHeaderSize {
			return
		}
		h := BlockHeader{Kind: BlockKind(p[4]), Codec: Codec(p[5]), Stored: uint32(len(p) - BlockHeaderSize)}
		h.Raw, h.Table = uint32(p[16])|uint32(p[17])<<8|uint32(p[18])<<16, uint32(p[20])|uint32(p[21])<<8|uint32(p[22])<<16
		h.CRC = Checksum(p[BlockHeaderSize:])
		h.put(p, id, 1000)
		b, _, err := DecodeBlock(p, id, 1000, nil)
		typed(t, err)
		if err == nil {
			var table Table
			typed(t, b.ReadTable(&table))
			for i := range table.Runs {
				r := &table.Runs[i]
				if r.Flags&RunReference == 0 && r.Offset+int(r.Length) > len(b.Data) {
					t.Fatalf("a run beyond the data: %+v", r)
				}
			}
		}
		_, err = DecodeSection(p, id, 1000)
		typed(t, err)
		_, err = decodeDirEntries(p[BlockHeaderSize:], 0, nil)
		typed(t, err)
	})
}

// FuzzSection decodes the index below the pages; what is accepted encodes to
// something that decodes to the same.
func FuzzSection(f *testing.F) {
	f.Add([]byte{1, 1, 'v', 0, 7, 0, 0, 0, 0})
	seeds(f, func(p []byte) {
		s, err := Scan(context.Background(), bytes.NewReader(p), int64(len(p)), ScanOptions{})
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range s.Members {
			if m.Section != nil {
				f.Add(appendSection(nil, m.Section))
			}
		}
	})
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := parseSection(p, 0)
		typed(t, err)
		if err != nil {
			return
		}
		again, err := parseSection(appendSection(nil, s), 0)
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

func FuzzTrailer(f *testing.F) {
	seeds(f, func(p []byte) { f.Add(p[len(p)-TrailerSize:], int64(len(p)-TrailerSize)) })
	f.Fuzz(func(t *testing.T, p []byte, off int64) {
		_, err := DecodeTrailer(p, off)
		typed(t, err)
		_, err = ReadTrailer(bytes.NewReader(p), int64(len(p)))
		typed(t, err)
	})
}

// FuzzScan scans anything: no panic, no hang, and every intact-looking extent
// lies inside the file.
func FuzzScan(f *testing.F) {
	seeds(f, func(p []byte) { f.Add(p) })
	f.Fuzz(func(t *testing.T, p []byte) {
		findings := 0
		s, err := Scan(t.Context(), bytes.NewReader(p), int64(len(p)), ScanOptions{Report: func(fd inflight.Finding) {
			findings++
			if fd.Text == "" || fd.Code == "" {
				t.Fatalf("an empty finding: %+v", fd)
			}
		}})
		require.NoError(t, err)
		if !s.Sealed && findings == 0 {
			t.Fatal("neither sealed nor a finding")
		}
		for _, m := range s.Members {
			for _, e := range m.Found {
				for _, x := range e.Extents {
					if x.Ref.File == 0 && x.Ref.Offset+int64(x.Ref.Stored) > int64(len(p)) {
						t.Fatalf("beyond the file: %+v", x)
					}
				}
			}
		}
	})
}

// FuzzDirectory mends the checksums of its input, so that the entries are
// reached.
func FuzzDirectory(f *testing.F) {
	seeds(f, func(p []byte) {
		t, err := ReadTrailer(bytes.NewReader(p), int64(len(p)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p[t.DirOffset+BlockHeaderSize : t.DirOffset+t.DirLength])
	})
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > MaxPage {
			return
		}
		const at = 4096
		id := inflight.FileID{1}
		file := append(make([]byte, at+BlockHeaderSize), p...)
		sealBlock(file[at:], KindDirectory, id, at, 0)
		dir, err := ReadDirectory(bytes.NewReader(file), Trailer{DirOffset: at, DirLength: int64(len(file) - at), DirCRC: Checksum(file[at:]), FileID: id})
		typed(t, err)
		if err == nil && len(dir)*dirEntrySize != len(p) {
			t.Fatalf("%d entries in %d bytes", len(dir), len(p))
		}
	})
}

func FuzzDecodeStats(f *testing.F) {
	p, err := EncodeStats(&CheckpointStats{ID: 7, State: "completed", DurationMS: 1.5, Subtasks: []SubtaskStats{{Task: inflight.Task{Vertex: "count"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := DecodeStats(p)
		typed(t, err)
		if err == nil {
			again, err := EncodeStats(s)
			require.NoError(t, err)
			_, err = DecodeStats(again)
			require.NoError(t, err)
		}
	})
}
