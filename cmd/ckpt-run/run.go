package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/cmd/ckpt-run/monitor"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/attach"
	"github.com/spillway-io/spillway/internal/config"
	"github.com/spillway-io/spillway/internal/trigger"
)

// runner is one run of a job.
type runner struct {
	*app
	*report
	log      *slog.Logger
	config   *config.Config
	settings *config.Settings
	graph    *dataflow.Graph
	ranks    map[string]int
	detail   slog.Level // of log lines that come with each checkpoint

	mu       sync.Mutex
	history  history
	replayed restoreLine // of all incarnations
	base     bool        // there was something to restore
	started  bool        // the job was claimed
	latest   string      // checkpoint, for the live line
	state    int64       // bytes of operator state in the last checkpoint

	monitor *monitor.Monitor
	space   *trigger.Space // nil: nobody asks
	refresh func()         // looks at the free space again; may be nil
}

func (a *app) newReport() *report {
	r := &report{out: a.stdout, json: a.json, colour: a.colour && !a.json}
	if a.live {
		r.terminal = a.stderr
	}
	return r
}

// run runs a job from the command line to its exit code.
func (a *app) run(ctx context.Context, flags *pflag.FlagSet, args []string) (err error) {
	if err := a.check(flags, args); err != nil {
		return err
	}
	x := &runner{app: a, report: a.newReport(), ranks: map[string]int{}}
	if x.config, err = a.configure(flags, args); err != nil {
		return err
	}
	if x.settings, err = x.config.Settings(); err != nil {
		return err
	}
	x.log = slog.New(slog.NewTextHandler(logWriter{x.report, a.stderr}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	a.pipeline.log = x.log
	x.graph = a.graph()
	if err := errors.Join(x.config.CheckGraph(x.graph), x.checkFaults()); err != nil {
		return err
	}
	if x.restore == "none" {
		if err := x.checkOutput(); err != nil {
			return err
		}
	}
	x.wire()
	b, where, err := x.openStore(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	x.introduce(where)
	defer x.watchSpace(ctx, b)()
	return x.execute(ctx, b)
}

// check refuses what makes no sense, before anything is opened.
func (a *app) check(flags *pflag.FlagSet, args []string) (err error) {
	given := flags.Changed
	if slices.Contains(args, "slow") && !given("sleep") {
		a.sleep = 5 * time.Millisecond
	}
	if given("duration") || a.input == "" && !given("records") {
		a.limit = a.duration
	}
	a.plain = a.sink == "plain"
	for _, s := range a.faults {
		f, err := dataflow.ParseFault(s)
		if err != nil {
			return err
		}
		a.pipeline.faults = append(a.pipeline.faults, f)
	}
	least := headBytes + wireBytes + 4
	switch {
	case a.parallelism < 1 || a.parallelism > dataflow.DefaultMaxParallelism:
		return usage("--parallelism %d: 1 to %d", a.parallelism, dataflow.DefaultMaxParallelism)
	case a.recordBytes < least || a.recordBytes > 16<<20:
		return usage("--record-bytes %d: %d to %d", a.recordBytes, least, 16<<20)
	case a.keys < 1:
		return usage("--keys %d: 1 at least", a.keys)
	case given("records") && a.records < 0, a.duration < 0, a.sleep < 0, a.sinkSleep < 0, a.savepointAfter < 0:
		return usage("numbers and durations are not negative")
	case a.sink != "file" && a.sink != "plain":
		return usage("--sink %s: file or plain", a.sink)
	case given("sink") && a.output == "":
		return usage("--sink needs --output")
	case given("key") && a.input == "":
		return usage("--key needs --input")
	case a.input != "" && (given("records") || given("keys") || given("record-bytes") || given("changes")):
		return usage("--input has its own records: leave --records, --keys, --record-bytes and --changes out")
	case a.restarts < -1:
		return usage("--restarts %d: -1 at least", a.restarts)
	}
	if err := catalog.CheckJob(a.job); err != nil {
		return err
	}
	if a.input != "" {
		if st, err := os.Stat(a.input); err == nil && !st.Mode().IsRegular() { // to open a pipe waits for its other end
			return usage("--input %s: a regular file is wanted, which can be read again", a.input)
		}
		f, err := os.Open(a.input)
		if err != nil {
			return &inflight.Error{Op: "open", Object: a.input, Err: err}
		}
		defer f.Close()
	}
	return nil
}

// checkFaults refuses faults of subtasks that the job does not have.
func (x *runner) checkFaults() error {
	for _, f := range x.pipeline.faults {
		if !slices.ContainsFunc(x.graph.Vertices(), func(v dataflow.VertexInfo) bool { return v.Name == f.Task.Vertex && f.Task.Subtask < v.Parallelism }) {
			return usage("--fault: the job has no subtask %s", f.Task)
		}
	}
	return nil
}

// checkOutput refuses to begin afresh in the output of another run: its counts and
// ours would be mixed.
func (x *runner) checkOutput() error {
	parts, err := filepath.Glob(filepath.Join(x.output, "part-*.tsv"))
	if x.output == "" || err != nil || len(parts) == 0 {
		return nil
	}
	return &inflight.Error{Op: "begin", Object: x.output, Err: fmt.Errorf("%w: it holds the counts of another run", inflight.ErrConfig),
		Mend: "choose another directory, or --restore latest with the store of that run"}
}

var checkpointDir = regexp.MustCompile(`^(.*?)/?([^/]+)/chk-(\d{10})/*$`)

// openStore opens the store, and says where it is. A checkpoint that is to be
// restored names its store, too.
func (x *runner) openStore(ctx context.Context) (backends.Backend, string, error) {
	switch x.restore {
	case "none", "latest":
		x.settings.Start.Base = catalog.BaseLatest
	default:
		path, query, _ := strings.Cut(x.restore, "?")
		m := checkpointDir.FindStringSubmatch(path)
		if m == nil {
			return nil, "", usage("--restore %s: latest, none, or the path of a directory chk-<id> within its job", x.restore)
		}
		if m[1] == "" { // the job's folder has no name in front of it
			m[1] = "."
			if strings.HasPrefix(path, "/") {
				m[1] = "/"
			}
		}
		if query != "" {
			m[1] += "?" + query
		}
		id, err := strconv.ParseUint(m[3], 10, 64)
		if err != nil {
			return nil, "", err
		}
		switch {
		case x.store != "" && !samePlace(x.store, m[1]):
			return nil, "", usage("--restore names another store than --store: leave --store out")
		case x.job != "job" && x.job != m[2]:
			return nil, "", usage("--restore %s is of the job %s, not %s", x.restore, m[2], x.job)
		}
		x.store, x.job = m[1], m[2]
		x.settings.Start.Base, x.settings.Start.ID = catalog.BaseID, inflight.CheckpointID(id)
	}
	where := x.store
	if x.store == "" {
		dir, err := os.MkdirTemp("", "ckpt-run-")
		if err != nil {
			return nil, "", err
		}
		x.store, where = dir, dir+" (temporary: delete it when you have seen enough)"
	}
	if x.output != "" {
		if err := os.MkdirAll(x.output, 0o700); err != nil {
			e := &inflight.Error{Op: "create", Object: x.output, Err: err, Mend: "choose another directory for --output"}
			if p, ok := errors.AsType[*fs.PathError](err); ok {
				e.Object = p.Path // perhaps one above it
			}
			return nil, "", e
		}
	}
	b, err := backends.Open(ctx, x.store)
	return b, where, err
}

// samePlace reports whether two names of a store mean the same.
func samePlace(a, b string) bool {
	if strings.Contains(a, "://") || strings.Contains(b, "://") {
		return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/")
	}
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}

// wire has the runtime tell this run what happens.
func (x *runner) wire() {
	o := &x.settings.Dataflow
	o.Restarts, o.RestartDelay, o.Seed = x.restarts, 100*time.Millisecond, x.seed
	o.OnCheckpoint, o.OnRestart, o.Log = x.onCheckpoint, x.onRestart, x.onLog
	if x.trace {
		o.Trace = func(e dataflow.TraceEvent) { fmt.Fprintln(logWriter{x.report, x.stderr}, e) }
	}
	if o.Interval < time.Second {
		x.detail = slog.LevelDebug
	}
	for i, v := range x.graph.Vertices() {
		x.ranks[v.Name] = i
	}
}

// introduce says what is going to run.
func (x *runner) introduce(where string) {
	x.say("store    %s", where)
	o := x.settings.Dataflow
	for i, e := range x.graph.Edges(o) {
		x.say("%-8s %s", map[bool]string{true: "edges"}[i == 0], e)
	}
	queues, bound := x.queues(o), x.settings.Writer.MaxBuffered
	x.say("queues   hold %s at most; max-buffered-data is %s", inBytes(float64(queues)), inBytes(float64(bound)))
	for _, e := range x.config.Effective() {
		if e.Layer != config.Default {
			x.say("option   %s = %s (%s)", e.Key, e.Value, e.Origin)
		}
	}
	x.say("")
	for _, text := range x.config.Notes() {
		x.log.Warn("option", "text", text)
	}
	for _, text := range x.config.Warnings() {
		x.log.Warn("option", "text", text)
	}
	if o.Unaligned && queues > bound {
		x.log.Warn("option", "text", "the queues hold more than unaligned.max-buffered-data: checkpoints of full queues are declined")
	}
	x.log.Info("start", "store", x.store, "job", x.job, "restore", x.restore)
}

// execute runs the job to its end.
func (x *runner) execute(ctx context.Context, b backends.Backend) error {
	var job *dataflow.Job
	if x.listen != "" {
		x.monitor = x.newMonitor(func() dataflow.Stats { return job.Stats() })
		if o, ok := b.(interface{ SetObserver(inflight.Observer) }); ok {
			o.SetObserver(x.monitor)
		}
		b = wrap.Observe(b, x.monitor)
	}
	joined, err := attach.New(attach.Options{Backend: b, Name: x.job, Observer: x.observer(), Accounted: x.accounted,
		Capacity: x.bound,
		Graph:    x.graph, Dataflow: x.settings.Dataflow,
		Start: x.settings.Start, Fresh: x.restore == "none", Catalog: x.settings.Catalog, Writer: x.settings.Writer, Restore: x.settings.Restore,
		OnRestore: x.onRestore, Unfilled: x.onUnfilled})
	if err != nil {
		return err
	}
	defer joined.Close()
	job = dataflow.NewJob(x.graph, x.settings.Dataflow, func(ctx context.Context) (dataflow.Store, error) {
		s, err := joined.Open(ctx)
		if err == nil {
			err = x.opened(s)
		}
		return s, err
	})
	stopServing, err := x.serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()
	beside, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() { x.watch(beside, job) })
	others.Go(func() { x.savepoint(beside, job) })
	err = job.Run(ctx)
	stop()
	others.Wait()
	x.hide()
	if !x.started {
		return err
	}
	return x.end(ctx, err)
}

// opened is told of each incarnation.
func (x *runner) opened(s dataflow.Store) error {
	_, base := s.Base()
	x.mu.Lock()
	first := !x.started
	x.started = true
	x.base = x.base || base
	x.mu.Unlock()
	if first && !base && x.restore == "latest" {
		x.log.Info("nothing to restore: starting afresh")
		return x.checkOutput()
	}
	return nil
}

// end sums up.
func (x *runner) end(ctx context.Context, err error) error {
	x.mu.Lock()
	s, replayed := x.history.summary(x.books.recordTime()), x.replayed
	x.mu.Unlock()
	x.event(s, func() string { return x.report.summary(s) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return failure{err}
	}
	sum := x.books.balance()
	l := resultLine{Event: "result", Emitted: sum.Emitted, Counted: sum.Counted, Lost: sum.Lost, Duplicated: sum.Duplicated, Keyless: sum.Keyless,
		ReplayedBuffers: replayed.Buffers, ReplayedBytes: replayed.Bytes}
	x.event(l, func() string { return x.result(l, x.field) })
	if l.Keyless > 0 {
		x.log.Warn(l.keyless(x.field))
	}
	if sum.Unknown > 0 {
		x.log.Info("counts had ended before: their part of the result is not known here", "subtasks", sum.Unknown)
	}
	if l.Lost+l.Duplicated > 0 {
		return failure{errBalance}
	}
	return x.failed()
}

// savepoint takes one when its time has come.
func (x *runner) savepoint(ctx context.Context, job *dataflow.Job) {
	if x.savepointAfter == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(x.savepointAfter):
	}
	switch r, err := job.Savepoint(ctx); {
	case ctx.Err() != nil:
	case errors.Is(err, inflight.ErrClosed):
		x.log.Warn("no savepoint: the run had ended")
	case err != nil:
		x.log.Error("savepoint failed", "cause", oneLine(err))
	default:
		x.log.Info("savepoint", "id", r.ID, "dir", fmt.Sprintf("%s/%s/chk-%010d", strings.TrimSuffix(x.store, "/"), x.job, r.ID))
	}
}

// watch draws the live line.
func (x *runner) watch(ctx context.Context, job *dataflow.Job) {
	if x.terminal == nil {
		return
	}
	begin, before, last := time.Now(), uint64(0), time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s := job.Stats()
			var counted uint64
			for task, n := range s.Records {
				if task.Vertex == vertexCount {
					counted += n
				}
			}
			x.mu.Lock()
			latest := x.latest
			x.mu.Unlock()
			x.show(fmt.Sprintf("%4.0f s  %s  queues %.0f %% full  %s", now.Sub(begin).Seconds(),
				perSecond(counted-min(before, counted), now.Sub(last)), 100*s.Fill, latest))
			before, last = counted, now
		}
	}
}

