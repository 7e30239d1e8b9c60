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
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/inflight"
)

// settings are what the flags say, and what tests watch through.
type settings struct {
	store, input, output, base string
	interval, sleep            time.Duration

	options spillway.Options
	tick    func(time.Duration) <-chan time.Time
	buffer  func([]byte) inflight.Buffer
	say     func(format string, args ...any) // logs one line
}

var standard = settings{tick: time.Tick, buffer: func(b []byte) inflight.Buffer { return inflight.Bytes(b) }, say: func(format string, args ...any) {
	log.Print("lines: ", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}}

const usage = "usage: lines --store URL --input FILE --output FILE [--restore latest] [--interval D] [--sleep D]"

func main() {
	log.SetFlags(0)
	s, f := standard, flag.NewFlagSet("lines", flag.ContinueOnError)
	f.StringVar(&s.store, "store", "", "directory or `URL` of the checkpoints")
	f.StringVar(&s.input, "input", "", "`FILE` to count the words of")
	f.StringVar(&s.output, "output", "", "`FILE` to write the counts to")
	f.StringVar(&s.base, "restore", "nothing", "go on from the `latest` checkpoint")
	f.DurationVar(&s.interval, "interval", 200*time.Millisecond, "from one checkpoint to the next")
	f.DurationVar(&s.sleep, "sleep", time.Millisecond, "how long it takes to count a word")
	f.SetOutput(io.Discard)
	code, err := 2, f.Parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Println(usage)
		f.SetOutput(os.Stdout)
		f.PrintDefaults()
		os.Exit(0)
	case err != nil:
		err = fmt.Errorf("%w: see -h", err)
	case f.NArg() > 0:
		err = fmt.Errorf("unknown argument %q: see -h", f.Arg(0))
	default:
		code, err = run(context.Background(), s)
	}
	if err != nil {
		s.say("%v", err)
	}
	os.Exit(code)
}

// wishes are what --restore may be.
var wishes = map[string]catalog.BaseWish{"latest": catalog.BaseLatest, "nothing": catalog.BaseFresh}

// open tries what the end will need, and opens the input: it can be read again
// from any place, and the output can be written.
func (s *settings) open() (*os.File, error) {
	if _, known := wishes[s.base]; !known || s.input == "" || s.output == "" || min(s.interval, s.sleep) < 0 {
		return nil, errors.New(usage)
	}
	if info, err := os.Stat(s.input); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() { // to open a pipe waits for its other end
		return nil, fmt.Errorf("%s: the input must be a regular file", s.input)
	}
	if info, err := os.Stat(s.output); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: the output must be a regular file", s.output)
	}
	defer func() { _ = os.Remove(s.temporary()) }()
	if err := os.WriteFile(s.temporary(), nil, 0o644); err != nil {
		return nil, err
	}
	return os.Open(s.input)
}

func (s *settings) temporary() string { return fmt.Sprintf("%s.%d", s.output, os.Getpid()) }

// write writes the counts, sorted, to the output, which appears at once.
func (s *settings) write(c counts) error {
	var text []byte
	for _, word := range slices.Sorted(maps.Keys(c)) {
		text = fmt.Appendf(text, "%s\t%d\n", word, c[word])
	}
	defer func() { _ = os.Remove(s.temporary()) }() // or there is none any more
	if err := os.WriteFile(s.temporary(), text, 0o644); err != nil {
		return err
	}
	return os.Rename(s.temporary(), s.output)
}
