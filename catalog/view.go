package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// slotView is what one listing shows of a directory chk-<id>.
type slotView struct {
	id      inflight.CheckpointID
	entry   *backends.Info // its manifest; nil: the slot is open
	stats   *backends.Info
	files   []backends.Info // channel-state files
	unknown []backends.Info
}

// view is one listing of a job: its slots, ascending, and what is in no slot.
type view struct {
	slots   []*slotView
	unknown []backends.Info
}

// scan lists the job once.
func (l *Log) scan(ctx context.Context) (*view, error) {
	v := new(view)
	for info, err := range l.b.List(ctx, l.path("chk-")) {
		if errors.Is(err, fs.ErrNotExist) {
			break // no root yet
		}
		if err != nil {
			return nil, &inflight.Error{Op: "list", Object: l.path("chk-*"), Err: err}
		}
		v.add(info, strings.TrimPrefix(info.Name, l.path("")))
	}
	// Byte order puts "chk-0000000001.x/…" in between; slots must be ascending.
	slices.SortFunc(v.slots, func(a, b *slotView) int { return cmp.Compare(a.id, b.id) })
	return v, nil
}

func (v *view) add(info backends.Info, name string) {
	dir, base, _ := strings.Cut(name, "/")
	id, ok := format.ParseCheckpointDir(dir)
	if !ok || base == "" {
		v.unknown = append(v.unknown, info)
		return
	}
	if len(v.slots) == 0 || v.slots[len(v.slots)-1].id != id {
		v.slots = append(v.slots, &slotView{id: id})
	}
	s := v.slots[len(v.slots)-1]
	_, isState := format.StateFileAttempt(base)
	_, _, nameErr := format.SplitFileName(name)
	switch {
	case (base == format.ManifestName || base == format.ManifestInDir) && s.entry == nil:
		s.entry = &info
	case base == format.StatsName:
		s.stats = &info
	case isState && nameErr == nil:
		s.files = append(s.files, info)
	default:
		s.unknown = append(s.unknown, info)
	}
}

func (v *view) slot(id inflight.CheckpointID) *slotView {
	i, ok := slices.BinarySearchFunc(v.slots, id, func(s *slotView, id inflight.CheckpointID) int { return cmp.Compare(s.id, id) })
	if !ok {
		return nil
	}
	return v.slots[i]
}

// top returns the highest slot filled; -1: none.
func (v *view) top() int64 {
	for _, s := range slices.Backward(v.slots) {
		if s.entry != nil {
			return int64(s.id)
		}
	}
	return -1
}

