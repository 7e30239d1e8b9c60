package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/cmd/ckpt-run/doctor"
)

// checkLine is a line of "ckpt-run doctor --json".
type checkLine struct {
	Event string `json:"event"` // check
	doctor.Check
}

func (a *app) doctor() *cobra.Command {
	store, parallelism := "", 2
	cmd := &cobra.Command{
		Use: "doctor [aligned|unaligned|mixed]", Short: "Look at the machine and the store before a run",
		Long: `Looks at what a job will need: open files, memory, free space, the spill directory, what the store promises, how long a small
object takes, and whether its clock is right. It writes a few small objects to the store, in a folder doctor-<random> that it
removes. Exit code 1: something will stand in the way; 0: nothing, or it only may.`,
		Example: `  ckpt-run doctor --store /ckpt
  ckpt-run doctor --store /ckpt --set unaligned.max-buffered-data=1GiB --json`,
		Args: words,
		RunE: func(cmd *cobra.Command, args []string) error {
			if store == "" {
				return usage("--store is wanted")
			}
			c, err := a.configure(cmd.Flags(), args)
			if err != nil {
				return err
			}
			s, err := c.Settings()
			if err != nil {
				return err
			}
			b, err := backends.Open(cmd.Context(), store)
			if err != nil {
				return err
			}
			defer b.Close()
			tasks := 3 * parallelism // source, count and sink
			checks := doctor.Run(cmd.Context(), doctor.Options{Backend: b, MaxBuffered: s.Writer.MaxBuffered, Network: int64(s.Dataflow.Memory),
				SpillDir: s.Writer.SpillDir, Files: (tasks + s.Writer.TasksPerFile - 1) / s.Writer.TasksPerFile})
			return a.diagnosis(checks)
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "path or URL of the store")
	cmd.Flags().IntVar(&parallelism, "parallelism", parallelism, "subtasks of each vertex")
	return cmd
}

// diagnosis prints the checks; one that failed is the command's failure.
func (a *app) diagnosis(checks []doctor.Check) error {
	r, bad := a.newReport(), 0
	colours := map[doctor.State]string{doctor.OK: normal, doctor.Warning: yellow, doctor.Failed: red}
	for _, c := range checks {
		r.event(checkLine{"check", c}, func() string {
			text := r.paint(colours[c.State], fmt.Sprintf("%-8s", c.State)) + fmt.Sprintf("%-16s %s\n", c.Name, c.Text)
			if c.Mend != "" {
				text += fmt.Sprintf("%-24s mend: %s\n", "", c.Mend)
			}
			return text
		})
		if c.State == doctor.Failed {
			bad++
		}
	}
	if bad > 0 {
		return failure{fmt.Errorf("%s failed", plural(bad, "check"))}
	}
	return r.failed()
}
