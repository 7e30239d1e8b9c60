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
connection that consumed + captured = emitted. It reads indexes, not data, except to count records.`,
		Example: `  ckpt-inspect show /ckpt/words
  ckpt-inspect show --top 3 /ckpt/words/chk-0000000007
  ckpt-inspect show --json /ckpt`,
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
	return cmd
}

func (a *app) verify() *cobra.Command {
	var o inspect.VerifyOptions
	cmd := &cobra.Command{
		Use: "verify CHECKPOINT|FILE", Short: "Check every byte, and the conservation account",
		Long: `Reads every byte of a checkpoint and checks it: headers, checksums, indexes, digests, that no file or subtask is missing, and
that for every connection consumed + captured = emitted. Of a damaged file it says what can be salvaged. With --all it checks
every checkpoint of a job, or of all jobs, and that between checkpoints nothing went back.`,
		Example: `  ckpt-inspect verify /ckpt/words
  ckpt-inspect verify --all --json /ckpt
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
