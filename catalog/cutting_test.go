package catalog

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
)

// cutting is a store that does nothing more from its at-th operation on.
type cutting struct {
	*mem.Backend
	at  int
	ops atomic.Int64
}

// store returns the store if the power was cut.
func (c *cutting) store() *mem.Backend {
	if c.ops.Load() <= int64(c.at) {
		return nil
	}
	return c.Backend
}

func (c *cutting) step() error {
	if c.ops.Add(1) > int64(c.at) {
		return errCut
	}
	return nil
}

func (c *cutting) Create(ctx context.Context, name string, o backends.CreateOptions) (backends.Object, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	obj, err := c.Backend.Create(ctx, name, o)
	return &cuttingObject{obj, c}, err
}

type cuttingObject struct {
	backends.Object
	c *cutting
}

func (o *cuttingObject) Write(p []byte) (int, error) {
	if err := o.c.step(); err != nil {
		return 0, err
	}
	return o.Object.Write(p)
}

func (o *cuttingObject) Finish(ctx context.Context) (backends.Info, error) {
	if err := o.c.step(); err != nil {
		return backends.Info{}, err
	}
	i, err := o.Object.Finish(ctx)
	if err == nil {
		err = o.c.step() // done, and nobody learns of it
	}
	return i, err
}

func (o *cuttingObject) Abort(ctx context.Context) error {
	if err := o.c.step(); err != nil {
		return err
	}
	return o.Object.Abort(ctx)
}

func (c *cutting) Open(ctx context.Context, name string) (backends.Source, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.Backend.Open(ctx, name)
}

func (c *cutting) List(ctx context.Context, prefix string) iter.Seq2[backends.Info, error] {
	if err := c.step(); err != nil {
		return func(yield func(backends.Info, error) bool) { yield(backends.Info{}, err) }
	}
	return c.Backend.List(ctx, prefix)
}

func (c *cutting) Children(ctx context.Context, dir string) iter.Seq2[string, error] {
	if err := c.step(); err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return c.Backend.Children(ctx, dir)
}

func (c *cutting) Remove(ctx context.Context, names ...string) error {
	for _, n := range names {
		if err := c.step(); err != nil {
			return err
		}
		if err := c.Backend.Remove(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *cutting) SyncNames(ctx context.Context, prefix string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.Backend.SyncNames(ctx, prefix)
}

func writeObject(ctx context.Context, b backends.Backend, name string) error {
	o, err := b.Create(ctx, name, backends.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := o.Write([]byte("state")); err != nil {
		return err
	}
	_, err = o.Finish(ctx)
	return err
}
