package restore

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// job is src ×2 → count ×2 → sink ×1.
func job() *format.Topology {
	return &format.Topology{
		Vertices: []format.Vertex{{ID: "src", Parallelism: 2}, {ID: "count", Parallelism: 2, MaxParallelism: 128}, {ID: "sink", Parallelism: 1}},
		Edges: []format.Edge{
			{From: "src", Partition: 0, To: "count", Gate: 1, Partitioner: "hash", Serializer: "v1"},
			{From: "count", Partition: 2, To: "sink", Gate: 0, Partitioner: "rebalance", Serializer: "v1"},
		},
	}
}

// old is a checkpoint of job in which sink/0 had finished.
func old() *format.Manifest {
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: 7, Attempt: "a", Epoch: 1, Mode: format.ExactlyOnce, Alignment: format.Unaligned, Topology: job()}
	var handles []inflight.Handle
	for _, task := range []inflight.Task{{Vertex: "src"}, {Vertex: "src", Subtask: 1}, {Vertex: "count"}, {Vertex: "count", Subtask: 1}} {
		handles = append(handles, inflight.Handle{Task: task, Checkpoint: 7, InputBytes: 5, Segments: []inflight.Segment{{File: format.StateFileName(7, "g0", "a"), Offset: 100, Length: 50}}})
	}
	m.SetHandles(handles)
	m.Finished = []inflight.Task{{Vertex: "sink"}}
	return m
}

func TestPlan(t *testing.T) {
	edge := &EdgeName{"src", 0, "count", 1}
	for _, tc := range []struct {
		name    string
		change  func(m *format.Manifest, t *format.Topology)
		drop    []Scope
		refused []ChangeKind
		text    string
		mend    string
		dropped string
	}{
		{name: "unchanged"},
		{name: "a vertex more", change: func(_ *format.Manifest, t *format.Topology) {
			t.Vertices = append(t.Vertices, format.Vertex{ID: "audit", Parallelism: 3})
			t.Edges = append(t.Edges, format.Edge{From: "count", Partition: 3, To: "audit"})
		}},
		{name: "a vertex less", change: func(_ *format.Manifest, t *format.Topology) { t.Vertices, t.Edges = t.Vertices[:2], t.Edges[:1] },
			refused: []ChangeKind{VertexRemoved, EdgeRemoved}, text: "vertex sink is not in the job any more; edge count:2 → sink:0 is not", mend: "allow to drop: vertex sink, edge count:2 → sink:0"},
		{name: "a vertex less, given up", change: func(_ *format.Manifest, t *format.Topology) { t.Vertices, t.Edges = t.Vertices[:2], t.Edges[:1] },
			drop: []Scope{{Vertex: "sink"}}, dropped: "vertex sink (edge count:2 → sink:0 is not in the job any more)"},
		{name: "parallelism", change: func(_ *format.Manifest, t *format.Topology) { t.Vertices[1].Parallelism = 3 },
			refused: []ChangeKind{ParallelismChanged}, text: "vertex count has parallelism 3, and had 2", mend: "restore with the parallelism of the checkpoint"},
		{name: "max parallelism", change: func(_ *format.Manifest, t *format.Topology) { t.Vertices[1].MaxParallelism = 256 },
			refused: []ChangeKind{MaxParallelismChanged}, text: "vertex count has max parallelism 256, and had 128"},
		{name: "another gate", change: func(_ *format.Manifest, t *format.Topology) { t.Edges[0].Gate = 0 },
			refused: []ChangeKind{EdgeRemoved}, text: "edge src:0 → count:1 is not in the job any more"},
		{name: "serializer", change: func(_ *format.Manifest, t *format.Topology) { t.Edges[0].Serializer = "v2" },
			refused: []ChangeKind{SerializerChanged}, text: "edge src:0 → count:1 has records of serializer v2, and had v1", mend: "change it back, or allow to drop: edge src:0 → count:1"},
		{name: "serializer, given up", change: func(_ *format.Manifest, t *format.Topology) { t.Edges[0].Serializer = "v2" },
			drop: []Scope{{Edge: edge}}, dropped: "edge src:0 → count:1 (edge src:0 → count:1 has records of serializer v2, and had v1)"},
		{name: "serializer unknown", change: func(_ *format.Manifest, t *format.Topology) { t.Edges[0].Serializer = "" }},
		{name: "partitioner", change: func(_ *format.Manifest, t *format.Topology) { t.Edges[0].Partitioner = "rebalance" },
			refused: []ChangeKind{PartitionerChanged}, text: "is partitioned by rebalance, and was by hash"},
		{name: "everything", change: func(_ *format.Manifest, t *format.Topology) {
			t.Vertices[0].Parallelism, t.Vertices[1].MaxParallelism, t.Edges[1].Serializer = 1, 1, "x"
		}, refused: []ChangeKind{ParallelismChanged, MaxParallelismChanged, SerializerChanged}},
		{name: "a subtask is missing", change: func(m *format.Manifest, _ *format.Topology) { m.Finished = nil },
			refused: []ChangeKind{SubtaskMissing}, text: "subtask sink/0 has no state in the checkpoint"},
		{name: "a subtask is missing by choice", change: func(m *format.Manifest, _ *format.Topology) { m.Finished, m.Partial = nil, true },
			dropped: "subtask sink/0"},
		{name: "as wished", drop: []Scope{{Task: &inflight.Task{Vertex: "src"}}}, dropped: "subtask src/0 (as wished)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, top := old(), job()
			if tc.change != nil {
				tc.change(m, top)
			}
			p, err := NewPlan(m, top, Options{AllowDropped: tc.drop})
			if tc.refused != nil {
				require.ErrorIs(t, err, inflight.ErrMismatch)
				var ce *ChangeError
				require.ErrorAs(t, err, &ce)
				var kinds []ChangeKind
				for _, c := range ce.Changes {
					kinds = append(kinds, c.Kind)
				}
				require.Equal(t, tc.refused, kinds)
				require.ErrorContains(t, err, tc.text)
				require.ErrorContains(t, err, tc.mend)
				require.NotContains(t, err.Error(), "\n")
				// What the error names can be given up.
				if tc.refused[0] != ParallelismChanged {
					var all []Scope
					for _, c := range ce.Changes {
						all = append(all, c.Scope)
					}
					_, err = NewPlan(m, top, Options{AllowDropped: all})
					require.NoError(t, err)
				}
				return
			}
			require.NoError(t, err)
			n := 0
			for _, v := range top.Vertices {
				n += v.Parallelism
			}
			require.Len(t, p.Tasks, n)
			require.Contains(t, p.String(), tc.dropped)
			require.Equal(t, tc.dropped == "", len(p.Dropped) == 0)
		})
	}
}

