package catalog

import (
	"context"
	"fmt"
	"path"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// checkComplete makes sure that a manifest may be committed: every subtask is
// there or had finished, and every file is there in the size that it was sealed
// with. One listing a directory tells; sizes that are not known are filled in.
func (l *Log) checkComplete(ctx context.Context, m *format.Manifest) error {
	var findings []inflight.Finding
	if !m.Partial {
		for _, t := range m.Missing() {
			findings = append(findings, inflight.Finding{Severity: inflight.SeverityError, Code: format.CodeMissingSubtask, Object: format.CheckpointDir(m.ID),
				Offset: -1, Task: &t, Text: "it has not acknowledged and had not finished", Err: inflight.ErrIncomplete})
		}
	}
	v := new(view)
	for i, f := range m.Files {
		id, _, err := format.SplitFileName(f.Name)
		if err != nil {
			return l.fail("commit", m.ID, err, "")
		}
		if v.slot(id) == nil { // files are sorted by name, so by slot
			if err := l.scanSlot(ctx, v, id); err != nil {
				return err
			}
		}
		if size, ok := v.size(f.Name); ok && f.Size == 0 {
			m.Files[i].Size = size
		}
	}
	findings = append(findings, missingFiles(v, m)...)
	if len(findings) == 0 {
		return nil
	}
	return l.fail("commit", m.ID, &IncompleteError{Findings: findings}, "abort it")
}

// scanSlot adds a listing of one slot to v.
func (l *Log) scanSlot(ctx context.Context, v *view, id inflight.CheckpointID) error {
	v.slots = append(v.slots, &slotView{id: id})
	for info, err := range l.b.List(ctx, l.dir(id)+"/") {
		if err != nil {
			return l.fail("list", id, err, "")
		}
		v.add(info, format.CheckpointDir(id)+"/"+path.Base(info.Name))
	}
	return nil
}

// IncompleteError says what a checkpoint lacks. It is ErrIncomplete.
type IncompleteError struct{ Findings []inflight.Finding }

// Error names the first finding.
func (e *IncompleteError) Error() string {
	f := e.Findings[0]
	text := fmt.Sprintf("%v: %s %s", inflight.ErrIncomplete, f.Object, f.Text)
	if f.Task != nil {
		text = fmt.Sprintf("%v: subtask %s: %s", inflight.ErrIncomplete, *f.Task, f.Text)
	}
	if n := len(e.Findings) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// Unwrap returns ErrIncomplete.
func (e *IncompleteError) Unwrap() error { return inflight.ErrIncomplete }

// removeOwn deletes the files of slot id that carry attempt in their names.
func (l *Log) removeOwn(ctx context.Context, id inflight.CheckpointID, attempt string) error {
	var own []string
	for info, err := range l.b.List(ctx, l.dir(id)+"/") {
		if err != nil {
			return err
		}
		if a, ok := format.StateFileAttempt(path.Base(info.Name)); ok && a == attempt {
			own = append(own, info.Name)
		}
	}
	return l.remove(ctx, own)
}

// portion is how many names one deletion takes.
const portion = 1000

// remove deletes names in portions, in order; it tries all of a portion, and
// stops after one that failed.
func (l *Log) remove(ctx context.Context, names []string) error {
	for len(names) > 0 {
		n := min(portion, len(names))
		if err := l.b.Remove(ctx, names[:n]...); err != nil {
			return &inflight.Error{Op: "delete", Object: names[0], Err: err, Mend: "run gc later"}
		}
		names = names[n:]
	}
	return nil
}
