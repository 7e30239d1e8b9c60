package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// rule is a set of rules of the protocol that a test leaves out, to show that
// each of them is needed. It is empty outside of tests.
type rule uint8

const (
	ruleCheckCommit  rule = 1 << iota // list after a checkpoint
	ruleCheckAbort                    // list after an aborted id
	ruleCheckClaim                    // list after a claim
	ruleNoGaps                        // an id that is given up gets its entry
	ruleKeepAborted                   // aborted ids above the tip stay
	ruleDecidedFirst                  // no file is deleted while its slot is undecided
	ruleReadTwice                     // what is read of a listing is of the moment of the listing
	ruleOwnSlots                      // an own pending id whose slot is filled counts as another's
)

// checkRule returns the rule that asks for the list after an entry of a kind.
func checkRule(k format.Kind) rule {
	switch k {
	case format.KindCheckpoint:
		return ruleCheckCommit
	case format.KindAborted:
		return ruleCheckAbort
	}
	return ruleCheckClaim
}

// verdict is what a coordinator has to do next about a slot.
type verdict int

const (
	slotOurs    verdict = iota // it holds our entry: check
	slotFenced                 // it holds another's: end
	slotDamaged                // it holds something that nobody can tell: end
	slotOpen                   // send again
	slotUnknown                // no answer: read again
)

// decideSlot judges what reading a slot gave to the coordinator with that
// attempt, after it sent an entry.
func decideSlot(m *format.Manifest, err error, attempt string) verdict {
	switch {
	case errors.Is(err, inflight.ErrDamaged):
		return slotDamaged
	case errors.Is(err, fs.ErrNotExist):
		return slotOpen
	case err != nil:
		return slotUnknown
	case m.Attempt == attempt:
		return slotOurs
	}
	return slotFenced
}

// decideCheck judges a listing of the ids that have a directory: it returns the
// first one above the filled slot k that is not an own pending id. A directory
// counts even before its entry exists: somebody may be about to claim.
func decideCheck(k inflight.CheckpointID, own, listed []inflight.CheckpointID) (above inflight.CheckpointID, fenced bool) {
	for _, id := range listed {
		if id > k && !slices.Contains(own, id) {
			return id, true
		}
	}
	return 0, false
}

// BaseWish says what a coordinator wants to restore.
type BaseWish int

// The wishes.
const (
	// BaseLatest is the newest checkpoint, or the base of a newer claim. A job
	// without one starts afresh.
	BaseLatest BaseWish = iota
	// BaseFresh restores nothing. What was kept so far stays until the first
	// commit.
	BaseFresh
	// BaseID is one particular checkpoint out of what is kept: StartOptions.ID.
	BaseID
)

// wishes are the names of those that need no more than a name.
var wishes = []string{BaseLatest: "latest", BaseFresh: "none"}

// MarshalText returns latest, none, or "" for BaseID, which says too little.
func (w BaseWish) MarshalText() ([]byte, error) {
	if int(w) < len(wishes) {
		return []byte(wishes[w]), nil
	}
	return nil, nil
}

// UnmarshalText takes latest and none: what a command's --restore may be.
func (w *BaseWish) UnmarshalText(text []byte) error {
	i := slices.Index(wishes, string(text))
	if i < 0 {
		return fmt.Errorf("%w: %q: give latest or none", inflight.ErrConfig, text)
	}
	*w = BaseWish(i)
	return nil
}

// StartOptions are the options of Log.Start. The zero value restores the newest
// checkpoint.
type StartOptions struct {
	Base BaseWish
	ID   inflight.CheckpointID // with BaseID
	// AllowOlder takes the newest older checkpoint when the newest one is damaged.
	AllowOlder bool
	// Release names savepoints that need not be kept any longer.
	Release []inflight.CheckpointID
}

// claimPlan is what a start claims.
type claimPlan struct {
	slot       inflight.CheckpointID
	base       *format.Manifest // nil: none
	keep       []inflight.CheckpointID
	savepoints []inflight.CheckpointID
	passed     []inflight.CheckpointID
}