func TestPlanKeeps(t *testing.T) {
	in, out := inflight.InputChannel{Gate: 1}.Address(), inflight.Subpartition{Partition: 0}.Address()
	other := inflight.InputChannel{Gate: 0}.Address()
	state := inflight.StateName("x").Address()
	src, count := inflight.Task{Vertex: "src"}, inflight.Task{Vertex: "count", Subtask: 1}
	keeps := func(task inflight.Task, a inflight.Address, drop ...Scope) bool {
		p, err := NewPlan(old(), job(), Options{AllowDropped: drop})
		require.NoError(t, err)
		n := p.Task(task)
		return len(n.Handle.Segments) > 0 && n.Keeps(a)
	}
	edge := Scope{Edge: &EdgeName{"src", 0, "count", 1}}
	require.True(t, keeps(src, out))
	require.False(t, keeps(src, out, edge))
	require.False(t, keeps(count, in, edge))
	require.True(t, keeps(count, other, edge))
	require.True(t, keeps(count, state, edge))
	require.False(t, keeps(src, out, Scope{Vertex: "count"})) // what is in flight to it
	require.True(t, keeps(src, state, Scope{Vertex: "count"}))
	require.False(t, keeps(count, state, Scope{Vertex: "count"}))
	require.False(t, keeps(count, in, Scope{Task: &count, Address: &in}))
	require.True(t, keeps(count, other, Scope{Task: &count, Address: &in}))
	require.False(t, keeps(count, in, Scope{Task: &count}))
	for _, s := range []Scope{{}, {Vertex: "cuont"}, {Edge: &EdgeName{"src", 1, "count", 1}}, {Task: &inflight.Task{Vertex: "src", Subtask: 2}}, {Vertex: "src", Address: &in}, {Vertex: "src", Task: &src}} {
		_, err := NewPlan(old(), job(), Options{AllowDropped: []Scope{s}})
		require.ErrorIs(t, err, inflight.ErrConfig, s.String())
	}
	_, err := NewPlan(&format.Manifest{Kind: format.KindClaim}, job(), Options{})
	require.ErrorIs(t, err, inflight.ErrMismatch)
}

func TestPlanString(t *testing.T) {
	top := job()
	top.Vertices = append(top.Vertices, format.Vertex{ID: "audit", Parallelism: 1})
	p, err := NewPlan(old(), top, Options{AllowDropped: []Scope{{Task: &inflight.Task{Vertex: "src", Subtask: 1}}}})
	require.NoError(t, err)
	require.Equal(t, strings.TrimPrefix(`
restore of checkpoint 7
  src/0: 5 bytes of input, 0 of output, 0 of state from chk-0000000007/g0-a.cstate
  src/1: nothing
  count/0: 5 bytes of input, 0 of output, 0 of state from chk-0000000007/g0-a.cstate
  count/1: 5 bytes of input, 0 of output, 0 of state from chk-0000000007/g0-a.cstate
  sink/0: had finished
  audit/0: nothing
  vertex audit is new: it begins without state
  dropped: subtask src/1 (as wished)
`, "\n"), p.String())
}
