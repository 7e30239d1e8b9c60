// Command lines counts the words of a file, slowly, and survives kill -9. It is
// a small stream processor of goroutines and channels that keeps its checkpoints
// with Spillway, as any engine would: pipeline.go moves records and barriers,
// coordinator.go takes checkpoints and restores them, and this file has the
// flags and the files.
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

	"github.com/spillway-io/spillway/catalog"
)

var (
	store    = flag.String("store", "", "directory or `URL` of the checkpoints")
	input    = flag.String("input", "", "`FILE` to count the words of")
	output   = flag.String("output", "", "`FILE` to write the counts to")
	base     = flag.String("restore", "nothing", "go on from the `latest` checkpoint")
	interval = flag.Duration("interval", 200*time.Millisecond, "from one checkpoint to the next")
	sleep    = flag.Duration("sleep", time.Millisecond, "how long it takes to count a word")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lines: ")
	code, err := 2, parse(flag.CommandLine)
	if err == nil {
		code, err = run(context.Background())
	}
	if err != nil {
		say("%v", err)
	}
	os.Exit(code)
}

const usage = "usage: lines --store URL --input FILE --output FILE [--restore latest] [--interval D] [--sleep D]"

// parse takes the arguments.
func parse(f *flag.FlagSet) error {
	f.Init("lines", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	switch err := f.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(os.Stdout)
		fmt.Println(usage)
		f.PrintDefaults()
		os.Exit(0)
	case err != nil:
		return fmt.Errorf("%w: see -h", err)
	case f.NArg() > 0:
		return fmt.Errorf("unknown argument %q: see -h", f.Arg(0))
	}
	return nil
}

// wishes are what --restore may be.
var wishes = map[string]catalog.BaseWish{"latest": catalog.BaseLatest, "nothing": catalog.BaseFresh}

// check tries what the end will need, and opens the input: it can be read again
// from any place, and the output can be written.
func check() (*os.File, error) {
	if _, known := wishes[*base]; !known || *input == "" || *output == "" || min(*interval, *sleep) < 0 {
		return nil, errors.New(usage)
	}
	if info, err := os.Stat(*input); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() { // to open a pipe waits for its other end
		return nil, fmt.Errorf("%s: the input must be a regular file", *input)
	}
	if info, err := os.Stat(*output); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: the output must be a regular file", *output)
	}
	defer func() { _ = os.Remove(temporary()) }()
	if err := os.WriteFile(temporary(), nil, 0o644); err != nil {
		return nil, err
	}
	return os.Open(*input)
}

// say logs one line.
func say(format string, args ...any) {
	log.Print(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

func temporary() string { return fmt.Sprintf("%s.%d", *output, os.Getpid()) }

// write writes the counts, sorted, to the output, which appears at once.
func (c counts) write() error {
	var text []byte
	for _, word := range slices.Sorted(maps.Keys(c))[1:] { // the first is none
		text = fmt.Appendf(text, "%s\t%d\n", word, c[word])
	}
	err := os.WriteFile(temporary(), text, 0o644)
	if err == nil {
		err = os.Rename(temporary(), *output)
	}
	if err != nil {
		_ = os.Remove(temporary()) // or there is none
	}
	return err
}
