package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/inspect"
)

func (a *app) ls() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls URL", Short: "List jobs and the slots of their logs",
		Long: `Lists the slots of each job's log: checkpoints, claims of coordinators, ids that were given up and why, and what is
pending or orphaned. A slot that is damaged, or lacks files, is a finding.`,
		Example: `  ckpt-inspect ls /ckpt
  ckpt-inspect ls --job words --json /ckpt
  ckpt-inspect ls file:///ckpt/words`,
		Args: oneArg("folder with jobs, a job, or a checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				list, err := i.List(cmd.Context(), t)
				if err != nil {
					return err
				}
				return a.print(list)
			})
		},
	}
	a.jobFlag(cmd)
	return cmd
}

func (a *app) show() *cobra.Command {
	var o inspect.ShowOptions
	cmd := &cobra.Command{
		Use: "show CHECKPOINT", Short: "Show what was in flight in a checkpoint",
		Long: `Shows a checkpoint by subtask, edge and channel: bytes and buffers by side, whole records where the edge says that they are
length-prefixed, the fullest channels, how long each subtask took, and the conservation account, which proves for every
connection that consumed + captured = emitted. It reads indexes, not data, except to count records.

Of a checkpoint of Flink it lists the operators, and with --by size what takes the room in _metadata. Its edges are told by the
records that go on from one end to the other, so all channel state is read.`,
		Example: `  ckpt-inspect show /ckpt/words
  ckpt-inspect show --top 3 /ckpt/words/chk-0000000007
  ckpt-inspect show --json /ckpt
  ckpt-inspect show --by size /flink/chk-3
  ckpt-inspect show --digest --json /flink/chk-3`,
		Args: oneArg("checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				v, err := i.Show(cmd.Context(), t, o)
				if err != nil {
					return err
				}
				return a.print(v)
			})
		},
	}
	a.jobFlag(cmd)
	cmd.Flags().BoolVar(&o.Records, "records", false, "count records on all edges as if they were length-prefixed")
	cmd.Flags().IntVar(&o.Top, "top", 10, "how many channels to list")
	cmd.Flags().StringVar(&o.By, "by", "", "order tables by size, largest first")
	cmd.Flags().BoolVar(&o.Digest, "digest", false, "of Flink: read all files, and print their SHA-256 (JSON)")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{inspect.BySize}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) channels() *cobra.Command {
	cmd := &cobra.Command{
		Use: "channels CHECKPOINT", Short: "List channels, and where in files they lie",
		Long: `Prints a line for each channel that anything was captured of: buffers, bytes, records where they can be told apart, and the
ranges of files that hold it. Those of Spillway's files are blocks, which several channels may share; those of Flink's are its
chunks.`,
		Example: `  ckpt-inspect channels /ckpt/words
  ckpt-inspect channels --json /flink/chk-3`,
		Args: oneArg("checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				c, err := i.Channels(cmd.Context(), t)
				if err != nil {
					return err
				}
				return a.print(c)
			})
		},
	}
	a.jobFlag(cmd)
	return cmd
}

func (a *app) du() *cobra.Command {
	top := 10
	cmd := &cobra.Command{
		Use: "du CHECKPOINT", Short: "Tell what takes room in a checkpoint",
		Long: `Counts bytes by file (on the store), and by vertex, edge and channel (as they were captured), largest first.`,
		Example: `  ckpt-inspect du /ckpt/words
  ckpt-inspect du --top 3 /flink/chk-3
  ckpt-inspect du --json /flink/chk-3`,
		Args: oneArg("checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				u, err := i.Usage(cmd.Context(), t, top)
				if err != nil {
					return err
				}
				return a.print(u)
			})
		},
	}
	a.jobFlag(cmd)
	cmd.Flags().IntVar(&top, "top", 10, "how many of each to list")
	return cmd
}

func (a *app) diff() *cobra.Command {
	return &cobra.Command{
		Use: "diff A B", Short: "Compare two checkpoints",
		Long: `Tells what was added, what is gone and what changed from checkpoint A to checkpoint B: operators, subtasks, state, edges,
channels, files. Channels are compared by what they hold, not by where it lies, so a checkpoint and what it was rewritten or
converted to compare equal there. The exit code is 0 either way.`,
		Example: `  ckpt-inspect diff /ckpt/words/chk-0000000001 /ckpt/words/chk-0000000007
  ckpt-inspect diff --json /ckpt/words/chk-0000000001 /ckpt/words/chk-0000000007
  ckpt-inspect diff /flink/chk-3 /flink/chk-3`,
		Args: twoArgs("checkpoint A", "checkpoint B"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, before *inspect.Target) error {
				after, err := i.Find(cmd.Context(), args[1], "")
				if err != nil {
					return err
				}
				defer after.Close()
				d, err := i.Diff(cmd.Context(), before, after)
				if err != nil {
					return err
				}
				return a.print(d)
			})
		},
	}
}

