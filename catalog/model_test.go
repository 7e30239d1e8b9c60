package catalog

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// The model check runs the code of this package, not a model of it, against
// every order of the store's operations. Its actors (coordinators, collectors)
// are coroutines that stop at each call to the store. What an actor does next
// depends only on the answers that it got: it is a tree of nodes, and the real
// code runs once for each node, replaying the answers on the way to it. A state
// is the store, what is in flight, what the sinks saw, and the node of each
// actor. The states are explored depth first; those seen before are cut off.

// node is where an actor stands after some answers: with its next op.
type node struct {
	actor  *actor
	id     int32
	parent *node
	in     result // the answer that led here from parent
	kids   map[string]*node
	op     op
	// listed: the last op that took a step was a listing, so that reads of what
	// it listed may go on in the same step.
	listed bool
	live   *liveBase   // what the actor restores now
	resume func(*gate) // runs the actor from here; nil: only from an earlier node
	err    error       // why the actor must not have ended
}

// liveBase is a restore that has not been replayed to its end.
type liveBase struct {
	attempt string
	files   []string
}

// actor is one kind of behaviour: run does all its calls through the gate.
type actor struct {
	name  string
	run   func(g *gate)
	root  *node
	bound map[string]*node // merged nodes, by what is told there
}

// gate is an actor's side of the store.
type gate struct {
	opStore
	yield   func(op) bool
	answer  result
	live    *liveBase
	merge   string // set by boundary for the next op
	resume  func(*gate)
	choices bool  // pauses are choices between going on and giving up
	err     error // why the actor must not have ended
}

type unwind struct{}

func (g *gate) step(o op) result {
	if !g.yield(o) {
		panic(unwind{})
	}
	return g.answer
}

// choose lets the model decide.
func (g *gate) choose(n int) int { return g.step(op{kind: opChoose, choices: n}).n }

// boundary says that all the actor will do from here on depends on state only,
// and is what resume does.
func (g *gate) boundary(state string, resume func(*gate)) { g.merge, g.resume = state, resume }

// explorer holds what does not change from state to state.
type explorer struct {
	cfg      modelConfig
	actors   []*actor
	nodes    []*node
	contents table // entries, by their bytes
	entries  []*entryInfo
	files    table // names of files
	lines    table // lineages, and their parts
	visited  map[uint64]struct{}
	stores   map[string]error // verdicts about stores, by their key
	listings map[string]*listing
	parked   map[*node]*coroutine
	queue    []*node
	seed     maphash.Seed
	trace    []string
	steps    int
	failure  error
	failPath []string
	buf      []byte
}

// modelConfig are the bounds of one run.
type modelConfig struct {
	coordinators []int // checkpoints of each
	collectors   int
	faults       int
	retained     int
	concurrent   int
	fence        bool // collectors claim
	fine         bool // each read is a step of its own
	older        bool // the second coordinator may go back to a kept checkpoint
	scan         scanMode
	without      rule
	rollbackAll  bool // sinks do not compare epochs: counterexample C1
	limit        int  // of states; 0: none
}

// table numbers strings from 1.
type table struct {
	ids   map[string]uint16
	names []string
}

func (t *table) id(s string) uint16 {
	if n, ok := t.ids[s]; ok {
		return n
	}
	if t.ids == nil {
		t.ids, t.names = map[string]uint16{}, []string{""}
	}
	n := uint16(len(t.names))
	t.ids[s], t.names = n, append(t.names, s)
	return n
}

// entryInfo is an entry with what the invariants ask of it.
type entryInfo struct {
	bytes   []byte
	m       *format.Manifest
	lineage string
	files   []uint16
}

// mstate is one state. It is copied before it is changed.
type mstate struct {
	slots    []uint16 // content by id; 0: open
	files    []uint16 // ascending
	flight   []flight
	faults   int
	at       []int32  // node by actor
	notified uint16   // the longest lineage notified
	open     []txn    // transactions that are neither committed nor rolled back
	rolled   []uint16 // names of transactions
}