func (x *runner) onRestore(i attach.RestoreInfo) {
	l := restoreLine{Event: "restore", Checkpoint: uint64(i.Checkpoint), Buffers: i.Buffers, Bytes: i.Bytes, DurationMs: ms(i.Duration)}
	if i.Partial {
		x.log.Warn("the checkpoint is partial: a source subtask was gone when it was taken", "checkpoint", i.Checkpoint)
	}
	if x.monitor != nil {
		x.monitor.Restored(l)
	}
	x.mu.Lock()
	x.replayed.Buffers += l.Buffers
	x.replayed.Bytes += l.Bytes
	x.mu.Unlock()
	x.event(l, func() string {
		return x.paint(bold, fmt.Sprintf("restored checkpoint %d", l.Checkpoint)) +
			fmt.Sprintf("  %s, %s in %s\n", plural(int(l.Buffers), "buffer"), inBytes(float64(l.Bytes)), inMs(l.DurationMs))
	})
}

// onUnfilled says what else than the checkpoint that is restored, or nothing, there
// may have been.
func (x *runner) onUnfilled(ids []inflight.CheckpointID) {
	if len(ids) == 1 {
		x.log.Warn(fmt.Sprintf("checkpoint %d has files and no manifest: it was never completed, or its manifest is gone", ids[0]))
		return
	}
	x.log.Warn(fmt.Sprintf("checkpoints %s have files and no manifest: they were never completed, or their manifests are gone", strings.Trim(fmt.Sprint(ids), "[]")))
}

