package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Coordinator is one incarnation of a job's coordinator, from its claim on. It
// may be used by several goroutines at once.
//
// Once a method has answered ErrFenced, or ErrDamaged about a slot, the
// coordinator is over: all later calls answer the same, and it must notify,
// delete and roll back nothing.
type Coordinator struct {
	log   *Log
	claim *format.Manifest
	base  *Checkpoint

	unfilled []inflight.CheckpointID // slots above the base, at the start

	filling sync.Mutex // held while slots are filled; taken before mu
	retire  sync.Mutex // one retirement at a time

	mu         sync.Mutex
	err        error // it is over
	next       inflight.CheckpointID
	tip        *format.Manifest        // the last checkpoint committed, or the claim
	pending    []*Pending              // undecided, ascending
	chain      []inflight.CheckpointID // what it goes back on, newest first
	savepoints []inflight.CheckpointID
	pins       map[inflight.CheckpointID]int
	replaying  bool
	swept      bool // the predecessors' leftovers were removed
}

// Checkpoint is a committed checkpoint.
type Checkpoint struct {
	Dir      string // where its manifest lies on the backend
	Manifest *format.Manifest
}

// SizeBytes is what the checkpoint occupies on the backend, its manifest
// included.
func (c *Checkpoint) SizeBytes() int64 {
	p, _ := format.EncodeManifest(c.Manifest) // it was read or written: it is valid
	return c.Manifest.FileBytes() + int64(len(p))
}

func newCoordinator(l *Log, claim *format.Manifest, base *format.Manifest) *Coordinator {
	c := &Coordinator{log: l, claim: claim, tip: claim, next: claim.ID + 1, savepoints: claim.Savepoints, pins: map[inflight.CheckpointID]int{}}
	if base == nil {
		return c
	}
	c.base, c.replaying = &Checkpoint{Dir: l.dir(base.ID), Manifest: base}, true
	c.chain = []inflight.CheckpointID{base.ID}
	for _, id := range slices.Backward(claim.Keep) {
		if id < base.ID && !slices.Contains(claim.Savepoints, id) {
			c.chain = append(c.chain, id)
		}
	}
	return c
}

// Base returns the checkpoint to restore; nil: the job starts afresh.
func (c *Coordinator) Base() *Checkpoint { return c.base }

// Unfilled returns the slots above the base that had files and no manifest when
// the coordinator started, ascending: each was never completed, or its manifest is
// gone. Nothing tells the two apart. Where nothing was to be restored, it is empty.
func (c *Coordinator) Unfilled() []inflight.CheckpointID { return slices.Clone(c.unfilled) }

// Epoch returns the id of the coordinator's claim. Sinks commit what the base
// holds and roll back other transactions of smaller epochs only.
func (c *Coordinator) Epoch() inflight.Epoch { return c.claim.Epoch }

// Attempt returns the coordinator's random id. The channel-state files of its
// checkpoints carry it in their names (format.StateFileName).
func (c *Coordinator) Attempt() string { return c.claim.Attempt }

// Err returns why the coordinator is over; nil: it is not.
func (c *Coordinator) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Superseded reports whether the newest entry of the log is another
// coordinator's. Where it is not, ErrFenced came of a directory alone: a
// coordinator that this one has superseded, or one that died, has begun a file
// late. Whoever starts anew stands above that.
func (c *Coordinator) Superseded(ctx context.Context) (bool, error) {
	v, err := c.log.scan(ctx)
	if err != nil {
		return false, err
	}
	m, err := c.log.readSlot(ctx, inflight.CheckpointID(max(v.top(), 0)))
	if err != nil {
		return false, err
	}
	return m.Attempt != c.Attempt(), nil
}

// A store is asked so often, and so far apart, who has taken over.
const (
	judgeTries = 5
	judgePause = 50 * time.Millisecond
)

