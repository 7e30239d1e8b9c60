// Command ckpt-run runs the reference pipeline under backpressure, or over a
// file, takes checkpoints that wait, overtake or switch, and says how each of
// them went and whether every record was counted once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	_ "github.com/spillway-io/spillway/backends/all"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/interrupt"
)

func main() {
	os.Exit(run(interrupt.Context(), env{
		stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(),
		colour: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		live:   term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb",
	}, os.Args[1:]))
}

// env is what a command gets from its surroundings.
type env struct {
	stdout, stderr io.Writer
	environ        []string
	colour, live   bool
}

// usageError says that the command line makes no sense.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// failure is the end of a job that had begun.
type failure struct{ error }

// Unwrap returns why.
func (f failure) Unwrap() error { return f.error }

// errBalance says that records were lost, or came twice.
var errBalance = errors.New("records were lost or came twice")

// run runs one command and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	root := newRoot(&e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		said, code := interrupt.Exit(ctx)
		fmt.Fprintf(e.stderr, "ckpt-run: %s\n", said)
		return code
	case errors.As(err, new(usageError)):
		fmt.Fprintf(e.stderr, "ckpt-run: %s (see %s --help)\n", oneLine(err), cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(e.stderr, "ckpt-run: %s\n", oneLine(err))
	return exitCode(err)
}

// The exit codes of all commands, but for those of package interrupt.
const (
	exitOK     = 0
	exitFailed = 1 // the job, or what it found
	exitUsage  = 2 // also a store that cannot be reached, or refuses access
)

func exitCode(err error) int {
	switch {
	case errors.Is(err, inflight.ErrConfig), errors.Is(err, inflight.ErrMismatch):
		return exitUsage
	case errors.As(err, new(failure)), errors.Is(err, inflight.ErrDamaged), errors.Is(err, inflight.ErrIncomplete),
		errors.Is(err, inflight.ErrFenced), inflight.IsCorruption(err):
		return exitFailed
	}
	return exitUsage
}
