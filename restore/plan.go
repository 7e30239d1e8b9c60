package restore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Scope names state that is, or may be, given up. One of Vertex, Edge and Task
// is set; with Task, Address narrows it to one address of that subtask.
type Scope struct {
	Vertex  string            // all state of a vertex, and what is in flight to and from it
	Edge    *EdgeName         // what is in flight on an edge, at both ends
	Task    *inflight.Task    // all state of one subtask
	Address *inflight.Address // of Task
}

// EdgeName names an edge of the job graph.
type EdgeName struct {
	From      string
	Partition int
	To        string
	Gate      int
}

// NameOf returns the name of e.
func NameOf(e format.Edge) EdgeName { return EdgeName{e.From, e.Partition, e.To, e.Gate} }

// String returns "src:0 → count:1".
func (e EdgeName) String() string {
	return fmt.Sprintf("%s:%d → %s:%d", e.From, e.Partition, e.To, e.Gate)
}

// String returns for example "vertex count" or "edge src:0 → count:0".
func (s Scope) String() string {
	switch {
	case s.Edge != nil:
		return "edge " + s.Edge.String()
	case s.Task != nil && s.Address != nil:
		return s.Task.String() + " " + s.Address.String()
	case s.Task != nil:
		return "subtask " + s.Task.String()
	}
	return "vertex " + s.Vertex
}

func (s Scope) equal(o Scope) bool {
	return s.Vertex == o.Vertex && equal(s.Edge, o.Edge) && equal(s.Task, o.Task) && equal(s.Address, o.Address)
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// Options are the options of NewPlan.
type Options struct {
	// AllowDropped lists what may be given up. What stands here is dropped,
	// whether or not it would fit. Default: nothing.
	AllowDropped []Scope
	// AllowViolations restores connections whose captured input and output do
	// not join, with the hole or the repetition that they have. Default: refused.
	AllowViolations bool
}

// ChangeKind says what does not fit.
type ChangeKind string

// The kinds of changes.
const (
	VertexRemoved         ChangeKind = "vertex-removed"
	ParallelismChanged    ChangeKind = "parallelism"
	MaxParallelismChanged ChangeKind = "max-parallelism"
	EdgeRemoved           ChangeKind = "edge-removed"
	PartitionerChanged    ChangeKind = "partitioner"
	SerializerChanged     ChangeKind = "serializer"
	SubtaskMissing        ChangeKind = format.CodeMissingSubtask
)

// Change is one thing that does not fit, and what to give up so that it does.
type Change struct {
	Kind  ChangeKind
	Scope Scope
	Text  string
}

// ChangeError says why a checkpoint does not fit a job. It is an ErrMismatch.
type ChangeError struct {
	Changes []Change
}

// Error lists the changes on one line.
func (e *ChangeError) Error() string {
	texts := make([]string, len(e.Changes))
	for i, c := range e.Changes {
		texts[i] = c.Text
	}
	return inflight.ErrMismatch.Error() + ": " + strings.Join(texts, "; ")
}

// Unwrap returns ErrMismatch.
func (e *ChangeError) Unwrap() error { return inflight.ErrMismatch }

// Plan says which captured state goes to which subtask.
type Plan struct {
	Checkpoint inflight.CheckpointID
	// Tasks are all subtasks of the new topology, in its order.
	Tasks []TaskPlan
	// Dropped is what is given up, and why.
	Dropped []Dropped
	// Fresh are the vertices that the checkpoint does not know: they begin
	// without state.
	Fresh []string

	topology        *format.Topology
	finished        []inflight.Task
	allowViolations bool
}

// TaskPlan is the part of one subtask.
type TaskPlan struct {
	Task inflight.Task
	// Handle is what it gets; without segments: nothing.
	Handle inflight.Handle
	// Finished: the subtask had ended before the checkpoint.
	Finished bool

	drop []Scope
}

// Dropped is something that is given up.
type Dropped struct {
	Scope  Scope
	Reason string
}

// NewPlan plans the restore of m into a job of topology t. It is pure. At
// present the parallelism must be the same: what does not fit is refused as a
// *ChangeError that names all of it, unless it may be dropped.
func NewPlan(m *format.Manifest, t *format.Topology, o Options) (*Plan, error) {
	object := m.String()
	if m.Kind != format.KindCheckpoint || m.Topology == nil || t == nil {
		return nil, &inflight.Error{Op: "plan restore", Object: object, Err: fmt.Errorf("%w: there is no topology", inflight.ErrMismatch)}
	}
	p := &Plan{Checkpoint: m.ID, topology: m.Topology, finished: m.Finished, allowViolations: o.AllowViolations}
	for _, s := range o.AllowDropped {
		if err := known(m, s); err != nil {
			return nil, &inflight.Error{Op: "plan restore", Object: object, Err: err, Mend: "name what the checkpoint has"}
		}
	}
	var refused []Change
	reasons := make([]string, len(o.AllowDropped))
	for _, c := range changes(m, t) {
		if i := slices.IndexFunc(o.AllowDropped, func(s Scope) bool { return s.covers(c.Scope) }); i >= 0 {
			reasons[i] = c.Text
		} else if c.Kind != SubtaskMissing || !m.Partial {
			refused = append(refused, c)
		} else {
			p.Dropped = append(p.Dropped, Dropped{c.Scope, c.Text})
		}
	}
	if len(refused) > 0 {
		return nil, &inflight.Error{Op: "plan restore", Object: object, Err: &ChangeError{refused}, Mend: mend(refused)}
	}
	for i, s := range o.AllowDropped {
		if reasons[i] == "" {
			reasons[i] = "as wished"
		}
		p.Dropped = append(p.Dropped, Dropped{s, reasons[i]})
	}
	p.tasks(m, t, o.AllowDropped)
	return p, nil
}

func mend(changes []Change) string {
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Kind == ParallelismChanged }) {
		return "restore with the parallelism of the checkpoint"
	}
	var scopes []string
	for _, c := range changes {
		if s := c.Scope.String(); !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	return "change it back, or allow to drop: " + strings.Join(scopes, ", ")
}

