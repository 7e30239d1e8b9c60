package backends_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	_ "github.com/spillway-io/spillway/backends/all"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/inflight"
)

// spread is a store of one's own: it spreads jobs over several stores, for
// example one for each disk.
type spread struct {
	url    string
	stores []backends.Backend
}

// openSpread opens spread://?over=URL&over=URL…
func openSpread(ctx context.Context, u *url.URL) (backends.Backend, error) {
	s := &spread{url: u.String()}
	for _, over := range u.Query()["over"] {
		b, err := backends.Open(ctx, over)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.stores = append(s.stores, b)
	}
	if len(s.stores) == 0 {
		return nil, &inflight.Error{Op: "open", Object: s.url, Err: inflight.ErrConfig, Mend: "name a store with over="}
	}
	return s, nil
}

// of returns the stores that may have what is below prefix: one, if prefix tells
// the job, which is the first part of every name.
func (s *spread) of(prefix string) []backends.Backend {
	job, _, whole := strings.Cut(prefix, "/")
	if !whole {
		return s.stores
	}
	i := int(crc32.ChecksumIEEE([]byte(job))) % len(s.stores)
	return s.stores[i : i+1]
}

// in returns the store that has name.
func (s *spread) in(name string) backends.Backend { return s.of(backends.Below(name))[0] }

// each calls f for the stores that may have what is in folder.
func (s *spread) each(folder string, f func(backends.Backend) error) (err error) {
	for _, b := range s.of(backends.Below(folder)) {
		err = errors.Join(err, f(b))
	}
	return err
}

func (s *spread) URL() string                         { return s.url }
func (s *spread) Close() error                        { return s.each("", backends.Backend.Close) }
func (s *spread) Capabilities() backends.Capabilities { return s.stores[0].Capabilities() }

func (s *spread) Space(ctx context.Context) (backends.Space, error) { return s.stores[0].Space(ctx) }

func (s *spread) Create(ctx context.Context, name string, opt backends.CreateOptions) (backends.Object, error) {
	return s.in(name).Create(ctx, name, opt)
}

func (s *spread) Open(ctx context.Context, name string) (backends.Source, error) {
	return s.in(name).Open(ctx, name)
}

func (s *spread) Stat(ctx context.Context, name string) (backends.Info, error) {
	return s.in(name).Stat(ctx, name)
}

func (s *spread) Remove(ctx context.Context, names ...string) (err error) {
	for _, name := range names {
		err = errors.Join(err, s.in(name).Remove(ctx, name))
	}
	return err
}

func (s *spread) RemoveAll(ctx context.Context, folder string) error {
	return s.each(folder, func(b backends.Backend) error { return b.RemoveAll(ctx, folder) })
}

func (s *spread) SyncNames(ctx context.Context, folder string) error {
	return s.each(folder, func(b backends.Backend) error { return b.SyncNames(ctx, folder) })
}

func (s *spread) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	return merge(ctx, s.of(prefix), backends.Backend.List, prefix, func(i backends.Info) string { return i.Name })
}

func (s *spread) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	return merge(ctx, s.of(backends.Below(dir)), backends.Backend.Children, dir, func(name string) string { return name })
}

func (s *spread) Leftovers(ctx context.Context, folder string) iter.Seq2[backends.Leftover, error] {
	return merge(ctx, s.of(backends.Below(folder)), backends.Backend.Leftovers, folder, func(l backends.Leftover) string { return l.Name })
}

// merge lists several stores in one order. Within a job, which is in one store,
// a list keeps what that store promises.
func merge[T any](ctx context.Context, stores []backends.Backend, list func(backends.Backend, context.Context, string) iter.Seq2[T, error], prefix string, key func(T) string) iter.Seq2[T, error] {
	if len(stores) == 1 {
		return list(stores[0], ctx, prefix)
	}
	return func(yield func(T, error) bool) {
		var all []T
		for _, b := range stores {
			for v, err := range list(b, ctx, prefix) {
				if err != nil {
					yield(v, err)
					return
				}
				all = append(all, v)
			}
		}
		slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// A program can add a store of its own. Every command that is linked with it then
// takes its URLs, and the acceptance suite shows whether it keeps its promises.
func Example_ownStore() {
	backends.Register("spread", openSpread)

	open := func(ctx context.Context) (backends.Backend, error) {
		return backends.Open(ctx, "spread://?over=mem://disk1&over=mem://disk2")
	}
	failed := 0
	for result := range backendtest.Each(context.Background(), open) {
		if result.Err != nil {
			failed++
			fmt.Println(result.Name, result.Err)
		}
	}
	fmt.Println(failed, "promises are broken")
	// Output: 0 promises are broken
}
