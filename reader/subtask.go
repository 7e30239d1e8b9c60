package reader

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// CodeIndex is the code of an index that is intact and does not fit what it is
// the index of.
const CodeIndex = "index"

// Entry is what one address of a subtask had captured.
type Entry struct {
	Address inflight.Address
	Buffers uint64
	Bytes   uint64
	Digest  format.Digest
	Cut     inflight.Cut // valid if HasCut
	HasCut  bool
	Start   inflight.Pos // of the first byte; PosUnknown without bytes
	End     inflight.Pos // behind the last byte; PosUnknown without bytes
	Gaps    int          // places where bytes are missing between captured ones
}

// Subtask is the captured state of one subtask, open for reading. Its methods
// may be called by several goroutines at once.
type Subtask struct {
	Task       inflight.Task
	Checkpoint inflight.CheckpointID

	r       *Reader
	files   []*file           // those of the segments first
	one     [1]*file          // memory for files
	blocks  []format.BlockRef // BlockRef.File is an index into files
	entries []format.Entry    // with extents of all sections
	partial bool              // only what lies in one file: totals are not all there

	laid    sync.Once // what follows, once somebody reads data
	extents []extent  // in order of entries; within one, of the stream
	first   []int     // index of the first extent of each entry, and their number

	mu      sync.Mutex
	digests []known
	open    map[*cursor]struct{}
	closed  bool
}

// known is the digest of an entry up to and with an extent, once that is read.
type known struct {
	digest format.Digest
	ok     bool
}

// extent is a piece of an address's stream, with its place.
type extent struct {
	*format.Extent
	block *block
	entry int32
	phase int32 // grows where an address goes back in the order of files
}

// Subtask opens what h names, without a manifest: it reads the sections of h.
// A subtask without its complete mark is ErrIncomplete, and what belongs to
// another subtask or checkpoint is ErrMismatch. Close it after use.
func (r *Reader) Subtask(ctx context.Context, h inflight.Handle) (*Subtask, error) {
	return r.subtask(ctx, h, r.inJob)
}

func (r *Reader) subtask(ctx context.Context, h inflight.Handle, at resolver) (*Subtask, error) {
	s := &Subtask{Task: h.Task, Checkpoint: h.Checkpoint, r: r}
	s.files = s.one[:0]
	var err error
	for _, seg := range h.Segments {
		if _, err = s.file(at, format.FileRef{Name: seg.File, FileID: seg.FileID}); err != nil {
			s.Close()
			return nil, fail("open "+h.Task.String()+" in", seg.File, err)
		}
	}
	sections, errs := s.sections(ctx, h.Segments)
	for i, seg := range h.Segments {
		if err = errs[i]; err == nil {
			err = checkMark(sections, i, h)
		}
		if err != nil {
			s.Close()
			return nil, fail("open "+h.Task.String()+" in", seg.File, err)
		}
	}
	err = s.build(at, h.Segments, sections)
	if err == nil {
		err = s.checkTotals(h)
	}
	if err != nil {
		s.Close()
		return nil, fail("open", h.Task.String(), err)
	}
	return s, nil
}

// sectionsAtOnce is how many sections of a subtask are read at once on remote
// stores.
const sectionsAtOnce = 8

// sections reads the section of each segment.
func (s *Subtask) sections(ctx context.Context, segments []inflight.Segment) ([]*format.Section, []error) {
	sections, errs := make([]*format.Section, len(segments)), make([]error, len(segments))
	if !s.r.remote || len(segments) < 2 {
		for i := range segments {
			sections[i], errs[i] = s.r.section(ctx, s.files[i], segments[i])
		}
		return sections, errs
	}
	var next atomic.Int64
	read := func() {
		for i := next.Add(1) - 1; int(i) < len(segments); i = next.Add(1) - 1 {
			sections[i], errs[i] = s.r.section(ctx, s.files[i], segments[i])
		}
	}
	var others sync.WaitGroup
	for i := 1; i < min(len(segments), sectionsAtOnce); i++ {
		others.Go(read)
	}
	read()
	others.Wait()
	return sections, errs
}

// file returns the file, and remembers that s uses it.
func (s *Subtask) file(at resolver, ref format.FileRef) (*file, error) {
	f, err := s.r.file(at, ref)
	if err == nil {
		s.files = append(s.files, f)
	}
	return f, err
}

