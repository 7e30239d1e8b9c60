// Package interrupt has commands end in order when somebody wants them to end.
package interrupt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// errTerminated is why the context ends on SIGTERM: what service managers and
// schedulers send.
var errTerminated = fmt.Errorf("terminated: %w", context.Canceled)

// Context returns a context that ends on Ctrl-C and on SIGTERM. The second of
// them ends the process at once.
func Context() context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		if s == syscall.SIGTERM {
			end(errTerminated)
		}
		end(nil) // nothing after the first call
	}()
	return ctx
}

// Exit returns what a command says that ended with ctx, and its exit code: 128
// and the number of the signal, as shells have it.
func Exit(ctx context.Context) (said string, code int) {
	if errors.Is(context.Cause(ctx), errTerminated) {
		return "terminated", 128 + int(syscall.SIGTERM)
	}
	return "interrupted", 128 + int(syscall.SIGINT)
}
