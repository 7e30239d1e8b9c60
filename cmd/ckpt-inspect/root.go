package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inspect"
)

const about = `Looks into checkpoints: what was in flight, where it lies, whether it is whole, and what can be deleted.

A CHECKPOINT is a path or URL of a directory chk-<id>, of a job (its newest completed checkpoint is meant), or of a root with
one job. A FILE is one channel-state file. Checkpoints and savepoints of Apache Flink are known by their _metadata. Nothing but
gc, backend-check and flink writes.

Exit codes: 0 all is right; 1 findings of severity error; 2 usage, unreachable, access refused, or not a checkpoint at all;
130 interrupted (Ctrl-C); 143 terminated (SIGTERM). Pending and orphaned checkpoints are warnings.

Colours are used on a terminal only, and not where NO_COLOR is set. Every field of --json is described in docs/json.md.`

// app is what all commands share.
type app struct {
	*env
	json  bool
	job   string
	moved []string
}

func newRoot(e *env) *cobra.Command {
	a := &app{env: e}
	root := &cobra.Command{
		Use: "ckpt-inspect", Short: "Looks into checkpoints", Long: about, Version: version(),
		Example: `  ckpt-inspect ls /ckpt
  ckpt-inspect show /ckpt/words
  ckpt-inspect verify --all /ckpt`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON lines")
	root.PersistentFlags().StringArrayVar(&a.moved, "moved", nil, "of Flink: what was written below FROM lies below TO now (FROM=TO, may be repeated)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.AddCommand(a.ls(), a.show(), a.channels(), a.du(), a.diff(), a.dump(), a.verify(), a.roundtrip(), a.gc(), a.backendCheck(), a.flink())
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	strictHelp(root) // completion keeps the output that is set by then
	return root
}

// flagError says what is wrong with a flag, without what only Go knows.
func flagError(err error) error {
	text := err.Error()
	if k := strings.Index(text, ": strconv."); k >= 0 {
		text = text[:k] + ": a number is wanted"
	}
	return usage("%s", text)
}

// strictHelp makes help and completion refuse what they do not know; by
// themselves they print a usage and succeed.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); len(args) > 0 && (err != nil || found == root || len(rest) > 0) {
					return unknownCommand(root, strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			c.Args = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usage("no completion for %q; there are bash, fish, powershell, zsh", args[0])
				}
				return nil
			}
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usage("unknown command %q; did you mean %q?", name, near[0])
	}
	return usage("unknown command %q", name)
}

// version tells the version of the program and of the formats that it knows.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s, channel-state files of version %d, manifests of version %d", v, format.Version, format.ManifestVersion)
}

// twoArgs wants exactly two arguments, and says what they are.
func twoArgs(first, second string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usage("name %s and %s", first, second)
		case 1:
			return usage("name %s too", second)
		case 2:
			return nil
		}
		return usage("%s and %s are enough; %q is too much", first, second, args[2])
	}
}

// oneArg wants exactly one argument, and says what it is.
func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usage("name a %s", what)
		case 1:
			return nil
		}
		return usage("one %s at a time; %q is too much", what, args[1])
	}
}

// jobFlag adds --job.
func (a *app) jobFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.job, "job", "", "the job, where the root has several")
}

// with finds what name means and runs f on it, with progress. The store is
// opened for reading only, unless writes is set.
func (a *app) with(ctx context.Context, name string, writes bool, f func(*inspect.Inspector, *inspect.Target) error) error {
	p := newProgress(a.env)
	defer p.done()
	moves, err := pairs("--moved", a.moved)
	if err != nil {
		return err
	}
	i := inspect.New(inspect.Options{Now: a.now, Expect: p.expect, Moves: moves, Create: backends.Open, Open: func(ctx context.Context, url string) (backends.Backend, error) {
		b, err := backends.Open(ctx, url)
		switch {
		case err != nil:
			return nil, err
		case writes:
			return b, nil
		}
		return wrap.Observe(wrap.ReadOnly(b), p), nil
	}})
	t, err := i.Find(ctx, name, a.job)
	if err != nil {
		return err
	}
	defer t.Close()
	return f(i, t)
}

// pairs takes FROM=TO apart.
func pairs(flag string, list []string) (moves []flink.Move, err error) {
	for _, s := range list {
		from, to, ok := strings.Cut(s, "=")
		if !ok || from == "" || to == "" {
			return nil, usage("%s %q: FROM=TO is wanted", flag, s)
		}
		moves = append(moves, flink.Move{From: from, To: to})
	}
	return moves, nil
}

// print prints a report, and tells by its error whether there are findings.
func (a *app) print(r inspect.Report) error {
	if err := a.write(r); err != nil {
		return err
	}
	if r.Failed() {
		return inspect.ErrFindings
	}
	return nil
}