// checkMark checks that section i is what segment i of h should name.
func checkMark(sections []*format.Section, i int, h inflight.Handle) error {
	sec, seg, last := sections[i], h.Segments[i], i == len(h.Segments)-1
	mismatch := func(text string, args ...any) error {
		return &format.FormatError{Code: format.CodeSection, Offset: seg.Offset, Text: fmt.Sprintf(text, args...), Err: inflight.ErrMismatch}
	}
	switch {
	case sec.Task != h.Task:
		return mismatch("the section is of subtask %s", sec.Task)
	case sec.Checkpoint != h.Checkpoint:
		return mismatch("the section is of checkpoint %d; %d was expected", sec.Checkpoint, h.Checkpoint)
	case !slices.Equal(sec.Prior, h.Segments[:i]):
		return mismatch("the section continues %d other ones, the handle lists %d, or others", len(sec.Prior), i)
	case sec.Status == format.StatusAborted, last && sec.Status != format.StatusComplete, !last && sec.Status != format.StatusContinued:
		return &format.FormatError{Code: format.CodeIncomplete, Offset: seg.Offset, Text: fmt.Sprintf("the section is marked %s", sec.Status), Err: inflight.ErrIncomplete}
	}
	return nil
}

// build makes one index of the sections, and checks it.
func (s *Subtask) build(at resolver, segments []inflight.Segment, sections []*format.Section) error {
	if len(sections) == 0 {
		return nil
	}
	last := segments[len(segments)-1]
	base := len(s.files) - 1 // Section.Files[0] of a section is at base+1
	for i, sec := range sections {
		for _, ref := range sec.Files {
			if _, err := s.file(at, ref); err != nil {
				return err
			}
		}
		if len(sections) > 1 {
			s.addBlocks(sec.Blocks, i, base)
			base += len(sec.Files)
		}
	}
	s.entries = sections[len(sections)-1].Entries
	if len(sections) == 1 {
		s.blocks = sections[0].Blocks
	} else if !s.join(sections) {
		return fail("open", last.File, corrupt(CodeIndex, last.Offset, "an earlier section lists an address that the last one does not"))
	}
	for i := range s.entries {
		if err := checkEntry(&s.entries[i], s.blocks); err != nil && !s.partial {
			return fail("open", last.File, err)
		}
	}
	return nil
}

// addBlocks adds the blocks of section i.
func (s *Subtask) addBlocks(blocks []format.BlockRef, i, base int) {
	for _, ref := range blocks {
		if ref.File == 0 {
			ref.File = i
		} else {
			ref.File += base
		}
		s.blocks = append(s.blocks, ref)
	}
}

// join gives the entries of the last section, which have the totals, the extents
// of all sections. It reports whether that were all.
func (s *Subtask) join(sections []*format.Section) bool {
	total, listed := 0, make([]int, len(sections))
	for _, sec := range sections {
		for i := range sec.Entries {
			total += len(sec.Entries[i].Extents)
		}
	}
	s.entries = slices.Clone(s.entries)
	all := make([]format.Extent, 0, total)
	for e := range s.entries {
		start, block := len(all), 0
		for i, sec := range sections {
			at, ok := slices.BinarySearchFunc(sec.Entries[listed[i]:], s.entries[e].Address, func(x format.Entry, a inflight.Address) int { return x.Address.Compare(a) })
			if ok {
				at += listed[i]
				listed[i] = at + 1
				for _, x := range sec.Entries[at].Extents {
					x.Block += block
					all = append(all, x)
				}
			}
			block += len(sec.Blocks)
		}
		s.entries[e].Extents = all[start:len(all):len(all)]
	}
	return len(all) == total
}

// lay places the extents in their blocks, for reading.
func (s *Subtask) lay() {
	s.laid.Do(func() {
		total := 0
		for i := range s.entries {
			total += len(s.entries[i].Extents)
		}
		blocks := s.r.blocksOf(s.files, s.blocks)
		s.extents, s.first = make([]extent, 0, total), make([]int, 1, len(s.entries)+1)
		for e := range s.entries {
			list := s.entries[e].Extents
			for i := range list {
				s.extents = append(s.extents, extent{Extent: &list[i], block: blocks[list[i].Block], entry: int32(e)})
			}
			phases(s.extents[s.first[e]:])
			s.first = append(s.first, len(s.extents))
		}
		s.digests = make([]known, total)
	})
}