// known reports whether s names something that the checkpoint has.
func known(m *format.Manifest, s Scope) error {
	ok, set := false, 0
	if s.Vertex != "" {
		set++
		ok = m.Topology.Vertex(s.Vertex) != nil
	}
	if s.Edge != nil {
		set++
		ok = slices.ContainsFunc(m.Topology.Edges, func(e format.Edge) bool { return NameOf(e) == *s.Edge })
	}
	if s.Task != nil {
		set++
		v := m.Topology.Vertex(s.Task.Vertex)
		ok = v != nil && s.Task.Subtask >= 0 && s.Task.Subtask < v.Parallelism
	}
	if !ok || set != 1 || s.Address != nil && s.Task == nil {
		return fmt.Errorf("%w: nothing to drop is called %s", inflight.ErrConfig, s)
	}
	return nil
}

// covers reports whether giving up s gives up o.
func (s Scope) covers(o Scope) bool {
	switch {
	case s.equal(o):
		return true
	case s.Vertex != "" && o.Edge != nil:
		return o.Edge.From == s.Vertex || o.Edge.To == s.Vertex
	case s.Vertex != "" && o.Task != nil:
		return o.Task.Vertex == s.Vertex
	}
	return false
}

// changes lists what of m does not fit t.
func changes(m *format.Manifest, t *format.Topology) (list []Change) {
	add := func(kind ChangeKind, s Scope, format string, args ...any) {
		list = append(list, Change{kind, s, s.String() + fmt.Sprintf(format, args...)})
	}
	for _, old := range m.Topology.Vertices {
		s := Scope{Vertex: old.ID}
		switch v := t.Vertex(old.ID); {
		case v == nil:
			add(VertexRemoved, s, " is not in the job any more")
		case v.Parallelism != old.Parallelism:
			add(ParallelismChanged, s, " has parallelism %d, and had %d", v.Parallelism, old.Parallelism)
		case v.MaxParallelism != old.MaxParallelism:
			add(MaxParallelismChanged, s, " has max parallelism %d, and had %d", v.MaxParallelism, old.MaxParallelism)
		}
	}
	for _, old := range m.Topology.Edges {
		name := NameOf(old)
		s := Scope{Edge: &name}
		i := slices.IndexFunc(t.Edges, func(e format.Edge) bool { return NameOf(e) == name })
		if i < 0 {
			add(EdgeRemoved, s, " is not in the job any more")
			continue
		}
		if e := t.Edges[i]; e.Partitioner != old.Partitioner {
			add(PartitionerChanged, s, " is partitioned by %s, and was by %s", e.Partitioner, old.Partitioner)
		} else if e.Serializer != old.Serializer && e.Serializer != "" && old.Serializer != "" {
			add(SerializerChanged, s, " has records of serializer %s, and had %s", e.Serializer, old.Serializer)
		}
	}
	for _, task := range m.Missing() {
		add(SubtaskMissing, Scope{Task: &task}, " has no state in the checkpoint, and had not finished")
	}
	return list
}

