package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// Options are the options of New; the zero value is the default.
type Options struct {
	// Open opens stores. Default backends.Open.
	Open func(ctx context.Context, url string) (backends.Backend, error)
	// Create opens the stores that rewrites and seals are written to. Default Open.
	Create func(ctx context.Context, url string) (backends.Backend, error)
	// Now is the clock that ages are measured with. Default time.Now.
	Now func() time.Time
	// Expect is told how many bytes are going to be read, when that becomes
	// known, so that progress can be shown. It may be nil.
	Expect func(bytes int64)
	// Moves say where files of Flink lie that were written elsewhere.
	Moves []flink.Move
}

// Inspector looks into checkpoints.
type Inspector struct{ o Options }

// New returns an Inspector.
func New(o Options) *Inspector {
	if o.Open == nil {
		o.Open = backends.Open
	}
	if o.Create == nil {
		o.Create = o.Open
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Expect == nil {
		o.Expect = func(int64) {}
	}
	return &Inspector{o}
}

// Report is what a command has found.
type Report interface {
	// Lines are what is printed as JSON, one a line.
	Lines() []any
	// Tables are the same for people.
	Tables() []Table
	// Failed reports whether something is wrong.
	Failed() bool
}

// ErrNotCheckpoint says that what was named is neither a checkpoint nor a part
// of one.
var ErrNotCheckpoint = errors.New("not a checkpoint")

// ErrFindings says that something is wrong, and that the report tells what.
var ErrFindings = errors.New("there are findings")

// The exit codes of commands.
const (
	ExitOK          = 0   // all is right
	ExitFindings    = 1   // findings of severity error
	ExitUsage       = 2   // usage, unreachable, access refused, or not a checkpoint at all
	ExitInterrupted = 130 // Ctrl-C
)

// ExitCode returns the exit code for the error of a method of Inspector.
func ExitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return ExitOK
	case is(context.Canceled):
		return ExitInterrupted
	case is(ErrFindings, inflight.ErrDamaged, inflight.ErrIncomplete):
		return ExitFindings
	case is(ErrNotCheckpoint, fs.ErrNotExist, fs.ErrPermission, inflight.ErrAuth, inflight.ErrConfig):
		return ExitUsage
	case inflight.IsCorruption(err), is(inflight.ErrUnknownVersion, inflight.ErrTooLarge, inflight.ErrMismatch):
		return ExitFindings
	}
	return ExitUsage
}

// fail is an error about what the user named.
func fail(op, object string, err error, mend string) error {
	return &inflight.Error{Op: op, Object: object, Err: err, Mend: mend}
}

func notCheckpoint(object, why, mend string) error {
	return fail("open", object, fmt.Errorf("%w: %s", ErrNotCheckpoint, why), mend)
}
