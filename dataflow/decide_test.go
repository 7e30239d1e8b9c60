package dataflow

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

func TestDecide(t *testing.T) {
	answers := []Decision{{}, {ChooseAligned, "queues 3 % full"}, {ChooseSkip, "no room"}, {ChooseUnaligned, "all three hold"}}
	var asked []QueueState
	s := newScene(t, Options{Unaligned: true, AlignedTimeout: time.Hour, Decide: func(q QueueState) Decision {
		asked = append(asked, q)
		return answers[min(len(asked)-1, 3)]
	}}, newMemLog())
	s.run(45 * time.Millisecond)
	require.Equal(t, []string{"1 aligned", "2 aligned", "0 skipped", "3 unaligned"}, s.results)
	require.Equal(t, []string{"aligned", "aligned", "unaligned"}, s.how)
	var why []string
	for _, r := range s.all {
		why = append(why, r.Decision)
	}
	require.Equal(t, []string{"", "queues 3 % full", "no room", "all three hold"}, why)
	require.True(t, ReasonSkipped.Declined())
	require.Len(t, asked[0].Alignments, 0)
	require.Len(t, asked[3].Alignments, 2)
	require.Equal(t, s.d.Capacity(), asked[0].Capacity)
	require.Equal(t, int64(2*12*64), asked[0].Capacity, "two sources of 2 × 2 + 8 buffers of 64 bytes")

	// A savepoint is not asked about, and is always aligned.
	s.d.Savepoint(func(CheckpointResult) {})
	n := len(asked)
	s.run(4 * time.Millisecond)
	require.Len(t, asked, n)
	require.Contains(t, s.results[len(s.results)-1], "aligned")
	require.Empty(t, s.log.red)
}

// TestHistory has an unaligned checkpoint count with the time in which what it
// overtook was consumed: about what an aligned one takes. So a decision for
// one of them is not turned over by its own success.
func TestHistory(t *testing.T) {
	var last []time.Duration
	choice := ChooseUnaligned
	e := experiment{keys: 10, recordTime: recordTime, o: Options{Unaligned: true, Decide: func(q QueueState) Decision {
		last = q.Alignments
		if choice ^= ChooseUnaligned ^ ChooseAligned; len(q.Alignments) > 0 {
			require.Greater(t, q.Fill(), 0.5)
		}
		return Decision{Choice: choice}
	}}}
	e.run(t)
	require.Len(t, last, 6)
	for _, took := range last[1:] {
		require.InDelta(t, 2950, took.Milliseconds(), 250, "aligned or not: %v", last)
	}
	h := history{}
	for i := range 2 * historySize {
		h.add(time.Duration(i))
	}
	require.Len(t, h.took, historySize)
	require.Equal(t, time.Duration(2*historySize-1), h.took[historySize-1])
	var p pendingCheckpoint
	p.result.Reason, p.result.Duration = ReasonTimeout, time.Minute
	h.enter(&p)
	require.Equal(t, time.Minute, h.took[historySize-1], "one that timed out counts with its timeout")
}

func TestRequests(t *testing.T) {
	s := newScene(t, Options{Unaligned: true, AlignedTimeout: time.Hour, Interval: time.Hour}, newMemLog())
	var got []string
	ask := func(r Request) {
		s.d.Trigger(r, func(r CheckpointResult) {
			how := "refused: "
			if r.Completed {
				how = fmt.Sprintf("%d %s", r.ID, r.Alignment())
			} else {
				how += r.Cause.Error()
			}
			got = append(got, how)
		})
	}
	ask(Request{})
	ask(Request{Unaligned: true})
	ask(Request{Savepoint: true, Unaligned: true})
	ask(Request{Savepoint: true})
	s.run(time.Second)
	require.Len(t, got, 4)
	require.Contains(t, got[0], "savepoints cannot be unaligned")
	require.Equal(t, []string{"1 aligned", "2 unaligned", "3 aligned"}, got[1:])

	s.d.Stop(inflight.ErrClosed)
	ask(Request{})
	s.run(time.Second)
	require.Equal(t, "refused: closed", got[4], "nobody waits for ever")

	_, err := NewJob(NewGraph(), Options{}, nil).Trigger(t.Context(), Request{Unaligned: true})
	require.ErrorIs(t, err, inflight.ErrConfig)
	require.ErrorContains(t, err, "unaligned checkpoints are off")
}

// TestLog has what an operator is told: once for each checkpoint and task.
func TestLog(t *testing.T) {
	lines := map[inflight.CheckpointID][]string{}
	e := experiment{keys: 10, recordTime: recordTime, o: Options{Unaligned: true, AlignedTimeout: 1100 * time.Millisecond, Log: func(e TraceEvent) {
		lines[e.Checkpoint] = append(lines[e.Checkpoint], fmt.Sprintf("%s %s: %s", e.Task, e.Point, e.Text))
	}}}
	e.run(t)
	count := func(id inflight.CheckpointID, part string) (n int) {
		for _, l := range lines[id] {
			if strings.Contains(l, part) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, count(2, "the first unaligned barrier has come"), lines[2])
	require.Equal(t, 2, count(2, "switch upstream"), "both sources: %v", lines[2])
	require.Equal(t, 3, count(2, "slow barrier"), "count/1 on two channels, its sink: %v", lines[2])
	require.Equal(t, 2, count(2, "count/1 slow barrier: no barrier of gate 0 channel"))
	require.NotZero(t, count(2, "count/1 switch downstream")+count(2, "count/1 unaligned"))

	// A checkpoint over the memory bound: the next one is aligned, and says so.
	var said []TraceEvent
	log := newMemLog()
	log.failCapture = func(_ inflight.Task, id inflight.CheckpointID) error {
		if id == 1 {
			return inflight.ErrOverBudget
		}
		return nil
	}
	s := newScene(t, Options{Unaligned: true, TolerableFailures: -1, Log: func(e TraceEvent) { said = append(said, e) }}, log)
	s.run(25 * time.Millisecond)
	i := slices.IndexFunc(said, func(e TraceEvent) bool { return e.Point == PointFallback })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, "coordinator", strings.Fields(said[i].String())[2])
	require.Equal(t, inflight.CheckpointID(2), said[i].Checkpoint)
	require.Equal(t, "aligned: the last checkpoint went over the memory bound", said[i].Text)
	require.Equal(t, "the last checkpoint went over the memory bound", s.all[1].Decision)
}

