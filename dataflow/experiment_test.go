package dataflow

import (
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// experiment is the job that the published numbers come from, in virtual time:
// sources ×2 at full speed, records of 1,019 bytes on the wire, keys in turn →
// hash → slow keyed count ×2 → sink; a checkpoint every 5 s, 30 s.
type experiment struct {
	keys       int
	recordTime time.Duration
	o          Options
	rounds     int // how many intervals; default 7
}

var liveFlag = flag.Duration("live", 0, "how long each part of TestExperimentLive runs")

const experimentRecord = 1019

// run returns the checkpoints but the first.
func (e experiment) run(t *testing.T) (results []CheckpointResult) {
	exec := e.clock()
	log := newMemLog()
	e.o.Interval = cmp.Or(e.o.Interval, 5*time.Second)
	e.deploy(t, exec, log, func(r CheckpointResult) {
		require.True(t, r.Completed, r.Reason)
		results = append(results, r)
	})
	exec.Run(e.o.Interval*time.Duration(cmp.Or(e.rounds, 7)) + time.Second/50)
	require.Empty(t, log.red)
	require.Greater(t, len(results), 2)
	return results[1:]
}

// clock returns an executor on which messages and jobs take about as long as
// in production.
func (e experiment) clock() *Seeded {
	exec := NewSeeded(1)
	exec.JobTime, exec.SendTime = 500*time.Microsecond, 100*time.Microsecond
	exec.Budget = stepBudget
	return exec
}

// deploy starts one incarnation.
func (e experiment) deploy(t *testing.T, exec *Seeded, log *memLog, each func(CheckpointResult)) *Deployment {
	o := e.o
	o.OnCheckpoint = each
	d, err := Deploy(exec, e.graph(), o, log.open(exec), nil)
	require.NoError(t, err)
	log.watch(d)
	d.Start()
	return d
}

func (e experiment) graph() *Graph {
	g := NewGraph()
	g.Source("source", 2, func(int) Source {
		body := make([]byte, experimentRecord-lengthBytes-1)
		return &Generator{Records: -1, Body: func(dst []byte, n int64) []byte {
			binary.BigEndian.PutUint32(body, uint32(n%int64(e.keys)))
			return append(dst, body...)
		}}
	})
	key := func(b []byte) Key { return IntKey(b[:4]) }
	g.Operator("count", 2, Count(key, e.recordTime), From("source", Hash(key)))
	g.Operator("sink", 2, func(int) Operator { return &benchSink{} }, From("count", Forward()))
	return g
}

// TestExperimentLive is the experiment on goroutines, for -live of real time.
func TestExperimentLive(t *testing.T) {
	if *liveFlag == 0 {
		return // an experiment, run by hand
	}
	for _, o := range []Options{{Interval: 5 * time.Second}, {Interval: 220 * time.Millisecond, Unaligned: true}, {Interval: 5 * time.Second, Unaligned: true, AlignedTimeout: time.Second}} {
		var mu sync.Mutex
		var took []time.Duration
		o.OnCheckpoint = func(r CheckpointResult) {
			mu.Lock()
			defer mu.Unlock()
			took = append(took, r.Duration)
		}
		e := experiment{keys: 10, recordTime: 5 * time.Millisecond, o: o}
		log := newMemLog()
		job := NewJob(e.graph(), o, nil)
		job.open = func(context.Context) (Store, error) { return log.open(job.exec), nil }
		ctx, cancel := context.WithTimeout(t.Context(), *liveFlag)
		require.ErrorIs(t, job.Run(ctx), context.DeadlineExceeded)
		cancel()
		took = took[1 : len(took)-1]
		slices.Sort(took)
		t.Logf("unaligned %v, timeout %v: %d checkpoints, p50 %v, p90 %v", o.Unaligned, o.AlignedTimeout, len(took), took[len(took)/2], took[len(took)*9/10])
	}
}

// size is what a checkpoint captured, at one vertex or at all.
func (r CheckpointResult) size(vertex string) (n uint64) {
	for _, a := range r.Acks {
		if vertex == "" || a.Task.Vertex == vertex {
			n += a.Handle.PersistedBytes()
		}
	}
	return n
}

// TestExperiment has the bars of the experiment, as far as virtual time can.
func TestExperiment(t *testing.T) {
	if scarce > 1 {
		return // make test runs it without -race: one goroutine, and much to do
	}
	const sleep = 5270 * time.Microsecond // what a sleep of 5 ms takes
	between := func(t *testing.T, low, got, high time.Duration) {
		require.LessOrEqual(t, low, got)
		require.LessOrEqual(t, got, high)
	}
	for _, keys := range []int{10, 100} {
		low, high := 2700*time.Millisecond, 3200*time.Millisecond
		if keys == 100 {
			low, high = 1500*time.Millisecond, 1900*time.Millisecond
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{}}).run(t) {
			t.Logf("%d keys, aligned: %v, %d bytes", keys, r.Duration, r.size(""))
			between(t, low, r.Duration, high)
			require.Zero(t, r.size(""))
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Unaligned: true}}).run(t) {
			t.Logf("%d keys, unaligned: %v, %d bytes, %d at the sources", keys, r.Duration, r.size(""), r.size("source"))
			between(t, 0, r.Duration, sleep+4*time.Millisecond)
			require.InDelta(t, 625_000, r.size(""), 75_000)
			require.Greater(t, float64(r.size("source")), 0.88*float64(r.size("")))
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Unaligned: true, AlignedTimeout: time.Second}}).run(t) {
			t.Logf("%d keys, mixed: %v, %d bytes, %s", keys, r.Duration, r.size(""), r.Alignment())
			between(t, time.Second, r.Duration, time.Second+sleep+20*time.Millisecond)
			require.Greater(t, r.size(""), uint64(100_000))
			require.Less(t, r.size(""), uint64(550_000))
			for _, a := range r.Acks {
				if a.Task.Vertex == "source" && a.Unaligned {
					require.InDelta(t, time.Second, a.Async, float64(20*time.Millisecond))
				}
			}
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Credit: true}}).run(t) {
			t.Logf("%d keys, aligned, credit: %v", keys, r.Duration)
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Credit: true, Unaligned: true}}).run(t) {
			bound := uint64(2*2+8+2) * 32 << 10 // of each gate, plus partial records
			t.Logf("%d keys, unaligned, credit: %v, %d bytes, %d at the sources", keys, r.Duration, r.size(""), r.size("source"))
			require.LessOrEqual(t, r.size("count"), 2*bound)
		}
	}
	// What a slow barrier waits for is said after a second.
	var said []string
	experiment{keys: 10, recordTime: sleep, o: Options{Trace: func(e TraceEvent) {
		if e.Point == PointSlow && e.Checkpoint == 2 {
			said = append(said, e.Task.String()+": "+e.Text)
		}
	}}}.run(t)
	slices.Sort(said)
	require.Len(t, said, 3, "the count of six keys waits for both sources, its sink for it")
	for i, want := range []string{`count/1: no barrier of gate 0 channel 0; \d{6}`, `count/1: no barrier of gate 0 channel 1; \d{6}`, `sink/1: no barrier of gate 0 channel 1; 0`} {
		require.Regexp(t, "^"+want+" bytes stand in front$", said[i])
	}

	// Without backpressure.
	for _, r := range (experiment{keys: 10, recordTime: 0, o: Options{Interval: 20 * time.Millisecond}}).run(t) {
		between(t, 0, r.Duration, 40*time.Millisecond)
	}
}