// Judge returns err, an answer of the coordinator, as what it means for the job.
// ErrFenced that came of a directory alone (Superseded) is the end of this
// coordinator, not of the job: it becomes ErrUnavailable, with the mend to start
// again. The store is asked in that case only, for a fifth of a second: a claim
// that takes longer to appear behind its directory is not seen, and its
// coordinator is fenced by the start.
func (c *Coordinator) Judge(ctx context.Context, err error) error {
	if !errors.Is(err, inflight.ErrFenced) {
		return err
	}
	superseded, e := c.Superseded(ctx)
	// A claim may be retired while it is looked for. And its directory may be there
	// before it is: who takes over is given time.
	for try := 1; !superseded && try < judgeTries; try++ {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(judgePause):
		}
		superseded, e = c.Superseded(ctx)
	}
	if e != nil || superseded {
		return err
	}
	return &inflight.Error{Op: "check", Object: c.log.path(""), Mend: "start again, from the latest checkpoint",
		Err: fmt.Errorf("%w: a coordinator that was superseded has begun a file late", inflight.ErrUnavailable)}
}

// ReplayDone releases the base: every subtask has replayed it, so it stays only
// as long as it is retained like any other.
func (c *Coordinator) ReplayDone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replaying = false
}

// Pin keeps a checkpoint until Unpin. It must be the newest one, or one that
// it keeps, else ErrRetired. Pins are counted, and end with the coordinator. It
// waits for a commit in progress.
func (c *Coordinator) Pin(id inflight.CheckpointID) error {
	c.filling.Lock()
	defer c.filling.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != c.tip.ID && !slices.Contains(c.tip.Keep, id) {
		return c.log.fail("pin", id, inflight.ErrRetired, "")
	}
	c.pins[id]++
	return nil
}

// Unpin takes one Pin back.
func (c *Coordinator) Unpin(id inflight.CheckpointID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pins[id]--; c.pins[id] <= 0 {
		delete(c.pins, id)
	}
}

// Release ends the keeping of a savepoint, from the next commit on.
func (c *Coordinator) Release(id inflight.CheckpointID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.savepoints = slices.DeleteFunc(slices.Clone(c.savepoints), func(s inflight.CheckpointID) bool { return s == id })
}

// keep returns what the next checkpoint keeps beside itself, and which of it are
// savepoints. All of it is kept by the tip already, or is the tip. The caller holds mu.
func (c *Coordinator) keep() (keep, savepoints []inflight.CheckpointID) {
	for _, id := range c.chain[:min(c.log.o.Retained-1, len(c.chain))] {
		keep = insert(keep, id)
	}
	for id := range c.pins {
		keep = insert(keep, id)
	}
	for _, id := range c.savepoints {
		keep = insert(keep, id)
	}
	if c.replaying {
		keep = insert(keep, c.base.Manifest.ID)
	}
	return keep, slices.Clone(c.savepoints)
}

// Pending is a checkpoint that has been begun and is not decided.
type Pending struct {
	c     *Coordinator
	id    inflight.CheckpointID
	begun time.Time

	// The rest belongs to who holds c.filling; what is marked is guarded by c.mu
	// too.
	manifest *format.Manifest // to be committed
	bytes    []byte
	cause    *format.Cause // given up (mu)
	sent     bool
	decided  *format.Manifest // what the slot holds (mu)
}

// Begin begins the next checkpoint.
func (c *Coordinator) Begin() (*Pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	at := 0
	for _, p := range c.pending {
		if p.cause == nil {
			at++
		}
	}
	if at >= c.log.o.MaxConcurrent {
		return nil, c.log.fail("begin", c.next, fmt.Errorf("%w: %d checkpoints are pending", inflight.ErrOrder, at), "commit or abort one first")
	}
	if c.next > format.MaxCheckpointID {
		return nil, c.log.fail("begin", c.next, fmt.Errorf("%w: all slots are used", inflight.ErrTooLarge), "")
	}
	p := &Pending{c: c, id: c.next, begun: time.Now()}
	c.next++
	c.pending = append(c.pending, p)
	return p, nil
}

// ID returns the checkpoint's id.
func (p *Pending) ID() inflight.CheckpointID { return p.id }

// Attempt returns what the names of the checkpoint's files carry.
func (p *Pending) Attempt() string { return p.c.Attempt() }

