package main

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/internal/config"
)

const about = `Runs the reference pipeline, takes checkpoints, and says how each of them went:

  source ×2 ──hash──▶ keyed count ×2 ──▶ sink

The first word says whether a record takes time at the count: fast (the default) or slow (5 ms), which fills all queues. The second
one says what the barrier of a checkpoint does with the records in front of it: aligned ones wait (the default), unaligned ones
overtake, and what they overtake is captured; mixed ones wait for a second (--aligned-timeout), and then overtake.

The sources make records up, or read the lines of --input. A run ends after --duration, after --records, or with its input; then
it takes a final checkpoint, and says how many records were emitted, counted, lost, and counted twice. Lost and doubled records
are found by the numbers that the sources give them.

Options of the runtime, the store and the writer are set by --set, by a file (--config), or by the environment (SPILLWAY_…);
"ckpt-run config" prints them all.

Exit codes: 0 all is right; 1 the job failed, or records were lost or counted twice; 2 usage, or a store that cannot be reached
or refuses access; 130 interrupted (Ctrl-C); 143 terminated (SIGTERM).

Tables and --json go to stdout, log lines to stderr. Every field of --json is described in docs/json.md.`

const examples = `  ckpt-run slow
  ckpt-run slow unaligned
  ckpt-run slow mixed --aligned-timeout 500ms --keys 100
  ckpt-run fast unaligned --records 100000 --json
  ckpt-run unaligned --input words --output counts --store /ckpt --restore latest`

// app is what a command line says.
type app struct {
	*env
	pipeline
	store, job, restore      string
	duration, savepointAfter time.Duration
	restarts                 int
	seed                     uint64
	json, trace              bool
	faults                   []string
	sink, listen             string

	file string
	set  []string
}

// flagOptions are options that have a flag of their own.
var flagOptions = []struct{ flag, key, usage string }{
	{"interval", "checkpoint.interval", "from one checkpoint to the next"},
	{"checkpoint-timeout", "checkpoint.timeout", "after which a checkpoint is discarded"},
	{"aligned-timeout", "unaligned.aligned-timeout", "after which an aligned checkpoint becomes unaligned"},
	{"tasks-per-file", "unaligned.tasks-per-file", "subtasks that share a file"},
	{"network", "network", "channels: local or credit"},
}

func newRoot(e *env) *cobra.Command {
	a := &app{env: e}
	root := &cobra.Command{
		Use: "ckpt-run [fast|slow] [aligned|unaligned|mixed]", Short: "Runs the reference pipeline with checkpoints", Long: about, Version: version(),
		Example: examples, SilenceErrors: true, SilenceUsage: true,
		Args: words,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmd.Flags().NFlag() == 0 {
				return cmd.Help()
			}
			return a.run(cmd.Context(), cmd.Flags(), args)
		},
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	a.runFlags(root.Flags())
	a.configFlags(root.PersistentFlags())
	root.AddCommand(a.config(), a.doctor())
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.InitDefaultHelpCmd()
	return root
}

func (a *app) runFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&a.store, "store", "", "path or URL of the store (default: a new temporary directory)")
	f.StringVar(&a.job, "job", "job", "name of the job on the store")
	f.StringVar(&a.restore, "restore", "none", "what to begin with: latest, none, or the path of a checkpoint")
	f.IntVar(&a.parallelism, "parallelism", 2, "subtasks of each vertex")
	f.DurationVar(&a.sleep, "sleep", 0, "how long a record takes at the count (default: slow 5ms, fast 0)")
	f.IntVar(&a.recordBytes, "record-bytes", 1019, "bytes of a record between source and count")
	f.IntVar(&a.keys, "keys", 10, "keys of the records, in turn")
	f.BoolVar(&a.changes, "changes", false, "a second source, changes: few and small events in one partition, a tenth of --records")
	f.DurationVar(&a.duration, "duration", 30*time.Second, "when the sources end, unless --records or --input is given; 0: never")
	f.Int64Var(&a.records, "records", -1, "records of all sources (default: no bound)")
	f.StringVar(&a.input, "input", "", "a file whose lines are the records")
	f.StringVar(&a.field, "key", "", "field of a line of JSON that is its key; without it: the empty key, counted (default: the line)")
	f.StringVar(&a.output, "output", "", "a directory for the counts: key TAB running count, committed with checkpoints")
	f.StringVar(&a.sink, "sink", "file", "of --output: file (two-phase commit) or plain, which repeats lines after a restore")
	f.DurationVar(&a.sinkSleep, "sink-sleep", 0, "how long a record takes at the sink")
	f.StringArrayVar(&a.faults, "fault", nil, "VERTEX:SUBTASK:stall|disconnect|gone@START+LENGTH, such as source:0:stall@5s+12s; may be repeated")
	f.IntVar(&a.restarts, "restarts", 3, "of a job that failed; -1: any number")
	f.DurationVar(&a.savepointAfter, "savepoint-after", 0, "when to take a savepoint")
	f.Uint64Var(&a.seed, "seed", 0, "of what is left to chance")
	f.StringVar(&a.listen, "listen", "", "HOST:PORT of the live page, /checkpoints and /metrics; without a host: this machine only")
	f.BoolVar(&a.trace, "trace", false, "print what happens to each barrier")
}

