package backendtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mutant is a store in memory with one defect.
type mutant struct {
	backends.Backend
	create     func(context.Context, string, backends.CreateOptions) (backends.Object, error)
	object     func(o backends.Object, name string) backends.Object
	open       func(context.Context, string) (backends.Source, error)
	source     func(s backends.Source) backends.Source
	stat       func(backends.Info) backends.Info
	list       func(context.Context, string) iter.Seq2[backends.Info, error]
	children   func(context.Context, string) iter.Seq2[string, error]
	remove     func(context.Context, ...string) error
	removeAll  func(context.Context, string) error
	leftovers  func(context.Context, string) iter.Seq2[backends.Leftover, error]
	syncNames  func(context.Context, string) error
	space      func() (backends.Space, error)
	url        string
	capability func(*backends.Capabilities)
	close      func() error
}

func (m *mutant) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	create := m.Backend.Create
	if m.create != nil {
		create = m.create
	}
	o, err := create(ctx, name, opt)
	if err == nil && m.object != nil {
		o = m.object(o, name)
	}
	return o, err
}

func (m *mutant) Open(ctx context.Context, name string) (backends.Source, error) {
	open := m.Backend.Open
	if m.open != nil {
		open = m.open
	}
	s, err := open(ctx, name)
	if err == nil && m.source != nil {
		s = m.source(s)
	}
	return s, err
}

func (m *mutant) Stat(ctx context.Context, name string) (backends.Info, error) {
	info, err := m.Backend.Stat(ctx, name)
	if err == nil && m.stat != nil {
		info = m.stat(info)
	}
	return info, err
}

func (m *mutant) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	if m.list != nil {
		return m.list(ctx, prefix)
	}
	return m.Backend.List(ctx, prefix)
}

func (m *mutant) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	if m.children != nil {
		return m.children(ctx, dir)
	}
	return m.Backend.Children(ctx, dir)
}

func (m *mutant) Remove(ctx context.Context, names ...string) error {
	if m.remove != nil {
		return m.remove(ctx, names...)
	}
	return m.Backend.Remove(ctx, names...)
}

func (m *mutant) RemoveAll(ctx context.Context, prefix string) error {
	if m.removeAll != nil {
		return m.removeAll(ctx, prefix)
	}
	return m.Backend.RemoveAll(ctx, prefix)
}

func (m *mutant) Leftovers(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
	if m.leftovers != nil {
		return m.leftovers(ctx, prefix)
	}
	return m.Backend.Leftovers(ctx, prefix)
}

func (m *mutant) SyncNames(ctx context.Context, prefix string) error {
	if m.syncNames != nil {
		return m.syncNames(ctx, prefix)
	}
	return m.Backend.SyncNames(ctx, prefix)
}

func (m *mutant) Space(ctx context.Context) (backends.Space, error) {
	if m.space != nil {
		return m.space()
	}
	return m.Backend.Space(ctx)
}

func (m *mutant) URL() string {
	if m.url != "" {
		return m.url
	}
	return m.Backend.URL()
}

func (m *mutant) Capabilities() backends.Capabilities {
	caps := m.Backend.Capabilities()
	if m.capability != nil {
		m.capability(&caps)
	}
	return caps
}

func (m *mutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.Backend.Close()
}

// badObject is an object with one defect.
type badObject struct {
	backends.Object
	write  func([]byte) (int, error)
	finish func(context.Context) (backends.Info, error)
	abort  func(context.Context) error
	readAt func([]byte, int64) (int, error)
}

func (o *badObject) Write(p []byte) (int, error) {
	if o.write != nil {
		return o.write(p)
	}
	return o.Object.Write(p)
}

func (o *badObject) Finish(ctx context.Context) (backends.Info, error) {
	if o.finish != nil {
		return o.finish(ctx)
	}
	return o.Object.Finish(ctx)
}

func (o *badObject) Abort(ctx context.Context) error {
	if o.abort != nil {
		return o.abort(ctx)
	}
	return o.Object.Abort(ctx)
}

func (o *badObject) ReadAt(p []byte, off int64) (int, error) {
	if o.readAt != nil {
		return o.readAt(p, off)
	}
	return o.Object.(io.ReaderAt).ReadAt(p, off)
}

