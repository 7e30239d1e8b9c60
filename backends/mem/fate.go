package mem

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spillway-io/spillway/backends"
)

// Fate is what becomes of one create.
type Fate int

// The fates. Where an answer is lost or late, Finish answers ErrOutcomeUnknown.
const (
	Apply      Fate = iota // it is applied and answered
	LoseAnswer             // it is applied; the answer is lost
	Delay                  // it stays in flight, until Release or Drop
	Double                 // it is applied and answered; if it succeeded, a copy of it stays in flight
)

// String returns the name of f.
func (f Fate) String() string {
	return [...]string{"apply", "lose-answer", "delay", "double"}[f]
}

// Request is one create on its way to the store.
type Request struct {
	ID        uint64 // of this request
	Name      string
	Exclusive bool
	Attempt   string
	Size      int64
}

// pending is a Request in flight.
type pending struct {
	Request
	object *object
}

// SetFate has f decide about every create from now on, on all handles of the
// store; nil applies them all. It is called by Finish, without a lock held.
func (b *Backend) SetFate(f func(Request) Fate) {
	if f == nil {
		b.store.fate.Store(nil)
		return
	}
	b.store.fate.Store(&f)
}

// InFlight returns the creates in flight, oldest first.
func (b *Backend) InFlight() (requests []Request) {
	b.store.read(func(st *state) {
		for _, p := range st.inFlight {
			requests = append(requests, p.Request)
		}
	})
	return requests
}

// Release applies the create id now, and reports whether it had an effect: an
// exclusive one has none while the name is taken.
func (b *Backend) Release(id uint64) (applied bool) {
	_ = b.store.change(func(st *state) error {
		p, ok := st.land(id)
		applied = ok && st.apply(p) == nil
		return nil
	})
	return applied
}

// Drop loses the create id for ever.
func (b *Backend) Drop(id uint64) {
	_ = b.store.change(func(st *state) error { st.land(id); return nil })
}

// land takes a request out of the air.
func (st *state) land(id uint64) (p pending, ok bool) {
	i := slices.IndexFunc(st.inFlight, func(p pending) bool { return p.ID == id })
	if i < 0 {
		return p, false
	}
	p = st.inFlight[i]
	st.inFlight = slices.Delete(st.inFlight, i, i+1)
	return p, true
}

// Snapshot is a state of a store. It never changes.
type Snapshot struct {
	state *state
	opt   Options
}

// Snapshot returns the state that the store has now. It copies nothing.
func (b *Backend) Snapshot() *Snapshot {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = true
	return &Snapshot{s.state, s.opt}
}

// Restore sets the store, as all its handles see it, to a snapshot of it or of
// another store of the same flavour. Objects being written go on only if they
// were being written then.
func (b *Backend) Restore(snap *Snapshot) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.shared = snap.state, true
}

// Fingerprint returns a hash of the state. Equal states have equal fingerprints
// within one process; modification times do not count.
func (s *Snapshot) Fingerprint() uint64 { return s.state.fingerprint() }

// Clone returns a new store with the state of this one. What this one was
// writing are leftovers there.
func (b *Backend) Clone() *Backend { return b.Snapshot().Open() }

// Open returns a new store with the state of the snapshot.
func (s *Snapshot) Open() *Backend {
	b := New(s.opt)
	b.Restore(s)
	return b
}

// CrashConfig says how much of what was not synced survives a crash: 0 nothing,
// 1 all. The zero value is the power cut that loses most; a crash of the process
// alone loses nothing: CrashConfig{1, 1}.
type CrashConfig struct {
	// Names is the probability that the creation, replacement or deletion of a
	// name that SyncNames has not made durable survives. Each name has its own
	// luck; what lies in a folder whose name is lost is lost with it.
	Names float64
	// Leftovers is the probability that the temporary of an unfinished object
	// survives, with some or all of its bytes.
	Leftovers float64
}

// CrashClone returns a new store as this one may be after a crash now. The same
// rng and calls give the same store; nil will do where cfg leaves nothing to
// chance. A directory tree has nothing in flight then; in an object store, late
// creates can still be applied.
func (b *Backend) CrashClone(rng *rand.Rand, cfg CrashConfig) *Backend {
	if rng == nil {
		rng = rand.New(rand.NewPCG(0, 0))
	}
	snap := b.Snapshot()
	snap.state = snap.state.crash(rng, cfg)
	return snap.Open()
}

func (st *state) crash(rng *rand.Rand, cfg CrashConfig) *state {
	after := newState(!st.tree)
	if st.tree {
		st.crashNames(after, func() bool { return rng.Float64() < cfg.Names })
	} else {
		after.live = maps.Clone(st.live)
		after.inFlight = slices.Clone(st.inFlight)
	}
	for _, id := range slices.Sorted(maps.Keys(st.temps)) {
		t := st.temps[id]
		survives, size := rng.Float64() < cfg.Leftovers, new(atomic.Int64)
		if st.tree {
			survives = survives && after.isFolder(parent(t.name))
		}
		if survives {
			size.Store(rng.Int64N(t.size.Load() + 1))
			after.temps[id] = temp{name: t.name, size: size, started: t.started}
			after.link(t.name)
		}
	}
	return after
}

// crashNames fills after with the names of st that survive: synced ones, and of
// changes that were not synced those for which lucky says so.
func (st *state) crashNames(after *state, lucky func() bool) {
	for _, path := range union(st.folders, st.diskFolders) {
		if path == "" || !after.isFolder(parent(path)) {
			continue
		}
		_, live := st.folders[path]
		_, disk := st.diskFolders[path]
		if live != disk && !lucky() {
			live = disk
		}
		if live {
			after.folders[path] = 0
			after.link(path)
			after.diskFolders[path] = 0
		}
	}
	for _, name := range union(st.live, st.disk) {
		o := st.live[name]
		if o != st.disk[name] && !lucky() {
			o = st.disk[name]
		}
		if o != nil && after.isFolder(parent(name)) && !after.isFolder(name) {
			after.put(name, o)
			after.disk[name] = o
		}
	}
}

// union returns the keys of both maps, parents before what is in them.
func union[A, B any](a map[string]A, b map[string]B) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (st *state) leftovers(s *store, below string) []backends.Leftover {
	var found []backends.Leftover
	kind := "multipart upload"
	if st.tree {
		kind = "temporary file"
	}
	for _, id := range slices.Sorted(maps.Keys(st.temps)) {
		if t := st.temps[id]; strings.HasPrefix(t.name, below) {
			found = append(found, backends.Leftover{Name: t.name, Kind: kind, Size: t.size.Load(), Modified: t.started,
				Remove: s.removing(func(st *state) { st.dropTemp(id) })})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(st.folders)) {
		if st.folders[path] == 0 && path != "" && strings.HasPrefix(path, below) {
			found = append(found, backends.Leftover{Name: path, Kind: "empty folder", Remove: s.removing(func(st *state) { st.removeIfEmpty(path) })})
		}
	}
	return found
}

func (s *store) removing(f func(*state)) func(context.Context) error {
	return func(context.Context) error {
		return s.change(func(st *state) error { f(st); return nil })
	}
}
