package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// State is the state of a slot, as used in JSON, listings and documents.
type State string

// The states. A claim has none.
const (
	StateCompleted State = "completed" // its entry is a checkpoint and verifies
	StatePending   State = "pending"   // above the top: somebody may be writing it
	StateDeclined  State = "declined"  // refused by a subtask or a bound
	StateFailed    State = "failed"    // something broke
	StateAborted   State = "aborted"   // given up by the coordinator
	StateOrphaned  State = "orphaned"  // files without an entry, of a coordinator that is over
	StateDamaged   State = "damaged"   // its entry exists and does not verify
)

// The kinds of slots, as used in JSON.
const (
	SlotCheckpoint = "checkpoint"
	SlotSavepoint  = "savepoint"
	SlotClaim      = "claim"
)

// Slot is one slot of a log, as listed.
type Slot struct {
	ID       inflight.CheckpointID
	Kind     string // checkpoint, savepoint or claim; "" where the entry is damaged
	State    State
	Kept     bool             // the tip, or kept by it
	Manifest *format.Manifest // nil where there is none or it is damaged
	// Findings say what is wrong with it: a damaged entry, missing files.
	Findings []inflight.Finding
	// Files are the objects in its directory, entry and statistics included.
	Files []backends.Info
	// Size is what it occupies: for a checkpoint its entry and all files that it
	// refers to, else what lies in its directory.
	Size      int64
	Modified  time.Time // of its entry, or of its newest file; zero where unknown
	Leftovers []backends.Leftover
}

// List returns all slots that hold or held something, ascending. A retired slot
// whose files are still referred to is not listed.
func (l *Log) List(ctx context.Context) ([]Slot, error) {
	st, err := l.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	var slots []Slot
	refs := map[string]bool{}
	for _, v := range st.slots {
		s, err := l.listSlot(ctx, st, v)
		if err != nil {
			return nil, err
		}
		if s.Manifest != nil {
			for _, f := range s.Manifest.Files {
				refs[f.Name] = true
			}
		}
		slots = append(slots, s)
	}
	slots = slices.DeleteFunc(slots, func(s Slot) bool { return s.State == StateOrphaned && onlyReferenced(st.slot(s.ID), refs) })
	if slots, err = l.addLeftovers(ctx, slots, st); err != nil {
		return nil, err
	}
	return l.addBlocked(ctx, slots)
}

// addBlocked makes damaged slots of those whose entry is no object, which no
// listing of objects shows.
func (l *Log) addBlocked(ctx context.Context, slots []Slot) ([]Slot, error) {
	ids, err := children(ctx, l.b, l.job)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		i, found := findSlot(slots, id)
		if found && slots[i].State != StatePending && slots[i].State != StateOrphaned {
			continue
		}
		err := l.blocked(ctx, id)
		if err == nil {
			continue
		}
		if !found {
			slots = slices.Insert(slots, i, Slot{ID: id})
		}
		slots[i].damaged(l.path(format.CheckpointDir(id)+"/"+format.ManifestName), err)
	}
	return slots, nil
}

func findSlot(slots []Slot, id inflight.CheckpointID) (int, bool) {
	return slices.BinarySearchFunc(slots, id, func(s Slot, id inflight.CheckpointID) int { return cmp.Compare(s.ID, id) })
}

// damaged says that the entry of a slot does not verify.
func (s *Slot) damaged(name string, err error) {
	s.Kind, s.State = "", StateDamaged
	s.Findings = []inflight.Finding{{Severity: inflight.SeverityError, Code: CodeSlotDamaged, Object: name, Offset: -1, Text: err.Error(), Err: err}}
}

func (l *Log) listSlot(ctx context.Context, st *state, v *slotView) (Slot, error) {
	s := Slot{ID: v.id, Kind: SlotCheckpoint, Kept: st.tip != nil && (v.id == st.tip.ID || slices.Contains(st.tip.Keep, v.id))}
	s.Files = slices.Concat(v.files, v.unknown)
	for _, f := range []*backends.Info{v.entry, v.stats} {
		if f != nil {
			s.Files = append(s.Files, *f)
		}
	}
	for _, f := range s.Files {
		s.Size += f.Size
		if f.Modified.After(s.Modified) {
			s.Modified = f.Modified
		}
	}
	if v.entry == nil {
		s.State = StateOrphaned
		if int64(v.id) > st.top() {
			s.State = StatePending
		}
		return s, nil
	}
	s.Modified = v.entry.Modified
	m, err := l.readEntry(ctx, v.id, v.entry.Name)
	switch {
	case errors.Is(err, inflight.ErrDamaged):
		s.damaged(v.entry.Name, err)
		return s, nil
	case errors.Is(err, fs.ErrNotExist):
		s.State = StateOrphaned // retired since the listing
		return s, nil
	case err != nil:
		return s, err
	}
	s.describe(m, v.entry.Size, st)
	return s, nil
}