// phases numbers the extents of one address, so that those of one phase are in
// the order in which files are read. There are several phases only where a
// checkpoint refers to older ones.
func phases(extents []extent) {
	for i := 1; i < len(extents); i++ {
		x := &extents[i]
		if x.phase = extents[i-1].phase; compareExtents(x, &extents[i-1]) < 0 {
			x.phase++
		}
	}
}

// checkEntry checks what can be checked of e without reading its data.
func checkEntry(e *format.Entry, blocks []format.BlockRef) error {
	buffers, bytes, tail, end := uint64(0), uint64(0), false, inflight.PosUnknown
	for i := range e.Extents {
		x := &e.Extents[i]
		buffers, bytes = buffers+uint64(x.Buffers()), bytes+uint64(x.Length)
		if (x.Flags&format.RunHead != 0) != tail {
			return corrupt(CodeIndex, blocks[x.Block].Offset, "a buffer of %s is cut in two", e.Address)
		}
		tail = x.Flags&format.RunTail != 0
		if x.Flags&format.RunGap == 0 && end.Known() && x.Pos.Known() && x.Pos.Offset != end.Offset {
			return corrupt(CodeIndex, blocks[x.Block].Offset, "%s goes on at %d after %d", e.Address, x.Pos.Offset, end.Offset)
		}
		end = x.Pos.Advance(uint64(x.Length), x.Buffers())
	}
	if tail || buffers != e.Buffers || bytes != e.Bytes {
		return corrupt(CodeIndex, -1, "%s has %d buffers and %d bytes, its index lists %d and %d", e.Address, e.Buffers, e.Bytes, buffers, bytes)
	}
	return nil
}

// compareExtents orders extents as they are read.
func compareExtents(a, b *extent) int {
	if a.phase != b.phase || a.block == b.block {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.Offset, b.Offset))
	}
	if a.block.f != b.block.f {
		if c := cmp.Compare(a.block.f.ref.Name, b.block.f.ref.Name); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.block.ref.Offset, b.block.ref.Offset), cmp.Compare(a.Offset, b.Offset))
}

// checkTotals compares the entries with the sums in the handle.
func (s *Subtask) checkTotals(h inflight.Handle) error {
	var sum [4]uint64
	for i := range s.entries {
		sum[s.entries[i].Address.Side] += s.entries[i].Bytes
	}
	if sum[inflight.Input] != h.InputBytes || sum[inflight.Output] != h.OutputBytes || sum[inflight.State] != h.StateBytes {
		return &format.FormatError{Code: CodeIndex, Offset: -1, Err: inflight.ErrMismatch,
			Text: fmt.Sprintf("the sections hold %d, %d and %d bytes of input, output and state; the handle says %d, %d and %d",
				sum[inflight.Input], sum[inflight.Output], sum[inflight.State], h.InputBytes, h.OutputBytes, h.StateBytes)}
	}
	return nil
}

// Len returns the number of entries.
func (s *Subtask) Len() int { return len(s.entries) }

// Entries returns what was captured, in ascending order of addresses.
func (s *Subtask) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for i := range s.entries {
			if !yield(entryOf(&s.entries[i])) {
				return
			}
		}
	}
}

// Entry returns what was captured of address a.
func (s *Subtask) Entry(a inflight.Address) (Entry, bool) {
	if i, ok := s.find(a); ok {
		return entryOf(&s.entries[i]), true
	}
	return Entry{}, false
}

func (s *Subtask) find(a inflight.Address) (int, bool) {
	return slices.BinarySearchFunc(s.entries, a, func(e format.Entry, a inflight.Address) int { return e.Address.Compare(a) })
}

func entryOf(e *format.Entry) (n Entry) {
	n.Address = e.Address
	n.Buffers, n.Bytes, n.Digest = e.Buffers, e.Bytes, e.Digest
	n.Start, n.End = inflight.PosUnknown, inflight.PosUnknown
	n.Cut, n.HasCut = e.Cut()
	if k := len(e.Extents); k > 0 {
		last := &e.Extents[k-1]
		n.Start, n.End = e.Extents[0].Pos, last.Pos.Advance(uint64(last.Length), last.Buffers())
	}
	for i := range e.Extents {
		if e.Extents[i].Flags&format.RunGap != 0 {
			n.Gaps++
		}
	}
	return n
}

// Close gives up what s holds. Iterations that run must have ended. It is
// idempotent.
func (s *Subtask) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for c := range s.open {
		s.r.forget(c.visits)
		s.r.count(-1)
	}
	clear(s.open)
	for _, f := range s.files {
		s.r.leave(f)
	}
}