// badSource is a source with one defect.
type badSource struct {
	backends.Source
	readAt func(context.Context, []byte, int64) error
	stream func(ctx context.Context, off, n int64) (io.ReadCloser, error)
	info   func() backends.Info
}

func (s *badSource) ReadAt(ctx context.Context, p []byte, off int64) error {
	if s.readAt != nil {
		return s.readAt(ctx, p, off)
	}
	return s.Source.ReadAt(ctx, p, off)
}

func (s *badSource) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if s.stream != nil {
		return s.stream(ctx, off, n)
	}
	return s.Source.Stream(ctx, off, n)
}

func (s *badSource) Info() backends.Info {
	if s.info != nil {
		return s.info()
	}
	return s.Source.Info()
}

// defects are stores that break one promise each, by the check that must see it.
var defects = map[string]map[string]func(m *mutant){
	"invisible-until-finish": {"create makes an empty object": func(m *mutant) {
		m.object = func(o backends.Object, name string) backends.Object {
			_ = put(context.Background(), m.Backend, name, nil, backends.CreateOptions{})
			return o
		}
	}},
	"sizes": {
		"the buffer is kept": func(m *mutant) {
			m.object = func(o backends.Object, _ string) backends.Object {
				var kept [][]byte
				return &badObject{Object: o,
					write: func(p []byte) (int, error) { kept = append(kept, p); return len(p), nil },
					finish: func(ctx context.Context) (backends.Info, error) {
						for _, p := range kept {
							_, _ = o.Write(p)
						}
						return o.Finish(ctx)
					}}
			}
		},
		"streams are short": func(m *mutant) {
			m.source = func(s backends.Source) backends.Source {
				return &badSource{Source: s, stream: func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
					return s.Stream(ctx, off, max(s.Info().Size-off-1, 0))
				}}
			}
		},
		"checksums are missing": func(m *mutant) { m.capability = func(c *backends.Capabilities) { c.ServerChecksum = true } },
	},
	"exclusive-race":  {"look, then create": func(m *mutant) { m.create = lookThenCreate(m, true) }},
	"exclusive-taken": {"exclusive is ignored": func(m *mutant) { m.create = lookThenCreate(m, false) }},
	"two-writers": {"both write to one": func(m *mutant) {
		shared := map[string]backends.Object{}
		m.create = func(ctx context.Context, name string, opt backends.CreateOptions) (o backends.Object, err error) {
			if shared[name] == nil {
				shared[name], err = m.Backend.Create(ctx, name, opt)
			}
			return shared[name], err
		}
	}},
	"abort": {
		"it minds an ended context": func(m *mutant) {
			m.object = func(o backends.Object, _ string) backends.Object {
				return &badObject{Object: o, abort: func(ctx context.Context) error { return errors.Join(ctx.Err(), o.Abort(ctx)) }}
			}
		},
		"it finishes": func(m *mutant) {
			m.object = func(o backends.Object, _ string) backends.Object {
				return &badObject{Object: o, abort: func(ctx context.Context) error {
					_, _ = o.Finish(context.Background())
					return nil
				}}
			}
		},
	},
	"finish-ends": {"Abort removes it": func(m *mutant) {
		m.object = func(o backends.Object, name string) backends.Object {
			return &badObject{Object: o, abort: func(ctx context.Context) error {
				return errors.Join(o.Abort(ctx), m.Backend.Remove(ctx, name))
			}}
		}
	}},
	"abort-while-writing": {"Write goes on": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			return &badObject{Object: o, write: func(p []byte) (int, error) {
				if _, err := o.Write(p); err != nil {
					return len(p), nil
				}
				return len(p), nil
			}}
		}
	}},
	"create-context": {"the object ends with it": func(m *mutant) {
		m.create = func(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
			o, err := m.Backend.Create(ctx, name, opt)
			if err != nil {
				return nil, err
			}
			return &badObject{Object: o, finish: func(context.Context) (backends.Info, error) { return o.Finish(ctx) }}, nil
		}
	}},
	"finish-cancelled": {"it finishes all the same": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			return &badObject{Object: o, finish: func(ctx context.Context) (backends.Info, error) { return o.Finish(context.WithoutCancel(ctx)) }}
		}
	}},
	"empty-writes": {"they fail": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			return &badObject{Object: o, write: func(p []byte) (int, error) {
				if len(p) == 0 {
					return 0, io.ErrShortWrite
				}
				return o.Write(p)
			}}
		}
	}},
	"read-back": {"it is off by one": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			return &badObject{Object: o, readAt: func(p []byte, off int64) (int, error) { return o.(io.ReaderAt).ReadAt(p, off+1) }}
		}
	}},
	"names-refused": {"all are taken": func(m *mutant) {
		m.create = func(ctx context.Context, _ string, opt backends.CreateOptions) (backends.Object, error) {
			return m.Backend.Create(ctx, "x", opt)
		}
	}},
	"names-accepted": {"upper case is folded": func(m *mutant) {
		m.open = func(ctx context.Context, name string) (backends.Source, error) {
			return m.Backend.Open(ctx, strings.ToLower(name))
		}
	}},
	"missing": {
		"found at the first read": func(m *mutant) {
			m.open = func(ctx context.Context, name string) (backends.Source, error) {
				s, err := m.Backend.Open(ctx, name)
				if errors.Is(err, inflight.ErrNotExist) {
					return &badSource{Source: s}, nil
				}
				return s, err
			}
		},
		"untyped": func(m *mutant) {
			m.open = func(ctx context.Context, name string) (backends.Source, error) {
				s, err := m.Backend.Open(ctx, name)
				return s, errors.Unwrap(err)
			}
		},
	},
	"stat": {"another time": func(m *mutant) {
		m.stat = func(info backends.Info) backends.Info { info.Modified = info.Modified.Add(time.Hour); return info }
	}},
	"read-ranges": {
		"partial": func(m *mutant) {
			m.source = func(s backends.Source) backends.Source {
				return &badSource{Source: s, readAt: func(ctx context.Context, p []byte, off int64) error {
					if left := s.Info().Size - off; left >= 0 && int64(len(p)) > left {
						p = p[:left]
					}
					return s.ReadAt(ctx, p, off)
				}}
			}
		},
	},
	"stream-ranges": {"beyond the end is the end": func(m *mutant) {
		m.source = func(s backends.Source) backends.Source {
			return &badSource{Source: s, stream: func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
				if off+n > s.Info().Size {
					n = -1
				}
				return s.Stream(ctx, off, n)
			}}
		}
	}},
	"parallel-reads": {"one at a time": func(m *mutant) {
		m.source = func(s backends.Source) backends.Source {
			var inside, met atomic.Int32
			return &badSource{Source: s, readAt: func(ctx context.Context, p []byte, off int64) error {
				defer inside.Add(-1)
				if inside.Add(1) > 1 {
					met.Store(1)
					return &inflight.Error{Op: "read", Err: inflight.ErrUnavailable}
				}
				for met.Load() == 0 {
					runtime.Gosched() // until a second one comes
				}
				return s.ReadAt(ctx, p, off)
			}}
		}
	}},
	"pinned": {"opened anew for each read": func(m *mutant) {
		m.open = func(ctx context.Context, name string) (backends.Source, error) {
			s, err := m.Backend.Open(ctx, name)
			return &badSource{Source: s, readAt: func(ctx context.Context, p []byte, off int64) error {
				again, err := m.Backend.Open(ctx, name)
				if err != nil {
					return err
				}
				return again.ReadAt(ctx, p, off)
			}}, err
		}
	}},
	"stream-cancelled": {"its context is ignored": func(m *mutant) {
		m.source = func(s backends.Source) backends.Source {
			return &badSource{Source: s, stream: func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
				return s.Stream(context.WithoutCancel(ctx), off, n)
			}}
		}
	}},
	"list-order": {
		"folders in the order of a walk": func(m *mutant) {
			m.list = m.sorted(func(a, b backends.Info) int {
				return slices.Compare(strings.Split(a.Name, "/"), strings.Split(b.Name, "/"))
			})
		},
		"whole parts only": func(m *mutant) {
			m.list = func(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
				return m.Backend.List(ctx, backends.Below(prefix))
			}
		},
	},
	"children": {"in the order of keys": func(m *mutant) {
		m.children = func(ctx context.Context, dir string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				last := ""
				for info, err := range m.Backend.List(ctx, backends.Below(dir)) {
					part, _, _ := strings.Cut(strings.TrimPrefix(info.Name, backends.Below(dir)), "/")
					if err == nil && part == last {
						continue
					}
					if last = part; !yield(part, err) {
						return
					}
				}
			}
		}
	}},
	"many-names": {"the first page only": func(m *mutant) {
		m.list = func(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
			return func(yield func(backends.Info, error) bool) {
				n := 0
				for info, err := range m.Backend.List(ctx, prefix) {
					if n++; n > 1000 || !yield(info, err) {
						return
					}
				}
			}
		}
	}},
	"list-follows": {"of a moment ago": func(m *mutant) {
		var before []backends.Info
		m.list = func(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
			return func(yield func(backends.Info, error) bool) {
				old := before
				before = nil
				for info, err := range m.Backend.List(ctx, prefix) {
					if err == nil {
						before = append(before, info)
					}
				}
				for _, info := range old {
					if !yield(info, nil) {
						return
					}
				}
			}
		}
	}},
	"list-race": {"looks again whether a name is there": func(m *mutant) {
		m.children = func(ctx context.Context, dir string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				var found []string
				for name, err := range m.Backend.Children(ctx, dir) {
					if err == nil {
						found = append(found, name)
					}
				}
				there := func(name string) bool {
					_, err := m.Backend.Stat(ctx, dir+"/"+name+"/m")
					return err == nil
				}
				for there(found[0]) {
					runtime.Gosched()
				}
				found = slices.DeleteFunc(found, func(name string) bool { return !there(name) })
				for _, name := range found {
					if !yield(name, nil) {
						return
					}
				}
			}
		}
	}},
	"remove": {
		"a missing object is an error": func(m *mutant) {
			m.remove = func(ctx context.Context, names ...string) error {
				for _, name := range names {
					if _, err := m.Backend.Stat(ctx, name); err != nil {
						return err
					}
				}
				return m.Backend.Remove(ctx, names...)
			}
		},
		"a folder too": func(m *mutant) {
			m.remove = func(ctx context.Context, names ...string) error {
				for _, name := range names {
					_ = m.Backend.RemoveAll(ctx, name)
				}
				return m.Backend.Remove(ctx, names...)
			}
		},
	},
	"empty-folders": {"they stay": func(m *mutant) {
		m.remove = func(ctx context.Context, names ...string) error {
			for _, name := range names {
				if _, err := m.Backend.Create(ctx, name+"-keep", backends.CreateOptions{}); err != nil {
					return err
				}
			}
			return m.Backend.Remove(ctx, names...)
		}
	}},
	"remove-all": {
		"all that has the prefix": func(m *mutant) {
			m.removeAll = func(ctx context.Context, prefix string) error {
				return errors.Join(m.removeListed(ctx, strings.TrimRight(prefix, "/")), m.Backend.RemoveAll(ctx, prefix))
			}
		},
		"without leftovers": func(m *mutant) {
			m.removeAll = func(ctx context.Context, prefix string) error { return m.removeListed(ctx, backends.Below(prefix)) }
		},
	},
	"leftovers": {
		"they are objects": func(m *mutant) {
			m.list = func(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
				return func(yield func(backends.Info, error) bool) {
					for info, err := range m.Backend.List(ctx, prefix) {
						if !yield(info, err) {
							return
						}
					}
					for l, err := range m.Backend.Leftovers(ctx, prefix) {
						if !yield(backends.Info{Name: l.Name}, err) {
							return
						}
					}
				}
			}
		},
		"they stay": func(m *mutant) {
			m.leftovers = func(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
				return func(yield func(backends.Leftover, error) bool) {
					for l, err := range m.Backend.Leftovers(ctx, prefix) {
						l.Remove = func(context.Context) error { return nil }
						if !yield(l, err) {
							return
						}
					}
				}
			}
		},
	},
	"cancelled": {
		"Create does not mind": func(m *mutant) {
			m.create = func(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
				return m.Backend.Create(context.WithoutCancel(ctx), name, opt)
			}
		},
		"Remove does it": func(m *mutant) {
			m.remove = func(ctx context.Context, names ...string) error {
				return errors.Join(m.Backend.Remove(context.WithoutCancel(ctx), names...), m.Backend.Remove(ctx, names...))
			}
		},
		"too late": func(m *mutant) {
			m.syncNames = func(ctx context.Context, prefix string) error {
				//lint:sleep this is the defect; synctest's clock passes it at once
				time.Sleep(3100 * time.Millisecond)
				return m.Backend.SyncNames(ctx, prefix)
			}
		},
	},
	"concurrency": {"one at a time": func(m *mutant) {
		var mu sync.Mutex
		m.create = func(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
			if !mu.TryLock() {
				return nil, &inflight.Error{Op: "create", Err: inflight.ErrUnavailable}
			}
			o, err := m.Backend.Create(ctx, name, opt)
			return &badObject{Object: o, finish: func(ctx context.Context) (backends.Info, error) {
				defer mu.Unlock()
				return o.Finish(ctx)
			}}, err
		}
	}},
	"sync-names": {"a missing folder is an error": func(m *mutant) {
		m.syncNames = func(ctx context.Context, prefix string) error {
			for _, err := range m.Backend.List(ctx, prefix) {
				return err
			}
			return &inflight.Error{Op: "sync", Err: inflight.ErrNotExist}
		}
	}},
	"space": {
		"declared, and not there": func(m *mutant) { m.capability = func(c *backends.Capabilities) { c.FreeSpace = true } },
		"more free than there is": func(m *mutant) {
			m.capability = func(c *backends.Capabilities) { c.FreeSpace = true }
			m.space = func() (backends.Space, error) { return backends.Space{Free: 2, Total: 1}, nil }
		},
	},
	"part-sizes": {"a byte is lost behind 5 MiB": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			written := 0
			return &badObject{Object: o, write: func(p []byte) (int, error) {
				take := p
				if written += len(p); written > 5*mib && written-len(p) <= 5*mib {
					take = p[:len(p)-1]
				}
				_, err := o.Write(take)
				return len(p), err
			}}
		}
	}},
	"large": {"64 MiB are enough": func(m *mutant) {
		m.object = func(o backends.Object, _ string) backends.Object {
			written := 0
			return &badObject{Object: o, write: func(p []byte) (int, error) {
				if written += len(p); written > 64*mib {
					return 0, &inflight.Error{Op: "write", Err: inflight.ErrTooLarge}
				}
				return o.Write(p)
			}}
		}
	}},
	"small-reads": {"a byte is lost": func(m *mutant) {
		m.source = func(s backends.Source) backends.Source {
			return &badSource{Source: s, stream: func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
				r, err := s.Stream(ctx, off, n)
				return struct {
					io.Reader
					io.Closer
				}{bufio.NewReaderSize(lossy{r}, 16), r}, err
			}}
		}
	}},
	"unfinished-large": {
		"it is visible": func(m *mutant) {
			m.object = func(o backends.Object, name string) backends.Object {
				written := 0
				return &badObject{Object: o, write: func(p []byte) (int, error) {
					if written += len(p); written == 10*mib {
						if err := put(context.Background(), m.Backend, name, p, backends.CreateOptions{}); err != nil {
							return 0, err
						}
					}
					return o.Write(p)
				}}
			}
		},
		"leftovers stay": func(m *mutant) {
			m.leftovers = func(ctx context.Context, prefix string) iter.Seq2[backends.Leftover, error] {
				return func(yield func(backends.Leftover, error) bool) {
					yield(backends.Leftover{Name: prefix + "/x", Kind: "ghost", Remove: func(context.Context) error { return nil }}, nil)
				}
			}
		},
	},
	"outcome": {
		"it fails, and the object is there": func(m *mutant) {
			m.object = func(o backends.Object, _ string) backends.Object {
				return &badObject{Object: o, finish: func(ctx context.Context) (backends.Info, error) {
					info, err := o.Finish(context.WithoutCancel(ctx))
					if ctx.Err() != nil {
						err = &inflight.Error{Op: "finish", Err: ctx.Err()}
					}
					return info, err
				}}
			}
		},
		"it succeeds, and there is none": func(m *mutant) {
			m.object = func(o backends.Object, _ string) backends.Object {
				return &badObject{Object: o, finish: func(ctx context.Context) (backends.Info, error) { return backends.Info{}, o.Abort(ctx) }}
			}
		},
	},
	"interrupted": {
		"too late": func(m *mutant) {
			m.syncNames = func(ctx context.Context, prefix string) error {
				//lint:sleep this is the defect; synctest's clock passes it at once
				time.Sleep(3100 * time.Millisecond)
				return m.Backend.SyncNames(ctx, prefix)
			}
		},
		"another error": func(m *mutant) {
			m.syncNames = func(ctx context.Context, _ string) error {
				<-ctx.Done()
				return &inflight.Error{Op: "sync", Err: inflight.ErrUnavailable}
			}
		},
	},
	"url":   {"with a password": func(m *mutant) { m.url = "mem://user:secret@host" }},
	"close": {"nothing is closed": func(m *mutant) { m.close = func() error { return nil } }},
}

