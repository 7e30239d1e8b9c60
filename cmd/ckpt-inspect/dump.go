package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/inspect"
)

func (a *app) dump() *cobra.Command {
	var o inspect.DumpOptions
	cmd := &cobra.Command{
		Use: "dump CHECKPOINT|FILE", Short: "Print captured buffers, one by one",
		Long: `Prints the buffers that were captured: where they stand in the stream of their connection (epoch/offset#number) and where
they lie. The filters choose subtasks and channels. Damage does not stop it: what is intact is printed.

Records are told apart on edges whose serializer begins with "length-prefixed" (each behind its big-endian int32 length), or
everywhere with --records. It cannot see what records mean. Of Flink, --records decodes the stream elements: records with their
timestamps, watermarks, watermark statuses, latency markers.`,
		Example: `  ckpt-inspect dump /ckpt/words
  ckpt-inspect dump --digest --json /flink/chk-3
  ckpt-inspect dump --vertex count --records /flink/chk-3
  ckpt-inspect dump --digest --json /ckpt/words/chk-0000000007
  ckpt-inspect dump --vertex count --subtask 0 --gate 0 --channel 1 --hex /ckpt/words
  ckpt-inspect dump --side output --records /ckpt/words/chk-0000000007`,
		Args: oneArg("checkpoint or file"),
	}
	a.jobFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.Vertex, "vertex", "", "only subtasks of this vertex; of Flink, operator by name, uid or id")
	f.StringVar(&o.Side, "side", "", "only this side: input, output or state")
	numbers := map[string]*struct {
		value int
		to    **int
	}{"subtask": {to: &o.Subtask}, "gate": {to: &o.Gate}, "channel": {to: &o.Channel}, "partition": {to: &o.Partition}, "subpartition": {to: &o.Subpartition}}
	for name, n := range numbers {
		f.IntVar(&n.value, name, 0, "only this "+name)
	}
	f.BoolVar(&o.Digest, "digest", false, "print the SHA-256 of each buffer")
	f.BoolVar(&o.Hex, "hex", false, "print the bytes")
	f.BoolVar(&o.Records, "records", false, "tell records apart on all edges, and print how they begin")
	_ = cmd.RegisterFlagCompletionFunc("side", cobra.FixedCompletions([]string{"input", "output", "state"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for name, n := range numbers {
			if f.Changed(name) {
				*n.to = &n.value
			}
		}
		return a.with(cmd.Context(), args[0], false, func(i *inspect.Inspector, t *inspect.Target) error {
			w := bufio.NewWriter(a.stdout)
			p := dumpPrinter{app: a, w: w, records: o.Records, hex: o.Hex}
			findings, err := i.Dump(cmd.Context(), t, o, p.buffer)
			if flushed := w.Flush(); err == nil {
				err = flushed // else it may be the same, said twice
			}
			if err != nil {
				return err
			}
			return a.incomplete(args[0], findings)
		})
	}
	return cmd
}

// incomplete says on stderr that damage was left out.
func (a *app) incomplete(name string, findings []inflight.Finding) error {
	for _, f := range findings {
		if f.Severity == inflight.SeverityError {
			return &inflight.Error{Op: "dump", Object: name, Mend: "verify tells all", Err: fmt.Errorf("%w: not all is intact: %s", inflight.ErrCorrupt, f)}
		}
	}
	return nil
}

// dumpPrinter prints buffers.
type dumpPrinter struct {
	*app
	w            io.Writer
	records, hex bool
	head         string // what the last buffer belonged to
}

func (p *dumpPrinter) buffer(d *inspect.Dumped) error {
	if p.json {
		return writeJSON(p.w, &d.BufferLine)
	}
	if head := d.Title(); head != p.head {
		p.head = head
		fmt.Fprintln(p.w, p.paint(bold, head))
	}
	_, err := fmt.Fprintln(p.w, "  "+d.String())
	if p.hex {
		for l := range strings.Lines(hex.Dump(d.Bytes)) {
			fmt.Fprint(p.w, "    "+l)
		}
	}
	if p.records {
		for _, r := range d.Ended {
			fmt.Fprintln(p.w, "    "+r.String())
		}
	}
	return err
}
