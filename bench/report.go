package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// runReport prints the records of files.
func runReport(args []string, w io.Writer) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	benchfmt := fs.Bool("benchfmt", false, "a line for each round, for benchstat")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var recs []*record
	for _, name := range fs.Args() {
		more, err := readRecords(name)
		if err != nil {
			return err
		}
		recs = append(recs, more...)
	}
	if len(recs) == 0 {
		return errors.New("report: no records")
	}
	if *benchfmt {
		return writeBenchfmt(w, recs)
	}
	return writeTables(w, recs)
}

func readRecords(name string) (recs []*record, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		rec := &record{}
		if err := json.Unmarshal(lines.Bytes(), rec); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rec.Impl = cmp.Or(rec.Impl, "raw")
		recs = append(recs, rec)
	}
	return recs, lines.Err()
}

// key names a row, whoever measured it.
func (r *record) key() string {
	switch r.Kind {
	case "M":
		return fmt.Sprintf("%d/%s", r.Handles, r.Form)
	case "R":
		return r.Name + "/" + r.Gate + "/" + r.Cache
	case "GO":
		return r.Name + "/" + r.Op
	}
	return r.Name
}

// line is the record in a few words, for the log.
func (r *record) line() string {
	wall := r.Wall
	if r.Kind == "M" {
		wall = r.StoreFile
	}
	s := fmt.Sprintf("%s %s %s: %d rounds, median %.3f ms", r.Kind, r.FS, r.key(), len(wall), median(wall)/1e6)
	if x := r.ratio(); x > 0 {
		s += fmt.Sprintf(", %.2f x plain", x)
	}
	return s
}

// ratio is the median over the rounds of wall time to the plain write or read
// beside it; 0 where there is none.
func (r *record) ratio() float64 {
	plain := r.PlainForce
	if r.Kind == "R" {
		plain = r.PlainRead
	}
	if len(plain) == 0 || len(plain) != len(r.Wall) {
		return 0
	}
	ratios := make([]float64, len(plain))
	for i := range plain {
		ratios[i] = float64(r.Wall[i]) / float64(plain[i])
	}
	return median(ratios)
}

// cpuPerGB is seconds of CPU time to 10^9 bytes of payload.
func (r *record) cpuPerGB() float64 {
	return float64(r.CPU) / float64(r.Bytes) / float64(max(r.Rounds, 1))
}

// cpuRatio is CPU time to that of the plain writes or reads beside it: on a busy
// machine it holds where wall time does not.
func (r *record) cpuRatio() float64 {
	if r.PlainCPU == 0 {
		return 0
	}
	return float64(r.CPU) / float64(r.PlainCPU)
}

// megabytes is the throughput for wall time ns.
func (r *record) megabytes(ns float64) float64 { return float64(r.Bytes) / ns * 1e3 }

func median[T int64 | float64](xs []T) float64 {
	if len(xs) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(xs))
	n := len(s)
	return (float64(s[(n-1)/2]) + float64(s[n/2])) / 2
}

func percentile(xs []int64, p float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(xs))
	return float64(s[min(len(s)-1, int(p*float64(len(s))))])
}

// A table prints the records of one kind.
type table struct {
	kind, title string
	columns     []column
}

type column struct {
	head  string
	value func(*record) string
}

var tables = []table{
	{"W", "W: writer. x plain: against a sequential write + fsync of the same bytes in the same round", []column{
		{"ms", func(r *record) string { return number(median(r.Wall)/1e6, 2) }},
		{"MB/s", func(r *record) string { return number(r.megabytes(median(r.Wall)), 0) }},
		{"plain MB/s", func(r *record) string { return number(r.megabytes(median(r.PlainForce)), 0) }},
		{"x plain", func(r *record) string { return times(r.ratio()) }},
		{"bar", func(r *record) string { return verdict(r.ratio(), ratioBar(r)) }},
		{"CPU s/GB", func(r *record) string { return number(r.cpuPerGB(), 2) }},
		{"bar", func(r *record) string { return verdict(r.cpuPerGB(), cpuBar(r)) }},
		{"CPU x plain", func(r *record) string { return times(r.cpuRatio()) }},
		{"allocs/buffer", perBuffer},
		{"files", func(r *record) string { return strconv.Itoa(r.Files) }},
		{"peak MB", func(r *record) string { return number(float64(r.RSSPeak)/1024, 0) }},
	}},
	{"LAT", "LAT: small checkpoints. x plain: a write + fsync, ours in a fresh directory, Flink's in the base directory", []column{
		{"p50 us", func(r *record) string { return number(median(r.Wall)/1e3, 0) }},
		{"p99 us", func(r *record) string { return number(percentile(r.Wall, .99)/1e3, 0) }},
		{"plain p50", func(r *record) string { return number(median(r.PlainForce)/1e3, 0) }},
		{"x plain", func(r *record) string { return times(r.ratio()) }},
		{"bar", func(r *record) string { return verdict(r.ratio(), ratioBar(r)) }},
		{"CPU us", func(r *record) string { return number(float64(r.CPU)/1e3/float64(max(r.Rounds, 1)), 0) }},
		{"CPU x plain", func(r *record) string { return times(r.cpuRatio()) }},
		{"files", func(r *record) string { return strconv.Itoa(r.Files) }},
	}},
	{"R", "R: restore, verified. x plain: against a sequential read of the same files in the same round", []column{
		{"ms", func(r *record) string { return number(median(r.Wall)/1e6, 2) }},
		{"MB/s", func(r *record) string { return number(r.megabytes(median(r.Wall)), 0) }},
		{"plain MB/s", func(r *record) string { return number(r.megabytes(median(r.PlainRead)), 0) }},
		{"x plain", func(r *record) string { return times(r.ratio()) }},
		{"bar", func(r *record) string { return verdict(r.ratio(), ratioBar(r)) }},
		{"CPU s/GB", func(r *record) string { return number(r.cpuPerGB(), 2) }},
		{"CPU x plain", func(r *record) string { return times(r.cpuRatio()) }},
		{"allocs/buffer", perBuffer},
	}},
	{"M", "M: metadata (manifest and sections; Flink: _metadata)", []column{
		{"bytes", func(r *record) string { return strconv.Itoa(r.Bytes) }},
		{"serialise ms", func(r *record) string { return number(median(r.SerMem)/1e6, 3) }},
		{"parse ms", func(r *record) string { return number(median(r.ParseMem)/1e6, 3) }},
		{"store ms", func(r *record) string { return number(median(r.StoreFile)/1e6, 3) }},
		{"load ms", func(r *record) string { return number(median(r.LoadFile)/1e6, 3) }},
		{"plain ms", func(r *record) string { return number(median(r.PlainForce)/1e6, 3) }},
	}},
	{"MEM-W", "Peak memory beyond the payload: captured", memoryColumns},
	{"MEM-R", "Peak memory beyond the payload: restored", memoryColumns},
	{"GO", "The raw limit", []column{
		{"ms", func(r *record) string { return number(median(r.Wall)/1e6, 3) }},
		{"MB/s", func(r *record) string { return number(r.megabytes(median(r.Wall)), 0) }},
		{"CPU s/GB", func(r *record) string { return number(r.cpuPerGB(), 2) }},
	}},
}