// needsOlder reports whether decideStart needs the older checkpoints.
func needsOlder(st *state, o StartOptions) bool {
	return o.Base == BaseID && (st.base == nil || st.base.ID != o.ID) || st.damage != nil
}

// decideStart decides where a start claims, what it restores and what it keeps.
// older are the checkpoints that it may go back to, newest first.
func decideStart(st *state, older []*format.Manifest, o StartOptions) (p claimPlan, err error) {
	p.slot = inflight.CheckpointID(st.top() + 1)
	if p.slot > format.MaxCheckpointID {
		return p, fmt.Errorf("%w: all %d slots are used", inflight.ErrTooLarge, format.MaxCheckpointID)
	}
	if p.base, err = decideBase(st, older, o); err != nil {
		return p, err
	}
	kept, savepoints := keptSoFar(st, older)
	for _, id := range kept {
		isSavepoint := slices.Contains(savepoints, id)
		if slices.Contains(o.Release, id) {
			isSavepoint = false
			if p.base == nil || p.base.ID != id {
				continue
			}
		}
		switch {
		case isSavepoint:
			p.savepoints = append(p.savepoints, id)
		case p.base != nil && id > p.base.ID:
			p.passed = append(p.passed, id)
			continue
		}
		p.keep = append(p.keep, id)
	}
	if st.damage != nil {
		p.passed = insert(p.passed, st.damaged)
		p.keep = slices.DeleteFunc(p.keep, func(id inflight.CheckpointID) bool { return id == st.damaged })
		p.savepoints = slices.DeleteFunc(p.savepoints, func(id inflight.CheckpointID) bool { return id == st.damaged })
	}
	return p, nil
}

// decideBase picks the checkpoint to restore; nil: none.
func decideBase(st *state, older []*format.Manifest, o StartOptions) (*format.Manifest, error) {
	if o.Base == BaseID {
		if st.base != nil && st.base.ID == o.ID {
			return st.base, nil
		}
		for _, m := range older {
			if m.ID == o.ID {
				return m, nil
			}
		}
		if st.damage != nil && st.damaged == o.ID {
			return nil, st.damage
		}
		return nil, fmt.Errorf("%w: checkpoint %d is not kept or not whole%s", inflight.ErrRetired, o.ID, namesOlder(st.base, older))
	}
	switch {
	case st.damage == nil && o.Base == BaseFresh:
		return nil, nil
	case st.damage == nil:
		return st.base, nil
	case o.Base == BaseFresh && o.AllowOlder:
		return nil, nil
	case o.AllowOlder && len(older) > 0:
		return older[0], nil
	}
	return nil, fmt.Errorf("%w%s", st.damage, namesOlder(nil, older))
}

const noOlder = "; there is no older one"

// namesOlder tells which checkpoints there are to go back to.
func namesOlder(base *format.Manifest, older []*format.Manifest) string {
	if base != nil {
		older = append([]*format.Manifest{base}, older...)
	}
	if len(older) == 0 {
		return noOlder
	}
	return fmt.Sprintf("; the next one to go back to is %d", older[0].ID)
}

// keptSoFar returns what a new claim takes over: what the tip keeps, itself
// included. Where the tip is damaged its list is lost; then all that is readable
// stays, until the next commit.
func keptSoFar(st *state, older []*format.Manifest) (kept, savepoints []inflight.CheckpointID) {
	entries := older
	if st.tip != nil {
		kept, savepoints = slices.Clone(st.tip.Keep), slices.Clone(st.tip.Savepoints)
		entries = nil
		if st.tip.Kind == format.KindCheckpoint {
			entries = []*format.Manifest{st.tip}
		}
	}
	for _, m := range entries {
		kept = insert(kept, m.ID)
		if m.Savepoint {
			savepoints = insert(savepoints, m.ID)
		}
	}
	return kept, savepoints
}

// insert adds id to an ascending list.
func insert(ids []inflight.CheckpointID, id inflight.CheckpointID) []inflight.CheckpointID {
	i, found := slices.BinarySearch(ids, id)
	if found {
		return ids
	}
	return slices.Insert(ids, i, id)
}
