package format

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// ScanOptions are the options of Scan.
type ScanOptions struct {
	// Name is the name of the file relative to the job directory, for the
	// segments of what is found.
	Name string
	// Object is how findings call the file. Default: Name.
	Object string
	// FileID is the identity that the file should have, where it is known: from
	// a handle or manifest. It lets blocks be verified when the header is
	// damaged, and tells a swapped file.
	FileID *inflight.FileID
	// Report receives each finding. It may be nil.
	Report func(inflight.Finding)
	// Block receives each intact data block, in order, with its run table; both
	// are valid until it returns. An error ends the scan. It may be nil.
	Block func(*Block, *Table) error
}

// Scanned is what Scan rebuilt from the blocks of a file, without directory and
// trailer.
type Scanned struct {
	Header  *FileHeader // nil if damaged
	FileID  inflight.FileID
	Sealed  bool             // directory and trailer are there and intact
	Members []*ScannedMember // in the order of their first appearance
}

// Member returns the member of task t, or nil.
func (s *Scanned) Member(t inflight.Task) *ScannedMember {
	for _, m := range s.Members {
		if m.Task == t {
			return m
		}
	}
	return nil
}

// ScannedMember is what intact blocks hold of one subtask.
type ScannedMember struct {
	Task    inflight.Task
	Section *Section         // nil: no mark was found, the subtask must not be restored
	Segment inflight.Segment // of Section
	Found   []FoundEntry     // by address, in the order of their first appearance
}

// FoundEntry is what intact blocks hold of one address.
type FoundEntry struct {
	Address inflight.Address
	Extents []FoundExtent
	// Missing are the extents that the section lists and no intact block holds.
	Missing []FoundExtent
}

// FoundExtent is an extent with its place.
type FoundExtent struct {
	Extent          // Block is not set
	Ref    BlockRef // File is 0, or 1 for a reference
	File   FileRef  // of a reference
	Digest Digest   // zero in FoundEntry.Missing
}

// Scan walks over all bytes of a file of size bytes, checks everything that can
// be checked without other files, and rebuilds the index from blocks alone.
// Damage is a finding, never an error: after it the walk goes on at the next
// intact block. It returns an error only if reading fails or ctx ends.
//
// It takes memory for one block and for the index.
func Scan(ctx context.Context, r io.ReaderAt, size int64, o ScanOptions) (*Scanned, error) {
	if o.Object == "" {
		o.Object = o.Name
	}
	if o.Report == nil {
		o.Report = func(inflight.Finding) {}
	}
	s := &scanner{ctx: ctx, r: r, size: size, o: o, members: map[inflight.Task]*ScannedMember{}, found: map[foundKey]int{}}
	pos, ok, err := s.header()
	if err != nil || !ok {
		return &s.Scanned, err
	}
	if err := s.walk(pos); err != nil {
		return &s.Scanned, err
	}
	s.compare()
	return &s.Scanned, nil
}

type foundKey struct {
	task inflight.Task
	addr inflight.Address
}

type scanner struct {
	Scanned
	ctx  context.Context
	r    io.ReaderAt
	size int64
	o    ScanOptions

	window []byte // bytes of the file from base on
	base   int64

	number  uint32 // of the next block
	resync  bool   // blocks were lost before it
	members map[inflight.Task]*ScannedMember
	found   map[foundKey]int
	table   Table
	scratch []byte
	page    pages
	dir     []DirEntry
	dirAt   int64
}

// pages is a section whose pages are being collected.
type pages struct {
	number     uint32
	next, of   int
	start, end int64
	index      []byte
	blocks     []byte // for the checksum of the segment
}

// report passes a typed error on as a finding.
func (s *scanner) report(err error) {
	var fe *FormatError
	if errors.As(err, &fe) {
		s.o.Report(fe.Finding(s.o.Object))
	}
}