// Commit makes the checkpoint complete. The caller has filled in mode,
// alignment, topology, handles and what is known about the files
// (Manifest.SetHandles); the rest is set here. All files must be finished.
//
//	nil                it is committed and checked: notify
//	ErrIncomplete      a subtask or file is missing; nothing was sent: abort it
//	ErrSubsumed        a higher checkpoint was committed first
//	ErrAborted         it was given up
//	ErrOutcomeUnknown  the context ended before the slot was decided: no file may
//	                   be deleted; call Commit or Abort again
//	ErrFenced          another coordinator has taken over: end
//	other              nothing was sent: try again or abort
func (p *Pending) Commit(ctx context.Context, m *format.Manifest) error {
	c := p.c
	c.filling.Lock()
	defer c.filling.Unlock()
	if err := p.open(); err != nil {
		return err
	}
	if !p.sent {
		if err := p.prepare(ctx, m); err != nil {
			return err
		}
		if err := c.settleBelow(ctx, p); err != nil {
			return err
		}
	}
	decided, err := c.settle(ctx, p, p.manifest, p.bytes)
	if err == nil && decided.Kind != format.KindCheckpoint {
		err = c.log.fail("commit", p.id, inflight.ErrAborted, "")
	}
	return err
}

// Checkpoint returns the committed checkpoint; nil as long as it is not
// committed.
func (p *Pending) Checkpoint() *Checkpoint {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.decided == nil || p.decided.Kind != format.KindCheckpoint {
		return nil
	}
	return &Checkpoint{Dir: p.c.log.dir(p.id), Manifest: p.decided}
}

// open reports what is left to do: nil as long as the checkpoint can be
// committed.
func (p *Pending) open() error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	switch {
	case p.c.err != nil:
		return p.c.err
	case p.decided != nil && p.decided.Kind == format.KindCheckpoint:
		return nil
	case p.cause != nil && p.cause.Reason == reasonSubsumed:
		return p.c.log.fail("commit", p.id, inflight.ErrSubsumed, "")
	case p.cause != nil:
		return p.c.log.fail("commit", p.id, inflight.ErrAborted, "")
	}
	return nil
}

// prepare completes the manifest and makes sure that all it refers to is there,
// under names that last.
func (p *Pending) prepare(ctx context.Context, m *format.Manifest) error {
	c := p.c
	full := *m
	full.Kind, full.Job, full.ID = format.KindCheckpoint, c.log.job, p.id
	full.Attempt, full.Epoch, full.Base = c.claim.Attempt, c.claim.Epoch, c.claim.Base
	full.Files = slices.Clone(m.Files)
	for i, f := range full.Files {
		if known, ok := c.known(f); ok {
			full.Files[i] = known
		}
	}
	full.SelfContained = !slices.ContainsFunc(m.Files, func(f format.FileInfo) bool {
		id, _, err := format.SplitFileName(f.Name)
		return err != nil || id != p.id
	})
	if err := c.log.checkComplete(ctx, &full); err != nil {
		return err
	}
	p.manifest = &full
	if err := p.encode(); err != nil || len(full.Files) == 0 {
		return err
	}
	return c.log.b.SyncNames(ctx, c.log.dir(p.id))
}

// known returns what the newest checkpoint or the base says of a file: a
// checkpoint during recovery refers to files of theirs.
func (c *Coordinator) known(f format.FileInfo) (format.FileInfo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries := []*format.Manifest{c.tip}
	if c.base != nil {
		entries = append(entries, c.base.Manifest)
	}
	for _, m := range entries {
		if g := m.File(f.Name); g != nil && g.FileID == f.FileID && f.DirLength == 0 {
			return *g, true
		}
	}
	return f, false
}

func (p *Pending) encode() (err error) {
	p.c.mu.Lock()
	p.manifest.Keep, p.manifest.Savepoints = p.c.keep()
	p.c.mu.Unlock()
	p.bytes, err = format.EncodeManifest(p.manifest)
	return err
}

