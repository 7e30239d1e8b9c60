// Package mem stores objects in memory, and fails in the ways that real stores
// do, at the wish of a test.
//
// It comes in two flavours. The first behaves as a directory tree: it has
// folders, and names survive a power cut only after SyncNames or an exclusive
// create. The other behaves as an object store: names are durable at once, and
// there are no folders. CrashClone returns the store as it may be after a crash.
//
// SetFate decides what becomes of each create: its answer may be lost, it may
// stay in flight and be applied later or never, or be applied twice. Snapshot,
// Restore and Fingerprint are cheap, so that an explicit-state search can go
// back thousands of times a second.
package mem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

func init() { backends.Register("mem", openURL) }

var (
	namedMu sync.Mutex
	named   = map[string]*store{}
)

// openURL opens the store of that name; it lives as long as the process.
func openURL(_ context.Context, u *url.URL) (backends.Backend, error) {
	if u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return nil, &inflight.Error{Op: "open", Object: u.Redacted(), Err: fmt.Errorf("%w: not the URL of a store in memory", inflight.ErrConfig), Mend: "use mem://name"}
	}
	namedMu.Lock()
	defer namedMu.Unlock()
	s := named[u.Host]
	if s == nil {
		s = newStore(Options{})
		named[u.Host] = s
	}
	return &Backend{store: s, url: "mem://" + u.Host}, nil
}

// Options are the options of New. The zero value is like a directory tree.
type Options struct {
	// ObjectStore chooses the flavour of an object store.
	ObjectStore bool
	// HeldUntilFinish declares the capability; objects cannot be read back then.
	HeldUntilFinish bool
	// Now is the clock for Info.Modified; nil means time.Now.
	Now func() time.Time
}

// Backend is a handle on a store in memory.
type Backend struct {
	store  *store
	url    string
	closed atomic.Bool
}

// New returns a store of its own.
func New(opt Options) *Backend { return &Backend{store: newStore(opt), url: "mem://"} }

// store is what handles of one name share.
type store struct {
	opt  Options
	fate atomic.Pointer[func(Request) Fate]

	mu     sync.Mutex
	lastID uint64
	state  *state
	shared bool // state belongs to a Snapshot too: it is copied before a change
}

func newStore(opt Options) *store {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &store{opt: opt, state: newState(opt.ObjectStore)}
}

// read runs f on the state.
func (s *store) read(f func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.state)
}

// change runs f on a state that it may change.
func (s *store) change(f func(*state) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared {
		s.state, s.shared = s.state.clone(), false
	}
	return f(s.state)
}

// newID numbers temporaries and creates in flight.
func (s *store) newID() uint64 {
	s.lastID++
	return s.lastID
}

func (b *Backend) fail(op, name string, err error) error {
	return &inflight.Error{Op: op, Object: b.url + "/" + name, Err: err}
}

// ready is asked first by every call.
func (b *Backend) ready(ctx context.Context, op, name string) error {
	err := ctx.Err()
	if b.closed.Load() {
		err = inflight.ErrClosed
	}
	if err != nil {
		return b.fail(op, name, err)
	}
	return nil
}

// URL returns mem://name, or mem:// for a store made by New.
func (b *Backend) URL() string { return b.url }

// Capabilities declares what the flavour promises.
func (b *Backend) Capabilities() backends.Capabilities {
	opt := b.store.opt
	return backends.Capabilities{Exclusive: true, AtomicList: true, SyncNames: !opt.ObjectStore, HeldUntilFinish: opt.HeldUntilFinish, Remote: opt.ObjectStore}
}

// Close ends this handle and drops the objects that it was writing. The store
// stays.
func (b *Backend) Close() error {
	b.closed.Store(true)
	return b.store.change(func(st *state) error {
		for id, t := range st.temps {
			if t.owner == b {
				st.dropTemp(id)
			}
		}
		return nil
	})
}

// Stat looks at one object.
func (b *Backend) Stat(ctx context.Context, name string) (backends.Info, error) {
	o, err := b.lookup(ctx, "stat", name)
	if err != nil {
		return backends.Info{}, err
	}
	return o.info(name), nil
}

func (b *Backend) lookup(ctx context.Context, op, name string) (o *object, err error) {
	if err := b.ready(ctx, op, name); err != nil {
		return nil, err
	}
	b.store.read(func(st *state) { o = st.live[name] })
	if o == nil {
		return nil, b.fail(op, name, inflight.ErrNotExist)
	}
	return o, nil
}

// List yields the objects of one moment.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return func(yield func(backends.Info, error) bool) {
		var infos []backends.Info
		err := b.ready(ctx, "list", prefix)
		if err == nil {
			b.store.read(func(st *state) {
				for name, o := range st.live {
					if strings.HasPrefix(name, prefix) {
						infos = append(infos, o.info(name))
					}
				}
			})
		}
		slices.SortFunc(infos, func(x, y backends.Info) int { return strings.Compare(x.Name, y.Name) })
		for _, info := range infos {
			if err = b.ready(ctx, "list", prefix); err != nil {
				break
			}
			if !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(backends.Info{}, err)
		}
	}
}

// Children yields the parts of one moment.
func (b *Backend) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := b.ready(ctx, "list", dir); err != nil {
			yield("", err)
			return
		}
		below := backends.Below(dir)
		parts := map[string]struct{}{}
		add := func(path string) {
			if rest, ok := strings.CutPrefix(path, below); ok && rest != "" {
				part, _, _ := strings.Cut(rest, "/")
				parts[part] = struct{}{}
			}
		}
		b.store.read(func(st *state) {
			for name := range st.live {
				add(name)
			}
			for folder := range st.folders {
				add(folder)
			}
		})
		for _, part := range slices.Sorted(maps.Keys(parts)) {
			if !yield(part, nil) {
				return
			}
		}
	}
}

// Remove deletes objects, and the folders that become empty.
func (b *Backend) Remove(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		err := b.ready(ctx, "remove", name)
		if err == nil {
			err = b.store.change(func(st *state) error { st.remove(name); return nil })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveAll deletes a folder. What is in flight stays in flight.
func (b *Backend) RemoveAll(ctx context.Context, prefix string) error {
	if err := b.ready(ctx, "remove all", prefix); err != nil {
		return err
	}
	return b.store.change(func(st *state) error { st.removeAll(backends.Below(prefix)); return nil })
}

// Leftovers yields the temporaries of unfinished writers, and empty folders.
func (b *Backend) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	return func(yield func(backends.Leftover, error) bool) {
		if err := b.ready(ctx, "list leftovers", prefix); err != nil {
			yield(backends.Leftover{}, err)
			return
		}
		var found []backends.Leftover
		b.store.read(func(st *state) { found = st.leftovers(b.store, backends.Below(prefix)) })
		for _, l := range found {
			drop := l.Remove
			l.Remove = func(ctx context.Context) error {
				if err := b.ready(ctx, "remove leftover", l.Name); err != nil {
					return err
				}
				return drop(ctx)
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

// SyncNames makes the names in folder prefix, and in the folders above it,
// durable.
func (b *Backend) SyncNames(ctx context.Context, prefix string) error {
	if err := b.ready(ctx, "sync names", prefix); err != nil {
		return err
	}
	return b.store.change(func(st *state) error { st.syncUp(strings.TrimRight(prefix, "/")); return nil })
}

// Space is not known.
func (b *Backend) Space(ctx context.Context) (backends.Space, error) {
	if err := b.ready(ctx, "space", ""); err != nil {
		return backends.Space{}, err
	}
	return backends.Space{}, b.fail("space", "", inflight.ErrUnsupported)
}
