package catalog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// op is one call to a store, reduced to what it does there.
type op struct {
	kind      opKind
	name      string
	data      []byte
	exclusive bool
	choices   int    // opChoose
	note      string // opGhost: what happens outside of the store
	epoch     inflight.Epoch
}

type opKind int

const (
	opList opKind = iota
	opChildren
	opRead
	opCreate
	opRemove
	opSync
	opLeftovers
	opNext    // one step of a scan: the first child beyond name
	opChoose  // no store call: the driver chooses
	opBegin   // no store call: a sink begins a transaction
	opRestore // no store call: the sinks are restored
	opNotify  // no store call: the sinks are notified
	opEnd     // the actor has ended
)

func (o op) String() string {
	names := []string{"list", "children", "read", "create", "remove", "sync", "leftovers", "next", "choose", "begin", "restore", "notify", "end"}
	return strings.TrimSpace(names[o.kind] + " " + o.name + o.note)
}

// result is what a store answers.
type result struct {
	err   error
	infos []backends.Info
	names []string
	data  []byte
	n     int
	key   string // tells answers apart; "": it is made of the rest
}

// opStore is a Backend that turns every call into ops.
type opStore struct {
	do   func(context.Context, op) result
	scan scanMode
	// walk: List goes from folder to folder, looking for the next one each time.
	walk bool
}

// scanMode says how Children lists.
type scanMode int

const (
	scanAtomic scanMode = iota
	scanAscending
	scanDescending // breaks the contract: a name that comes while another goes may hide both
)

func (s *opStore) Create(ctx context.Context, name string, o backends.CreateOptions) (backends.Object, error) {
	return &opObject{s: s, op: op{kind: opCreate, name: name, exclusive: o.Exclusive}}, nil
}

type opObject struct {
	s  *opStore
	op op
}

func (o *opObject) Write(p []byte) (int, error) {
	o.op.data = append(o.op.data, p...)
	return len(p), nil
}

func (o *opObject) Finish(ctx context.Context) (backends.Info, error) {
	return backends.Info{Name: o.op.name, Size: int64(len(o.op.data))}, o.s.do(ctx, o.op).err
}

func (o *opObject) Abort(context.Context) error { return nil }

func (s *opStore) Open(ctx context.Context, name string) (backends.Source, error) {
	r := s.do(ctx, op{kind: opRead, name: name})
	if r.err != nil {
		return nil, r.err
	}
	return &opSource{name: name, data: r.data}, nil
}

type opSource struct {
	name string
	data []byte
}

func (o *opSource) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > int64(len(o.data)) {
		return inflight.ErrTorn
	}
	copy(p, o.data[off:])
	return nil
}

func (o *opSource) Stream(_ context.Context, off, n int64) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(o.data[off:])), nil
}
func (o *opSource) Info() backends.Info { return backends.Info{Name: o.name, Size: int64(len(o.data))} }
func (o *opSource) Close() error        { return nil }

func (s *opStore) Stat(ctx context.Context, name string) (backends.Info, error) {
	for i, err := range s.List(ctx, name) {
		if err != nil || i.Name == name {
			return i, err
		}
	}
	return backends.Info{}, fs.ErrNotExist
}

func (s *opStore) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		prefixes := []string{prefix}
		for last := ""; len(prefixes) > 0; prefixes = prefixes[1:] {
			if s.walk && strings.HasSuffix(prefix, "/chk-") {
				r := s.do(ctx, op{kind: opNext, name: path.Dir(prefix), note: last})
				if len(r.names) == 0 {
					return
				}
				last = r.names[0]
				prefixes = []string{path.Dir(prefix) + "/" + last + "/", ""}
			}
			r := s.do(ctx, op{kind: opList, name: prefixes[0]})
			if r.err != nil {
				yield(backends.Info{}, r.err)
				return
			}
			for _, i := range r.infos {
				if !yield(i, nil) {
					return
				}
			}
		}
	}
}

func (s *opStore) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if s.scan == scanAtomic {
			r := s.do(ctx, op{kind: opChildren, name: dir})
			if r.err != nil {
				yield("", r.err)
			}
			for _, n := range r.names {
				if !yield(n, nil) {
					return
				}
			}
			return
		}
		for last := ""; ; {
			r := s.do(ctx, op{kind: opNext, name: dir, note: last})
			if len(r.names) == 0 {
				return
			}
			if last = r.names[0]; r.n == 0 && !yield(last, nil) {
				return
			}
		}
	}
}

func (s *opStore) Remove(ctx context.Context, names ...string) error {
	for _, n := range names {
		if err := s.do(ctx, op{kind: opRemove, name: n}).err; err != nil {
			return err
		}
	}
	return nil
}

