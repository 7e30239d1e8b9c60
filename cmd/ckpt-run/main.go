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
	"os/signal"

	"golang.org/x/term"

	_ "github.com/spillway-io/spillway/backends/all"
	"github.com/spillway-io/spillway/inflight"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	os.Exit(run(ctx, env{
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
		fmt.Fprintln(e.stderr, "ckpt-run: interrupted")
		return exitInterrupted
	case errors.As(err, new(usageError)):
		fmt.Fprintf(e.stderr, "ckpt-run: %s (see %s --help)\n", oneLine(err), cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(e.stderr, "ckpt-run: %s\n", oneLine(err))
	return exitCode(err)
}

// The exit codes of all commands.
const (
	exitOK          = 0
	exitFailed      = 1 // the job, or what it found
	exitUsage       = 2 // also a store that cannot be reached, or refuses access
	exitInterrupted = 130
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
