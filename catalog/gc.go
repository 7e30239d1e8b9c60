package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// GCOptions are the options of Log.GC.
type GCOptions struct {
	// DryRun plans and deletes nothing.
	DryRun bool
	// Fence claims the next slot first. That ends any coordinator that is still
	// alive, and makes garbage of what is pending: for a job that is stopped.
	Fence bool
	// Release names savepoints that need not be kept any longer; with Fence only.
	Release []inflight.CheckpointID
}

// GC deletes what no kept checkpoint needs. It may run at any time, beside any
// coordinator. It deletes nothing while a kept checkpoint is damaged, and says
// so by ErrDamaged and Plan.Damage.
func (l *Log) GC(ctx context.Context, o GCOptions) (*Plan, error) {
	if len(o.Release) > 0 && !o.Fence {
		return nil, &inflight.Error{Op: "gc", Object: l.path(""), Err: fmt.Errorf("%w: savepoints are released by a claim", inflight.ErrConfig), Mend: "fence too"}
	}
	attempt := ""
	if o.Fence && !o.DryRun {
		c, err := l.Start(ctx, StartOptions{Release: o.Release})
		if err != nil {
			return nil, err
		}
		attempt = c.Attempt()
	}
	p, err := l.plan(ctx, planOptions{attempt: attempt, classify: true, leftovers: true, fenced: o.Fence && o.DryRun})
	if err != nil || o.DryRun {
		return p, err
	}
	return p, l.carryOut(ctx, p)
}

// Retire deletes what the newest commit no longer keeps. It is called after the
// notification, off the checkpoint's path; it may run beside everything else,
// and what it leaves is garbage for the next one.
func (c *Coordinator) Retire(ctx context.Context) error {
	c.retire.Lock()
	defer c.retire.Unlock()
	if err := c.Err(); err != nil {
		return err
	}
	p, err := c.log.plan(ctx, planOptions{attempt: c.Attempt(), leftovers: !c.swept})
	if err == nil {
		err = c.log.carryOut(ctx, p)
	}
	switch {
	case err == nil:
		c.swept = true
	case errors.Is(err, inflight.ErrFenced):
		c.end(err)
	}
	return err
}

type planOptions struct {
	attempt   string // the tip must be of this coordinator, else ErrFenced; "": anybody's
	classify  bool   // read entries that are not kept too, to tell what they are
	leftovers bool
	fenced    bool
}

// plan lists the job and decides what is garbage.
func (l *Log) plan(ctx context.Context, o planOptions) (*Plan, error) {
	var c *collection
	var damage error
	st, err := l.read(ctx, func(st *state) (err error) {
		c = &collection{view: st.view, tip: st.tip, fenced: o.fenced}
		if st.tip == nil {
			damage = st.damage // what is kept cannot be told
			return nil
		}
		if damage, err = l.readAllKept(ctx, c); err == nil && o.classify {
			err = l.readOthers(ctx, c)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &Plan{Damage: damage}
	if top := st.top(); top >= 0 {
		id := inflight.CheckpointID(top)
		p.Top = &id
	}
	if st.tip != nil {
		p.Tip, p.Keep = &st.tip.ID, st.tip.Keep
	} else if damage != nil {
		return p, p.refused(l)
	}
	if err := st.ownedBy(l, o.attempt); err != nil {
		return nil, err
	}
	if o.leftovers {
		if err := l.readLeftovers(ctx, c); err != nil {
			return nil, err
		}
	}
	p.Items = garbage(c, l.hooks.without)
	return p, p.refused(l)
}

// ownedBy makes sure that the tip is of the coordinator with that attempt; ""
// is anybody.
func (st *state) ownedBy(l *Log, attempt string) error {
	switch {
	case attempt == "" || st.tip != nil && st.tip.Attempt == attempt:
		return nil
	case st.tip == nil:
		return &inflight.Error{Op: "retire", Object: l.path(""), Err: fmt.Errorf("%w: its claim is gone", inflight.ErrFenced)}
	}
	return l.fail("retire", st.tip.ID, fmt.Errorf("%w: it is a %s of another coordinator", inflight.ErrFenced, st.tip.Kind), "")
}

// refused takes all deletions out of a plan with damage.
func (p *Plan) refused(l *Log) error {
	if p.Damage == nil {
		return nil
	}
	for i := range p.Items {
		p.Items[i].Delete = false
	}
	return &inflight.Error{Op: "gc", Object: l.path(""), Err: p.Damage, Mend: "nothing is deleted while a kept checkpoint is damaged: repair it, or start from an older one with restore.allow-older (in code, catalog.StartOptions.AllowOlder)"}
}

// readAllKept reads the tip and all that it keeps: what they refer to must not
// be deleted. It is damage too if one of them lacks a file: what is not kept may
// be all that can be restored.
func (l *Log) readAllKept(ctx context.Context, c *collection) (damage, err error) {
	c.kept = map[inflight.CheckpointID]*format.Manifest{c.tip.ID: c.tip}
	damage = l.whole(c.view, c.tip)
	for _, id := range c.tip.Keep {
		m, err := l.readKept(ctx, c.view, id)
		switch {
		case errors.Is(err, inflight.ErrDamaged):
			damage = errors.Join(damage, err)
		case err != nil:
			return nil, err
		default:
			c.kept[id] = m
			damage = errors.Join(damage, l.whole(c.view, m))
		}
	}
	return damage, nil
}

// readOthers reads the entries that are not kept, to tell what they are. One
// that cannot be read is garbage like the others.
func (l *Log) readOthers(ctx context.Context, c *collection) error {
	c.other = map[inflight.CheckpointID]format.Kind{}
	for _, s := range c.slots {
		if s.entry == nil || c.kept[s.id] != nil {
			continue
		}
		m, err := l.readListed(ctx, s)
		switch {
		case err == nil:
			c.other[s.id] = m.Kind
		case !errors.Is(err, inflight.ErrDamaged):
			return err
		}
	}
	return nil
}

func (l *Log) readLeftovers(ctx context.Context, c *collection) error {
	for f, err := range l.b.Leftovers(ctx, l.job) {
		if err != nil {
			return &inflight.Error{Op: "list leftovers", Object: l.path(""), Err: err}
		}
		c.leftovers = append(c.leftovers, f)
	}
	return nil
}

// carryOut deletes the garbage of a plan: entries first, data next, so that an
// entry never stands without its data. If an entry cannot be deleted, no data is.
func (l *Log) carryOut(ctx context.Context, p *Plan) error {
	var entries, data []string
	for _, i := range p.Items {
		switch {
		case !i.Delete || i.leftover != nil:
		case i.entry:
			entries = append(entries, i.Name)
		default:
			data = append(data, i.Name)
		}
	}
	if err := l.remove(ctx, entries); err != nil {
		return err
	}
	if err := l.remove(ctx, data); err != nil {
		return err
	}
	var errs []error
	for _, i := range p.Items {
		if i.Delete && i.leftover != nil {
			errs = append(errs, i.leftover.Remove(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &inflight.Error{Op: "delete leftovers", Object: l.path(""), Err: err, Mend: "run gc later"}
	}
	if n, bytes := p.Garbage(); n > 0 && p.Tip != nil {
		l.o.Observer.Observe(inflight.Event{Name: inflight.EventRetired, Checkpoint: *p.Tip, Count: int64(n), Bytes: bytes})
	}
	return nil
}
