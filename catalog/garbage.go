package catalog

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Class says what an object of a job is, seen from the tip.
type Class string

// The classes, as used in JSON.
const (
	ClassKept       Class = "kept"       // an entry that stays, or statistics beside one
	ClassReferenced Class = "referenced" // a file that a kept checkpoint refers to
	ClassRetired    Class = "retired"    // of a checkpoint or claim that is no longer kept: garbage
	ClassAborted    Class = "aborted"    // of an id that was given up: garbage
	ClassOrphaned   Class = "orphaned"   // of a coordinator that was fenced or died: garbage
	ClassTemporary  Class = "temporary"  // left by an unfinished writer: garbage
	ClassPending    Class = "pending"    // above the top: somebody may be writing it
	ClassUnknown    Class = "unknown"    // none of ours; never deleted
)

// Item is one object of a job in a Plan.
type Item struct {
	Name   string
	ID     inflight.CheckpointID
	Size   int64
	Class  Class
	Delete bool

	entry    bool // the entry of a slot: deleted before all data
	leftover *backends.Leftover
}

// Plan says what a retirement or collection deletes and what it leaves, in the
// order of the names.
type Plan struct {
	Tip   *inflight.CheckpointID  // the newest checkpoint or claim; nil: none
	Top   *inflight.CheckpointID  // the highest slot filled; nil: none
	Keep  []inflight.CheckpointID // what the tip keeps
	Items []Item
	// Damage says why nothing may be deleted; nil: nothing stands in the way.
	Damage error
}

// Garbage returns how many objects and bytes the plan deletes.
func (p *Plan) Garbage() (n int, bytes int64) {
	for _, i := range p.Items {
		if i.Delete {
			n++
			bytes += i.Size
		}
	}
	return n, bytes
}

// collection is what garbage decides about: a listing, its tip, and the kept
// checkpoints as read.
type collection struct {
	*view
	tip       *format.Manifest                           // nil: the log is empty
	kept      map[inflight.CheckpointID]*format.Manifest // the tip and what it keeps
	other     map[inflight.CheckpointID]format.Kind      // kinds of other entries, where they were read
	leftovers []backends.Leftover
	fenced    bool // decide as if the slot above everything had been claimed
}

// garbage classifies every object of a job. With T the tip and top the highest
// slot filled, garbage is every file in chk-<j>/, j ≤ top, that no checkpoint
// kept by T refers to, and every entry below T that T does not keep. It stays
// garbage whatever happens later, so old listings do no harm.
func garbage(c *collection, without rule) []Item {
	top := c.top()
	if c.fenced {
		top = int64(format.MaxCheckpointID)
	}
	refs := map[string]bool{}
	for _, m := range c.kept {
		for _, f := range m.Files {
			refs[f.Name] = true
		}
	}
	var items []Item
	for _, s := range c.slots {
		classOf := func(stays Class, kept bool) Class {
			switch {
			case kept:
				return stays
			case int64(s.id) > top:
				return ClassPending
			}
			return c.classOf(s)
		}
		add := func(info backends.Info, class Class, entry bool) {
			items = append(items, Item{Name: info.Name, ID: s.id, Size: info.Size, Class: class, Delete: isGarbage(class), entry: entry})
		}
		stays := c.entryStays(s, without)
		if s.entry != nil {
			add(*s.entry, classOf(ClassKept, stays), true)
		}
		if s.stats != nil {
			add(*s.stats, classOf(ClassKept, stays), false)
		}
		for _, f := range s.files {
			add(f, classOf(ClassReferenced, refs[relative(s, f)]), false)
		}
		for _, u := range s.unknown {
			add(u, ClassUnknown, false)
		}
	}
	for _, u := range c.unknown {
		items = append(items, Item{Name: u.Name, Size: u.Size, Class: ClassUnknown})
	}
	for _, f := range c.leftovers {
		items = append(items, leftoverItem(f, top))
	}
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(a.Name, b.Name) })
	return items
}

// entryStays reports whether the entry of a slot stays: the tip, what it keeps,
// and everything above it.
func (c *collection) entryStays(s *slotView, without rule) bool {
	switch {
	case s.entry == nil:
		return false
	case c.tip == nil, s.id == c.tip.ID:
		return true
	case s.id > c.tip.ID:
		return without&ruleKeepAborted == 0
	}
	return slices.Contains(c.tip.Keep, s.id)
}

// classOf returns the class of what is garbage in a slot.
func (c *collection) classOf(s *slotView) Class {
	switch {
	case s.entry == nil:
		return ClassOrphaned
	case c.other[s.id] == format.KindAborted, c.tip != nil && s.id > c.tip.ID:
		return ClassAborted
	}
	return ClassRetired
}

func isGarbage(c Class) bool {
	return c == ClassRetired || c == ClassAborted || c == ClassOrphaned || c == ClassTemporary
}

// relative returns the name of a file of a slot relative to the job.
func relative(s *slotView, f backends.Info) string {
	return format.CheckpointDir(s.id) + "/" + path.Base(f.Name)
}

// slotOf returns the slot in whose directory a name of the backend lies.
func slotOf(name string) (inflight.CheckpointID, bool) {
	for part := range strings.SplitSeq(name, "/") {
		if id, ok := format.ParseCheckpointDir(part); ok {
			return id, true
		}
	}
	return 0, false
}

func leftoverItem(f backends.Leftover, top int64) Item {
	i := Item{Name: f.Name, Size: f.Size, Class: ClassUnknown, leftover: &f}
	id, ok := slotOf(f.Name)
	switch {
	case !ok:
		return i
	case int64(id) > top:
		i.Class = ClassPending
	default:
		i.Class, i.Delete = ClassTemporary, true
	}
	i.ID = id
	return i
}

// String returns the plan's summary on one line.
func (p *Plan) String() string {
	n, bytes := p.Garbage()
	if p.Damage != nil {
		return fmt.Sprintf("nothing is deleted: %v", p.Damage)
	}
	return fmt.Sprintf("%d of %d objects are garbage, %d bytes", n, len(p.Items), bytes)
}
