package dataflow

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// Chain makes one operator of several: what one emits the next one processes, in
// the same call (Flink: operator chaining). They are one task, with no edge
// between them, so nothing is copied there and nothing is in flight. A chain in a
// chain is the same as its operators in that place. At most one of them may have
// timers; EmitTo leads out of the chain from each.
//
// As in Flink, the last one is opened and closed first: what is emitted in Open
// finds the next one open. All other calls go to the first one first.
func Chain(operators ...func(subtask int) Operator) func(subtask int) Operator {
	return func(subtask int) Operator {
		c := &chain{}
		for _, f := range operators {
			op := f(subtask)
			inner, ok := op.(*chain)
			if !ok || len(inner.links) == 0 { // an empty one is refused in Open
				c.links = append(c.links, &link{op: op, chain: c})
				continue
			}
			for _, l := range inner.links {
				c.links = append(c.links, &link{op: l.op, chain: c})
			}
		}
		return c
	}
}

type chain struct {
	links []*link
	err   error // of a link behind the first, on its way to the task
}

// link is an operator in a chain.
type link struct {
	op    Operator
	ctx   *Context // nil: Open was not called
	chain *chain
}

// process takes what the link before has emitted.
func (l *link) process(r Record) {
	if l.chain.err != nil {
		return
	}
	if err := l.op.Process(l.ctx, r); err != nil {
		l.chain.err = err
	}
}

// Open makes a context for each link. The first one has the task's, whose gate
// is that of the record. States are told apart by the place in the chain.
func (c *chain) Open(ctx *Context) error {
	refuse := func(mend, why string) error {
		return &inflight.Error{Op: "open", Object: ctx.Task.String(), Mend: mend, Err: fmt.Errorf("%s: %w", why, inflight.ErrConfig)}
	}
	switch {
	case len(c.links) == 0:
		return refuse("give Chain one at least", "a chain has no operators")
	case ctx.chained: // both would name states and lead timers by the place in theirs
		return refuse("wrap its operators, not the chain", "a chain in a chain is wrapped in another operator")
	}
	ctx.chained = true
	var next *link
	for i, l := range slices.Backward(c.links) {
		l.ctx = ctx
		if i > 0 {
			own := *ctx
			own.link = i
			l.ctx = &own
		}
		l.ctx.next = next
		if err := errors.Join(l.op.Open(l.ctx), c.err); err != nil {
			return err
		}
		next = l
	}
	return nil
}

// each calls f for all links in order, so that what one emits comes before the
// call of the next.
func (c *chain) each(f func(Operator, *Context) error) error {
	for _, l := range c.links {
		if err := errors.Join(f(l.op, l.ctx), c.err); err != nil {
			return err
		}
	}
	return nil
}

func (c *chain) Process(ctx *Context, r Record) error {
	if err := c.links[0].op.Process(ctx, r); err != nil {
		return err
	}
	return c.err
}

func (c *chain) Timer(ctx *Context, t Timer) error {
	l := c.links[ctx.t.timers.link]
	return errors.Join(l.op.Timer(l.ctx, t), c.err)
}

func (c *chain) Watermark(_ *Context, ms int64) error {
	return c.each(func(op Operator, ctx *Context) error { return op.Watermark(ctx, ms) })
}

func (c *chain) Finish(*Context) error { return c.each(Operator.Finish) }

func (c *chain) Prepare(_ *Context, id inflight.CheckpointID) error {
	return c.each(func(op Operator, ctx *Context) error { return op.Prepare(ctx, id) })
}

func (c *chain) Complete(_ *Context, id inflight.CheckpointID) error {
	return c.each(func(op Operator, ctx *Context) error { return op.Complete(ctx, id) })
}

func (c *chain) Abort(_ *Context, id inflight.CheckpointID) error {
	return c.each(func(op Operator, ctx *Context) error { return op.Abort(ctx, id) })
}

// Disconnect implements Disconnecter, for those links that can.
func (c *chain) Disconnect() (err error) {
	for _, l := range c.links {
		if d, ok := l.op.(Disconnecter); ok {
			err = errors.Join(err, d.Disconnect())
		}
	}
	return err
}

func (c *chain) Close() (err error) {
	for _, l := range slices.Backward(c.links) {
		if l.ctx != nil {
			err = errors.Join(err, l.op.Close())
		}
	}
	return err
}

// inChain is the name of a state of the i-th operator of a chain.
func inChain(i int, name inflight.StateName) inflight.StateName {
	if i == 0 {
		return name
	}
	return inflight.StateName(fmt.Sprintf("%d/%s", i, name))
}