// lossy loses the second byte of each read.
type lossy struct{ io.Reader }

func (l lossy) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if n < 2 {
		return n, err
	}
	return copy(p[1:], p[2:n]) + 1, err
}

// lookThenCreate is an exclusive create that others can get in between, or that
// is none at all.
func lookThenCreate(m *mutant, look bool) func(context.Context, string, backends.CreateOptions) (backends.Object, error) {
	var looked atomic.Int32
	return func(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
		o, err := m.Backend.Create(ctx, name, backends.CreateOptions{})
		return &badObject{Object: o, finish: func(ctx context.Context) (backends.Info, error) {
			if _, err := m.Backend.Stat(ctx, name); look && err == nil {
				return backends.Info{}, &inflight.Error{Op: "finish", Err: inflight.ErrExist}
			}
			looked.Add(1)
			for look && looked.Load() < 2 {
				runtime.Gosched() // until another one has looked
			}
			return o.Finish(ctx)
		}}, err
	}
}

func (m *mutant) removeListed(ctx context.Context, prefix string) error {
	for info, err := range m.Backend.List(ctx, prefix) {
		if err = errors.Join(err, m.Backend.Remove(ctx, info.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (m *mutant) sorted(compare func(a, b backends.Info) int) func(context.Context, string) iter.Seq2[backends.Info, error] {
	return func(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
		return func(yield func(backends.Info, error) bool) {
			var infos []backends.Info
			for info, err := range m.Backend.List(ctx, prefix) {
				if err == nil {
					infos = append(infos, info)
				}
			}
			slices.SortFunc(infos, compare)
			for _, info := range infos {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// TestEveryCheckCanFail runs each check on stores that break its promise.
func TestEveryCheckCanFail(t *testing.T) {
	for _, c := range Checks() {
		require.NotEmpty(t, defects[c.Name], "no defect is known for %s", c.Name)
		for name, defect := range defects[c.Name] {
			t.Run(c.Name+"/"+name, func(t *testing.T) {
				m := &mutant{Backend: mem.New(mem.Options{})}
				defect(m)
				synctest.Test(t, func(t *testing.T) {
					err := c.Run(t.Context(), m)
					_, skipped := errors.AsType[*Skipped](err)
					require.True(t, err != nil && !skipped, "the check says %v", err)
					t.Log(err)
				})
			})
		}
	}
}

func TestEach(t *testing.T) {
	open := func(context.Context) (backends.Backend, error) {
		return mem.New(mem.Options{HeldUntilFinish: true}), nil
	}
	var names, skipped []string
	for r := range Each(t.Context(), open) {
		require.NoError(t, r.Err, r.Name)
		names = append(names, r.Name)
		if r.Skipped != "" {
			skipped = append(skipped, r.Name)
		}
	}
	require.Len(t, names, len(Checks()))
	require.Equal(t, []string{"read-back"}, skipped)

	broken := errors.New("no route")
	for r := range Each(t.Context(), func(context.Context) (backends.Backend, error) { return nil, broken }) {
		require.ErrorIs(t, r.Err, broken)
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for range Each(ctx, open) {
		n++
		cancel()
	}
	require.Equal(t, 1, n)
}

// TestNothingIsLeft has the checks clean up behind them.
func TestNothingIsLeft(t *testing.T) {
	for _, c := range Checks() {
		b := mem.New(mem.Options{})
		require.NoError(t, c.Run(t.Context(), b), c.Name)
		left := b.Clone() // the check may have closed b
		for info, err := range left.List(t.Context(), "") {
			require.NoError(t, err)
			require.Fail(t, "left", "%s leaves %s", c.Name, info.Name)
		}
		for name, err := range left.Children(t.Context(), "") {
			require.NoError(t, err)
			require.Fail(t, "left", "%s leaves the folder %s", c.Name, name)
		}
	}
}

func TestRandomIsRandom(t *testing.T) {
	require.False(t, bytes.Equal(random(1, 100), random(2, 100)))
	require.Equal(t, random(1, 50), random(1, 100)[:50])
}
