package flink

import (
	"context"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// SalvageOptions are the options of PlanSalvage.
type SalvageOptions struct {
	// Seal, if there is one, also tells the chunks that look right and are not.
	// Default: the one beside the checkpoint.
	Seal   *Seal
	Verify VerifyOptions
}

// PlanSalvage plans to keep what is provably whole of damaged channel state. Each
// damaged connection is cut at the boundary of a record: what stood before the
// damage stays, and all that would have come after it is lost, the output part
// too if the damage is in the input part. Other connections stay as they are.
// Where records do not fit together, the last one that seemed whole is given up
// too: its length may be what is wrong.
//
// Metadata that is damaged is refused, and so is a missing file of other state.
// What only a seal shows of them is in the notes.
func (c *Checkpoint) PlanSalvage(ctx context.Context, o SalvageOptions) (*Plan, error) {
	v := c.newVerifier()
	x := v.x
	v.index()
	for _, f := range v.findings {
		if f.Severity == inflight.SeverityError {
			return nil, c.damaged("salvage", f, "drop all in-flight data")
		}
	}
	v.findings = nil
	if o.Seal == nil {
		var err error
		if o.Seal, err = v.sealOf(ctx, o.Verify); err != nil {
			return nil, err
		}
	}
	if o.Seal != nil {
		if err := v.compareKept(ctx, o.Seal); err != nil {
			return nil, err
		}
	}
	s := c.newScan(x, slices.Clone(o.Verify.Edges))
	s.sums = o.Seal != nil
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	if suspects := s.suspects(o.Seal); len(suspects) > 0 {
		// Again, as if those could not be read.
		first, found := s, s.findings
		s = c.newScan(c.Index(), slices.Clone(o.Verify.Edges))
		s.suspect, s.before = suspects, first
		if err := s.run(ctx); err != nil {
			return nil, err
		}
		s.findings = append(found, s.findings...)
	}
	keep, lost := s.salvage()
	p, err := s.plan(ctx, "salvage", layout{}, func(i int) int64 { return keep[i] })
	if err != nil {
		return nil, err
	}
	p.Lost = lost
	s.findings = append(s.findings, v.findings...)
	sortFindings(s.findings)
	p.Notes = append(p.Notes, s.findings...)
	return p, nil
}

// chunkAt names a chunk: the index of its stream, and in that.
type chunkAt struct{ stream, chunk int }

// suspects returns the chunks that can be read and are not to be trusted: one
// that reaches into the next, or leaves bytes to nobody while its channel lacks
// some, or is not what was sealed.
func (s *scan) suspects(seal *Seal) map[chunkAt]bool {
	bad := map[chunkAt]bool{}
	for i := range s.x.Streams {
		chunks := s.x.Streams[i].Chunks
		for k := range chunks {
			c := &chunks[k]
			if c.Length < 0 || k+1 == len(chunks) {
				continue
			}
			next := &chunks[k+1]
			switch {
			case next.Offset < c.end():
				bad[chunkAt{i, k}] = true
				if next.Offset == c.Offset {
					bad[chunkAt{i, k + 1}] = true
				}
			case next.Offset > c.end() && s.short(int(c.Channel)):
				bad[chunkAt{i, k}] = true
			}
		}
	}
	if seal == nil {
		return bad
	}
	sealed := map[string]*SealedStream{}
	for i := range seal.Streams {
		sealed[seal.Streams[i].Stream] = &seal.Streams[i]
	}
	for i := range s.x.Streams {
		if w := sealed[s.x.Streams[i].Handle.String()]; w != nil && !s.streams[i].broken {
			for k := range w.differ(s.x.Streams[i].Chunks, s.streams[i].sums) {
				bad[chunkAt{i, k}] = true
			}
		}
	}
	return bad
}

// short reports whether channel i has fewer bytes than its handle says.
func (s *scan) short(i int) bool {
	ch, c := &s.channels[i], &s.x.Channels[i]
	said := c.StateSize
	if s.x.Streams[c.Stream].Handle.Kind() == KindByteStream {
		said -= headerSize
	}
	return ch.bytes+lengthSize*ch.chunks < said
}

// salvage decides how many bytes each channel keeps.
func (s *scan) salvage() (keep []int64, lost []Loss) {
	keep = make([]int64, len(s.channels))
	open := s.openDamage()
	s.eachConnection(func(e *Edge, in, out int) {
		var k kept
		if e != nil {
			k = s.keepOf(in, out)
		} else {
			k = s.keepOpen(in, out, open)
		}
		if in >= 0 {
			keep[in] = k.in
		}
		if out >= 0 {
			keep[out] = k.out
		}
		if !k.whole {
			lost = append(lost, s.loss(e, in, out, k))
		}
	})
	return keep, lost
}

// keepOf decides what stays of a connection.
func (s *scan) keepOf(in, out int) kept {
	start := &framer{}
	k := kept{reason: "the input part is damaged"}
	if in >= 0 {
		start = &s.channels[in].frame.framer
		if s.lost(in) {
			k.in, k.records = start.safe(start.bad)
			return k
		}
	}
	if out < 0 {
		if start.boundary() {
			return kept{in: start.pos, records: start.records(), whole: true}
		}
		k.reason = "the input part ends in the middle of a record, and no output part goes on with it"
		k.in, k.records = start.safe(true)
		return k
	}
	ch, t := &s.channels[out], s.trackOf(in, out)
	if !ch.unread && t.boundary() {
		return kept{in: start.pos, out: ch.bytes, records: start.records() + t.records(), whole: true}
	}
	k.reason = "the output part is damaged"
	// What ends in mid-record although all can be read has a wrong length
	// somewhere: perhaps that of the last record.
	suspicious := t.bad || !ch.unread
	back := int64(0) // elements of the output part that stay
	if back = t.elements(); suspicious {
		back--
	}
	switch {
	case back > 0: // at least one record ends in the output part
		k.in = start.pos
		k.out, k.records = t.safe(suspicious)
		k.records += start.records()
	case back == 0 && (start.boundary() || !suspicious || t.elements() > 0):
		// The record that the output part begins with, or goes on with, is given up.
		k.in, k.records = start.safe(false)
	default:
		k.in, k.records = start.safe(true)
	}
	return k
}

// safe returns up to where f is to be trusted, and how many records that are: to
// the last boundary or, if that may be wrong, the one before.
func (f *framer) safe(suspicious bool) (bytes, records int64) {
	if !suspicious {
		return f.whole, f.records()
	}
	if f.elements() == 0 {
		return 0, 0
	}
	records = f.records()
	if f.last.IsRecord() {
		records--
	}
	return f.prev, records
}

// openDamage returns, for each channel whose edge is not known, whether it or one
// that may belong to it is damaged.
func (s *scan) openDamage() map[int]bool {
	joined := map[*ends]bool{}
	for i := range s.edges {
		e := &s.edges[i]
		joined[endsOf(s.gates, port{e.To, e.Gate})], joined[endsOf(s.parts, port{e.From, e.Partition})] = true, true
	}
	damaged := map[int]bool{}
	var links [][2]int
	for _, p := range s.pairs {
		if joined[p.gate] || joined[p.part] {
			continue
		}
		for in, out := range connections(p.gate, p.part) {
			if in >= 0 && out >= 0 {
				links = append(links, [2]int{in, out})
			}
		}
	}
	for _, g := range s.gates {
		for in := range g.all() {
			damaged[in] = !joined[g] && (s.lost(in) || !s.channels[in].frame.boundary() && !s.linked(links, in, 0))
		}
	}
	for _, p := range s.parts {
		for out := range p.all() {
			damaged[out] = !joined[p] && (s.channels[out].unread || !s.trackOf(-1, out).boundary() && !s.linked(links, out, 1))
		}
	}
	for again := true; again; {
		again = false
		for _, l := range links {
			if damaged[l[0]] != damaged[l[1]] {
				damaged[l[0]], damaged[l[1]], again = true, true, true
			}
		}
	}
	return damaged
}

// linked reports whether channel i, on side 0 or 1 of links, is whole with one of
// the others.
func (s *scan) linked(links [][2]int, i, side int) bool {
	return slices.ContainsFunc(links, func(l [2]int) bool {
		if l[side] != i || s.lost(l[0]) || s.channels[l[1]].unread {
			return false
		}
		whole, _ := s.whole(l[0], l[1])
		return whole
	})
}

// keepOpen decides what stays of a channel whose edge is not known.
func (s *scan) keepOpen(in, out int, damaged map[int]bool) kept {
	switch {
	case in >= 0 && !damaged[in]:
		f := s.channels[in].frame
		return kept{in: f.pos, records: f.records(), whole: true}
	case out >= 0 && !damaged[out]:
		return kept{out: s.channels[out].bytes, whole: true}
	case in >= 0:
		f := s.channels[in].frame
		k := kept{reason: "it is damaged, or what it may go on with"}
		k.in, k.records = f.safe(f.bad || !s.channels[in].unread && !f.boundary())
		k.whole = k.in == f.pos && !s.lost(in)
		return k
	}
	return kept{reason: "it is damaged, or what it may go on from", whole: s.channels[out].bytes == 0 && !s.channels[out].unread}
}
