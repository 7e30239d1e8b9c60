package dataflow

import (
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// Graph is a job: vertices that run in parallel subtasks, and edges between
// them. A vertex reads only from vertices that were added before it.
type Graph struct {
	// MaxParallelism is how many key groups there are. It must not change
	// between a checkpoint and its restore.
	MaxParallelism int
	// Records says what the records are. Manifests have it, and a checkpoint with
	// records of another kind is not restored.
	Records  string
	vertices []*vertex
	err      error
}

type vertex struct {
	name        string
	parallelism int
	newSource   func(subtask int) Source
	newOperator func(subtask int) Operator
	inputs      []Input
}

// Input is an edge into a vertex. The first one is gate 0, and so on.
type Input struct {
	Vertex      string
	Partitioner Partitioner
}

// From is an edge from a vertex.
func From(vertex string, p Partitioner) Input { return Input{vertex, p} }

// NewGraph returns an empty graph.
func NewGraph() *Graph { return &Graph{MaxParallelism: DefaultMaxParallelism} }

// Source adds a vertex without inputs.
func (g *Graph) Source(name string, parallelism int, source func(subtask int) Source) {
	g.add(&vertex{name: name, parallelism: parallelism, newSource: source})
}

// Operator adds a vertex that reads from one or more others: several inputs
// are a union, or a connect if the operator looks at Context.Gate.
func (g *Graph) Operator(name string, parallelism int, operator func(subtask int) Operator, inputs ...Input) {
	v := &vertex{name: name, parallelism: parallelism, newOperator: operator, inputs: inputs}
	if len(inputs) == 0 {
		g.fail("vertex %s has no input", name)
	}
	for _, in := range inputs {
		up := g.vertex(in.Vertex)
		if up == nil {
			g.fail("vertex %s reads from %q, which does not exist before it", name, in.Vertex)
		} else if err := in.Partitioner.check(up.parallelism, parallelism); err != nil {
			g.fail("%s to %s: %w", in.Vertex, name, err)
		}
	}
	g.add(v)
}

func (g *Graph) add(v *vertex) {
	switch {
	case v.name == "" || g.vertex(v.name) != nil:
		g.fail("vertex %q: a name is needed, once", v.name)
	case v.parallelism < 1 || v.parallelism > g.MaxParallelism:
		g.fail("vertex %s: parallelism %d is not within 1 and %d", v.name, v.parallelism, g.MaxParallelism)
	}
	g.vertices = append(g.vertices, v)
}

func (g *Graph) fail(format string, args ...any) {
	if g.err == nil {
		g.err = &inflight.Error{Op: "build", Object: "graph", Err: fmt.Errorf(format, args...)}
	}
}

func (g *Graph) vertex(name string) *vertex {
	if i := slices.IndexFunc(g.vertices, func(v *vertex) bool { return v.name == name }); i >= 0 {
		return g.vertices[i]
	}
	return nil
}

// VertexInfo describes a vertex, for manifests.
type VertexInfo struct {
	Name        string
	Parallelism int
	Source      bool
}

// Vertices returns the vertices in the order in which they were added.
func (g *Graph) Vertices() (vs []VertexInfo) {
	for _, v := range g.vertices {
		vs = append(vs, VertexInfo{v.name, v.parallelism, v.newSource != nil})
	}
	return vs
}

// EdgeInfo describes an edge: which partition feeds which gate, and whether
// what is in flight on it may be captured.
type EdgeInfo struct {
	From, To    string
	Partition   int // of From
	Gate        int // of To
	Kind        PartitionerKind
	Unaligned   bool
	Why         string // if not
	partitioner Partitioner
}

// String returns for example "source → count (hash): unaligned".
func (e EdgeInfo) String() string {
	s := fmt.Sprintf("%s → %s (%s): ", e.From, e.To, e.Kind)
	if e.Unaligned {
		return s + "unaligned"
	}
	return s + "aligned, " + e.Why
}
