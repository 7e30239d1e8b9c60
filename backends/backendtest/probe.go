package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// probe is a backend under check. Its methods end the check when the backend
// does not do what is asked; they must be called by the goroutine of the check.
type probe struct {
	ctx  context.Context
	b    backends.Backend
	caps backends.Capabilities
	dir  string // with a slash at its end
}

// require ends the check unless ok.
func (p *probe) require(ok bool, format string, args ...any) {
	if !ok {
		panic(verdict{fmt.Errorf(format, args...)})
	}
}

// must ends the check if something failed.
func (p *probe) must(err error, what string) {
	if err != nil {
		panic(verdict{fmt.Errorf("%s: %w", what, err)})
	}
}

// skip ends the check without a verdict.
func (p *probe) skip(reason string) { panic(verdict{&Skipped{reason}}) }

// wants ends the check unless err is one of the targets, and an *inflight.Error.
func (p *probe) wants(err error, what string, targets ...error) {
	p.require(err != nil, "%s: it succeeded, want the error %q", what, targets[0])
	typed, ok := errors.AsType[*inflight.Error](err)
	p.require(ok && typed.Op != "", "%s: the error has no type: %v", what, err)
	for _, target := range targets {
		if errors.Is(err, target) {
			return
		}
	}
	p.require(false, "%s: the error is %q, want %q", what, err, targets[0])
}

// within ends the check if call takes much longer than a second.
func (p *probe) within(what string, call func() error) error {
	start := time.Now()
	err := call()
	took := time.Since(start)
	p.require(took < 3*time.Second, "%s took %v after its context had ended", what, took)
	return err
}

// bytes returns n bytes that depend on seed.
func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(data)
	return data
}

func (p *probe) create(name string, opt backends.CreateOptions) backends.Object {
	o, err := p.b.Create(p.ctx, p.dir+name, opt)
	p.must(err, "create "+name)
	return o
}

// write writes data in steps, from a buffer that it spoils afterwards.
func (p *probe) write(o backends.Object, data []byte, steps ...int) {
	if len(steps) == 0 {
		steps = []int{len(data)}
	}
	for i := 0; len(data) > 0; i++ {
		step := bytes.Clone(data[:min(steps[i%len(steps)], len(data))])
		n, err := o.Write(step)
		p.must(err, "write")
		p.require(n == len(step), "write took %d of %d bytes", n, len(step))
		data = data[n:]
		clear(step)
	}
}

func (p *probe) finish(o backends.Object) backends.Info {
	info, err := o.Finish(p.ctx)
	p.must(err, "finish")
	return info
}

// put creates an object.
func (p *probe) put(name string, data []byte) backends.Info {
	o := p.create(name, backends.CreateOptions{})
	p.write(o, data)
	return p.finish(o)
}

// putAll creates small objects, several at a time.
func (p *probe) putAll(names []string) {
	const workers = 8
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := w; i < len(names); i += workers {
				if err := put(p.ctx, p.b, p.dir+names[i], []byte(names[i]), backends.CreateOptions{}); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var all []error
	for range workers {
		all = append(all, <-errs)
	}
	p.must(errors.Join(all...), "create objects")
}

// put is the same for other goroutines.
func put(ctx context.Context, b backends.Backend, name string, data []byte, opt backends.CreateOptions) error {
	o, err := b.Create(ctx, name, opt)
	if err != nil {
		return err
	}
	if _, err := o.Write(data); err != nil {
		return errors.Join(err, o.Abort(ctx))
	}
	_, err = o.Finish(ctx)
	return err
}

func (p *probe) open(name string) backends.Source {
	s, err := p.b.Open(p.ctx, p.dir+name)
	p.must(err, "open "+name)
	return s
}

// get reads an object.
func (p *probe) get(name string) []byte {
	data, err := get(p.ctx, p.b, p.dir+name)
	p.must(err, "read "+name)
	return data
}

func get(ctx context.Context, b backends.Backend, name string) ([]byte, error) {
	s, err := b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	data := make([]byte, s.Info().Size)
	return data, s.ReadAt(ctx, data, 0)
}

func (p *probe) stream(s backends.Source, off, n int64) ([]byte, error) {
	r, err := s.Stream(p.ctx, off, n)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// list returns the names below prefix, without the folder of the check.
func (p *probe) list(prefix string) (names []string) {
	for info, err := range p.b.List(p.ctx, p.dir+prefix) {
		p.must(err, "list")
		p.require(len(info.Name) > len(p.dir) && info.Name[:len(p.dir)] == p.dir, "List(%q) yields %q", p.dir+prefix, info.Name)
		names = append(names, info.Name[len(p.dir):])
	}
	return names
}

func (p *probe) children(dir string) (names []string) {
	for name, err := range p.b.Children(p.ctx, p.dir+dir) {
		p.must(err, "list children")
		names = append(names, name)
	}
	return names
}

func (p *probe) leftovers(prefix string) (found []backends.Leftover) {
	for l, err := range p.b.Leftovers(p.ctx, p.dir+prefix) {
		p.must(err, "list leftovers")
		found = append(found, l)
	}
	return found
}

// same ends the check unless got equals want.
func same[T comparable](p *probe, what string, got, want []T) {
	if len(got)+len(want) > 100 {
		p.require(slices.Equal(got, want), "%s: got %d, want %d, or they differ", what, len(got), len(want))
	}
	p.require(slices.Equal(got, want), "%s: got %v, want %v", what, got, want)
}

// missing ends the check if name is visible in any way.
func (p *probe) missing(name, when string) {
	_, err := p.b.Open(p.ctx, p.dir+name)
	p.wants(err, "open "+when, inflight.ErrNotExist)
	_, err = p.b.Stat(p.ctx, p.dir+name)
	p.wants(err, "stat "+when, inflight.ErrNotExist)
	p.require(!slices.Contains(p.list(""), name), "it is listed %s", when)
}