// tasks fills the plan: at unchanged parallelism each subtask gets its own.
func (p *Plan) tasks(m *format.Manifest, t *format.Topology, drop []Scope) {
	handles := make(map[inflight.Task]*inflight.Handle, len(m.Handles))
	for i := range m.Handles {
		handles[m.Handles[i].Task] = &m.Handles[i]
	}
	finished := make(map[inflight.Task]bool, len(m.Finished))
	for _, task := range m.Finished {
		finished[task] = true
	}
	subtasks := 0
	for _, v := range t.Vertices {
		subtasks += v.Parallelism
	}
	p.Tasks = make([]TaskPlan, 0, max(subtasks, 0))
	for _, v := range t.Vertices {
		if m.Topology.Vertex(v.ID) == nil {
			p.Fresh = append(p.Fresh, v.ID)
		}
		for i := range v.Parallelism {
			task := inflight.Task{Vertex: v.ID, Subtask: i}
			n := TaskPlan{Task: task, Handle: inflight.Handle{Task: task, Checkpoint: m.ID}, Finished: finished[task]}
			whole := slices.ContainsFunc(drop, func(s Scope) bool {
				return s.Vertex == v.ID || s.Task != nil && s.Address == nil && *s.Task == task
			})
			if h := handles[task]; h != nil && !whole {
				n.Handle = *h
				n.drop = p.scopesOf(task, drop)
			}
			p.Tasks = append(p.Tasks, n)
		}
	}
}

// scopesOf returns those of drop that touch the channels of task: its own
// addresses, and the edges that it is an end of.
func (p *Plan) scopesOf(task inflight.Task, drop []Scope) (scopes []Scope) {
	for _, s := range drop {
		switch {
		case s.Task != nil && *s.Task == task:
			scopes = append(scopes, s)
		case s.Edge != nil && (s.Edge.From == task.Vertex || s.Edge.To == task.Vertex):
			scopes = append(scopes, s)
		case s.Vertex != "":
			for _, e := range p.topology.Edges {
				if name := NameOf(e); e.From == s.Vertex && e.To == task.Vertex || e.To == s.Vertex && e.From == task.Vertex {
					scopes = append(scopes, Scope{Edge: &name})
				}
			}
		}
	}
	return scopes
}

// Keeps reports whether address a of the subtask is restored.
func (t *TaskPlan) Keeps(a inflight.Address) bool {
	for _, s := range t.drop {
		switch {
		case s.Address != nil && *s.Address == a,
			s.Edge != nil && a.Side == inflight.Output && s.Edge.From == t.Task.Vertex && s.Edge.Partition == a.Output.Partition,
			s.Edge != nil && a.Side == inflight.Input && s.Edge.To == t.Task.Vertex && s.Edge.Gate == a.Input.Gate:
			return false
		}
	}
	return true
}

// Task returns the part of a subtask, or nil.
func (p *Plan) Task(task inflight.Task) *TaskPlan {
	if i := slices.IndexFunc(p.Tasks, func(t TaskPlan) bool { return t.Task == task }); i >= 0 {
		return &p.Tasks[i]
	}
	return nil
}

// String says what goes where, one line for each subtask.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "restore of checkpoint %d\n", p.Checkpoint)
	for i := range p.Tasks {
		t := &p.Tasks[i]
		h := &t.Handle
		switch {
		case t.Finished:
			fmt.Fprintf(&b, "  %s: had finished\n", t.Task)
		case len(h.Segments) == 0:
			fmt.Fprintf(&b, "  %s: nothing\n", t.Task)
		default:
			fmt.Fprintf(&b, "  %s: %d bytes of input, %d of output, %d of state from %s\n", t.Task, h.InputBytes, h.OutputBytes, h.StateBytes, fileNames(h))
		}
	}
	for _, v := range p.Fresh {
		fmt.Fprintf(&b, "  vertex %s is new: it begins without state\n", v)
	}
	for _, d := range p.Dropped {
		fmt.Fprintf(&b, "  dropped: %s (%s)\n", d.Scope, d.Reason)
	}
	return b.String()
}

func fileNames(h *inflight.Handle) string {
	names := make([]string, len(h.Segments))
	for i, s := range h.Segments {
		names[i] = s.File
	}
	return strings.Join(names, ", ")
}