type flight struct {
	slot    int
	content uint16
}

type txn struct {
	name  uint16 // the last part of its checkpoint's lineage
	epoch inflight.Epoch
}

func (s *mstate) clone() *mstate {
	return &mstate{slots: slices.Clone(s.slots), files: slices.Clone(s.files), flight: slices.Clone(s.flight), faults: s.faults,
		at: slices.Clone(s.at), notified: s.notified, open: slices.Clone(s.open), rolled: slices.Clone(s.rolled)}
}

// storeKey tells apart what a store holds.
func (s *mstate) storeKey(b []byte) []byte {
	for _, c := range s.slots {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	b = append(b, 0xff, 0xff)
	for _, f := range s.files {
		b = binary.LittleEndian.AppendUint16(b, f)
	}
	return b
}

func (s *mstate) key(b []byte) []byte {
	b = append(s.storeKey(b), 0xff, 0xff)
	for _, f := range s.flight {
		b = binary.LittleEndian.AppendUint16(append(b, byte(f.slot)), f.content)
	}
	b = append(b, 0xff, byte(s.faults))
	for _, n := range s.at {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = binary.LittleEndian.AppendUint16(b, s.notified)
	for _, t := range s.open {
		b = binary.LittleEndian.AppendUint16(append(b, byte(t.epoch)), t.name)
	}
	b = append(b, 0xff, 0xff)
	for _, l := range s.rolled {
		b = binary.LittleEndian.AppendUint16(b, l)
	}
	return b
}

func newExplorer(cfg modelConfig) *explorer {
	e := &explorer{cfg: cfg, visited: map[uint64]struct{}{}, stores: map[string]error{}, listings: map[string]*listing{}, parked: map[*node]*coroutine{}, seed: maphash.MakeSeed(), entries: []*entryInfo{nil}}
	for i := range cfg.coordinators {
		e.actors = append(e.actors, e.coordinator(i))
	}
	for i := range cfg.collectors {
		e.actors = append(e.actors, e.collector(i))
	}
	return e
}

// run explores everything within the bounds, and returns the first violation.
func (e *explorer) run() error {
	s := &mstate{faults: e.cfg.faults}
	for _, a := range e.actors {
		a.bound = map[string]*node{}
		a.root = e.newNode(a, nil, result{})
		s.at = append(s.at, a.root.id)
	}
	e.explore(s)
	for _, k := range e.queue {
		e.unpark(k)
	}
	return e.failure
}

func (e *explorer) explore(s *mstate) {
	if e.failure != nil || e.cfg.limit > 0 && len(e.visited) >= e.cfg.limit {
		return
	}
	e.buf = s.key(e.buf[:0])
	h := maphash.Bytes(e.seed, e.buf)
	if _, seen := e.visited[h]; seen {
		return
	}
	e.visited[h] = struct{}{}
	if err := e.check(s); err != nil {
		e.fail(err)
		return
	}
	for i := range s.at {
		if e.alike(i) && e.node(s, i) == e.actors[i].root && e.node(s, i-1) == e.actors[i-1].root {
			continue
		}
		e.step(s, i)
	}
	for i, f := range s.flight {
		t := s.clone()
		t.flight = slices.Delete(t.flight, i, i+1)
		t.fill(f.slot, f.content)
		e.down(fmt.Sprintf("a create of slot %d arrives late", f.slot), t)
	}
}

// alike tells coordinators that differ from the one before in nothing but their
// names: of those, the first one starts first.
func (e *explorer) alike(i int) bool {
	k := e.cfg.coordinators
	return i > 0 && i < len(k) && k[i] == k[i-1] && !e.cfg.older
}

func (e *explorer) node(s *mstate, actor int) *node { return e.nodes[s.at[actor]] }

// down explores t after a step.
func (e *explorer) down(what string, t *mstate) {
	e.steps++
	e.trace = append(e.trace, what)
	e.explore(t)
	e.trace = e.trace[:len(e.trace)-1]
}

func (e *explorer) fail(err error) {
	if e.failure == nil {
		e.failure, e.failPath = err, slices.Clone(e.trace)
	}
}

// step explores everything that the next op of an actor can lead to.
func (e *explorer) step(s *mstate, actor int) {
	n := e.node(s, actor)
	if n.op.kind == opEnd {
		return
	}
	for _, o := range e.outcomes(s, n) {
		if e.failure != nil {
			return
		}
		e.settle(o.s, actor, n, o.r, n.actor.name+": "+n.op.String()+o.what)
	}
}

// settle gives an actor its answer, and goes on with the ops that need no step
// of their own.
func (e *explorer) settle(s *mstate, actor int, n *node, r result, what string) {
	k := e.child(n, r)
	s.at[actor] = k.id
	if k.err != nil {
		e.trace = append(e.trace, what)
		e.fail(fmt.Errorf("%s ended: %w", k.actor.name, k.err))
		return
	}
	switch {
	case k.op.kind == opChoose:
		for i := range k.op.choices {
			e.settle(s.clone(), actor, k, result{n: i}, fmt.Sprintf("%s [chooses %d]", what, i))
		}
	case !e.cfg.fine && (k.op.kind == opRead || k.op.kind == opList) && k.listed, k.op.kind == opList && strings.Contains(k.op.name, "/chk-0"):
		// Reads of what was just listed, the second look at the top, and the listing
		// of one slot before a commit.
		o := e.outcomes(s, k)[0]
		e.settle(o.s, actor, k, o.r, what+", "+k.op.String())
	default:
		e.down(what, s)
	}
}

type outcome struct {
	s    *mstate
	r    result
	what string
}

// outcomes returns what the next op of node n can do to s.
func (e *explorer) outcomes(s *mstate, n *node) []outcome {
	o := n.op
	switch o.kind {
	case opCreate:
		if o.exclusive {
			return e.creates(s, o)
		}
		t := s.clone()
		t.addFile(e.files.id(o.name))
		return []outcome{{s: t}}
	case opRemove:
		t := s.clone()
		if path.Base(o.name) == format.ManifestName {
			t.slots[slotIn(o.name)] = 0
		} else if i, ok := slices.BinarySearch(t.files, e.files.id(o.name)); ok {
			t.files = slices.Delete(t.files, i, i+1)
		}
		return []outcome{{s: t}}
	case opBegin, opRestore, opNotify:
		t := s.clone()
		if err := e.sinks(t, o); err != nil {
			e.trace = append(e.trace, n.actor.name+": "+o.String())
			e.fail(err)
			return nil
		}
		return []outcome{{s: t}}
	}
	return []outcome{{s: s.clone(), r: e.look(s, o)}}
}

// look answers an op that changes nothing.
func (e *explorer) look(s *mstate, o op) (r result) {
	switch o.kind {
	case opList:
		return e.listing(s).under(o.name)
	case opChildren:
		return e.listing(s).children
	case opNext:
		return e.next(s, o.note)
	case opRead:
		r.err = fs.ErrNotExist
		if id := slotIn(o.name); path.Base(o.name) == format.ManifestName && id < len(s.slots) && s.slots[id] != 0 {
			r.data, r.err = e.entries[s.slots[id]].bytes, nil
		}
	}
	return r
}

// listing is what listings of one store answer.
type listing struct {
	children result
	all      []string
	lists    map[string]result
}

func (e *explorer) listing(s *mstate) *listing {
	e.buf = s.storeKey(e.buf[:0])
	if l := e.listings[string(e.buf)]; l != nil {
		return l
	}
	l := &listing{lists: map[string]result{}}
	for id, c := range s.slots {
		if c != 0 {
			l.all = append(l.all, entryName(id))
		}
	}
	for _, f := range s.files {
		l.all = append(l.all, e.files.names[f])
	}
	slices.Sort(l.all)
	set := map[string]bool{}
	for _, n := range l.all {
		set[path.Base(path.Dir(n))] = true
	}
	l.children.names = slices.Sorted(maps.Keys(set))
	l.children.key = resultKey(l.children)
	e.listings[string(e.buf)] = l
	return l
}

func (l *listing) under(prefix string) result {
	r, ok := l.lists[prefix]
	if !ok {
		for _, name := range l.all {
			if strings.HasPrefix(name, prefix) {
				r.infos = append(r.infos, backends.Info{Name: name, Size: 1})
			}
		}
		r.key = resultKey(r)
		l.lists[prefix] = r
	}
	return r
}

// next is one step of a scan: the first name beyond the last one, or, descending,
// the place below it, with n = 1 where nothing is there.
func (e *explorer) next(s *mstate, last string) (r result) {
	names := e.listing(s).children.names
	if e.cfg.scan == scanAscending {
		if i := slices.IndexFunc(names, func(n string) bool { return n > last }); i >= 0 {
			r.names = names[i : i+1]
		}
		return r
	}
	place := inflight.CheckpointID(len(s.slots)) // nothing has ever been above
	if id, ok := format.ParseCheckpointDir(last); ok {
		if id == 0 {
			return r
		}
		place = id - 1
	}
	name := format.CheckpointDir(place)
	r.names = []string{name}
	if !slices.Contains(names, name) {
		r.n = 1
	}
	return r
}

// creates returns the ways in which an exclusive create can go: as it should;
// its answer is lost; it arrives later, or never, and has no answer; a second
// copy of it arrives later.
func (e *explorer) creates(s *mstate, o op) []outcome {
	slot, content := slotIn(o.name), e.content(o.data)
	done := s.clone()
	r := result{}
	if !done.fill(slot, content) {
		r.err = fs.ErrExist
	}
	out := []outcome{{s: done, r: r}}
	if s.faults == 0 {
		return out
	}
	lost, late, twice := done.clone(), s.clone(), done.clone()
	lost.faults--
	late.faults--
	late.send(slot, content)
	twice.faults--
	twice.send(slot, content)
	return append(out,
		outcome{lost, result{err: inflight.ErrOutcomeUnknown}, " (answer lost)"},
		outcome{late, result{err: inflight.ErrOutcomeUnknown}, " (delayed, no answer)"},
		outcome{twice, r, " (sent twice, one delayed)"})
}

func (s *mstate) send(slot int, content uint16) {
	s.flight = append(s.flight, flight{slot, content})
	slices.SortFunc(s.flight, func(a, b flight) int { return 1000*(a.slot-b.slot) + int(a.content) - int(b.content) })
}

// fill is the store's create-if-absent.
func (s *mstate) fill(slot int, content uint16) bool {
	for len(s.slots) <= slot {
		s.slots = append(s.slots, 0)
	}
	if s.slots[slot] != 0 {
		return false
	}
	s.slots[slot] = content
	return true
}

func (s *mstate) addFile(f uint16) {
	if i, ok := slices.BinarySearch(s.files, f); !ok {
		s.files = slices.Insert(s.files, i, f)
	}
}

func (e *explorer) content(p []byte) uint16 {
	n := e.contents.id(string(p))
	if int(n) == len(e.entries) {
		m, err := format.DecodeManifest(p)
		if err != nil {
			panic(err)
		}
		info := &entryInfo{bytes: p, m: m, lineage: lineage(m)}
		for _, f := range m.Files {
			info.files = append(info.files, e.files.id("job/"+f.Name))
		}
		e.entries = append(e.entries, info)
	}
	return n
}

func entryName(id int) string {
	return "job/" + format.CheckpointDir(inflight.CheckpointID(id)) + "/" + format.ManifestName
}

func slotIn(name string) int {
	id, _ := slotOf(name)
	return int(id)
}

// child returns the node after an answer, running the actor if it is new.
func (e *explorer) child(n *node, r result) *node {
	k := r.key
	if k == "" {
		k = resultKey(r)
	}
	if kid := n.kids[k]; kid != nil {
		return kid
	}
	kid := e.newNode(n.actor, n, r)
	if n.kids == nil {
		n.kids = map[string]*node{}
	}
	n.kids[k] = kid
	return kid
}

func resultKey(r result) string {
	var b strings.Builder
	if r.err != nil {
		b.WriteString(r.err.Error())
	}
	b.WriteString(strconv.Itoa(r.n))
	for _, i := range r.infos {
		b.WriteString(i.Name)
		b.WriteByte(',')
	}
	for _, n := range r.names {
		b.WriteString(n)
		b.WriteByte(';')
	}
	b.Write(r.data)
	return b.String()
}

// newNode gives the actor the answer r at parent, and notes its next op. Nodes
// with the same boundary are one.
func (e *explorer) newNode(a *actor, parent *node, r result) *node {
	c := e.parked[parent]
	if c != nil {
		delete(e.parked, parent)
		c.g.answer, c.g.merge, c.g.resume = r, "", nil
	} else {
		c = e.replay(a, parent, r)
	}
	k := &node{actor: a, parent: parent, in: r}
	var ok bool
	if k.op, ok = c.next(); !ok {
		k.op = op{kind: opEnd}
		c.g.merge, c.g.live = "end", nil
	}
	k.live, k.resume, k.err = c.g.live, c.g.resume, c.g.err
	if c.g.merge != "" && k.err == nil {
		if same := a.bound[c.g.merge]; same != nil {
			c.stop()
			return same
		}
		a.bound[c.g.merge] = k
	}
	if parent != nil {
		k.listed = parent.op.kind == opList || parent.op.kind == opRead && parent.listed
	}
	k.id = int32(len(e.nodes))
	e.nodes = append(e.nodes, k)
	e.park(k, c)
	return k
}

// coroutine is an actor that waits at a node for its answer.
type coroutine struct {
	g    *gate
	next func() (op, bool)
	stop func()
}

// park keeps the coroutine of a new node for its first child. Of those that
// nobody has come back to for long, the oldest are dropped.
func (e *explorer) park(k *node, c *coroutine) {
	e.parked[k] = c
	e.queue = append(e.queue, k)
	if len(e.queue) > 1000 {
		e.unpark(e.queue[0])
		e.queue = e.queue[1:]
	}
}

func (e *explorer) unpark(k *node) {
	if c := e.parked[k]; c != nil {
		c.stop()
		delete(e.parked, k)
	}
}

// replay runs the actor along the answers up to parent, and gives it r.
func (e *explorer) replay(a *actor, parent *node, r result) *coroutine {
	var path []result
	run := a.run
	if parent != nil {
		path = append(path, r)
		n := parent
		for ; n.resume == nil && n.parent != nil; n = n.parent {
			path = append(path, n.in)
		}
		if n.resume != nil {
			run = n.resume
		}
		slices.Reverse(path)
	}
	g := &gate{}
	g.scan, g.walk = e.cfg.scan, e.cfg.fine && e.cfg.scan == scanAscending
	g.do = func(_ context.Context, o op) result {
		switch o.kind {
		case opSync, opLeftovers: // nothing of interest happens
			return result{}
		}
		return g.step(o)
	}
	c := &coroutine{g: g}
	c.next, c.stop = iter.Pull(func(yield func(op) bool) {
		defer func() {
			switch p := recover().(type) {
			case nil, unwind:
			case error:
				g.err = p
			default:
				panic(p)
			}
		}()
		g.yield = yield
		run(g)
	})
	for _, r := range path {
		c.next()
		g.answer, g.merge, g.resume = r, "", nil
	}
	return c
}
