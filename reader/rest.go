package reader

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Reference is a run of bytes that lie in a file of this checkpoint, in the form
// in which a newer checkpoint refers to them: Run has address, position, pieces,
// length, and with Run.Target the place in File; Target.File is not set.
type Reference struct {
	File format.FileRef
	Run  format.Run
}

// Rest returns references to what is captured of address a behind its first
// after bytes. That must be the end of a buffer, up to which the address has
// been iterated, or 0. At most one block is read.
//
// The digest of the rest follows from that of the whole and that of what has
// been read. It cannot be told run by run without reading it, so the last run
// has the digest of all of them, and the others zero: joined in order they give
// the right one.
func (s *Subtask) Rest(ctx context.Context, a inflight.Address, after uint64) ([]Reference, error) {
	e, ok := s.find(a)
	if !ok {
		return nil, nil
	}
	if after > s.entries[e].Bytes {
		return nil, s.outOfOrder(a, after)
	}
	s.lay()
	i, left := s.first[e], after // left: bytes of extent i that are not in the rest
	for i < s.first[e+1] && left >= uint64(s.extents[i].Length) {
		left -= uint64(s.extents[i].Length)
		i++
	}
	if i == s.first[e+1] {
		return nil, nil
	}
	digest := format.Digest(0)
	if i > s.first[e] {
		s.mu.Lock()
		digest, ok = s.digests[i-1].digest, s.digests[i-1].ok
		s.mu.Unlock()
		if !ok {
			return nil, fail("refer to the rest of", s.Task.String()+" "+a.String(), fmt.Errorf("%w: %d bytes of it have not been read", inflight.ErrRecovering, after))
		}
	}
	var refs []Reference
	for k := i; k < s.first[e+1]; k++ {
		refs = append(refs, s.reference(a, &s.extents[k]))
	}
	if left > 0 {
		var err error
		if digest, err = s.shorten(ctx, a, &refs[0].Run, &s.extents[i], int(left), digest); err != nil {
			return nil, err
		}
	} else if refs[0].Run.Flags&format.RunHead != 0 {
		return nil, s.outOfOrder(a, after)
	}
	refs[len(refs)-1].Run.Digest = s.entries[e].Digest.Without(digest, s.entries[e].Bytes-after)
	return refs, nil
}

func (s *Subtask) outOfOrder(a inflight.Address, after uint64) error {
	return fail("refer to the rest of", s.Task.String()+" "+a.String(), fmt.Errorf("%w: no buffer ends behind %d bytes", inflight.ErrOrder, after))
}

func (s *Subtask) reference(a inflight.Address, x *extent) Reference {
	return Reference{File: x.block.f.ref, Run: format.Run{
		Address: a, Flags: x.Flags | format.RunReference, Pos: x.Pos, Pieces: x.Pieces, Length: uint64(x.Length),
		Target: format.Target{BlockOffset: x.block.ref.Offset, Stored: x.block.ref.Stored, Offset: x.Offset},
	}}
}

// shorten takes the first n bytes off run, which stands for x, and adds them to
// digest.
func (s *Subtask) shorten(ctx context.Context, a inflight.Address, run *format.Run, x *extent, n int, digest format.Digest) (format.Digest, error) {
	visits := []visit{{block: x.block}}
	s.r.want(visits)
	d, err := s.r.pin(ctx, visits, nil)
	if err != nil {
		s.r.forget(visits)
		return 0, err
	}
	defer s.r.finish(x.block)
	in, piece, err := d.locate(s.Task, a, x.Extent)
	if err != nil {
		return 0, fail("read", x.block.f.ref.Name, err)
	}
	gone, buffers := 0, 0
	for i := 0; gone < n; i++ {
		if gone += in.PieceLength(piece + i); i > 0 || x.Flags&format.RunHead == 0 {
			buffers++
		}
		run.Pieces--
	}
	if gone != n {
		return 0, s.outOfOrder(a, uint64(n))
	}
	run.Flags &^= format.RunHead | format.RunGap
	run.Pos = run.Pos.Advance(uint64(n), buffers)
	run.Length -= uint64(n)
	run.Target.Offset += uint32(n)
	return digest.Add(d.Data[x.Offset:][:n]), nil
}
