package dataflow

import (
	"fmt"
	"slices"
)

// Edges returns the edges under the given options, each with the answer
// whether what is in flight on it may be captured:
//
//   - A pointwise, broadcast or custom edge may hold no channel state, nor one
//     that the options exclude.
//   - If that is so for one edge into a vertex, it is for all of them: its
//     snapshot waits for that edge's barriers in any case.
//   - A vertex where a barrier would overtake data, only to make it wait for
//     itself further down, aligns too (see bypassed).
func (g *Graph) Edges(o Options) (edges []EdgeInfo) {
	next := map[string]int{}
	for _, v := range g.vertices {
		for gate, in := range v.inputs {
			e := EdgeInfo{From: in.Vertex, To: v.name, Partition: next[in.Vertex], Gate: gate,
				Kind: in.Partitioner.Kind, partitioner: in.Partitioner}
			next[in.Vertex]++
			e.Why = o.whyAligned(e)
			edges = append(edges, e)
		}
	}
	p := plan{g, edges, map[string]bool{}}
	for _, v := range g.vertices {
		i := slices.IndexFunc(edges, func(e EdgeInfo) bool { return e.To == v.name && e.Why != "" })
		if i >= 0 {
			p.align(v.name, fmt.Sprintf("since %s → %s is", edges[i].From, edges[i].To))
		}
	}
	for changed := true; changed; {
		changed = false
		for _, v := range g.vertices {
			if above, below := p.bypassed(v.name); above != "" {
				p.align(v.name, fmt.Sprintf("since %s above and %s below it are, and meet beside it", above, below))
				changed = true
			}
		}
	}
	for i := range edges {
		edges[i].Unaligned = !p.aligned[edges[i].To]
	}
	return edges
}

func (o *Options) whyAligned(e EdgeInfo) string {
	switch {
	case !o.Unaligned:
		return "since unaligned checkpoints are off"
	case e.Kind.Pointwise():
		return "since it is pointwise"
	case e.Kind == KindBroadcast:
		return "since it is a broadcast"
	case !e.Kind.HoldsChannelState():
		return "since its partitioner is custom"
	case slices.Contains(o.AlignedSources, e.From):
		return "since its source is set to"
	case slices.Contains(o.AlignedEdges, e.From+"-"+e.To):
		return "since it is set to"
	}
	return ""
}

// plan is the decision in progress: which vertices wait for their barriers.
type plan struct {
	g       *Graph
	edges   []EdgeInfo
	aligned map[string]bool
}

func (p *plan) align(vertex, why string) {
	p.aligned[vertex] = true
	for i := range p.edges {
		if e := &p.edges[i]; e.To == vertex && e.Why == "" {
			e.Why = why
		}
	}
}

// bypassed finds what makes an unaligned vertex u wait for itself: an aligned
// one above it and an aligned one below it that are also connected beside it.
// Subtasks of u snapshot at the first barrier, so the one below soon blocks
// them, and waits for a barrier that comes past u from a subtask above, which
// cannot take it before u consumes what it emits: only the checkpoint's
// timeout would end that.
func (p *plan) bypassed(u string) (above, below string) {
	if p.aligned[u] || p.g.vertex(u).newSource != nil {
		return "", ""
	}
	for v := range p.aligned {
		for n := range p.aligned {
			if p.reaches(v, u, "") && p.reaches(u, n, "") && p.reaches(v, n, u) && (above == "" || v < above || v == above && n < below) {
				above, below = v, n
			}
		}
	}
	return above, below
}

// reaches reports whether a path leads from one vertex to another, not over
// a third.
func (p *plan) reaches(from, to, avoid string) bool {
	return slices.ContainsFunc(p.edges, func(e EdgeInfo) bool {
		return e.From == from && e.To != avoid && (e.To == to || p.reaches(e.To, to, avoid))
	})
}