// at returns n bytes from off on, fewer at the end of the file.
func (s *scanner) at(off int64, n int) ([]byte, error) {
	n = int(min(int64(n), s.size-off))
	if off >= s.base && off+int64(n) <= s.base+int64(len(s.window)) {
		return s.window[off-s.base:][:n], nil
	}
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	const step = 1 << 20
	want := int(min(int64(max(n, step)), s.size-off))
	// What is there already is kept, so that a walk reads every byte once.
	keep := 0
	if off >= s.base && off < s.base+int64(len(s.window)) {
		keep = copy(s.window, s.window[off-s.base:])
	}
	s.window, s.base = slices.Grow(s.window[:keep], want-keep)[:want], off
	if err := readFull(s.r, s.window[keep:], off+int64(keep)); err != nil {
		s.window = s.window[:0]
		return nil, err
	}
	return s.window[:n], nil
}

// header reads the file header. Without one the walk needs an identity from
// elsewhere.
func (s *scanner) header() (pos int64, ok bool, err error) {
	p, err := s.at(0, maxHeader)
	if err != nil {
		return 0, false, err
	}
	h, n, err := DecodeFileHeader(p)
	if err == nil {
		s.Header, s.FileID = &h, h.FileID
		if s.o.FileID != nil && *s.o.FileID != h.FileID {
			s.report(&FormatError{Code: CodeForeign, Offset: 0, Err: inflight.ErrForeign,
				Text: fmt.Sprintf("the file is %s of checkpoint %d of job %q; %s was expected", h.FileID, h.Checkpoint, h.Job, *s.o.FileID)})
		}
		return n, true, nil
	}
	s.report(err)
	if errors.Is(err, inflight.ErrUnknownVersion) || errors.Is(err, inflight.ErrEmpty) {
		return 0, false, nil
	}
	if s.o.FileID != nil {
		s.FileID = *s.o.FileID
	} else if t, err := ReadTrailer(s.r, s.size); err == nil {
		s.FileID = t.FileID
	} else {
		return 0, false, nil
	}
	next, err := s.next(0)
	if err != nil || next < 0 {
		return 0, false, err
	}
	s.resync = true
	return next, true, nil
}

// next returns the place of the first intact block header or trailer at or
// after off, or -1.
func (s *scanner) next(off int64) (int64, error) {
	for off < s.size {
		p, err := s.at(off, 1<<20)
		if err != nil {
			return 0, err
		}
		i := bytes.Index(p, []byte("SP"))
		if i < 0 {
			off += int64(max(1, len(p)-1)) // the magic may begin with the last byte
			continue
		}
		off += int64(i)
		if p, err = s.at(off, TrailerSize); err != nil {
			return 0, err
		}
		if _, err := DecodeBlockHeader(p, s.FileID, off); err == nil {
			return off, nil
		}
		if t, err := DecodeTrailer(p, off); err == nil && t.FileID == s.FileID {
			return off, nil
		}
		off++
	}
	return -1, nil
}

// walk goes from block to block.
func (s *scanner) walk(pos int64) error {
	for pos < s.size {
		p, err := s.at(pos, TrailerSize)
		if err != nil {
			return err
		}
		if t, err := DecodeTrailer(p, pos); err == nil && t.FileID == s.FileID {
			s.trailer(t, pos)
			return nil
		}
		h, err := DecodeBlockHeader(p, s.FileID, pos)
		if err != nil {
			next, nerr := s.next(pos + 1)
			if nerr != nil {
				return nerr
			}
			if next < 0 {
				return s.end(pos, err)
			}
			s.report(corrupt(CodeBlockHeader, pos, "%d bytes are damaged: the next intact block is at %d", next-pos, next))
			pos, s.resync = next, true
			continue
		}
		n := BlockHeaderSize + int(h.Stored)
		if s.size-pos < int64(n) {
			s.report(torn(pos, "the file ends inside a block of %d bytes", n))
			return nil
		}
		if p, err = s.at(pos, n); err != nil {
			return err
		}
		if err := s.block(h, p, pos); err != nil {
			return err
		}
		pos += int64(n)
	}
	s.report(torn(s.size, "the file ends without directory and trailer: it was never sealed, or its tail is gone"))
	return nil
}

