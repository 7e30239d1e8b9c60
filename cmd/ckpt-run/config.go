package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway/internal/config"
)

// optionLine is a line of "ckpt-run config --json".
type optionLine struct {
	Event string `json:"event"` // option
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
	Name  string `json:"name,omitempty"`
}

// froms are the words for the places that a value comes from.
var froms = map[config.Layer]string{config.Default: "default", config.Preset: "argument", config.File: "file", config.Environment: "environment"}

// from says where the value of an option comes from, in one word.
func from(e config.Effective) string {
	switch word := froms[e.Layer]; {
	case word != "":
		return word
	case strings.HasPrefix(e.Origin, "--set"):
		return "--set"
	case strings.HasPrefix(e.Origin, "--"):
		return "flag"
	}
	return "argument"
}

func (a *app) config() *cobra.Command {
	return &cobra.Command{
		Use: "config [fast|slow] [aligned|unaligned|mixed]", Short: "Print the options in force, and where each value comes from",
		Long: `Prints all options: name, value, and where the value comes from: default, argument, flag, --set, file or environment. What comes
later in this list counts more: defaults, file, environment, command line. What contradicts itself is refused, and what can have
no effect is said on stderr.`,
		Example: `  ckpt-run config
  ckpt-run config mixed --set network=credit
  ckpt-run config --config job.yaml --json`,
		Args: words,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.configure(cmd.Flags(), args)
			if err != nil {
				return err
			}
			if _, err := c.Settings(); err != nil {
				return err
			}
			r := a.newReport()
			rows := [][]string{{"option", "value", "from", "as"}}
			for _, e := range c.Effective() {
				l := optionLine{Event: "option", Key: e.Key, Value: e.Value, From: from(e)}
				if l.From != "default" {
					l.Name = e.Origin
				}
				rows = append(rows, []string{l.Key, dash(l.Value), l.From, l.Name})
				if a.json {
					r.event(l, nil)
				}
			}
			for i, line := range table(rows) {
				if i == 0 {
					line = r.paint(dim, line)
				}
				r.say("%s", line)
			}
			for _, text := range append(c.Notes(), c.Warnings()...) {
				fmt.Fprintf(a.stderr, "ckpt-run: %s\n", text)
			}
			return r.failed()
		},
	}
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