// Abort gives the checkpoint up. What was sent for it before may have been
// applied: committed tells that it is complete after all, and is to be notified.
//
// Its slot is filled now, or, if lower ids are pending or the store cannot be
// reached, before the next commit. Its own files are deleted when that cannot
// hurt; what remains is garbage.
func (p *Pending) Abort(ctx context.Context, cause format.Cause) (committed bool, err error) {
	c := p.c
	c.filling.Lock()
	defer c.filling.Unlock()
	lowest, err := p.giveUp(cause)
	if err != nil {
		return false, err
	}
	if p.decided != nil {
		return p.decided.Kind == format.KindCheckpoint, nil
	}
	early := !p.sent || c.log.hooks.without&ruleDecidedFirst != 0
	if early {
		// A file that cannot be deleted now is garbage.
		_ = c.log.removeOwn(ctx, p.id, c.claim.Attempt)
	}
	if c.log.hooks.without&ruleNoGaps != 0 {
		return false, nil
	}
	if !lowest {
		return false, c.settleFirst(ctx)
	}
	decided, err := c.settleAborted(ctx, p)
	if err != nil || decided.Kind == format.KindCheckpoint {
		return err == nil, err
	}
	if !early {
		_ = c.log.removeOwn(ctx, p.id, c.claim.Attempt)
	}
	return false, nil
}

// GiveUp decides that the checkpoint will not be committed, without I/O, so that
// the next one can begin. Abort, or the next commit, fills its slot.
func (p *Pending) GiveUp(cause format.Cause) { _, _ = p.giveUp(cause) }

// settleFirst fills the lowest slot that is not decided, if its checkpoint was
// given up and the store refused that: whoever can commit nothing must learn
// that it is fenced all the same.
func (c *Coordinator) settleFirst(ctx context.Context) error {
	c.mu.Lock()
	first := c.pending[0]
	givenUp := first.cause != nil && !first.sent
	c.mu.Unlock()
	if !givenUp {
		return nil
	}
	_, err := c.settleAborted(ctx, first)
	return err
}

// giveUp records the cause, and tells whether no lower id is undecided.
func (p *Pending) giveUp(cause format.Cause) (lowest bool, err error) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.c.err != nil {
		return false, p.c.err
	}
	if p.cause == nil && p.decided == nil {
		p.cause = &cause
	}
	return len(p.c.pending) > 0 && p.c.pending[0] == p, nil
}

// settleBelow fills the slots below p: its checkpoints are subsumed by p.
func (c *Coordinator) settleBelow(ctx context.Context, p *Pending) error {
	c.mu.Lock()
	below := slices.DeleteFunc(slices.Clone(c.pending), func(q *Pending) bool { return q.id >= p.id })
	for _, q := range below {
		if q.cause == nil {
			q.cause = &format.Cause{Kind: format.CauseAborted, Reason: reasonSubsumed, Text: fmt.Sprintf("checkpoint %d was complete first", p.id)}
		}
	}
	c.mu.Unlock()
	for _, q := range below {
		if c.log.hooks.without&ruleNoGaps != 0 {
			continue
		}
		if _, err := c.settleAborted(ctx, q); err != nil {
			return err
		}
	}
	if len(below) == 0 {
		return nil
	}
	return p.encode() // again: one of them may be committed, so that p keeps something else
}

const (
	reasonSubsumed = "subsumed"
	maxCause       = 4096 // bytes of a cause's text that are kept
)

// shorten makes a text fit for an entry.
func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxCause)], "?") }

func (c *Coordinator) settleAborted(ctx context.Context, p *Pending) (*format.Manifest, error) {
	cause := *p.cause
	cause.Reason, cause.Text = shorten(cause.Reason), shorten(cause.Text)
	if cause.Kind == "" {
		cause.Kind = format.CauseAborted
	}
	m := &format.Manifest{Kind: format.KindAborted, Job: c.log.job, ID: p.id, Attempt: c.claim.Attempt, Epoch: c.claim.Epoch, Cause: &cause}
	bytes, err := format.EncodeManifest(m)
	if err != nil {
		return nil, err
	}
	return c.settle(ctx, p, m, bytes)
}

