package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// maxStarts bounds how often a start looks again because others are starting
// too, or have pending directories above the top. Each round fills a slot or
// sees one filled.
const maxStarts = 100

// errAgain says that a start has to look again.
var errAgain = errors.New("the log moved on during the start")

// Start claims the job for a new coordinator: whoever was at work before is
// fenced by that. When it returns, Coordinator.Base may be restored.
//
// ErrDamaged means that the newest checkpoint cannot be read; it names the next
// older one, which StartOptions.AllowOlder takes. ErrFenced means that another
// coordinator started at the same time and won.
func (l *Log) Start(ctx context.Context, o StartOptions) (*Coordinator, error) {
	if c := l.b.Capabilities(); !c.Exclusive || !c.AtomicList {
		return nil, &inflight.Error{Op: "start", Object: l.path(""), Err: fmt.Errorf("%w: exclusive create and ordered listing are needed", inflight.ErrUnsupported),
			Mend: "use another store"}
	}
	var unfilled []inflight.CheckpointID // of all rounds: a claim of ours may have filled one since
	for try := range maxStarts {
		c, err := l.startOnce(ctx, o, &unfilled)
		if !errors.Is(err, errAgain) {
			return c, err
		}
		if err := l.hooks.pause(ctx, min(try, 2)); err != nil {
			return nil, err
		}
	}
	if n := len(unfilled); n > 0 && l.topIs(ctx, func(top int64) bool { return top < int64(unfilled[n-1]) }) {
		last := unfilled[n-1]
		return nil, l.fail("start", last, fmt.Errorf("%w: it has files and no manifest, and nor has any slot in the %d below it", inflight.ErrDamaged, maxStarts),
			"put its manifest back, or delete the directory "+l.dir(last))
	}
	return nil, &inflight.Error{Op: "start", Object: l.path(""), Err: fmt.Errorf("%w: other coordinators keep starting", inflight.ErrFenced), Mend: "run one coordinator a job"}
}

func (l *Log) startOnce(ctx context.Context, o StartOptions, unfilled *[]inflight.CheckpointID) (*Coordinator, error) {
	var older []*format.Manifest
	st, err := l.read(ctx, func(st *state) (err error) {
		if o.Base != BaseFresh {
			st.wholeBase(l)
		}
		if needsOlder(st, o) {
			older, err = l.older(ctx, st)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	plan, err := decideStart(st, older, o)
	if err != nil {
		return nil, &inflight.Error{Op: "start", Object: l.path(""), Err: err, Mend: mendStart(err)}
	}
	if plan.base != nil {
		// A name that was seen may be lost in a power cut before it is synced.
		if err := l.b.SyncNames(ctx, l.dir(plan.base.ID)); err != nil {
			return nil, l.fail("start", plan.base.ID, err, "")
		}
	}
	if o.Base != BaseFresh {
		for _, id := range st.unfilled(plan.base) {
			*unfilled = insert(*unfilled, id)
		}
	}
	claim := plan.manifest(l.job, l.hooks.attempt())
	if err := l.claim(ctx, claim); err != nil {
		return nil, err
	}
	l.o.Observer.Observe(inflight.Event{Name: inflight.EventClaimed, Checkpoint: claim.ID})
	c := newCoordinator(l, claim, plan.base)
	c.unfilled = *unfilled
	return c, nil
}

func (p *claimPlan) manifest(job, attempt string) *format.Manifest {
	m := &format.Manifest{Kind: format.KindClaim, Job: job, ID: p.slot, Attempt: attempt, Epoch: inflight.Epoch(p.slot),
		Keep: p.keep, Savepoints: p.savepoints, PassedOver: p.passed}
	if p.base != nil {
		m.Base = &p.base.ID
	}
	return m
}

// claim fills the claim's slot and checks.
func (l *Log) claim(ctx context.Context, m *format.Manifest) error {
	p, err := format.EncodeManifest(m)
	if err != nil {
		return err
	}
	sent := false
	_, err = l.fill(ctx, m, p, &sent)
	if err == nil && l.hooks.without&ruleCheckClaim == 0 {
		err = l.check(ctx, m.ID, nil)
	}
	if errors.Is(err, errPending) {
		if err := l.blockedAbove(ctx, m.ID); errors.Is(err, inflight.ErrDamaged) {
			return err
		}
	}
	switch {
	case errors.Is(err, errTaken):
		return errAgain
	case errors.Is(err, errPending) && l.topIs(ctx, func(top int64) bool { return top == int64(m.ID) }):
		// Only directories above, no entry: a dead coordinator left them, or a live
		// one has pending checkpoints. Whoever starts anew is as good as another
		// coordinator, and its claim stands above them sooner or later.
		return errAgain
	case errors.Is(err, errPending) && l.wentOn(ctx, m.ID):
		return errAgain
	case errors.Is(err, fs.ErrNotExist) && l.topIs(ctx, func(top int64) bool { return top >= int64(m.ID) }):
		return errAgain // another one was quicker, and has swept our temporary
	}
	return err
}

// wentOn reports whether what stands above claim id is of a coordinator that the
// claim was to fence: it has filled and retired that slot while the start was
// looking elsewhere.
func (l *Log) wentOn(ctx context.Context, id inflight.CheckpointID) bool {
	v, err := l.scan(ctx)
	if err != nil || v.top() <= int64(id) {
		return false
	}
	m, err := l.readSlot(ctx, inflight.CheckpointID(v.top()))
	return err == nil && m.Epoch < inflight.Epoch(id)
}

func (l *Log) topIs(ctx context.Context, want func(int64) bool) bool {
	v, err := l.scan(ctx)
	return err == nil && want(v.top())
}

func mendStart(err error) string {
	switch {
	case errors.Is(err, inflight.ErrDamaged) && strings.HasSuffix(err.Error(), noOlder):
		return "repair it, or start afresh"
	case errors.Is(err, inflight.ErrDamaged):
		return "repair it, or start from an older one with restore.allow-older (in code, catalog.StartOptions.AllowOlder)"
	case errors.Is(err, inflight.ErrRetired):
		return "ask for one that is kept"
	}
	return ""
}
