package format

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/inflight"
)

// ManifestVersion is the version of the manifest that this package writes.
//
//	1  the first
const ManifestVersion = 1

// MaxManifest is the largest manifest in bytes: some 400,000 subtasks.
const MaxManifest = 64 << 20

// Kind says what a slot of a job's log holds.
type Kind string

// The kinds of entries. They are part of the format.
const (
	KindCheckpoint Kind = "checkpoint" // a complete checkpoint
	KindAborted    Kind = "aborted"    // an id that was given up
	KindClaim      Kind = "claim"      // the start of a coordinator
)

// Alignment says how the barriers of a checkpoint went.
type Alignment string

// The alignments. They are part of the format.
const (
	Aligned   Alignment = "aligned"
	Unaligned Alignment = "unaligned"
	Mixed     Alignment = "mixed" // some subtasks this way, some the other
)

// Mode is the guarantee that a checkpoint was taken for.
type Mode string

// The modes. They are part of the format.
const (
	ExactlyOnce Mode = "exactly-once"
	AtLeastOnce Mode = "at-least-once"
)

// CauseKind grades why an id was given up.
type CauseKind string

// The kinds of causes. They are part of the format.
const (
	CauseAborted  CauseKind = "aborted"  // given up by the coordinator: timeout, subsumed, shutdown
	CauseDeclined CauseKind = "declined" // a subtask or a bound refused it
	CauseFailed   CauseKind = "failed"   // something broke
)

// Cause says why an id was given up.
type Cause struct {
	Kind   CauseKind `json:"kind"`
	Reason string    `json:"reason"`         // a word for machines: "subsumed", "over-budget"
	Text   string    `json:"text,omitempty"` // a sentence for people
}

// Manifest is an entry of a job's log, chk-<id>/_manifest.json. It says all
// that is needed to restore a checkpoint, and grows with subtasks, never with
// channels or buffers. Entries of other kinds than checkpoint have only the
// fields before Mode.
type Manifest struct {
	Kind    Kind                  `json:"kind"`
	Job     string                `json:"job"`
	ID      inflight.CheckpointID `json:"id"`
	Attempt string                `json:"attempt"` // random id of the coordinator that wrote it
	Epoch   inflight.Epoch        `json:"epoch"`   // the id of that coordinator's claim
	// Base is the checkpoint that the coordinator restored; nil: none.
	Base *inflight.CheckpointID `json:"base,omitempty"`
	// Keep lists the older slots that stay, ascending: retained, pinned,
	// savepoints. Savepoints says which of them are savepoints.
	Keep       []inflight.CheckpointID `json:"keep,omitempty"`
	Savepoints []inflight.CheckpointID `json:"savepoints,omitempty"`
	// PassedOver lists the slots that a claim with an older base goes back over.
	PassedOver []inflight.CheckpointID `json:"passed_over,omitempty"`
	Cause      *Cause                  `json:"cause,omitempty"` // of an aborted id

	Mode      Mode      `json:"mode,omitempty"`
	Alignment Alignment `json:"alignment,omitempty"`
	// Savepoint: it is kept until somebody releases it. Always aligned.
	Savepoint bool `json:"savepoint,omitempty"`
	// SelfContained: the directory of the manifest holds everything, and may be
	// copied by any tool under any name.
	SelfContained bool `json:"self_contained,omitempty"`
	// Partial: subtasks are missing by choice.
	Partial  bool      `json:"partial,omitempty"`
	Topology *Topology `json:"topology,omitempty"`
	// Files are the channel-state files that Handles refer to. A size or a
	// directory that is not known is 0.
	Files []FileInfo `json:"-"`
	// Handles say where the state of each subtask lies, in the order of the
	// vertices and subtasks.
	Handles []inflight.Handle `json:"-"`
	// Finished lists the subtasks that had ended before, in the same order. They
	// may have a handle too: where their connections stood.
	Finished []inflight.Task `json:"-"`
}

// Topology is the job graph as the checkpoint needs it.
type Topology struct {
	Vertices []Vertex `json:"vertices"`
	Edges    []Edge   `json:"edges,omitempty"`
}