// settle fills p's slot with m, checks, and records what the slot holds. The
// caller holds filling, and all lower slots are decided.
func (c *Coordinator) settle(ctx context.Context, p *Pending, m *format.Manifest, bytes []byte) (*format.Manifest, error) {
	if p.decided != nil {
		return p.decided, nil
	}
	decided, err := c.log.fill(ctx, m, bytes, &p.sent)
	if err == nil {
		p.sent = true
		if c.log.hooks.without&checkRule(decided.Kind) == 0 {
			err = c.check(p, func(own []inflight.CheckpointID) error { return c.log.check(ctx, p.id, own) })
		}
	} else if !p.sent {
		err = c.fencedInstead(ctx, p, err)
	}
	if errors.Is(err, inflight.ErrFenced) || errors.Is(err, inflight.ErrDamaged) {
		c.end(err)
	}
	if err != nil {
		return nil, err
	}
	c.record(p, decided)
	return decided, nil
}

// fencedInstead answers ErrFenced if another coordinator is at work, else err:
// a full disk refuses every entry, and with it the check that follows one, but
// it can be listed. Nothing was sent for p.
func (c *Coordinator) fencedInstead(ctx context.Context, p *Pending, err error) error {
	if !errors.Is(err, inflight.ErrNoSpace) {
		return err
	}
	fenced := c.check(p, func(own []inflight.CheckpointID) error {
		return c.log.checkOnce(ctx, p.id, append([]inflight.CheckpointID{p.id}, own...))
	})
	if errors.Is(fenced, inflight.ErrFenced) {
		return fenced
	}
	return err
}

// check calls f with the own pending ids above p, and again where one was begun
// meanwhile: its directory is nobody else's.
func (c *Coordinator) check(p *Pending, f func(own []inflight.CheckpointID) error) error {
	for own := c.pendingAbove(p); ; {
		err := f(own)
		now := c.pendingAbove(p)
		if !errors.Is(err, errPending) || slices.Equal(own, now) {
			return err
		}
		own = now
	}
}

// end makes the coordinator answer err from now on.
func (c *Coordinator) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *Coordinator) pendingAbove(p *Pending) (ids []inflight.CheckpointID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.pending {
		if q.id > p.id {
			ids = append(ids, q.id)
		}
	}
	return ids
}

// record takes a decided slot into account.
func (c *Coordinator) record(p *Pending, m *format.Manifest) {
	c.mu.Lock()
	p.decided = m
	c.pending = slices.DeleteFunc(c.pending, func(q *Pending) bool { return q == p })
	if m.Kind == format.KindCheckpoint {
		c.tip = m
		c.chain = append([]inflight.CheckpointID{m.ID}, c.chain[:min(len(c.chain), c.log.o.Retained)]...)
		if m.Savepoint {
			c.savepoints = insert(slices.Clone(c.savepoints), m.ID)
		}
	}
	c.mu.Unlock()
	e := inflight.Event{Name: inflight.EventCommitted, Checkpoint: m.ID, Object: c.log.dir(m.ID), Count: int64(len(m.Files)), Bytes: m.FileBytes(), Duration: time.Since(p.begun)}
	if m.Kind == format.KindAborted {
		e.Name, e.Err = inflight.EventAborted, fmt.Errorf("%s: %s", m.Cause.Reason, m.Cause.Text)
	}
	c.log.o.Observer.Observe(e)
}

// WriteStats writes the statistics of one of this coordinator's checkpoints
// beside its entry. They are not needed to restore: a failure costs nothing but
// them. Nothing is written for one that is no longer kept: its directory, which
// Retire may have removed, would be made anew.
func (c *Coordinator) WriteStats(ctx context.Context, s *format.CheckpointStats) error {
	if err := c.Err(); err != nil || c.outlived(s.ID) {
		return err
	}
	p, err := format.EncodeStats(s)
	if err != nil {
		return err
	}
	name := c.log.path(format.CheckpointDir(s.ID) + "/" + format.StatsName)
	if err := c.log.write(ctx, name, p, backends.CreateOptions{Attempt: c.Attempt()}); err != nil {
		return &inflight.Error{Op: "write", Object: name, Err: err}
	}
	return nil
}

// outlived reports whether a newer checkpoint is committed that does not keep id.
func (c *Coordinator) outlived(id inflight.CheckpointID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id < c.tip.ID && !slices.Contains(c.tip.Keep, id)
}