// end reports what stands at pos when no intact block follows: a torn tail, or
// damage.
func (s *scanner) end(pos int64, err error) error {
	zeros, p := true, []byte(nil)
	for off := pos; off < s.size && zeros; off += int64(len(p)) {
		var rerr error
		if p, rerr = s.at(off, 1<<16); rerr != nil {
			return rerr
		}
		zeros = allZero(p)
	}
	if p, rerr := s.at(pos, TrailerSize); rerr != nil {
		return rerr
	} else if zeros {
		err = torn(pos, "the file ends with %d zeros: its tail was never written", s.size-pos)
	} else if k := min(len(p), 4); len(p) < BlockHeaderSize && string(p[:k]) == "SPbk"[:k] || len(p) < TrailerSize && string(p[:k]) == "SPtr"[:k] {
		err = torn(pos, "the file ends inside a block header or the trailer, after %d bytes", len(p))
	}
	s.report(err)
	return nil
}

// block takes one block with an intact header.
func (s *scanner) block(h BlockHeader, p []byte, pos int64) error {
	if h.Number != s.number && !s.resync {
		s.report(corrupt(CodeBlockHeader, pos, "block %d stands where block %d is expected", h.Number, s.number))
	}
	s.number, s.resync = h.Number+1, false
	if h.Kind == KindData {
		return s.data(p, pos)
	}
	stored, err := payload(p, h, pos)
	if err != nil {
		s.report(err)
		return nil
	}
	if h.Kind == KindDirectory {
		if s.dirAt == 0 {
			s.dirAt = pos
		}
		if s.dir, err = decodeDirEntries(stored, pos, s.dir); err != nil {
			s.report(err)
		}
		return nil
	}
	if err := s.section(p, stored, pos); err != nil {
		s.report(err)
	}
	return nil
}

// data takes a data block.
func (s *scanner) data(p []byte, pos int64) error {
	b, scratch, err := DecodeBlock(p, s.FileID, pos, s.scratch)
	s.scratch = scratch
	if err == nil {
		err = b.ReadTable(&s.table)
	}
	if err != nil {
		s.report(err)
		return nil
	}
	for i := range s.table.Runs {
		if err := s.run(&b, &s.table.Runs[i], int64(len(p))); err != nil {
			s.report(err)
		}
	}
	if s.o.Block != nil {
		return s.o.Block(&b, &s.table)
	}
	return nil
}

func (s *scanner) run(b *Block, r *Run, stored int64) error {
	m := s.member(s.table.Members[r.Member])
	x := FoundExtent{
		Extent: Extent{Offset: uint32(r.Offset), Length: uint32(r.Length), Pieces: r.Pieces, Flags: r.Flags & extentKept, Pos: r.Pos},
		Ref:    BlockRef{Offset: b.Offset, Stored: uint32(stored)}, Digest: r.Digest,
	}
	if r.Flags&RunReference != 0 {
		x.Offset, x.File = r.Target.Offset, s.table.Files[r.Target.File]
		x.Ref = BlockRef{File: 1, Offset: r.Target.BlockOffset, Stored: r.Target.Stored}
	} else if got := Digest(0).Add(b.Data[r.Offset:][:r.Length]); got != r.Digest {
		return corrupt(CodeDigest, b.Offset, "the bytes of %s %s do not have the digest of their run", m.Task, r.Address)
	}
	k := foundKey{m.Task, r.Address}
	i, ok := s.found[k]
	if !ok {
		i = len(m.Found)
		s.found[k] = i
		m.Found = append(m.Found, FoundEntry{Address: r.Address})
	}
	m.Found[i].Extents = append(m.Found[i].Extents, x)
	return nil
}

func (s *scanner) member(t inflight.Task) *ScannedMember {
	m := s.members[t]
	if m == nil {
		m = &ScannedMember{Task: t}
		s.members[t] = m
		s.Members = append(s.Members, m)
	}
	return m
}

