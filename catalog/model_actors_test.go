package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// lineage returns the checkpoints that one goes back on, itself last: each
// checkpoint carries it, so that the invariants can tell forks.
func lineage(m *format.Manifest) string {
	if m == nil || m.Topology == nil {
		return ""
	}
	return m.Topology.Vertices[0].Attributes["lineage"]
}

// continues reports whether lineage a is b or goes on from it.
func continues(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") || b == "" }

// holds reports whether a checkpoint is part of a lineage.
func holds(lineage, name string) bool {
	return strings.HasSuffix(lineage, name) || strings.Contains(lineage, name+"/")
}

func (e *explorer) log(g *gate, name string) *Log {
	l, err := Open(g, "job", Options{Retained: e.cfg.retained, MaxConcurrent: e.cfg.concurrent})
	if err != nil {
		panic(err)
	}
	starts := 0
	l.hooks = hooks{without: e.cfg.without, decode: e.decode,
		attempt: func() string { starts++; return fmt.Sprintf("%s%d", name, starts) },
		pause: func(context.Context, int) error {
			// The end of a context: the caller gives up after an unknown answer.
			if g.choices && g.choose(2) == 1 {
				return context.Canceled
			}
			return nil
		}}
	return l
}

// decode decodes what was decoded before only once.
func (e *explorer) decode(p []byte) (*format.Manifest, error) { return e.entries[e.content(p)].m, nil }

// coordinator starts, takes some checkpoints, and ends.
func (e *explorer) coordinator(i int) *actor {
	name := string(rune('A' + i))
	return &actor{name: name, run: func(g *gate) {
		d := &driver{e: e, g: g, name: name, log: e.log(g, name), left: e.cfg.coordinators[i]}
		var o StartOptions
		if e.cfg.older && i > 0 {
			if n := g.choose(4); n > 0 {
				o = StartOptions{Base: BaseID, ID: inflight.CheckpointID(n)}
			}
		}
		d.run(o)
	}}
}

// driver is what an engine does with a coordinator.
type driver struct {
	e    *explorer
	g    *gate
	name string
	log  *Log
	c    *Coordinator
	left int
	line string
}

// must panics with an error that no run may see; the end by fencing is none.
func (d *driver) must(err error) (goOn bool) {
	switch {
	case err == nil:
		return true
	case errors.Is(err, inflight.ErrFenced), errors.Is(err, inflight.ErrRetired) && d.e.cfg.older:
		return false
	}
	panic(err)
}

func (d *driver) run(o StartOptions) {
	c, err := d.log.Start(context.Background(), o)
	if !d.must(err) {
		return
	}
	d.c = c
	if b := c.Base(); b != nil {
		d.line = lineage(b.Manifest)
		d.g.live = &liveBase{attempt: c.Attempt()}
		for _, f := range b.Manifest.Files {
			d.g.live.files = append(d.g.live.files, "job/"+f.Name)
		}
	}
	d.boundary("started", (*driver).restore)
}

func (d *driver) restore() {
	d.g.step(op{kind: opRestore, note: d.line, epoch: d.c.Epoch()})
	d.next()
}

func (d *driver) next() {
	if d.left > 0 {
		d.boundary("next", func(d *driver) {
			if d.checkpoint() {
				d.left--
				d.next()
			}
		})
	}
}

// boundary goes on with then, of which it tells the model that it depends on
// the driver's state only: the model may begin there, with a copy.
func (d *driver) boundary(at string, then func(*driver)) {
	c := d.c
	var base []byte
	if c.base != nil {
		base, _ = format.EncodeManifest(c.base.Manifest)
	}
	state := fmt.Sprint(at, d.left, d.line, c.next, c.claim.Attempt, c.claim.ID, c.claim.Keep, string(base), c.tip.ID, c.tip.Keep, c.chain, c.savepoints, c.replaying, len(c.pending))
	saved, live := d.copy(d.g), d.g.live
	d.g.boundary(state, func(g *gate) {
		g.live = live
		then(saved.copy(g))
	})
	then(d)
}

// copy returns the driver at a boundary, behind another gate.
func (d *driver) copy(g *gate) *driver {
	c := d.c
	l := d.e.log(g, d.name)
	return &driver{e: d.e, g: g, name: d.name, log: l, left: d.left, line: d.line, c: &Coordinator{log: l, claim: c.claim, base: c.base, next: c.next, tip: c.tip,
		pending: slices.Clone(c.pending), chain: slices.Clone(c.chain), savepoints: slices.Clone(c.savepoints), pins: maps.Clone(c.pins), replaying: c.replaying, swept: c.swept}}
}

// checkpoint takes one checkpoint, or two that overlap, and retires.
func (d *driver) checkpoint() (goOn bool) {
	pending := []*Pending{d.begin()}
	if d.e.cfg.concurrent > 1 && d.left > 1 {
		pending = append(pending, d.begin())
		d.left--
		if d.g.choose(2) == 1 {
			slices.Reverse(pending) // the later one is complete first
		}
	}
	committed := false
	for _, p := range pending {
		ok, err := d.finish(p)
		if errors.Is(err, inflight.ErrSubsumed) {
			continue
		}
		if !d.must(err) {
			return false
		}
		committed = committed || ok
	}
	if committed {
		return d.must(d.c.Retire(context.Background()))
	}
	return true
}

// begin begins a checkpoint and writes its file.
func (d *driver) begin() *Pending {
	p, err := d.c.Begin()
	if err != nil {
		panic(err)
	}
	d.g.step(op{kind: opBegin, name: "job/" + format.StateFileName(p.ID(), "g", p.Attempt()), note: name(p), epoch: d.c.Epoch()})
	return p
}

func name(p *Pending) string { return fmt.Sprintf("/%s.%d", p.Attempt(), p.ID()) }

const (
	replayDone = iota
	replayGoesOn
	replayEnds
)

// finish commits or gives up, and notifies.
func (d *driver) finish(p *Pending) (committed bool, err error) {
	line := d.line + name(p)
	var older []format.FileInfo
	if d.c.replaying {
		// A checkpoint during recovery refers to its base. The recovery may be
		// over before its commit, so that the base's name goes and its data stays.
		now := d.g.choose(3)
		if now != replayDone {
			older = slices.Clone(d.c.base.Manifest.Files)
		}
		if now != replayGoesOn {
			d.c.ReplayDone()
			d.g.live = nil
		}
	}
	own := format.FileInfo{Name: format.StateFileName(p.ID(), "g", p.Attempt()), FileID: inflight.FileID{1}, Size: 1}
	if d.g.choose(2) == 0 {
		d.g.choices = true
		err = p.Commit(context.Background(), manifestOf(p.ID(), line, append(slices.Clip(older), own)...))
		d.g.choices = false
		committed = err == nil
	}
	if errors.Is(err, inflight.ErrIncomplete) {
		err = nil // a successor's gc took the files of this slot: it will be fenced
	}
	if err == nil && !committed || errors.Is(err, inflight.ErrOutcomeUnknown) {
		committed, err = p.Abort(context.Background(), format.Cause{Kind: format.CauseAborted, Reason: "test"})
	}
	if committed {
		d.line = line
		d.g.step(op{kind: opNotify, note: line})
	}
	return committed, err
}

// collector collects once.
func (e *explorer) collector(i int) *actor {
	name := string(rune('Z' - i))
	return &actor{name: name, run: func(g *gate) {
		_, err := e.log(g, name).GC(context.Background(), GCOptions{Fence: e.cfg.fence})
		if err != nil && !errors.Is(err, inflight.ErrFenced) {
			panic(err)
		}
	}}
}

// sinks is what the sinks outside of the store do: a transaction begins with
// its checkpoint, a notification commits it, a restore commits what its base
// holds and rolls back others of smaller epochs.
func (e *explorer) sinks(s *mstate, o op) error {
	held := func(t txn) bool { return holds(o.note, e.lines.names[t.name]) }
	switch o.kind {
	case opBegin:
		s.addFile(e.files.id(o.name))
		s.open = append(s.open, txn{e.lines.id(o.note), o.epoch})
		slices.SortFunc(s.open, func(a, b txn) int { return int(a.name) - int(b.name) })
		return nil
	case opRestore:
		for _, t := range s.open {
			if !held(t) && (t.epoch < o.epoch || e.cfg.rollbackAll) {
				s.rolled = append(s.rolled, t.name)
			}
		}
		slices.Sort(s.rolled)
		s.open = slices.DeleteFunc(s.open, func(t txn) bool { return held(t) || slices.Contains(s.rolled, t.name) })
	case opNotify:
		last := ""
		if s.notified != 0 {
			last = e.lines.names[s.notified]
		}
		if !continues(o.note, last) && !continues(last, o.note) && !e.cfg.older {
			return fmt.Errorf("I2: %q is notified after %q: a fork", o.note, last)
		}
		if continues(o.note, last) {
			s.notified = e.lines.id(o.note)
		}
		s.open = slices.DeleteFunc(s.open, held)
	}
	for _, r := range s.rolled {
		if holds(o.note, e.lines.names[r]) && !e.cfg.older {
			return fmt.Errorf("I7: %s of %q, of which a restore rolled back %q", o, o.note, e.lines.names[r])
		}
	}
	return nil
}

// check checks the invariants that hold in every state.
func (e *explorer) check(s *mstate) error {
	latest, tip, err := e.latest(s)
	if err != nil {
		return err
	}
	if latest != nil {
		if err := e.whole(s, latest); err != nil {
			return fmt.Errorf("I1: the latest: %w", err)
		}
	}
	if s.notified != 0 && !e.cfg.older {
		if line := e.lines.names[s.notified]; latest == nil || !continues(latest.lineage, line) {
			return fmt.Errorf("I3: a restart would not go on from %q, which is notified", line)
		}
	}
	for i := range s.at {
		live := e.node(s, i).live
		if live == nil || tip == nil || tip.m.Attempt != live.attempt {
			continue // superseded
		}
		for _, f := range live.files {
			if _, ok := slices.BinarySearch(s.files, e.files.id(f)); !ok {
				return fmt.Errorf("I1: %s of the base of a restore is gone", f)
			}
		}
	}
	if tip != nil {
		for _, id := range tip.m.Keep {
			if int(id) >= len(s.slots) || s.slots[id] == 0 {
				return fmt.Errorf("I4: kept checkpoint %d is gone", id)
			}
			if err := e.whole(s, e.entries[s.slots[id]]); err != nil {
				return fmt.Errorf("I4: %w", err)
			}
		}
	}
	return e.checkStore(s)
}

// latest is the rule of docs/architecture.md, told apart from the code that is checked.
func (e *explorer) latest(s *mstate) (latest, tip *entryInfo, err error) {
	for _, c := range slices.Backward(s.slots) {
		if c == 0 {
			continue
		}
		n := e.entries[c]
		switch n.m.Kind {
		case format.KindCheckpoint:
			return n, n, nil
		case format.KindClaim:
			if n.m.Base == nil {
				return nil, n, nil
			}
			id := *n.m.Base
			if int(id) >= len(s.slots) || s.slots[id] == 0 {
				return nil, n, fmt.Errorf("I1: the base %d of claim %d is gone", id, n.m.ID)
			}
			return e.entries[s.slots[id]], n, nil
		}
	}
	return nil, nil, nil
}

func (e *explorer) whole(s *mstate, n *entryInfo) error {
	for i, f := range n.files {
		if _, ok := slices.BinarySearch(s.files, f); !ok {
			return fmt.Errorf("checkpoint %d lacks %s", n.m.ID, n.m.Files[i].Name)
		}
	}
	return nil
}

// checkStore runs the real Latest, and I5: everyone dead, late creates applied,
// one gc that claims → files = referenced files. The verdict depends on the
// store only.
func (e *explorer) checkStore(s *mstate) error {
	key := s.storeKey(nil)
	for _, f := range s.flight {
		key = append(key, 0xff, byte(f.slot), byte(f.content), byte(f.content>>8))
	}
	err, known := e.stores[string(key)]
	if !known {
		err = e.collectStore(s)
		e.stores[string(key)] = err
	}
	return err
}

func (e *explorer) collectStore(s *mstate) error {
	t := s.clone()
	for _, f := range t.flight {
		t.fill(f.slot, f.content)
	}
	m := newMemory()
	for id, c := range t.slots {
		if c != 0 {
			m.objects[entryName(id)] = e.entries[c].bytes
		}
	}
	for _, f := range t.files {
		m.objects[e.files.names[f]] = []byte("x")
	}
	l, err := Open(m, "job", Options{})
	if err != nil {
		return err
	}
	want, _, err := e.latest(t)
	if err != nil {
		return err
	}
	got, err := l.Latest(context.Background())
	if (want == nil) != errors.Is(err, inflight.ErrNotExist) || want != nil && (err != nil || lineage(got.Manifest) != want.lineage) {
		return fmt.Errorf("I1: Latest answers %v, %w", got, err)
	}
	if _, err := l.GC(context.Background(), GCOptions{Fence: true}); err != nil {
		return fmt.Errorf("I5: gc of a dead job: %w", err)
	}
	after, err := l.Latest(context.Background())
	if want != nil && (err != nil || lineage(after.Manifest) != want.lineage) {
		return fmt.Errorf("I5: after gc Latest answers %v, %w", after, err)
	}
	st, err := l.read(context.Background(), nil)
	if err != nil {
		return err
	}
	refs := map[string]bool{}
	for _, id := range append(slices.Clone(st.tip.Keep), st.tip.ID) {
		k, err := l.readSlot(context.Background(), id)
		if err != nil {
			return fmt.Errorf("I5: %w", err)
		}
		refs[entryName(int(id))] = true
		for _, f := range k.Files {
			refs["job/"+f.Name] = true
		}
	}
	for _, n := range m.names() {
		if !refs[n] {
			return fmt.Errorf("I5: %s is left after gc", n)
		}
		delete(refs, n)
	}
	if len(refs) > 0 {
		return fmt.Errorf("I5: gc deleted %v", refs)
	}
	return nil
}
