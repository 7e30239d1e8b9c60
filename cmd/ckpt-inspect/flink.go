package main

import (
	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inspect"
)

// flink is the family of commands that write checkpoints of Flink anew.
func (a *app) flink() *cobra.Command {
	cmd := &cobra.Command{
		Use: "flink VERB", Short: "Rewrite and seal checkpoints of Apache Flink",
		Long: `Writes a checkpoint of Flink anew, always into a new directory. SRC is a checkpoint, a job, or a root with one job; DST is a
path or URL that does not exist yet, on any store. What one verb writes, Flink restores, and every other verb takes as SRC.
_metadata is written last, and when something fails, or on Ctrl-C or SIGTERM, what was written is removed. With --dry-run the
plan is printed, and nothing is written. Where a checkpoint has a seal, it must be as it was sealed; salvage keeps what is.`,
		Example: `  ckpt-inspect flink compact /flink/chk-3 /flink/new/chk-3
  ckpt-inspect flink seal /flink/chk-3`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(a.flinkCompact(), a.flinkDrop(), a.flinkRelocate(), a.flinkSalvage(), a.flinkConvert(), a.flinkSeal())
	return cmd
}

// rewrite completes the command of a verb.
func (a *app) rewrite(cmd *cobra.Command, o *inspect.RewriteOptions, check func() error) *cobra.Command {
	cmd.Args = twoArgs("the checkpoint", "the new directory")
	a.jobFlag(cmd)
	cmd.Flags().BoolVarP(&o.DryRun, "dry-run", "n", false, "show the plan and write nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
			w, err := i.Rewrite(cmd.Context(), t, args[1], *o)
			if err != nil {
				return err
			}
			return a.print(w)
		})
	}
	return cmd
}

func fine() error { return nil }

func (a *app) flinkCompact() *cobra.Command {
	o := inspect.RewriteOptions{Verb: inspect.VerbCompact}
	cmd := &cobra.Command{
		Use: "compact SRC DST", Short: "Put many small channel-state files into few",
		Long: `Puts channel state that lies in many files, or inline in _metadata, into few files, in chunks of 32 KiB: fewer requests and
fewer buffers at the restore. What the channels hold stays the same.`,
		Example: `  ckpt-inspect flink compact --dry-run /flink/chk-3 /flink/new/chk-3
  ckpt-inspect flink compact --chunk-size 8192 /flink/chk-3 /flink/new/chk-3`,
	}
	cmd.Flags().Int32Var(&o.ChunkSize, "chunk-size", 32<<10, "length of chunks in bytes")
	cmd.Flags().Int64Var(&o.FileSize, "file-size", 64<<20, "size in bytes at which the next file is begun")
	return a.rewrite(cmd, &o, func() error {
		if o.ChunkSize <= 0 || o.FileSize <= 0 {
			return usage("sizes are 1 byte or more")
		}
		return nil
	})
}

func (a *app) flinkDrop() *cobra.Command {
	o := inspect.RewriteOptions{Verb: inspect.VerbDrop}
	cmd := &cobra.Command{
		Use: "drop SRC DST", Short: "Drop the in-flight data of edges",
		Long: `Drops the in-flight data of edges, both ends of each: the output part goes on where the input part ended, so one end alone
would leave half a record. All other state stays, also that of coordinators, which Flink's own option forgets. An edge is
FROM=>TO, by names, uids or ids of operators; where the records do not tell it, FROM:PARTITION=>TO:GATE. It says how much is
lost, in buffers, bytes and records.`,
		Example: `  ckpt-inspect flink drop --dry-run --all /flink/chk-3 /flink/new/chk-3
  ckpt-inspect flink drop --edge 'rec=>count' /flink/chk-3 /flink/new/chk-3`,
	}
	cmd.Flags().StringArrayVar(&o.Edges, "edge", nil, "an edge, FROM=>TO; may be repeated")
	cmd.Flags().BoolVar(&o.All, "all", false, "all in-flight data, also where it is damaged")
	return a.rewrite(cmd, &o, fine)
}

