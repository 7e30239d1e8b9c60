// Command ckpt-inspect looks into checkpoints: what was in flight, where it
// lies, whether it is whole, and what can be deleted. All it knows is in package
// inspect; here are flags and printing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	_ "github.com/spillway-io/spillway/backends/all"
	"github.com/spillway-io/spillway/inspect"
	"github.com/spillway-io/spillway/internal/interrupt"
)

func main() {
	os.Exit(run(interrupt.Context(), env{
		stdout: os.Stdout, stderr: os.Stderr, now: time.Now,
		colour:   term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		progress: term.IsTerminal(int(os.Stderr.Fd())),
	}, os.Args[1:]))
}

// env is what a command gets from its surroundings.
type env struct {
	stdout, stderr   io.Writer
	now              func() time.Time
	colour, progress bool
}

// usageError says that the command line makes no sense.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run runs one command and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	root := newRoot(&e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return inspect.ExitOK
	case ctx.Err() != nil:
		said, code := interrupt.Exit(ctx)
		fmt.Fprintf(e.stderr, "ckpt-inspect: %s\n", said)
		return code
	case errors.Is(err, inspect.ErrFindings):
		return inspect.ExitFindings
	case errors.As(err, new(usageError)):
		fmt.Fprintf(e.stderr, "ckpt-inspect: %s (see %s --help)\n", oneLine(err), cmd.CommandPath())
		return inspect.ExitUsage
	}
	fmt.Fprintf(e.stderr, "ckpt-inspect: %s\n", oneLine(err))
	return inspect.ExitCode(err)
}

// oneLine returns the text of err on one line; errors that were joined have
// several.
func oneLine(err error) string {
	return inspect.Shorten(quoteControls(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", ": ")), " ")))
}

// quoteControls quotes what would steer a terminal: paths and jobs may have any
// bytes.
func quoteControls(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			fmt.Fprintf(&b, "\\x%02x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