var memoryColumns = []column{
	{"payload MiB", func(r *record) string { return number(float64(r.Bytes)/(1<<20), 0) }},
	{"beyond MiB", func(r *record) string { return number(r.beyond(), 1) }},
	{"bar", func(r *record) string { return verdict(r.beyond(), 64) }},
}

// beyond is the peak of resident memory over what was resident before, in MiB.
func (r *record) beyond() float64 { return float64(r.RSSPeak-r.RSSBase) / 1024 }

// perBuffer is heap objects per buffer: below 1 in 100 it is the price of a
// checkpoint, not of a buffer.
func perBuffer(r *record) string {
	if r.AllocObjects == nil {
		return ""
	}
	return number(median(r.AllocObjects)/float64(max(r.Buffers, 1)), 3)
}

func number(x float64, digits int) string {
	if x == 0 {
		return ""
	}
	return strconv.FormatFloat(x, 'f', digits, 64)
}

func times(x float64) string { return number(x, 2) }

// verdict is the bar, and whether x is under it.
func verdict(x, bar float64) string {
	switch {
	case bar == 0 || x == 0:
		return ""
	case x <= bar:
		return fmt.Sprintf("<= %g met", bar)
	}
	return fmt.Sprintf("<= %g MISSED", bar)
}

// writeTables prints a table for each kind; the implementations of one cell
// stand side by side.
func writeTables(w io.Writer, recs []*record) error {
	for _, t := range tables {
		rows := ofKind(recs, t.kind)
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", t.title)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		heads := []string{"fs", "workload", "impl"}
		for _, c := range t.columns {
			heads = append(heads, c.head)
		}
		fmt.Fprintln(tw, strings.Join(heads, "\t"))
		for _, r := range rows {
			cells := []string{r.FS, r.key(), r.Impl}
			for _, c := range t.columns {
				cells = append(cells, c.value(r))
			}
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	writeMetadataBars(w, recs)
	writeAllocationBars(w, recs)
	return nil
}

// ofKind returns the records of a kind in the order in which their cells first
// appear.
func ofKind(recs []*record, kind string) (rows []*record) {
	order := map[string]int{}
	for _, r := range recs {
		if r.Kind == kind {
			rows = append(rows, r)
			if k := r.FS + " " + r.key(); order[k] == 0 {
				order[k] = len(order) + 1
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b *record) int {
		return cmp.Compare(order[a.FS+" "+a.key()], order[b.FS+" "+b.key()])
	})
	return rows
}

// writeBenchfmt prints each round as a benchmark result.
func writeBenchfmt(w io.Writer, recs []*record) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "pkg: github.com/spillway-io/spillway/bench")
	for _, r := range recs {
		name := fmt.Sprintf("Benchmark%s/fs=%s/cell=%s/impl=%s", r.Kind, r.FS, strings.ReplaceAll(r.key(), "/", "-"), r.Impl)
		for i, ns := range r.Wall {
			fmt.Fprintf(b, "%s 1 %d ns/op %.2f MB/s", name, ns, r.megabytes(float64(ns)))
			for _, plain := range [][]int64{r.PlainForce, r.PlainRead} {
				if i < len(plain) {
					fmt.Fprintf(b, " %.3f x-plain", float64(ns)/float64(plain[i]))
				}
			}
			fmt.Fprintln(b)
		}
		for _, m := range []struct {
			op   string
			list []int64
		}{{"serialise", r.SerMem}, {"parse", r.ParseMem}, {"store", r.StoreFile}, {"load", r.LoadFile}} {
			for _, ns := range m.list {
				fmt.Fprintf(b, "%s/op=%s 1 %d ns/op\n", name, m.op, ns)
			}
		}
	}
	return b.Flush()
}
