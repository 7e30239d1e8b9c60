package format

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spillway-io/spillway/inflight"
)

// The codes of findings about a manifest, what it lists, and the statistics
// beside it.
const (
	CodeManifest       = "manifest"
	CodeStats          = "stats"
	CodeMissingFile    = "missing-file"
	CodeWrongSize      = "wrong-size"
	CodeMissingSubtask = "missing-subtask"
)

// Limits of a manifest. They keep a hostile one from costing more than its own
// size.
const (
	maxParallelism = 1 << 16
	maxSubtasks    = 1 << 20 // of all vertices
	maxIndex       = 1 << 16 // of a partition or gate
	maxText        = 64 << 10
)

// check reports the first thing that makes m no valid entry. It is used on
// what is written and on what is read.
func (m *Manifest) check() error {
	if err := m.checkEntry(); err != nil {
		return err
	}
	switch m.Kind {
	case KindCheckpoint:
		return m.checkCheckpoint()
	case KindAborted:
		if c := m.Cause; c == nil {
			return badManifest("it is aborted and has no cause")
		} else if c.Kind != CauseAborted && c.Kind != CauseDeclined && c.Kind != CauseFailed {
			return badManifest("unknown kind of cause %q", c.Kind)
		}
	}
	if m.Topology != nil || len(m.Files)+len(m.Handles)+len(m.Finished) > 0 {
		return badManifest("a %s has no subtasks", m.Kind)
	}
	return nil
}

// checkEntry checks what entries of all kinds have.
func (m *Manifest) checkEntry() error {
	switch {
	case m.Kind != KindCheckpoint && m.Kind != KindAborted && m.Kind != KindClaim:
		return badManifest("unknown kind %q", m.Kind)
	case m.ID > MaxCheckpointID:
		return badManifest("id %d exceeds %d", m.ID, MaxCheckpointID)
	case !plainName(m.Attempt):
		return badManifest("attempt %q is not a plain word", m.Attempt)
	case m.Kind == KindClaim && inflight.CheckpointID(m.Epoch) != m.ID:
		return badManifest("claim %d has epoch %d", m.ID, m.Epoch)
	case m.Kind != KindClaim && inflight.CheckpointID(m.Epoch) >= m.ID:
		return badManifest("%s %d belongs to the later epoch %d", m.Kind, m.ID, m.Epoch)
	case m.Base != nil && *m.Base >= m.ID:
		return badManifest("its base %d is not older", *m.Base)
	case m.Kind == KindClaim && m.Base != nil && !slices.Contains(m.Keep, *m.Base):
		return badManifest("the claim does not keep its base %d", *m.Base)
	}
	for _, ids := range [][]inflight.CheckpointID{m.Keep, m.Savepoints, m.PassedOver} {
		for i, id := range ids {
			if id >= m.ID || i > 0 && ids[i-1] >= id {
				return badManifest("slot %d stands out of order in a list", id)
			}
		}
	}
	for _, id := range m.Savepoints {
		if _, ok := slices.BinarySearch(m.Keep, id); !ok {
			return badManifest("savepoint %d is not kept", id)
		}
	}
	if m.Cause != nil {
		return checkTexts(m.Job, m.Cause.Reason, m.Cause.Text)
	}
	return checkTexts(m.Job)
}

func (m *Manifest) checkCheckpoint() error {
	switch {
	case m.Mode != ExactlyOnce && m.Mode != AtLeastOnce:
		return badManifest("unknown mode %q", m.Mode)
	case m.Alignment != Aligned && m.Alignment != Unaligned && m.Alignment != Mixed:
		return badManifest("unknown alignment %q", m.Alignment)
	case m.Savepoint && m.Alignment != Aligned:
		return badManifest("savepoints cannot be unaligned")
	case m.Mode == AtLeastOnce && m.Alignment != Aligned:
		return badManifest("cannot use unaligned checkpoints with at-least-once mode")
	}
	tasks, err := m.Topology.check()
	if err != nil {
		return err
	}
	if err := m.checkFiles(); err != nil {
		return err
	}
	return m.checkTasks(tasks)
}

