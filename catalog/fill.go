package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// errTaken says that a slot was filled by another before anything of ours was
// sent for it. It is ErrFenced, except for a start, which looks again.
var errTaken = fmt.Errorf("%w: the slot was filled by another coordinator", inflight.ErrFenced)

// errPending says that the check found the directory of somebody who has not
// filled a slot. It is ErrFenced, except for a start.
var errPending = fmt.Errorf("%w: another coordinator is at work", inflight.ErrFenced)

// fill creates the entry m in its slot, and sends until the slot is decided: it
// returns the entry that the slot holds, which is m or an earlier one of ours.
// sent is set once a send may have had, or may still have, an effect. The
// answers are
//
//	nil                it is ours; the check must follow
//	ErrFenced          it is another's: this coordinator is over
//	ErrDamaged         nobody can tell whose it is: this coordinator is over
//	ErrOutcomeUnknown  the context ended, or reading is refused: call again
//	other              nothing of ours is there (only while sent is not set)
func (l *Log) fill(ctx context.Context, m *format.Manifest, p []byte, sent *bool) (*format.Manifest, error) {
	name := l.path(format.CheckpointDir(m.ID) + "/" + format.ManifestName)
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil && !*sent {
			return nil, l.fail("fill", m.ID, err, "")
		}
		failed := false
		err := l.write(ctx, name, p, backends.CreateOptions{Exclusive: true, Attempt: m.Attempt})
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, fs.ErrExist):
		case errors.Is(err, inflight.ErrOutcomeUnknown), ctx.Err() != nil:
			*sent = true
		case errors.Is(err, fs.ErrNotExist):
			// Our temporary was swept, as those at or below the top are.
			failed = true
		case !*sent:
			return nil, l.fail("fill", m.ID, err, "")
		}
		got, readErr := l.readSlot(ctx, m.ID)
		switch decideSlot(got, readErr, m.Attempt) {
		case slotOurs:
			// The clean answer was lost, and with it the promise that the name lasts.
			*sent = true
			if err = l.b.SyncNames(ctx, l.dir(m.ID)); err == nil {
				return got, nil
			}
		case slotFenced:
			if !*sent {
				return nil, l.fail("fill", m.ID, errTaken, "")
			}
			return nil, l.fail("fill", m.ID, fmt.Errorf("%w: the slot holds a %s of another coordinator", inflight.ErrFenced, got.Kind), "")
		case slotDamaged:
			return nil, readErr
		case slotOpen, slotUnknown:
			if errors.Is(err, fs.ErrExist) && (try >= triesBlocked || errors.Is(readErr, inflight.ErrConfig)) {
				if err := l.blocked(ctx, m.ID); err != nil {
					return nil, err
				}
			}
			if failed && !*sent {
				return nil, l.fail("fill", m.ID, err, "")
			}
			*sent = true // "exists" may have been the answer to a hidden repetition of our own
			if !errors.Is(readErr, fs.ErrNotExist) {
				err = readErr
			}
		}
		if err := l.again(ctx, try, err); err != nil {
			return nil, l.unknown(m.ID, err)
		}
	}
}

// triesBlocked is how often "exists" and "does not exist" may follow each other
// before the name is looked at: an entry may be retired in between.
const triesBlocked = 4

// blocked reports whether something that is no object stands where the entry of
// a slot belongs: a folder without one in it, a pipe, a device, a link to itself.
// It can neither be read nor filled, and is ErrDamaged. Nil also where that
// cannot be told.
func (l *Log) blocked(ctx context.Context, id inflight.CheckpointID) error {
	name := l.path(format.CheckpointDir(id) + "/" + format.ManifestName)
	for range 2 { // it may have been filled in between
		_, err := l.b.Stat(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = l.b.Stat(ctx, l.path(format.CheckpointDir(id)+"/"+format.ManifestInDir))
		}
		switch {
		case errors.Is(err, inflight.ErrConfig):
			return blockedError(name, err)
		case !errors.Is(err, fs.ErrNotExist):
			return nil
		}
		listed := false
		for child, err := range l.b.Children(ctx, l.dir(id)) {
			listed = listed || err == nil && child == format.ManifestName
		}
		if !listed {
			return nil
		}
	}
	return blockedError(name, fmt.Errorf("%w: a folder stands where a file should be", inflight.ErrConfig))
}

func blockedError(name string, err error) error {
	if e, ok := errors.AsType[*inflight.Error](err); ok {
		err = e.Err // which says the same of the same name
	}
	return &inflight.Error{Op: "read", Object: name, Err: fmt.Errorf("%w: %w", inflight.ErrDamaged, err), Mend: "remove " + name + ": no coordinator has written it"}
}

// blockedAbove looks for blocked slots among the directories above k.
func (l *Log) blockedAbove(ctx context.Context, k inflight.CheckpointID) error {
	listed, err := children(ctx, l.b, l.job)
	for _, id := range listed {
		if id <= k {
			continue
		}
		if err := l.blocked(ctx, id); err != nil {
			return err
		}
	}
	return err
}

// check lists the job after slot k was filled, before anything is notified,
// restored or deleted. own are this coordinator's pending ids. A name above k
// that is not one of them is ErrFenced.
//
// An own pending id counts as another's when its slot is filled. To see that,
// the slots of the own ids are looked at in ascending order first, and the names
// after them: together they are one ascending scan, and such a scan does not
// miss the top, since an entry is deleted only when a higher one exists.
func (l *Log) check(ctx context.Context, k inflight.CheckpointID, own []inflight.CheckpointID) error {
	for try := 0; ; try++ {
		err := l.checkOnce(ctx, k, own)
		if err == nil || errors.Is(err, inflight.ErrFenced) {
			return err
		}
		if err := l.again(ctx, try, err); err != nil {
			return l.unknown(k, err)
		}
	}
}

func (l *Log) checkOnce(ctx context.Context, k inflight.CheckpointID, own []inflight.CheckpointID) error {
	for _, id := range own {
		if l.hooks.without&ruleOwnSlots != 0 {
			break
		}
		_, err := l.readSlot(ctx, id)
		switch {
		case err == nil, errors.Is(err, inflight.ErrDamaged):
			return l.fail("check", k, fmt.Errorf("%w: slot %d is filled", inflight.ErrFenced, id), "")
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	listed, err := children(ctx, l.b, l.job)
	if err != nil {
		return err
	}
	above, fenced := decideCheck(k, own, listed)
	if !fenced {
		return nil
	}
	return l.fail("check", k, fmt.Errorf("%w (%s)", errPending, format.CheckpointDir(above)), "this coordinator must end")
}

// again waits before the next try. It refuses when waiting cannot help.
func (l *Log) again(ctx context.Context, try int, last error) error {
	if last != nil && !inflight.Retryable(last) && !errors.Is(last, inflight.ErrOutcomeUnknown) && !errors.Is(last, fs.ErrExist) {
		return last
	}
	if err := l.hooks.pause(ctx, try); err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func (l *Log) unknown(id inflight.CheckpointID, err error) error {
	return l.fail("fill", id, fmt.Errorf("%w: %w", inflight.ErrOutcomeUnknown, err), "commit or abort it again when the store can be reached")
}