func (s *opStore) RemoveAll(context.Context, string) error {
	panic("the catalog does not remove folders")
}

func (s *opStore) SyncNames(ctx context.Context, dir string) error {
	return s.do(ctx, op{kind: opSync, name: dir}).err
}

func (s *opStore) Leftovers(ctx context.Context, dir string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		r := s.do(ctx, op{kind: opLeftovers, name: dir})
		if r.err != nil {
			yield(backends.Leftover{}, r.err)
			return
		}
		for _, i := range r.infos {
			remove := func(ctx context.Context) error { return s.Remove(ctx, i.Name) }
			if !yield(backends.Leftover{Name: i.Name, Kind: "temporary file", Size: i.Size, Remove: remove}, nil) {
				return
			}
		}
	}
}

func (s *opStore) Capabilities() backends.Capabilities {
	return backends.Capabilities{Exclusive: true, AtomicList: true}
}
func (s *opStore) URL() string { return "test://" }
func (s *opStore) Space(context.Context) (backends.Space, error) {
	return backends.Space{}, inflight.ErrUnsupported
}
func (s *opStore) Close() error { return nil }

// memory is a store for the tests that are not model checks: objects and
// leftovers in maps, and a hook that sees every op before it is done.
type memory struct {
	opStore
	mu        sync.Mutex
	objects   map[string][]byte
	dirs      map[string]bool // empty folders that stayed
	leftovers map[string]int64
	late      []op // creates that were delayed
	// hook may answer instead of the store, or change how it answers.
	hook func(o op) fault
}

// fault says how a store misbehaves in one op.
type fault struct {
	err    error // the answer
	before bool  // err instead of doing it
	late   bool  // it is done later, by memory.deliver
	double bool  // it is done, and once more later
}

var errLost = fmt.Errorf("%w: the answer was lost", inflight.ErrOutcomeUnknown)

func newMemory() *memory {
	m := &memory{objects: map[string][]byte{}, dirs: map[string]bool{}, leftovers: map[string]int64{}}
	m.opStore.do = m.call
	return m
}

// via returns the same store behind another hook.
func (m *memory) via(hook func(o op) fault) *opStore {
	return &opStore{do: func(ctx context.Context, o op) result { return m.callWith(ctx, o, hook) }}
}

func (m *memory) call(ctx context.Context, o op) result { return m.callWith(ctx, o, m.hook) }

func (m *memory) callWith(ctx context.Context, o op, hook func(o op) fault) result {
	if err := ctx.Err(); err != nil {
		return result{err: err}
	}
	var f fault
	if hook != nil {
		f = hook(o)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f.before:
		return result{err: f.err}
	case f.late:
		m.late = append(m.late, o)
		return result{err: f.err}
	case f.double:
		m.late = append(m.late, o)
	}
	r := m.apply(o)
	if f.err != nil {
		return result{err: f.err}
	}
	return r
}

// deliver does what was delayed.
func (m *memory) deliver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.late {
		m.apply(o)
	}
	m.late = nil
}

func (m *memory) apply(o op) result {
	switch o.kind {
	case opList:
		var r result
		for _, n := range slices.Sorted(maps.Keys(m.objects)) {
			if strings.HasPrefix(n, o.name) {
				r.infos = append(r.infos, backends.Info{Name: n, Size: int64(len(m.objects[n])), Modified: time.Unix(1, 0)})
			}
		}
		return r
	case opChildren:
		set := map[string]bool{}
		prefix := o.name
		if prefix != "" {
			prefix += "/"
		}
		for n := range joinKeys(m.objects, m.dirs) {
			if rest, ok := strings.CutPrefix(n, prefix); ok {
				first, _, _ := strings.Cut(rest, "/")
				set[first] = true
			}
		}
		return result{names: slices.Sorted(maps.Keys(set))}
	case opRead:
		if p, ok := m.objects[o.name]; ok {
			return result{data: p}
		}
		return result{err: fs.ErrNotExist}
	case opCreate:
		if _, ok := m.objects[o.name]; ok && o.exclusive {
			return result{err: fs.ErrExist}
		}
		m.objects[o.name] = o.data
	case opRemove:
		delete(m.objects, o.name)
		delete(m.leftovers, o.name)
	case opLeftovers:
		var r result
		for _, n := range slices.Sorted(maps.Keys(m.leftovers)) {
			r.infos = append(r.infos, backends.Info{Name: n, Size: m.leftovers[n]})
		}
		return r
	}
	return result{}
}

func joinKeys(objects map[string][]byte, dirs map[string]bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := range objects {
			if !yield(n) {
				return
			}
		}
		for n := range dirs {
			if !yield(n) {
				return
			}
		}
	}
}

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}
