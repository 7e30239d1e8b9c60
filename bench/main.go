// Command bench measures Spillway against plain writes and reads of the same
// bytes in the same run, and beside Apache Flink's own classes (flink/).
//
//	bench mode=w|lat|r|m|mem|raw [S=n] [cells=REGEXP] [profile=FILE] fs=shm|disk dir=DIR level=quick|full out=FILE
//	bench report [-benchfmt] FILE...
//	bench check
//
// The first form runs one workload (README.md describes them) and appends its
// records to FILE, one JSON object a line: flink/run.sh calls it after Flink's
// driver, with the same arguments, as GO_IMPL_CMD. cells picks cells by name,
// profile writes a CPU profile. The second prints records as tables, or for
// benchstat. The third prints the sums of the payload.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/bench/payload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := dispatch(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const usage = `bench mode=w|lat|r|m|mem|raw [S=n] [cells=REGEXP] [profile=FILE] fs=shm|disk dir=DIR level=quick|full out=FILE
bench report [-benchfmt] FILE...
bench check`

func dispatch(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "report":
		return runReport(args[1:], stdout)
	case len(args) == 1 && args[0] == "check":
		_, err := io.WriteString(stdout, payload.Check())
		return err
	case len(args) > 0 && strings.Contains(args[0], "="):
		return runMode(ctx, args, stdout)
	}
	return errors.New("usage:\n" + usage)
}

// runMode runs one workload.
func runMode(ctx context.Context, args []string, log io.Writer) (err error) {
	opt := map[string]string{"level": "full", "S": "1"}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || v == "" {
			return fmt.Errorf("argument %q: want name=value\n%s", a, usage)
		}
		opt[k] = v
	}
	r := &runner{dir: opt["dir"], fs: opt["fs"], level: level{quick: opt["level"] == "quick"}, log: log}
	s, err := strconv.Atoi(opt["S"])
	var badCells error
	r.cells, badCells = regexp.Compile(opt["cells"])
	switch {
	case err != nil || s < 1:
		return fmt.Errorf("argument S=%s: want a number of subtasks", opt["S"])
	case badCells != nil:
		return badCells
	case r.dir == "" || opt["out"] == "":
		return errors.New("dir and out are needed\n" + usage)
	case r.fs != "shm" && r.fs != "disk":
		return fmt.Errorf("argument fs=%s: want shm or disk", r.fs)
	case opt["level"] != "quick" && opt["level"] != "full":
		return fmt.Errorf("argument level=%s: want quick or full", opt["level"])
	}
	modes := map[string]func(context.Context) error{
		"w":   func(ctx context.Context) error { return r.writer(ctx, s) },
		"lat": r.latency,
		"r":   r.restore,
		"m":   r.metadata,
		"mem": r.memory,
		"raw": r.raw,
	}
	run := modes[opt["mode"]]
	if run == nil {
		return fmt.Errorf("argument mode=%s: want w, lat, r, m, mem or raw", opt["mode"])
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(opt["out"], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	r.out = out
	if opt["profile"] == "" {
		return run(ctx)
	}
	return profiled(opt["profile"], func() error { return run(ctx) })
}

// profiled runs f and writes a CPU profile of it.
func profiled(name string, f func() error) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}
