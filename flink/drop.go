package flink

import (
	"context"
	"slices"
)

// DropOptions are the options of PlanDrop.
type DropOptions struct {
	// Edges to drop the in-flight data of: both ends of each, since the output
	// part goes on where the input part ended.
	Edges []Edge
	// All drops all in-flight data, also that of edges that are not known.
	All    bool
	Verify VerifyOptions
}

// PlanDrop plans to drop in-flight data. Everything else stays, also the state of
// coordinators, which Flink's own option for it forgets.
//
// With All it does not matter whether channel state is damaged: it is counted as
// far as it can be read. What stays must be as it was sealed.
func (c *Checkpoint) PlanDrop(ctx context.Context, o DropOptions) (*Plan, error) {
	var s *scan
	var err error
	if o.All {
		s = c.newScan(c.Index(), slices.Clone(o.Verify.Edges))
		if s.notes, err = c.surveySealed(ctx, "drop", o.Verify, false); err == nil {
			err = s.run(ctx)
		}
	} else {
		o.Verify.Edges = append(slices.Clone(o.Verify.Edges), o.Edges...)
		s, err = c.survey(ctx, "drop", o.Verify)
	}
	if err != nil {
		return nil, err
	}
	gone := make([]bool, len(s.x.Channels))
	mark := func(e *ends, drop bool) {
		for _, i := range e.channels {
			gone[i] = drop || o.All
		}
	}
	for _, g := range s.gates {
		mark(g, slices.ContainsFunc(o.Edges, func(e Edge) bool { return g.port == port{e.To, e.Gate} }))
	}
	for _, p := range s.parts {
		mark(p, slices.ContainsFunc(o.Edges, func(e Edge) bool { return p.port == port{e.From, e.Partition} }))
	}
	p, err := s.plan(ctx, "drop", layout{}, func(i int) int64 {
		if gone[i] {
			return 0
		}
		return s.channels[i].bytes
	})
	if err != nil {
		return nil, err
	}
	s.eachConnection(func(e *Edge, in, out int) {
		if gone[max(in, out)] {
			p.Lost = append(p.Lost, s.loss(e, in, out, kept{reason: "dropped"}))
		}
	})
	return p, nil
}

// eachConnection visits the connections of all edges, and then each channel of
// what has no edge by itself; -1 stands for a side that is empty or not known.
func (s *scan) eachConnection(fn func(e *Edge, in, out int)) {
	joined := map[*ends]bool{}
	for i := range s.edges {
		e := &s.edges[i]
		g, p := endsOf(s.gates, port{e.To, e.Gate}), endsOf(s.parts, port{e.From, e.Partition})
		joined[g], joined[p] = true, true
		var list [][2]int
		for in, out := range connections(g, p) {
			list = append(list, [2]int{in, out})
		}
		slices.SortFunc(list, comparePair)
		for _, c := range list {
			fn(e, c[0], c[1])
		}
	}
	for _, g := range s.gates {
		if !joined[g] {
			for _, in := range slices.Sorted(g.all()) {
				fn(nil, in, -1)
			}
		}
	}
	for _, p := range s.parts {
		if !joined[p] {
			for _, out := range slices.Sorted(p.all()) {
				fn(nil, -1, out)
			}
		}
	}
}

// kept says what stays of a connection: the first bytes of each part.
type kept struct {
	in, out int64
	records int64
	whole   bool // nothing is lost
	reason  string
}

// loss counts what is lost of a connection when only k stays.
func (s *scan) loss(e *Edge, in, out int, k kept) Loss {
	l := Loss{Edge: e, Reason: k.reason, RecordsKnown: true}
	end := func(i int, keep int64) *ChannelEnd {
		if i < 0 {
			return nil
		}
		bytes, chunks := s.said(i)
		l.Bytes += bytes - keep
		l.Buffers += chunks - int64(len(s.contentOf(i, keep).parts))
		c := &s.x.Channels[i]
		return &ChannelEnd{c.Task, c.Address}
	}
	l.Input, l.Output = end(in, k.in), end(out, k.out)
	if l.Records, l.RecordsKnown = s.recordsOf(in, out); !l.RecordsKnown && s.before != nil {
		if n, all := s.before.recordsOf(in, out); all {
			l.Records, l.RecordsKnown = n, true
		}
	}
	l.Records -= k.records
	return l
}

// said returns how many bytes and chunks channel i has; if not all can be read,
// as its handle says.
func (s *scan) said(i int) (bytes, chunks int64) {
	c, ch := &s.x.Channels[i], &s.channels[i]
	if chunks = int64(c.Offsets.Len()); !ch.unread {
		return ch.bytes, chunks
	}
	return max(c.payload(s.x.Streams[c.Stream].Handle), ch.bytes), chunks
}

// recordsOf counts the records of a connection that could be followed, and says
// whether those are all.
func (s *scan) recordsOf(in, out int) (n int64, all bool) {
	if in >= 0 {
		n = s.channels[in].frame.records()
		if s.lost(in) {
			return n, false
		}
	}
	if out < 0 {
		return n, s.channels[in].frame.boundary()
	}
	t := s.trackOf(in, out)
	return n + t.records(), t.boundary() && !s.channels[out].unread
}