func (a *app) verify() *cobra.Command {
	var o inspect.VerifyOptions
	cmd := &cobra.Command{
		Use: "verify CHECKPOINT|FILE", Short: "Check every byte, and the conservation account",
		Long: `Reads every byte of a checkpoint and checks it: headers, checksums, indexes, digests, that no file or subtask is missing, and
that for every connection consumed + captured = emitted. Of a damaged file it says what can be salvaged. With --all it checks
every checkpoint of a job, or of all jobs, and that between checkpoints nothing went back.

Flink writes no checksums: of its checkpoints the structure is checked, to the framing of records, and the checksums of a seal
where one lies beside the directory.`,
		Example: `  ckpt-inspect verify /ckpt/words
  ckpt-inspect verify --all --json /ckpt
  ckpt-inspect verify /flink/chk-3
  ckpt-inspect verify /ckpt/words/chk-0000000007/g0-a1.cstate`,
		Args: oneArg("checkpoint or file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			failed, first := false, true
			err := a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				return i.Verify(cmd.Context(), t, o, func(v *inspect.Verification) error {
					if !first && !a.json {
						fmt.Fprintln(a.stdout)
					}
					first, failed = false, failed || v.Failed()
					return a.write(v)
				})
			})
			if err == nil && failed {
				err = inspect.ErrFindings
			}
			return err
		},
	}
	a.jobFlag(cmd)
	cmd.Flags().BoolVar(&o.All, "all", false, "verify every checkpoint of the job or root")
	cmd.Flags().BoolVar(&o.Records, "records", false, "count records on all edges as if they were length-prefixed")
	cmd.Flags().StringVar(&o.Seal, "seal", "", "of Flink: compare with this seal (default: the one beside the checkpoint)")
	return cmd
}

func (a *app) roundtrip() *cobra.Command {
	cmd := &cobra.Command{
		Use: "roundtrip CHECKPOINT", Short: "Restore into memory, and compare with the capture",
		Long: `Restores a checkpoint into channels in memory, as an engine of the same topology would, and compares what arrives with
what was captured: buffers, bytes, digests, positions and order of every channel. Nothing is written.`,
		Example: `  ckpt-inspect roundtrip /ckpt/words
  ckpt-inspect roundtrip --json /ckpt/words/chk-0000000007`,
		Args: oneArg("checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
				r, err := i.Roundtrip(cmd.Context(), t)
				if err != nil {
					return err
				}
				return a.print(r)
			})
		},
	}
	a.jobFlag(cmd)
	return cmd
}

func (a *app) gc() *cobra.Command {
	var o inspect.CollectOptions
	cmd := &cobra.Command{
		Use: "gc URL", Short: "Delete what no kept checkpoint needs",
		Long: `Deletes what no kept checkpoint needs: entries and files of retired checkpoints and claims, of aborted ids, of coordinators
that are over, and what unfinished writers left. It may run beside a running job. What is above the newest entry may be being
written: it stays, unless --fence ends whoever writes it by claiming the next slot. Use --fence for jobs that are stopped.
Nothing is deleted while a kept checkpoint is damaged.`,
		Example: `  ckpt-inspect gc --dry-run /ckpt
  ckpt-inspect gc /ckpt/words
  ckpt-inspect gc --fence --job words /ckpt`,
		Args: oneArg("folder with jobs, or a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args[0], !o.DryRun, func(i *inspect.Inspector, t *inspect.Target) error {
				c, err := i.Collect(cmd.Context(), t, o)
				if c == nil {
					return err
				}
				if errPrint := a.print(c); err == nil {
					return errPrint
				}
				return err
			})
		},
	}
	a.jobFlag(cmd)
	cmd.Flags().BoolVarP(&o.DryRun, "dry-run", "n", false, "show the plan and delete nothing")
	cmd.Flags().BoolVar(&o.Fence, "fence", false, "claim the next slot first: ends whoever is at work on the job")
	return cmd
}

func (a *app) backendCheck() *cobra.Command {
	return &cobra.Command{
		Use: "backend-check URL", Short: "Try what a store promises, on the store itself",
		Long: `Runs the acceptance suite of Spillway's stores on yours: what was written is what is read, one of several exclusive creates
wins, listings are ordered, contexts end calls, and so on. It works in folders backend-check-<random>, which it removes.`,
		Example: `  ckpt-inspect backend-check /ckpt`,
		Args:    oneArg("store"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := inspect.New(inspect.Options{Now: a.now}).CheckStore(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(s)
		},
	}
}