func (a *app) flinkRelocate() *cobra.Command {
	o := inspect.RewriteOptions{Verb: inspect.VerbRelocate}
	var paths []string
	cmd := &cobra.Command{
		Use: "relocate SRC DST", Short: "Make a checkpoint movable, or give it other paths",
		Long: `Copies the files that absolute paths lead to into the new directory and names them relative to it, so that it can be moved
anywhere, also to another store. With --path, absolute paths below FROM get the prefix TO instead, and what they lead to stays
where it is: for trees that were moved, or will be.`,
		Example: `  ckpt-inspect flink relocate /flink/chk-3 /flink/new/chk-3
  ckpt-inspect flink relocate --path file:/flink/checkpoints=s3://bucket/flink --dry-run /flink/chk-3 /flink/new/chk-3`,
	}
	cmd.Flags().StringArrayVar(&paths, "path", nil, "FROM=TO: prefixes of absolute paths; may be repeated")
	return a.rewrite(cmd, &o, func() (err error) {
		o.Paths, err = pairs("--path", paths)
		return err
	})
}

func (a *app) flinkSalvage() *cobra.Command {
	o := inspect.RewriteOptions{Verb: inspect.VerbSalvage}
	cmd := &cobra.Command{
		Use: "salvage SRC DST", Short: "Keep what is whole of a damaged checkpoint",
		Long: `Keeps what is provably whole of damaged channel state: each damaged connection is cut at the boundary of a record, and what
would have come after it is lost, with the output part that would have gone on there. Other connections stay whole. It says
exactly what is lost, in buffers, bytes and records. With a seal, chunks that look right and are not count as damage too.`,
		Example: `  ckpt-inspect flink salvage --dry-run /flink/chk-3 /flink/new/chk-3
  ckpt-inspect flink salvage /flink/chk-3 /flink/new/chk-3`,
	}
	cmd.Flags().StringVar(&o.Seal, "seal", "", "compare with this seal (default: the one beside the checkpoint)")
	return a.rewrite(cmd, &o, fine)
}

func (a *app) flinkConvert() *cobra.Command {
	var o inspect.RewriteOptions
	var to, from, codec string
	const ours = "spillway"
	cmd := &cobra.Command{
		Use: "convert SRC DST", Short: "Convert to a checkpoint of Spillway, and back",
		Long: `With --to spillway: converts a checkpoint of Flink into one of Spillway, with checksums. The rest of _metadata and the files
beside it go along, so that --from spillway can bring it back. Positions are not known to Flink, so conservation cannot be
proven.`,
		Example: `  ckpt-inspect flink convert --to spillway /flink/chk-3 /flink/new/chk-0000000003
  ckpt-inspect flink convert --to spillway --codec zstd --dry-run /flink/chk-3 /flink/new/chk-0000000003`,
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "what to convert to: "+ours)
	f.StringVar(&from, "from", "", "what to convert back from: "+ours)
	f.StringVar(&o.Job, "name", "", "the name of the job in the new checkpoint (default flink)")
	f.StringVar(&codec, "codec", "none", "compression: none, s2, zstd or auto")
	for flag, values := range map[string][]string{"to": {ours}, "from": {ours}, "codec": {"none", "s2", "zstd", "auto"}} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return a.rewrite(cmd, &o, func() error {
		var err error
		switch o.Codec, err = format.ParseCodec(codec); {
		case err != nil:
			return usage("no codec %q; there are none, s2, zstd, auto", codec)
		case to == ours && from == "":
			o.Verb = inspect.VerbToSpillway
		case from == ours && to == "":
			o.Verb = inspect.VerbFromSpillway
		default:
			return usage("give --to %s or --from %s", ours, ours)
		}
		return nil
	})
}

func (a *app) flinkSeal() *cobra.Command {
	var o inspect.SealOptions
	cmd := &cobra.Command{
		Use: "seal CHECKPOINT", Short: "Write checksums beside a checkpoint",
		Long: `Writes checksums of _metadata and of every chunk of channel state, with --state also of all other files, beside the directory
of the checkpoint: chk-7.seal.json. verify finds it there, and so finds later damage that Flink cannot see. Run it right after
the checkpoint; one that is damaged already is refused. Remove the seal together with the checkpoint: Flink does not know it.`,
		Example: `  ckpt-inspect flink seal --dry-run /flink/chk-3
  ckpt-inspect flink seal --state --out /flink/seals/chk-3.seal.json /flink/chk-3`,
		Args: oneArg("checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				s, err := i.Seal(cmd.Context(), t, o)
				if err != nil {
					return err
				}
				return a.print(s)
			})
		},
	}
	a.jobFlag(cmd)
	cmd.Flags().StringVar(&o.Out, "out", "", "the file to write (default: beside the checkpoint)")
	cmd.Flags().BoolVar(&o.State, "state", false, "also files of keyed and operator state")
	cmd.Flags().BoolVarP(&o.DryRun, "dry-run", "n", false, "write nothing")
	return cmd
}