func (a *app) configFlags(f *pflag.FlagSet) {
	for _, o := range flagOptions {
		f.String(o.flag, "", o.usage+" ("+o.key+")")
	}
	f.StringArrayVar(&a.set, "set", nil, "KEY=VALUE: an option; may be repeated")
	f.StringVar(&a.file, "config", "", "a file of options: YAML or properties")
	f.BoolVar(&a.json, "json", false, "print JSON lines")
}

// words are the arguments: what a record takes, and what a barrier does.
func words(_ *cobra.Command, args []string) error {
	for i, arg := range args {
		switch k := slices.Index(known, arg); {
		case k < 0:
			return usage("%q is none of %s", arg, strings.Join(known, ", "))
		case slices.ContainsFunc(args[:i], func(before string) bool { return (slices.Index(known, before) < 2) == (k < 2) }):
			return usage("%s and %s exclude each other", args[i-1], arg)
		}
	}
	return nil
}

// known are the words, speeds first.
var known = []string{"fast", "slow", "aligned", "unaligned", "mixed"}

// flagError says what is wrong with a flag, without what only Go knows.
func flagError(err error) error {
	text := err.Error()
	for _, cut := range []string{": strconv.", ": time: "} {
		if k := strings.Index(text, cut); k >= 0 {
			what := "a number is wanted"
			if cut == ": time: " {
				what = "a duration is wanted, such as 500ms or 10s"
			}
			text = text[:k] + ": " + what
		}
	}
	return usage("%s", text)
}

// version tells the version of the program and of the formats that it knows.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s, channel-state files of version %d, manifests of version %d", v, format.Version, format.ManifestVersion)
}

// configure gathers the options from everywhere.
func (a *app) configure(flags *pflag.FlagSet, args []string) (*config.Config, error) {
	c := &config.Config{}
	var errs []error
	set := func(layer config.Layer, origin, key, value string) {
		if err := c.Set(layer, origin, key, value); err != nil {
			errs = append(errs, err)
		}
	}
	for _, word := range args {
		switch word {
		case "aligned":
			set(config.Command, "aligned", "unaligned.enabled", "false")
		case "unaligned":
			set(config.Command, "unaligned", "unaligned.enabled", "true")
			set(config.Command, "unaligned", "unaligned.aligned-timeout", "0")
		case "mixed":
			set(config.Command, "mixed", "unaligned.enabled", "true")
			set(config.Preset, "mixed", "unaligned.aligned-timeout", "1s")
		}
	}
	if a.file != "" {
		if err := c.LoadFile(a.file); err != nil {
			return nil, err
		}
	}
	if err := c.LoadEnv(a.environ); err != nil {
		return nil, err
	}
	for _, o := range flagOptions {
		if f := flags.Lookup(o.flag); f != nil && f.Changed {
			set(config.Command, "--"+o.flag, o.key, f.Value.String())
		}
	}
	for _, s := range a.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usage("--set %s: KEY=VALUE is wanted", s)
		}
		set(config.Command, "--set", strings.TrimSpace(key), value)
	}
	if len(errs) > 0 {
		return nil, errs[0]
	}
	if slices.Contains(args, "mixed") && c.Value("unaligned.aligned-timeout") == "0" {
		return nil, usage("mixed needs an aligned timeout above 0")
	}
	return c, nil
}