// unfilled returns the slots above base that have files and no entry; those above
// the newest base where an older one is chosen, since what is between them may be
// retired.
func (st *state) unfilled(base *format.Manifest) (ids []inflight.CheckpointID) {
	above := int64(-1)
	for _, m := range []*format.Manifest{base, st.base} {
		if m != nil {
			above = max(above, int64(m.ID))
		}
	}
	for _, s := range st.slots {
		if s.entry == nil && len(s.files) > 0 && int64(s.id) > above {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// size returns the size of a file of the job, relative to it.
func (v *view) size(name string) (int64, bool) {
	id, base, err := format.SplitFileName(name)
	if err != nil {
		return 0, false
	}
	s := v.slot(id)
	if s == nil {
		return 0, false
	}
	i, ok := slices.BinarySearchFunc(s.files, base, func(f backends.Info, base string) int { return strings.Compare(path.Base(f.Name), base) })
	if !ok {
		return 0, false
	}
	return s.files[i].Size, true
}

// state is what a log says: the view and the entries that matter.
type state struct {
	*view
	// tip is the newest checkpoint or claim; nil: the log is empty, or damage
	// stands above it.
	tip *format.Manifest
	// base is the checkpoint that a restart gets; nil: none, or damage.
	base *format.Manifest
	// damage says why tip or base cannot be told; damaged is that slot.
	damage  error
	damaged inflight.CheckpointID
}

// errMoved says that the log moved on between a listing and what was read of
// it: there is a newer top.
var errMoved = errors.New("the log moved on")

// maxMoves bounds how often a reader follows a log that moves on.
const maxMoves = 100

// read lists the job, reads tip and base, and lets more read what it needs of
// the same moment.
//
// Listing and reading are several steps, and a name that was listed may mean
// something else when it is read: its entry was retired, and a create that was
// on its way for long has filled the slot anew. So the top is looked at again at
// the end. As long as it is the same nothing of what the tip keeps was deleted,
// nor the tip itself; else all is read again.
func (l *Log) read(ctx context.Context, more func(*state) error) (*state, error) {
	for range maxMoves {
		st, err := l.readOnce(ctx, more)
		if !errors.Is(err, errMoved) {
			return st, err
		}
	}
	return nil, &inflight.Error{Op: "read", Object: l.path("chk-*"), Err: fmt.Errorf("%w: %w", inflight.ErrUnavailable, errMoved), Mend: "try again"}
}

func (l *Log) readOnce(ctx context.Context, more func(*state) error) (*state, error) {
	v, err := l.scan(ctx)
	if err != nil {
		return nil, err
	}
	st := &state{view: v}
	if err := l.readTip(ctx, st); err != nil {
		return nil, err
	}
	if more != nil {
		if err := more(st); err != nil {
			return nil, err
		}
	}
	if v.top() < 0 || l.hooks.without&ruleReadTwice != 0 {
		return st, nil // nothing was read
	}
	again, err := l.scan(ctx)
	if err == nil && again.top() != v.top() {
		err = errMoved
	}
	return st, err
}

// readTip reads the entries from the top down to the tip, and the base.
func (l *Log) readTip(ctx context.Context, st *state) error {
	for _, s := range slices.Backward(st.slots) {
		if s.entry == nil {
			continue
		}
		m, err := l.readListed(ctx, s)
		if errors.Is(err, inflight.ErrDamaged) {
			st.damage, st.damaged = err, s.id
			return nil
		}
		if err != nil {
			return err
		}
		if m.Kind != format.KindAborted {
			st.tip = m
			return l.readBase(ctx, st)
		}
	}
	return nil
}

func (l *Log) readBase(ctx context.Context, st *state) error {
	switch {
	case st.tip.Kind == format.KindCheckpoint:
		st.base = st.tip
		return nil
	case st.tip.Base == nil:
		return nil
	}
	m, err := l.readKept(ctx, st.view, *st.tip.Base)
	if errors.Is(err, inflight.ErrDamaged) {
		st.damage, st.damaged = err, *st.tip.Base
		return nil
	}
	st.base = m
	return err
}

// readKept reads a checkpoint that the tip of the view keeps. One that is
// missing or no checkpoint is damage: nobody deletes it as long as it is kept.
func (l *Log) readKept(ctx context.Context, v *view, id inflight.CheckpointID) (*format.Manifest, error) {
	s := v.slot(id)
	if s == nil || s.entry == nil {
		return nil, l.fail("read", id, fmt.Errorf("%w: %w: it is kept and missing", inflight.ErrDamaged, inflight.ErrNotExist), "")
	}
	m, err := l.readListed(ctx, s)
	if err == nil && m.Kind != format.KindCheckpoint {
		return nil, l.fail("read", id, fmt.Errorf("%w: %w: a kept checkpoint is a %s", inflight.ErrDamaged, inflight.ErrForeign, m.Kind), "")
	}
	return m, err
}

func (l *Log) readListed(ctx context.Context, s *slotView) (*format.Manifest, error) {
	m, err := l.readEntry(ctx, s.id, s.entry.Name)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inflight.ErrDamaged) {
		return nil, l.fail("read", s.id, errMoved, "")
	}
	return m, err
}

// older returns the checkpoints that a start could go back to instead of the
// base, newest first: what the tip keeps, or, where the tip is damaged and its
// list with it, all that there is. Damaged ones and those that lack a file are
// left out.
func (l *Log) older(ctx context.Context, st *state) (found []*format.Manifest, err error) {
	for _, s := range slices.Backward(st.slots) {
		if s.entry == nil || st.base != nil && s.id == st.base.ID || st.damage != nil && s.id == st.damaged {
			continue
		}
		if st.tip != nil && !slices.Contains(st.tip.Keep, s.id) {
			continue
		}
		m, err := l.readListed(ctx, s)
		switch {
		case errors.Is(err, inflight.ErrDamaged):
			continue
		case err != nil:
			return nil, err
		case m.Kind == format.KindCheckpoint && len(missingFiles(st.view, m)) == 0:
			found = append(found, m)
		}
	}
	return found, nil
}

// missingFiles returns findings about the files of m that the view does not
// have, or has in another size.
func missingFiles(v *view, m *format.Manifest) (findings []inflight.Finding) {
	for _, f := range m.Files {
		size, ok := v.size(f.Name)
		switch {
		case !ok:
			findings = append(findings, fileFinding(format.CodeMissingFile, f.Name, "the file is not there"))
		case f.Size != 0 && size != f.Size:
			findings = append(findings, fileFinding(format.CodeWrongSize, f.Name, fmt.Sprintf("the file has %d bytes, the manifest says %d", size, f.Size)))
		}
	}
	return findings
}

// wholeBase makes damage of a base that lacks a file: it cannot be restored.
func (st *state) wholeBase(l *Log) {
	if st.base == nil {
		return
	}
	if err := l.whole(st.view, st.base); err != nil {
		st.damage, st.damaged, st.base = err, st.base.ID, nil
	}
}

// whole reports as ErrDamaged what m refers to and the view does not have.
func (l *Log) whole(v *view, m *format.Manifest) error {
	if findings := missingFiles(v, m); len(findings) > 0 {
		return l.fail("read", m.ID, &lostError{IncompleteError{findings}}, "")
	}
	return nil
}

// lostError says what a committed checkpoint lacks. It is ErrDamaged too: a
// checkpoint that cannot be restored, whatever of it is gone.
type lostError struct{ IncompleteError }

// Unwrap returns ErrDamaged and ErrIncomplete.
func (e *lostError) Unwrap() []error { return []error{inflight.ErrDamaged, inflight.ErrIncomplete} }

// CodeSlotDamaged is the code of the finding that the entry of a slot does not
// verify.
const CodeSlotDamaged = "manifest-damaged"

func fileFinding(code, name, text string) inflight.Finding {
	return inflight.Finding{Severity: inflight.SeverityError, Code: code, Object: name, Offset: -1, Text: text, Err: inflight.ErrIncomplete}
}