// Vertex is one vertex of the job graph.
type Vertex struct {
	ID          string `json:"id"`
	Parallelism int    `json:"parallelism"`
	// MaxParallelism is the number of key groups; 0 where there is no keyed state.
	MaxParallelism int               `json:"max_parallelism,omitempty"`
	Attributes     map[string]string `json:"attributes,omitempty"` // the engine's own
}

// Edge says which result partition of a vertex feeds which gate of another.
type Edge struct {
	From        string `json:"from"`
	Partition   int    `json:"partition"`
	To          string `json:"to"`
	Gate        int    `json:"gate"`
	Partitioner string `json:"partitioner"` // "hash", "rebalance", "forward", …
	// Serializer is the fingerprint of the record format; "": unknown.
	Serializer string            `json:"serializer,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"` // the engine's own
}

// Vertex returns the vertex with that id, or nil.
func (t *Topology) Vertex(id string) *Vertex {
	if t == nil {
		return nil
	}
	if i := slices.IndexFunc(t.Vertices, func(v Vertex) bool { return v.ID == id }); i >= 0 {
		return &t.Vertices[i]
	}
	return nil
}

// Handle returns the handle of task, or nil.
func (m *Manifest) Handle(task inflight.Task) *inflight.Handle {
	if i := slices.IndexFunc(m.Handles, func(h inflight.Handle) bool { return h.Task == task }); i >= 0 {
		return &m.Handles[i]
	}
	return nil
}

// File returns what the manifest knows about a file, or nil.
func (m *Manifest) File(name string) *FileInfo {
	if i := slices.IndexFunc(m.Files, func(f FileInfo) bool { return f.Name == name }); i >= 0 {
		return &m.Files[i]
	}
	return nil
}

// SetHandles takes over the handles of a checkpoint and lists the files that
// they refer to, sorted by name; what is known about a file beyond its name and
// id is taken from known.
func (m *Manifest) SetHandles(handles []inflight.Handle, known ...FileInfo) {
	files := map[string]FileInfo{}
	for _, h := range handles {
		for _, s := range h.Segments {
			files[s.File] = FileInfo{Name: s.File, FileID: s.FileID}
		}
		for _, r := range h.References {
			files[r.Name] = FileInfo{Name: r.Name, FileID: r.FileID}
		}
	}
	for _, f := range known {
		if g, ok := files[f.Name]; ok && g.FileID == f.FileID {
			files[f.Name] = f
		}
	}
	m.Handles, m.Files = handles, nil
	for _, f := range files {
		m.Files = append(m.Files, f)
	}
	slices.SortFunc(m.Files, func(a, b FileInfo) int { return strings.Compare(a.Name, b.Name) })
}

// PersistedBytes is the payload of channel state, before compression
// (channel_state_bytes).
func (m *Manifest) PersistedBytes() (n uint64) {
	for _, h := range m.Handles {
		n += h.PersistedBytes()
	}
	return n
}

// StateBytes is the payload of operator state, before compression.
func (m *Manifest) StateBytes() (n uint64) {
	for _, h := range m.Handles {
		n += h.StateBytes
	}
	return n
}

// FileBytes is the size of all files on the backend. It is what the checkpoint
// occupies there, but for the manifest.
func (m *Manifest) FileBytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Missing returns the subtasks of the topology that have neither a handle nor
// finished, in order.
func (m *Manifest) Missing() (missing []inflight.Task) {
	if m.Topology == nil {
		return nil
	}
	seen := make(map[inflight.Task]bool, len(m.Handles)+len(m.Finished))
	for _, h := range m.Handles {
		seen[h.Task] = true
	}
	for _, t := range m.Finished {
		seen[t] = true
	}
	for _, v := range m.Topology.Vertices {
		for i := range v.Parallelism {
			if t := (inflight.Task{Vertex: v.ID, Subtask: i}); !seen[t] {
				missing = append(missing, t)
			}
		}
	}
	return missing
}

// String names the entry: "checkpoint 7", "claim 3".
func (m *Manifest) String() string {
	if m.Savepoint {
		return fmt.Sprintf("savepoint %d", m.ID)
	}
	return fmt.Sprintf("%s %d", m.Kind, m.ID)
}
