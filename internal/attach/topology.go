package attach

import (
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
)

// serializer is the fingerprint of the elements that flow in the runtime
// (dataflow/record.go). It is in manifests and must change with them. By how it
// begins, the inspector knows that it can count them.
const serializer = "length-prefixed dataflow-elements/1"

// Topology describes a graph as manifests have it.
func Topology(g *dataflow.Graph, o dataflow.Options) *format.Topology {
	t := &format.Topology{}
	kind := serializer
	if g.Records != "" {
		kind += ", " + g.Records
	}
	for _, v := range g.Vertices() {
		t.Vertices = append(t.Vertices, format.Vertex{ID: v.Name, Parallelism: v.Parallelism, MaxParallelism: g.MaxParallelism})
	}
	for _, e := range g.Edges(o) {
		t.Edges = append(t.Edges, format.Edge{From: e.From, Partition: e.Partition, To: e.To, Gate: e.Gate,
			Partitioner: string(e.Kind), Serializer: kind})
	}
	return t
}
