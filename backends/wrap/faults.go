package wrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// ErrKilled is what every call answers after Kill or KillAfter.
var ErrKilled = errors.New("killed by a fault")

// Faults is a backend that fails where its rules say so. To fail at every
// operation in turn, run once to count with Ops, then once for each number
// with AtOp.
//
// Every call counts, those on objects and sources too, except Close. A Remove
// counts once for each name, so that a crash in the middle of it is tried.
type Faults struct {
	layer

	mu    sync.Mutex
	ops   int
	dead  bool
	rules []Rule
}

// Rule has the calls for which When holds suffer Then. The first rule that
// holds counts.
type Rule struct {
	When Predicate
	Then Fault
}

// NewFaults returns b with faults.
func NewFaults(b backends.Backend, rules ...Rule) *Faults {
	f := &Faults{rules: rules}
	f.layer = layer{Backend: b, around: f.call, killed: f.Killed}
	return f
}

// Capabilities are those of the inner store; but what hangs in a fault ends with
// its context only.
func (f *Faults) Capabilities() backends.Capabilities {
	c := f.Backend.Capabilities()
	c.AbortsFinish = false
	return c
}

// Set replaces the rules, and counts from 1 again.
func (f *Faults) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.ops = rules, 0
}

// Ops returns the number of calls so far.
func (f *Faults) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// Killed reports whether Kill or KillAfter has struck.
func (f *Faults) Killed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

func (f *Faults) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

// Close closes the backend below, unless the process counts as killed.
func (f *Faults) Close() error {
	if f.Killed() {
		return nil
	}
	return f.Backend.Close()
}

// Remove removes name by name.
func (f *Faults) Remove(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, f.layer.Remove(ctx, name))
	}
	return errors.Join(errs...)
}

func (f *Faults) call(ctx context.Context, c *Call, do func() error) error {
	f.mu.Lock()
	if f.dead {
		f.mu.Unlock()
		return injected(c, ErrKilled)
	}
	f.ops++
	c.N = f.ops
	i := slices.IndexFunc(f.rules, func(r Rule) bool { return r.When(*c) })
	var fault Fault
	if i >= 0 {
		fault = f.rules[i].Then
	}
	f.mu.Unlock()
	if fault == nil {
		return do()
	}
	return fault(ctx, f, c, do)
}

func injected(c *Call, err error) error {
	return &inflight.Error{Op: string(c.Op), Object: c.Name, Err: fmt.Errorf("injected: %w", err)}
}

// Fault is what happens to a call.
type Fault func(ctx context.Context, f *Faults, c *Call, do func() error) error

// Fail answers err; the call is not made.
func Fail(err error) Fault {
	return func(_ context.Context, _ *Faults, c *Call, _ func() error) error { return injected(c, err) }
}

// FailAfter makes the call, and answers err.
func FailAfter(err error) Fault {
	return func(_ context.Context, _ *Faults, c *Call, do func() error) error {
		_ = do() // its answer is lost
		return injected(c, err)
	}
}

// LoseAnswer makes the call, and answers ErrOutcomeUnknown.
func LoseAnswer() Fault { return FailAfter(inflight.ErrOutcomeUnknown) }

// Partial has a Write take n bytes, and answer err. Any other call fails.
func Partial(n int, err error) Fault {
	return func(_ context.Context, _ *Faults, c *Call, _ func() error) error {
		if c.short != nil {
			if e := c.short(min(n, int(c.Bytes))); e != nil {
				return e
			}
		}
		return injected(c, err)
	}
}

// Hang waits until the context of the call ends, and answers its error. A Write
// hangs until Abort.
func Hang() Fault {
	return func(ctx context.Context, _ *Faults, c *Call, _ func() error) error {
		<-ctx.Done()
		return injected(c, ctx.Err())
	}
}

// Kill ends the process before the call, as far as the store can see: this call
// and all later ones answer ErrKilled, and nothing below is touched any more.
func Kill() Fault {
	return func(_ context.Context, f *Faults, c *Call, _ func() error) error {
		f.kill()
		return injected(c, ErrKilled)
	}
}

// KillAfter is Kill just after the call.
func KillAfter() Fault {
	return func(_ context.Context, f *Faults, c *Call, do func() error) error {
		_ = do() // nobody is there to hear
		f.kill()
		return injected(c, ErrKilled)
	}
}

// Before runs f, and then makes the call: a test can wait there, or do something
// else to the store.
func Before(run func(Call)) Fault {
	return func(_ context.Context, _ *Faults, c *Call, do func() error) error {
		run(*c)
		return do()
	}
}

// Predicate chooses calls. It is called for one call at a time.
type Predicate func(Call) bool

// Always chooses every call.
func Always() Predicate { return func(Call) bool { return true } }

// On chooses calls by what they do.
func On(ops ...Op) Predicate { return func(c Call) bool { return slices.Contains(ops, c.Op) } }

// NameHas chooses calls whose name contains part.
func NameHas(part string) Predicate {
	return func(c Call) bool { return strings.Contains(c.Name, part) }
}

// AtOp chooses the n-th call of all, from 1.
func AtOp(n int) Predicate { return func(c Call) bool { return c.N == n } }

// FromOp chooses the n-th call and all later ones.
func FromOp(n int) Predicate { return func(c Call) bool { return c.N >= n } }

// Nth chooses the n-th call, from 1, of those that p chooses.
func Nth(n int, p Predicate) Predicate {
	seen := 0
	return func(c Call) bool {
		if !p(c) {
			return false
		}
		seen++
		return seen == n
	}
}

// And chooses the calls that all choose. It asks in order, until one says no.
func And(all ...Predicate) Predicate {
	return func(c Call) bool {
		return !slices.ContainsFunc(all, func(p Predicate) bool { return !p(c) })
	}
}

// Or chooses the calls that any chooses.
func Or(any ...Predicate) Predicate {
	return func(c Call) bool {
		return slices.ContainsFunc(any, func(p Predicate) bool { return p(c) })
	}
}

// Not chooses the other calls.
func Not(p Predicate) Predicate { return func(c Call) bool { return !p(c) } }