// check returns the parallelism of each vertex.
func (t *Topology) check() (map[string]int, error) {
	if t == nil {
		return nil, badManifest("the topology is missing")
	}
	tasks, subtasks := make(map[string]int, len(t.Vertices)), 0
	for _, v := range t.Vertices {
		switch _, dup := tasks[v.ID]; {
		case dup:
			return nil, badManifest("vertex %q stands twice", v.ID)
		case v.Parallelism < 1 || v.Parallelism > maxParallelism:
			return nil, badManifest("vertex %q has parallelism %d", v.ID, v.Parallelism)
		case v.MaxParallelism < 0 || v.MaxParallelism > maxParallelism:
			return nil, badManifest("vertex %q has max parallelism %d", v.ID, v.MaxParallelism)
		}
		if err := checkTexts(append(texts(v.Attributes), v.ID)...); err != nil {
			return nil, err
		}
		tasks[v.ID] = v.Parallelism
		if subtasks += v.Parallelism; subtasks > maxSubtasks {
			return nil, badManifest("more than %d subtasks", maxSubtasks)
		}
	}
	type end struct {
		vertex string
		output bool
		index  int
	}
	seen := make(map[end]bool, 2*len(t.Edges))
	for _, e := range t.Edges {
		if tasks[e.From] == 0 || tasks[e.To] == 0 {
			return nil, badManifest("edge %q → %q has an end that is not a vertex", e.From, e.To)
		}
		if e.Partition < 0 || e.Partition >= maxIndex || e.Gate < 0 || e.Gate >= maxIndex {
			return nil, badManifest("edge %q → %q: partition %d, gate %d", e.From, e.To, e.Partition, e.Gate)
		}
		for _, n := range []end{{e.From, true, e.Partition}, {e.To, false, e.Gate}} {
			if seen[n] {
				return nil, badManifest("a partition or gate %d of %q stands twice", n.index, n.vertex)
			}
			seen[n] = true
		}
		if err := checkTexts(append(texts(e.Attributes), e.Partitioner, e.Serializer)...); err != nil {
			return nil, err
		}
	}
	return tasks, nil
}

func (m *Manifest) checkFiles() error {
	for i, f := range m.Files {
		id, _, err := SplitFileName(f.Name)
		switch {
		case err != nil:
			return err
		case id > m.ID:
			return badManifest("file %s belongs to a later slot", f.Name)
		case m.SelfContained && id != m.ID:
			return badManifest("file %s lies elsewhere, and it is said to be self-contained", f.Name)
		case i > 0 && strings.Compare(m.Files[i-1].Name, f.Name) >= 0:
			return badManifest("file %s stands out of order", f.Name)
		case f.Size < 0 || f.DirOffset < 0 || f.DirLength < 0 || f.DirLength > f.Size || f.DirOffset > f.Size-f.DirLength:
			return badManifest("file %s of %d bytes has its directory at %d+%d", f.Name, f.Size, f.DirOffset, f.DirLength)
		}
	}
	return nil
}

func (m *Manifest) checkTasks(parallelism map[string]int) error {
	files := make(map[string]*FileInfo, len(m.Files))
	for i := range m.Files {
		files[m.Files[i].Name] = &m.Files[i]
	}
	seen := make(map[inflight.Task]bool, len(m.Handles))
	task := func(t inflight.Task) error {
		if n := parallelism[t.Vertex]; t.Subtask < 0 || t.Subtask >= n {
			return badManifest("subtask %s is not in the topology", t)
		}
		if seen[t] {
			return badManifest("subtask %s stands twice", t)
		}
		seen[t] = true
		return nil
	}
	for _, h := range m.Handles {
		if err := task(h.Task); err != nil {
			return err
		}
		if h.Checkpoint != m.ID {
			return badManifest("the handle of %s is of checkpoint %d", h.Task, h.Checkpoint)
		}
		if m.Savepoint && h.PersistedBytes() > 0 {
			return badManifest("subtask %s of a savepoint has channel state", h.Task)
		}
		for _, s := range h.Segments {
			f := files[s.File]
			switch {
			case f == nil:
				return badManifest("the handle of %s refers to %q, which is not listed", h.Task, s.File)
			case f.FileID != s.FileID:
				return badManifest("the handle of %s refers to another file than the one listed as %s", h.Task, s.File)
			case s.Offset < 0 || s.Length <= 0 || f.Size > 0 && (s.Length > f.Size || s.Offset > f.Size-s.Length):
				return badManifest("the section of %s lies at %d+%d of %s, which has %d bytes", h.Task, s.Offset, s.Length, s.File, f.Size)
			}
		}
	}
	for _, h := range m.Handles {
		for _, r := range h.References {
			if f := files[r.Name]; f == nil || f.FileID != r.FileID {
				return badManifest("the handle of %s refers to %q, which is not listed", h.Task, r.Name)
			}
		}
	}
	clear(seen) // a subtask that had finished may have a handle, for its cuts
	for _, t := range m.Finished {
		if err := task(t); err != nil {
			return err
		}
	}
	return nil
}

// checkTexts refuses what JSON would not give back as it is.
func checkTexts(texts ...string) error {
	for _, s := range texts {
		if len(s) > maxText || !utf8.ValidString(s) {
			return badManifest("a text is not UTF-8 or longer than %d bytes: %.40q", maxText, s)
		}
	}
	return nil
}

func texts(m map[string]string) []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(m)), maps.Values(m))
}

func badManifest(format string, args ...any) error {
	return &FormatError{Code: CodeManifest, Offset: -1, Text: fmt.Sprintf("manifest: "+format, args...), Err: inflight.ErrCorrupt}
}