func (s *Slot) describe(m *format.Manifest, size int64, st *state) {
	s.Manifest = m
	switch {
	case m.Kind == format.KindClaim:
		s.Kind = SlotClaim
	case m.Kind == format.KindAborted:
		s.State = State(m.Cause.Kind)
	default:
		if m.Savepoint {
			s.Kind = SlotSavepoint
		}
		s.State, s.Size = StateCompleted, size+m.FileBytes()
		s.Findings = missingFiles(st.view, m)
	}
}

func onlyReferenced(v *slotView, refs map[string]bool) bool {
	return v.entry == nil && v.stats == nil && len(v.unknown) == 0 &&
		!slices.ContainsFunc(v.files, func(f backends.Info) bool { return !refs[relative(v, f)] })
}

// addLeftovers adds what unfinished writers left, in slots of its own where
// nothing else is there.
func (l *Log) addLeftovers(ctx context.Context, slots []Slot, st *state) ([]Slot, error) {
	for f, err := range l.b.Leftovers(ctx, l.job) {
		if errors.Is(err, fs.ErrNotExist) {
			break // no root yet
		}
		if err != nil {
			return nil, &inflight.Error{Op: "list leftovers", Object: l.path(""), Err: err}
		}
		id, ok := slotOf(f.Name)
		if !ok {
			continue
		}
		i, found := findSlot(slots, id)
		if !found {
			s := Slot{ID: id, Kind: SlotCheckpoint, State: StateOrphaned, Modified: f.Modified}
			if int64(id) > st.top() {
				s.State = StatePending
			}
			slots = slices.Insert(slots, i, s)
		}
		slots[i].Leftovers = append(slots[i].Leftovers, f)
		slots[i].Size += f.Size
	}
	return slots, nil
}

// Latest returns the newest checkpoint, or the base of a newer claim: what a
// start would restore. It is ErrNotExist where there is none, and ErrDamaged,
// naming the next older one, where it does not verify.
func (l *Log) Latest(ctx context.Context) (*Checkpoint, error) {
	var older []*format.Manifest
	st, err := l.read(ctx, func(st *state) (err error) {
		if st.damage != nil {
			older, err = l.older(ctx, st)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case st.base != nil:
		return &Checkpoint{Dir: l.dir(st.base.ID), Manifest: st.base}, nil
	case st.damage == nil:
		return nil, &inflight.Error{Op: "open", Object: l.path(""), Err: fmt.Errorf("%w: the job has no checkpoint", inflight.ErrNotExist), Mend: "start afresh"}
	}
	_, err = decideBase(st, older, StartOptions{})
	return nil, &inflight.Error{Op: "open", Object: l.path(""), Err: err, Mend: mendStart(err)}
}

// Load returns the checkpoint with an id. It is ErrRetired where the job has
// gone on and keeps it no longer.
func (l *Log) Load(ctx context.Context, id inflight.CheckpointID) (*Checkpoint, error) {
	m, err := l.readSlot(ctx, id)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inflight.ErrDamaged) {
		if v, scanErr := l.scan(ctx); scanErr == nil && v.top() > int64(id) {
			err = inflight.ErrRetired
		}
		return nil, l.fail("open", id, err, "ask for one that is listed")
	}
	if err == nil && m.Kind != format.KindCheckpoint {
		return nil, l.fail("open", id, fmt.Errorf("%w: slot %d holds a %s entry", inflight.ErrNotExist, id, m.Kind), "ask for a checkpoint")
	}
	if err != nil {
		return nil, err
	}
	return &Checkpoint{Dir: l.dir(id), Manifest: m}, nil
}

// Unreadable adds to an error of a restore which checkpoint there is to go back
// to, if it says that files of base are lost or damaged.
func (l *Log) Unreadable(ctx context.Context, base *Checkpoint, err error) error {
	if !inflight.IsCorruption(err) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inflight.ErrIncomplete) {
		return err
	}
	mend := "repair it; there is no older one that is whole"
	slots, _ := l.List(ctx) // if it fails there is nothing to name
	for _, s := range slices.Backward(slots) {
		if s.ID < base.Manifest.ID && s.Kept && s.State == StateCompleted && len(s.Findings) == 0 {
			mend = fmt.Sprintf("repair it, or restore an older one: the next is %d", s.ID)
			break
		}
	}
	return &inflight.Error{Op: "restore", Object: base.Dir, Err: err, Mend: mend}
}
