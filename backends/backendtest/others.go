package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

var otherChecks = []check{
	{name: "cancelled", about: "A call whose context has ended answers that, and does nothing.", body: checkCancelled},
	{name: "concurrency", about: "Many goroutines can use a backend at once.", body: checkConcurrency},
	{name: "sync-names", about: "SyncNames succeeds, also where there is nothing.", body: func(p *probe) {
		p.must(p.b.SyncNames(p.ctx, p.dir+"nothing"), "sync nothing")
		p.put("d/x", nil)
		for _, folder := range []string{p.dir + "d", p.dir + "d/", p.dir, ""} {
			p.must(p.b.SyncNames(p.ctx, folder), "sync names")
		}
	}},
	{name: "space", about: "Space tells what is free, where the capabilities say so.", body: func(p *probe) {
		space, err := p.b.Space(p.ctx)
		if !p.caps.FreeSpace {
			p.wants(err, "space", inflight.ErrUnsupported)
			return
		}
		p.must(err, "space")
		p.require(space.Free >= 0 && (space.Total == 0 || space.Total >= space.Free), "%+v", space)
	}},
	{name: "url", about: "The URL can be parsed, and has no secret.", body: func(p *probe) {
		u, err := url.Parse(p.b.URL())
		p.must(err, "parse")
		_, secret := u.User.Password()
		p.require(u.Scheme != "" && !secret, "the URL is %s", u.Redacted())
		p.require(p.b.Capabilities() == p.caps, "the capabilities change")
	}},
	{name: "close", about: "After Close everything answers ErrClosed, and Close can be repeated.", closes: true, body: func(p *probe) {
		p.put("x", []byte("x"))
		s := p.open("x")
		o := p.create("y", backends.CreateOptions{})
		p.write(o, []byte("y"))
		unfinished := p.create("z", backends.CreateOptions{})
		p.must(p.b.RemoveAll(p.ctx, p.dir), "remove all") // nobody can, later
		p.must(p.b.Close(), "close")
		p.must(p.b.Close(), "close again")
		p.closed(o)
		p.must(unfinished.Abort(p.ctx), "abort")
		p.wants(s.ReadAt(p.ctx, make([]byte, 1), 0), "read", inflight.ErrClosed)
		p.must(s.Close(), "close a source")
		for op, call := range p.calls(p.ctx) {
			p.wants(call(), op, inflight.ErrClosed)
		}
	}},
}

// calls are the calls of a backend, each by its name.
func (p *probe) calls(ctx context.Context) map[string]func() error {
	return map[string]func() error{
		"create":     func() error { _, err := p.b.Create(ctx, p.dir+"new", backends.CreateOptions{}); return err },
		"open":       func() error { _, err := p.b.Open(ctx, p.dir+"x"); return err },
		"stat":       func() error { _, err := p.b.Stat(ctx, p.dir+"x"); return err },
		"remove":     func() error { return p.b.Remove(ctx, p.dir+"x") },
		"remove all": func() error { return p.b.RemoveAll(ctx, p.dir) },
		"sync names": func() error { return p.b.SyncNames(ctx, p.dir) },
		"list": func() (err error) {
			for _, err = range p.b.List(ctx, p.dir) {
			}
			return err
		},
		"children": func() (err error) {
			for _, err = range p.b.Children(ctx, p.dir) {
			}
			return err
		},
		"leftovers": func() (err error) {
			for _, err = range p.b.Leftovers(ctx, p.dir) {
			}
			return err
		},
	}
}

func checkCancelled(p *probe) {
	p.put("x", []byte("x"))
	s := p.open("x")
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	calls := p.calls(ended)
	calls["read"] = func() error { return s.ReadAt(ended, make([]byte, 1), 0) }
	calls["stream"] = func() error {
		r, err := s.Stream(ended, 0, -1)
		if err == nil {
			_, err = r.Read(make([]byte, 1))
			r.Close()
		}
		return err
	}
	for op, call := range calls {
		p.wants(p.within(op, call), op+" with a context that has ended", context.Canceled)
	}
	p.must(s.Close(), "close")
	same(p, "List afterwards", p.list(""), []string{"x"})
	p.require(len(p.leftovers("")) == 0, "leftovers of a create that failed: %v", p.leftovers(""))
}

func checkConcurrency(p *probe) {
	const workers = 8
	errs := make(chan error, workers)
	for w := range workers {
		go func() { errs <- work(p.ctx, p.b, fmt.Sprintf("%sw%d/", p.dir, w), uint64(w)) }()
	}
	var all []error
	for range workers {
		all = append(all, <-errs)
	}
	p.must(errors.Join(all...), "work in parallel")
	same(p, "List afterwards", p.list(""), nil)
}

// work creates, reads, lists and removes objects in its own folder.
func work(ctx context.Context, b backends.Backend, dir string, seed uint64) error {
	for round := range 10 {
		name := fmt.Sprintf("%sr%d/x", dir, round%3)
		data := random(seed*100+uint64(round), 10_000*(round+1))
		if err := put(ctx, b, name, data, backends.CreateOptions{Exclusive: round%2 == 0 && b.Capabilities().Exclusive}); err != nil {
			return err
		}
		got, err := get(ctx, b, name)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, data) {
			return fmt.Errorf("%s: other bytes are read than were written", name)
		}
		var names []string
		for info, err := range b.List(ctx, dir) {
			if err != nil {
				return err
			}
			names = append(names, info.Name)
		}
		if len(names) != 1 || names[0] != name {
			return fmt.Errorf("List(%s) yields %v", dir, names)
		}
		if err := b.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