func (x *runner) onCheckpoint(r dataflow.CheckpointResult) {
	l := lineOf(r, x.ranks)
	measure := true
	select {
	case <-x.ended:
		measure = false
	default:
	}
	x.mu.Lock()
	x.history.add(l, measure)
	x.latest = l.title() + " " + l.State
	if r.Completed {
		x.state = int64(l.StateBytes)
	}
	x.mu.Unlock()
	x.noted(r, l)
	x.event(l, func() string { return x.report.checkpoint(l) })
	if (l.State == "failed" || l.State == "declined") && !l.skipped() {
		x.log.Warn("checkpoint not completed", "checkpoint", r.ID, "state", l.State, "reason", r.Reason, "cause", l.Text)
	}
}

func (x *runner) onRestart(attempt int, cause error) {
	x.mu.Lock()
	x.history.restarts++
	x.mu.Unlock()
	if x.monitor != nil {
		x.monitor.Restarted()
	}
	x.log.Warn("restart", "attempt", attempt, "cause", oneLine(cause))
}

// onLog logs what an operator wants to know of a barrier.
func (x *runner) onLog(e dataflow.TraceEvent) {
	level, text := x.detail, map[dataflow.Point]string{
		dataflow.PointUnaligned: "first unaligned barrier", dataflow.PointSlow: "barrier waits", dataflow.PointFallback: "fallback",
		dataflow.PointSwitchUpstream: "switch upstream", dataflow.PointSwitchDownstream: "switch downstream"}[e.Point]
	if e.Point == dataflow.PointSlow || e.Point == dataflow.PointFallback {
		level = slog.LevelWarn
	}
	if e.Point == dataflow.PointFallback && x.monitor != nil {
		x.monitor.FellBack()
	}
	who := []any{"checkpoint", e.Checkpoint}
	if e.Task.Vertex != "" {
		who = append(who, "task", e.Task.String())
	}
	x.log.Log(context.Background(), level, text, append(who, "text", e.Text)...)
}
