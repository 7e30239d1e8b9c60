// Package backendtest is the acceptance suite for backends: what package
// backends promises, as checks that run against any store. A driver's tests call
// Run. A command can run the same checks on a user's own store with Each.
//
// Every check works in a folder of its own, whose name begins with
// "backend-check-", and removes it afterwards.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillway-io/spillway/backends"
)

// Check is one thing that a backend promises.
type Check struct {
	Name  string
	About string // what is promised, in one sentence
	// Closes: the check closes the backend.
	Closes bool
	// Run checks b. The error says what is wrong; it is a *Skipped where the
	// promise does not concern b.
	Run func(ctx context.Context, b backends.Backend) error
}

// Skipped is the error of a check that does not concern the backend.
type Skipped struct{ Reason string }

// Error returns the reason.
func (s *Skipped) Error() string { return "skipped: " + s.Reason }

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, c := range slices.Concat(writeChecks, readChecks, listChecks, removeChecks, largeChecks, otherChecks) {
		all = append(all, Check{Name: c.name, About: c.about, Closes: c.closes, Run: c.run})
	}
	return all
}

// Options are the options of Run.
type Options struct {
	// Skip has the reasons why checks, by name, are left out.
	Skip map[string]string
}

// Run runs all checks, each as a subtest on a backend of its own, which open
// returns and Run closes.
func Run(t *testing.T, open func(t *testing.T) backends.Backend, opt Options) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if reason, ok := opt.Skip[c.Name]; ok {
				t.Skip(reason)
			}
			b := open(t)
			err := c.Run(t.Context(), b)
			if errClose := b.Close(); errClose != nil {
				t.Errorf("Close: %v", errClose)
			}
			if skipped, ok := errors.AsType[*Skipped](err); ok {
				t.Log(skipped.Reason) // the store does not promise it: nothing is left out
				return
			}
			if err != nil {
				t.Errorf("%s %v", c.About, err)
			}
		})
	}
}

// Result is the outcome of one check.
type Result struct {
	Check
	Err      error // nil: the promise is kept, or does not concern the store
	Skipped  string
	Duration time.Duration
}

// Each runs all checks, each on a backend of its own, and yields the outcomes as
// they come. It ends with ctx.
func Each(ctx context.Context, open func(context.Context) (backends.Backend, error)) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		for _, c := range Checks() {
			start, r := time.Now(), Result{Check: c}
			b, err := open(ctx)
			if err == nil {
				err = c.Run(ctx, b)
				if errClose := b.Close(); err == nil {
					err = errClose
				}
			}
			if skipped, ok := errors.AsType[*Skipped](err); ok {
				r.Skipped, err = skipped.Reason, nil
			}
			r.Err, r.Duration = err, time.Since(start)
			if !yield(r) || ctx.Err() != nil {
				return
			}
		}
	}
}

// timeLimit ends a check that hangs.
const timeLimit = 2 * time.Minute

// check is a Check as it is written here.
type check struct {
	name, about string
	closes      bool
	body        func(p *probe)
}

// run runs the body in a folder of its own.
func (c check) run(ctx context.Context, b backends.Backend) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	p := &probe{ctx: ctx, b: b, caps: b.Capabilities(), dir: fmt.Sprintf("backend-check-%08x/%s/", rand.Uint32(), c.name)}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case verdict:
			err = failure.error
		default:
			panic(failure)
		}
		if c.closes {
			return
		}
		top := p.dir[:len("backend-check-")+8]
		if errClean := b.RemoveAll(context.WithoutCancel(ctx), top); errClean != nil && err == nil {
			err = fmt.Errorf("clean up: %w", errClean)
		}
	}()
	c.body(p)
	return nil
}

// verdict carries the end of a check out of its helpers.
type verdict struct{ error }
