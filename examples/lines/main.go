// Command lines counts the words of a file, slowly, and survives kill -9. It is
// a small stream processor of goroutines and channels that keeps its checkpoints
// with Spillway, as any engine would: pipeline.go moves records and barriers,
// coordinator.go takes checkpoints and restores them, and this file has the
// flags and the files. docs/plugging-in.md goes through it step by step.
//
//	read ──▶ split ×2 ──▶ count ×2 ──▶ output
//
// The output has a line word<TAB>count for each word, sorted, as
// LC_ALL=C tr -s '[:space:]' '\n' <FILE | grep . | LC_ALL=C sort | uniq -c counts.
package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/inflight"
)

// settings are what the flags say, and what tests watch through.
type settings struct {
	store, input, output string
	interval, sleep      time.Duration

	options spillway.Options
	tick    func(time.Duration) <-chan time.Time
	buffer  func([]byte) inflight.Buffer
	say     func(format string, args ...any) // logs one line
}

var standard = settings{tick: time.Tick, buffer: func(b []byte) inflight.Buffer { return inflight.Bytes(b) }, say: func(format string, args ...any) {
	log.Print("lines: ", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}}

func main() {
	log.SetFlags(0)
	s, code := standard, 2
	c := &cobra.Command{Use: "lines", Short: "Counts the words of a file, slowly, and survives kill -9", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true}
	c.Flags().StringVar(&s.store, "store", "", "directory or `URL` of the checkpoints")
	c.Flags().StringVar(&s.input, "input", "", "`FILE` to count the words of")
	c.Flags().StringVar(&s.output, "output", "", "`FILE` to write the counts to")
	c.Flags().TextVar(&s.options.Start.Base, "restore", catalog.BaseFresh, "go on from the `latest` checkpoint, or from none")
	c.Flags().DurationVar(&s.interval, "interval", 200*time.Millisecond, "from one checkpoint to the next")
	c.Flags().DurationVar(&s.sleep, "sleep", time.Millisecond, "how long it takes to count a word")
	c.RunE = func(*cobra.Command, []string) (err error) {
		code, err = run(context.Background(), s)
		return err
	}
	if err := c.Execute(); err != nil {
		s.say("%v", err)
		os.Exit(code)
	}
}

// open tries what the end will need, and opens the input: it can be read again
// from any place, and the output can be written.
func (s *settings) open() (*os.File, error) {
	if s.input == "" || s.output == "" || min(s.interval, s.sleep) < 0 {
		return nil, fmt.Errorf("--input or --output is missing, or a duration is negative: see --help")
	}
	for _, name := range []string{s.input, s.output} {
		if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() { // to open a pipe waits for its other end
			return nil, fmt.Errorf("%s: it must be a regular file", name)
		}
	}
	output, err := renameio.NewPendingFile(s.output)
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Cleanup() }()
	return os.Open(s.input)
}

// write writes the counts, sorted, to the output, which appears at once.
func (s *settings) write(c counts) error {
	var text []byte
	for _, word := range slices.Sorted(maps.Keys(c)) {
		text = fmt.Appendf(text, "%s\t%d\n", word, c[word])
	}
	return renameio.WriteFile(s.output, text, 0o644)
}