// section takes a page of a section.
func (s *scanner) section(p, stored []byte, pos int64) error {
	number, page, of, rest, err := splitPage(stored, pos)
	if err != nil {
		return err
	}
	g := &s.page
	if page == 0 {
		*g = pages{number: number, of: of, start: pos, end: pos, index: g.index[:0], blocks: g.blocks[:0]}
	} else if g.number != number || g.next != page || g.of != of || g.end != pos {
		return corrupt(CodeSection, pos, "page %d of %d of section %d: its first pages are damaged", page, of, number)
	}
	g.next++
	g.end = pos + int64(len(p))
	g.index = append(g.index, rest...)
	g.blocks = append(g.blocks, p...)
	if g.next < g.of {
		return nil
	}
	sec, err := parseSection(bytes.Clone(g.index), g.start)
	if err != nil {
		return err
	}
	m := s.member(sec.Task)
	if m.Section != nil {
		return corrupt(CodeSection, g.start, "a second section of %s", sec.Task)
	}
	m.Section = sec
	m.Segment = inflight.Segment{File: s.o.Name, FileID: s.FileID, Offset: g.start, Length: g.end - g.start, CRC: Checksum(g.blocks)}
	if s.Header != nil && s.Header.Checkpoint != sec.Checkpoint {
		return corrupt(CodeWrongCheckpoint, g.start, "a section of checkpoint %d in a file of checkpoint %d", sec.Checkpoint, s.Header.Checkpoint)
	}
	return nil
}

// trailer takes the trailer, and compares it and the directory with what the
// walk saw.
func (s *scanner) trailer(t Trailer, pos int64) {
	if pos+TrailerSize < s.size {
		s.report(corrupt(CodeTrailingBytes, pos+TrailerSize, "%d bytes stand behind the end of the file", s.size-pos-TrailerSize))
	}
	ok := true
	fail := func(code string, at int64, format string, args ...any) {
		ok = false
		s.report(corrupt(code, at, format, args...))
	}
	if t.Blocks != s.number || s.resync {
		fail(CodeTrailer, pos, "the trailer counts %d blocks, the last one before it is number %d", t.Blocks, int64(s.number)-1)
	}
	if t.DirOffset != s.dirAt {
		fail(CodeTrailer, pos, "the trailer says that the directory is at %d; it is at %d", t.DirOffset, s.dirAt)
	} else if _, err := ReadDirectory(s.r, t); err != nil {
		ok = false
		s.report(err)
	}
	listed := map[DirEntry]bool{}
	for _, d := range s.dir {
		listed[d] = true
	}
	for _, m := range s.Members {
		if m.Section == nil {
			continue
		}
		d := DirEntry{Hash: TaskHash(m.Task), Offset: m.Segment.Offset, Length: m.Segment.Length, CRC: m.Segment.CRC, Status: m.Section.Status}
		if !listed[d] {
			fail(CodeDirectory, s.dirAt, "the directory does not list the section of %s at %d", m.Task, d.Offset)
		}
		delete(listed, d)
	}
	for d := range listed {
		fail(CodeDirectory, s.dirAt, "the directory lists a section at %d that is not there", d.Offset)
	}
	s.Sealed = ok
}

// compare checks what sections say against what blocks hold.
func (s *scanner) compare() {
	for _, m := range s.Members {
		if m.Section == nil {
			s.finding(inflight.SeverityWarning, CodeIncomplete, m, nil, inflight.ErrIncomplete, "the subtask has no complete mark: it is not restored")
			continue
		}
		if m.Section.Status == StatusAborted {
			s.finding(inflight.SeverityInfo, CodeAborted, m, nil, nil, "the capture was aborted: its bytes are dead")
			continue
		}
		for i := range m.Section.Entries {
			s.compareEntry(m, &m.Section.Entries[i])
		}
		for i := range m.Found {
			f := &m.Found[i]
			if _, ok := slices.BinarySearchFunc(m.Section.Entries, f.Address, func(e Entry, a inflight.Address) int { return e.Address.Compare(a) }); !ok {
				s.finding(inflight.SeverityError, CodeUnlistedBytes, m, &f.Address, inflight.ErrCorrupt, "blocks hold bytes that the section does not list")
			}
		}
	}
}

