package flink

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// Edge says which result partition feeds which gate. _metadata does not hold the
// job graph: edges are inferred from what fits together, or given.
type Edge struct {
	From      *Operator
	Partition int
	To        *Operator
	Gate      int
	// Given: by the caller. Otherwise inferred: Evidence counts the connections on
	// which a record goes on from the input part into the output part, Misses
	// those that do not fit.
	Given            bool
	Evidence, Misses int
}

// String returns "source partition 0 → count gate 0".
func (e Edge) String() string {
	return fmt.Sprintf("%s partition %d → %s gate %d", name(e.From), e.Partition, name(e.To), e.Gate)
}

func name(o *Operator) string { return cmp.Or(o.Name, o.UID, o.ID.String()) }

// FindOperator returns the one operator whose id, uid or name is ref.
func (m *Metadata) FindOperator(ref string) (*Operator, error) {
	var at []*Operator
	for i := range m.Operators {
		o := &m.Operators[i]
		if o.ID.String() == ref {
			return o, nil
		}
		if ref != "" && (o.UID == ref || o.Name == ref) {
			at = append(at, o)
		}
	}
	switch len(at) {
	case 1:
		return at[0], nil
	case 0:
		return nil, &inflight.Error{Op: "find operator", Object: fmt.Sprintf("%.200q", ref), Err: inflight.ErrNotExist}
	}
	return nil, &inflight.Error{Op: "find operator", Object: fmt.Sprintf("%.200q", ref), Err: fmt.Errorf("%w: %d operators have that name", inflight.ErrConfig, len(at)), Mend: "give its id"}
}

// port is a gate, or a partition.
type port struct {
	op     *Operator
	number int
}

func (p port) compare(q port) int {
	return cmp.Or(slices.Compare(p.op.ID[:], q.op.ID[:]), cmp.Compare(p.number, q.number))
}

// link is one connection as one end of an edge sees it: its own subtask, and the
// other one.
type link [2]int32

// turned is l as the other end sees it.
func (l link) turned() link { return link{l[1], l[0]} }

func (l link) compare(m link) int { return slices.Compare(l[:], m[:]) }

// ends is one end of an edge: the channels of a gate or partition, by the
// subtask of that end and the index of the other.
type ends struct {
	port
	channels map[link]int32 // indexes into Index.Channels
	other    int            // the other end has at least so many subtasks
}

// portsOf groups the channels of one side by gate or partition.
func (x *Index) portsOf(side inflight.Side) (list []*ends) {
	at := map[port]*ends{}
	for i := range x.Channels {
		c := &x.Channels[i]
		if c.Address.Side != side {
			continue
		}
		p := port{c.Operator, c.Address.Input.Gate}
		other := c.Address.Input.Channel
		if side == inflight.Output {
			p.number, other = c.Address.Output.Partition, c.Address.Output.Subpartition
		}
		e := at[p]
		if e == nil {
			e = &ends{port: p, channels: map[link]int32{}}
			at[p] = e
			list = append(list, e)
		}
		e.channels[link{int32(c.Task.Subtask), int32(other)}] = int32(i)
		e.other = max(e.other, other+1)
	}
	slices.SortStableFunc(list, func(a, b *ends) int { return a.compare(b.port) })
	return list
}

// at returns the index of the channel of a connection, if it holds anything.
func (e *ends) at(l link) (i int, ok bool) {
	n, ok := e.channels[l]
	return int(n), ok
}

// all yields the indexes of the channels, in no order.
func (e *ends) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, i := range e.channels {
			if !yield(int(i)) {
				return
			}
		}
	}
}

// fits reports whether partition p can feed gate g.
func fits(g, p *ends) bool {
	return g.op != p.op && g.other <= p.op.Parallelism && p.other <= g.op.Parallelism
}

// pair is a gate and a partition that may be an edge.
type pair struct {
	gate, part             *ends
	hits, misses, evidence int // connections that fit, that do not, and that a record binds together
	fixed                  bool
}

// conflicts reports whether only one of p and q can be an edge.
func (p *pair) conflicts(q *pair) bool {
	return p.gate != nil && p.gate == q.gate || p.part != nil && p.part == q.part
}

// better orders pairs: fewer misses, then more evidence.
func (p *pair) better(q *pair) int {
	return cmp.Or(cmp.Compare(p.misses, q.misses), -cmp.Compare(p.evidence, q.evidence))
}

// match picks the pairs that are edges: those that fit better than any other
// pair of the same gate or partition. What is ambiguous stays open, and becomes
// clear perhaps when others are taken.
func match(pairs []*pair) (edges []*pair) {
	open := slices.Clone(pairs)
	for {
		i := slices.IndexFunc(open, func(p *pair) bool {
			return p.fixed || p.misses <= p.hits && !slices.ContainsFunc(open, func(q *pair) bool {
				return p != q && p.conflicts(q) && q.better(p) <= 0
			})
		})
		if i < 0 {
			return edges
		}
		e := open[i]
		edges = append(edges, e)
		open = slices.DeleteFunc(open, func(q *pair) bool { return q == e || q.conflicts(e) })
	}
}

// connections yields the connections of an edge that hold anything: the index of
// the input channel and of the output channel, -1 where that side is empty.
func connections(gate, part *ends) func(yield func(in, out int) bool) {
	return func(yield func(in, out int) bool) {
		find := func(e *ends, l link) int {
			if e != nil {
				if i, ok := e.at(l); ok {
					return i
				}
			}
			return -1
		}
		if gate != nil {
			for k, in := range gate.channels {
				if !yield(int(in), find(part, k.turned())) {
					return
				}
			}
		}
		if part != nil {
			for k, out := range part.channels {
				if find(gate, k.turned()) < 0 && !yield(-1, int(out)) {
					return
				}
			}
		}
	}
}