// TestLogForced has edges that are forced to be aligned: no unaligned barrier
// comes to a task behind them.
func TestLogForced(t *testing.T) {
	for _, row := range []struct {
		name string
		last Partitioner
		want []string
	}{
		{"one edge of two", Hash(LineKey), []string{"count/0 1", "count/0 2", "count/0 3"}},
		{"all edges", Forward(), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := NewGraph()
			g.Source("source", 1, func(int) Source {
				return &Generator{Records: -1, Pause: 100 * time.Microsecond, Body: func(dst []byte, n int64) []byte { return fmt.Appendf(dst, "%d", n%9) }}
			})
			g.Operator("map", 1, Count(LineKey, 0), From("source", Forward()))
			g.Operator("count", 1, Count(LineKey, 0), From("map", row.last))
			var said []string
			exec, log, completed := NewSeeded(1), newMemLog(), 0
			o := Options{Unaligned: true, Interval: 10 * time.Millisecond, Log: func(e TraceEvent) {
				if e.Point == PointUnaligned {
					said = append(said, fmt.Sprintf("%s %d", e.Task, e.Checkpoint))
				}
			}, OnCheckpoint: func(r CheckpointResult) {
				require.True(t, r.Completed, r.Reason)
				completed++
			}}
			d, err := Deploy(exec, g, o, log.open(exec), nil)
			require.NoError(t, err)
			log.watch(d)
			d.Start()
			exec.Run(35 * time.Millisecond)
			require.Equal(t, 3, completed)
			require.Equal(t, row.want, said)
		})
	}
}

// TestStats has the shares of a task's time, what is in flight, and how long
// records take, of the experiment.
func TestStats(t *testing.T) {
	e := experiment{keys: 10, recordTime: recordTime, o: Options{Interval: time.Hour, LatencyInterval: 200 * time.Millisecond}}
	exec := e.clock()
	d := e.deploy(t, exec, newMemLog(), nil)
	exec.Run(20 * time.Second)
	s := d.Stats()
	share := func(vertex string, sub int) (busy, idle, backpressured float64) {
		i := slices.IndexFunc(s.Tasks, func(x TaskStats) bool { return x.Task == inflight.Task{Vertex: vertex, Subtask: sub} })
		x := s.Tasks[i]
		require.Equal(t, s.Records[x.Task], x.Records)
		all := x.Busy + x.Idle + x.Backpressured
		require.InDelta(t, 20, all.Seconds(), 0.1)
		return float64(x.Busy) / float64(all), float64(x.Idle) / float64(all), float64(x.Backpressured) / float64(all)
	}
	for sub := range 2 {
		_, _, waits := share("source", sub)
		require.Greater(t, waits, 0.95, "a source is backpressured")
		_, idle, _ := share("sink", sub)
		require.Greater(t, idle, 0.95)
	}
	busy, _, _ := share("count", 1)
	require.Greater(t, busy, 0.99, "the bottleneck")
	_, idle, _ := share("count", 0)
	require.Greater(t, idle, 0.15, "four keys of ten: it waits a good part of the time")

	require.Equal(t, "source → count (hash): aligned, since unaligned checkpoints are off", s.Edges[0].Edge.String())
	require.Equal(t, int64(2*12*32<<10), s.Edges[0].Capacity)
	require.Greater(t, s.Edges[0].Queued, int64(500_000))
	require.LessOrEqual(t, s.Edges[0].Queued, s.Edges[0].Capacity)
	require.Zero(t, d.Capacity(), "no edge may hold channel state: unaligned checkpoints are off")
	require.Greater(t, s.Fill, 0.6)

	require.Greater(t, s.Latency.Markers, uint64(20))
	require.InDelta(t, 2.9, s.Latency.P99.Seconds(), 0.5)
	require.LessOrEqual(t, s.Latency.P50, s.Latency.P99)
	require.LessOrEqual(t, s.Latency.P99, s.Latency.Max)
}

// TestUnknownNames has options that name nothing refused.
func TestUnknownNames(t *testing.T) {
	for _, o := range []Options{
		{AlignedSources: []string{"sauce"}}, {AlignedSources: []string{"count"}}, {AlignedEdges: []string{"source-sink"}},
	} {
		_, err := Deploy(NewSeeded(1), experiment{keys: 1}.graph(), o, nil, nil)
		require.ErrorIs(t, err, inflight.ErrConfig)
		require.ErrorContains(t, err, "there is no such")
	}
}