func (s *scanner) compareEntry(m *ScannedMember, e *Entry) {
	k := foundKey{m.Task, e.Address}
	i, ok := s.found[k]
	if !ok {
		if len(e.Extents) == 0 {
			return
		}
		i = len(m.Found)
		s.found[k] = i
		m.Found = append(m.Found, FoundEntry{Address: e.Address})
	}
	f := &m.Found[i]
	match := matcher{found: f.Extents}
	digest, sum := Digest(0), uint64(0)
	var lost missing
	report := func() {
		if lost.bytes > 0 {
			s.finding(inflight.SeverityError, CodeMissingBytes, m, &e.Address, inflight.ErrCorrupt, lost.text(e.Address))
		}
	}
	for j := range e.Extents {
		x := &e.Extents[j]
		want := FoundExtent{Extent: *x, Ref: m.Section.Blocks[x.Block]}
		if want.Ref.File > 0 {
			want.File, want.Ref.File = m.Section.Files[want.Ref.File-1], 1
		}
		want.Block = 0
		if got, ok := match.take(want); ok {
			digest = digest.Join(got, uint64(x.Length))
			sum += uint64(x.Length)
		} else {
			f.Missing = append(f.Missing, want)
			if !lost.add(x) {
				report()
				lost = missing{}
				lost.add(x)
			}
		}
		if x.Flags&RunGap != 0 {
			s.finding(inflight.SeverityWarning, CodeGap, m, &e.Address, nil, fmt.Sprintf("bytes before %d were not captured", x.Pos.Offset))
		}
	}
	report()
	if match.left() {
		s.finding(inflight.SeverityError, CodeUnlistedBytes, m, &e.Address, inflight.ErrCorrupt, "blocks hold bytes that the section does not list")
	}
	if len(f.Missing) == 0 && len(m.Section.Prior) == 0 && (digest != e.Digest || sum != e.Bytes) {
		s.finding(inflight.SeverityError, CodeDigest, m, &e.Address, inflight.ErrCorrupt,
			fmt.Sprintf("blocks hold %d bytes with digest %016x, the section says %d and %016x", sum, uint64(digest), e.Bytes, uint64(e.Digest)))
	}
}

// matcher pairs listed extents with found ones. Usually they come in the same
// order; after the first that does not, a map finds the others.
type matcher struct {
	found []FoundExtent
	next  int
	index map[FoundExtent]int // by extent without digest
	taken int
}

func (m *matcher) take(want FoundExtent) (Digest, bool) {
	i := m.next
	if i >= len(m.found) || bare(m.found[i]) != want {
		if m.index == nil {
			m.index = make(map[FoundExtent]int, len(m.found))
			for j, x := range m.found {
				m.index[bare(x)] = j
			}
		}
		var ok bool
		if i, ok = m.index[want]; !ok {
			return 0, false
		}
	}
	m.next = i + 1
	m.taken++
	return m.found[i].Digest, true
}

// left reports whether found extents were not listed.
func (m *matcher) left() bool { return m.taken != len(m.found) }

func bare(x FoundExtent) FoundExtent {
	x.Digest = 0
	return x
}

// MissingText says which bytes of a are missing with x.
func MissingText(x *Extent, a inflight.Address) string {
	var m missing
	m.add(x)
	return m.text(a)
}

// missing is a range of bytes that are missing, of extents that join.
type missing struct {
	known        bool
	start, bytes uint64
}

// add adds x, if that joins.
func (m *missing) add(x *Extent) bool {
	known := x.Flags&RunKnown != 0
	switch {
	case m.bytes == 0:
		m.known, m.start = known, x.Pos.Offset
	case known != m.known || known && x.Pos.Offset != m.start+m.bytes:
		return false
	}
	m.bytes += uint64(x.Length)
	return true
}

func (m *missing) text(a inflight.Address) string {
	if !m.known {
		return fmt.Sprintf("%d bytes of %s missing", m.bytes, a)
	}
	return fmt.Sprintf("bytes %d–%d of %s missing", m.start, m.start+m.bytes-1, a)
}

func (s *scanner) finding(sev inflight.Severity, code string, m *ScannedMember, a *inflight.Address, err error, text string) {
	s.o.Report(inflight.Finding{Severity: sev, Code: code, Object: s.o.Object, Offset: -1, Task: &m.Task, Address: a, Text: text, Err: err})
}
