package dataflow

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// recordTime is what a sleep of 5 ms takes.
const recordTime = 5270 * time.Microsecond

type table struct {
	title string
	rows  [][]string
}

func (x *table) row(cells ...any) {
	var r []string
	for _, c := range cells {
		switch c := c.(type) {
		case time.Duration:
			r = append(r, fmt.Sprintf("%.0f ms", float64(c.Microseconds())/1000))
		case uint64:
			r = append(r, fmt.Sprintf("%d KB", (c+500)/1000))
		default:
			r = append(r, fmt.Sprint(c))
		}
	}
	x.rows = append(x.rows, r)
}

func (x *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", x.title)
	for i, r := range x.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(r)))
		}
	}
	return b.String()
}

// median is the checkpoint of median duration.
func median(rs []CheckpointResult) CheckpointResult {
	rs = slices.Clone(rs)
	slices.SortFunc(rs, func(a, b CheckpointResult) int { return cmp.Compare(a.Duration, b.Duration) })
	return rs[len(rs)/2]
}

func (r CheckpointResult) of(vertex string, subtask int) Ack {
	i := slices.IndexFunc(r.Acks, func(a Ack) bool { return a.Task == inflight.Task{Vertex: vertex, Subtask: subtask} })
	return r.Acks[i]
}

// switched names the subtasks of a checkpoint that had a choice and are not
// aligned.
func (r CheckpointResult) switched() string {
	var names []string
	for _, a := range r.Acks {
		if a.Unaligned && !a.Forced {
			names = append(names, a.Task.String())
		}
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// What does the aligned timeout do?
func exerciseTimeout(t *testing.T) *table {
	x := &table{title: "Aligned timeout (10 keys)"}
	x.row("timeout", "duration", "size", "unaligned at")
	for _, timeout := range []time.Duration{0, time.Second, 3 * time.Second, 5 * time.Second} {
		r := median(experiment{keys: 10, recordTime: recordTime, o: Options{Unaligned: true, AlignedTimeout: timeout}}.run(t))
		x.row(timeout, r.Duration, r.size(""), r.switched())
		switch timeout {
		case 0:
			require.Equal(t, "count/0, count/1, source/0, source/1", r.switched())
		case time.Second:
			require.Equal(t, "count/1, source/0, source/1", r.switched(), "the count of four keys is in time")
			require.Equal(t, "mixed", r.Alignment())
		case 5 * time.Second:
			require.Equal(t, "none", r.switched())
			require.Zero(t, r.size(""))
		}
	}
	return x
}

// What decides the size? Not how slow the records are, but what the queues hold.
func exerciseSize(t *testing.T) *table {
	x := &table{title: "Record time and buffer size (unaligned, 100 keys)"}
	x.row("buffer", "record takes", "size", "queues hold")
	for _, kib := range []int{8, 32, 128} {
		var sizes []uint64
		for _, each := range []time.Duration{recordTime, 1070 * time.Microsecond} {
			e := experiment{keys: 100, recordTime: each, o: Options{Unaligned: true, BufferSize: kib << 10}}
			r := median(e.run(t))
			sizes = append(sizes, r.size(""))
			hold := uint64(2 * 12 * kib << 10) // two sources of 12 buffers
			x.row(fmt.Sprintf("%d KiB", kib), fmt.Sprintf("%.2f ms", each.Seconds()*1000), r.size(""), hold)
			require.Less(t, r.size(""), hold*12/10)
			require.Greater(t, r.size(""), hold/2)
		}
		require.InEpsilon(t, sizes[0], sizes[1], 0.3, "it does not depend on the record time")
	}
	return x
}

// What bounds the input side? The receiver's buffers, when the first barrier
// comes; what arrives later is counted apart.
func exerciseInputBound(t *testing.T) *table {
	x := &table{title: "Input side of a count (credit channels, 2 exclusive + 8 floating)"}
	x.row("keys", "subtask", "captured at the first barrier", "bound", "captured on arrival")
	const bound = (2*2+8)*32<<10 + 2*experimentRecord // two channels, and a partial record of each
	for _, keys := range []int{10, 100} {
		r := median(experiment{keys: keys, recordTime: recordTime, o: Options{Unaligned: true, Credit: true}}.run(t))
		for sub := range 2 {
			a := r.of("count", sub)
			first := a.Handle.InputBytes - a.Late
			x.row(keys, a.Task, first, uint64(bound), a.Late)
			require.LessOrEqual(t, first, uint64(bound))
		}
	}
	return x
}

// Why is a mixed checkpoint smaller? What was captured is what stood in front
// of the barrier when it was emitted, less what was consumed until the timeout.
func exerciseMixed(t *testing.T) *table {
	x := &table{title: "Timeout of 1 s: captured = in front of the barrier − consumed until the timeout (10 keys)"}
	x.row("source", "in front when emitted", "consumed within 1 s", "captured")
	e := experiment{keys: 10, recordTime: recordTime, o: Options{Unaligned: true, AlignedTimeout: time.Second}}
	var d *Deployment
	type count struct{ front, received uint64 } // of a connection, when the barrier is emitted
	emitted := map[*channel]count{}
	var consumed [2]uint64 // of what stood in front, by source
	e.o.Trace = func(ev TraceEvent) {
		i := ev.Task.Subtask
		if ev.Point == PointSwitchUpstream {
			consumed[i] = 0
		}
		for _, task := range d.tasks {
			for _, c := range task.in.channels {
				switch {
				case ev.Task.Vertex != "source" || task.id.Vertex != "count" || c.address.Channel != i:
				case ev.Point == PointUrgentMail:
					emitted[c] = count{c.up.q.bytes() + uint64(c.up.pos-c.up.pub), c.received}
				case ev.Point == PointSwitchUpstream:
					consumed[i] += min(c.received-emitted[c].received, emitted[c].front)
				}
			}
		}
	}
	exec := e.clock()
	e.o.Interval = 5 * time.Second
	n := 0
	d = e.deploy(t, exec, newMemLog(), func(r CheckpointResult) {
		require.True(t, r.Completed)
		for i := range 2 {
			a := r.of("source", i)
			require.Equal(t, a.InFront-consumed[i], a.Handle.OutputBytes)
			require.Positive(t, consumed[i])
			if n == 2 {
				x.row(a.Task, a.InFront, consumed[i], a.Handle.OutputBytes)
			}
		}
		n++
	})
	exec.Run(22 * time.Second)
	require.Greater(t, n, 2)
	return x
}

// How does the time depend on the depth of the queues?
func exerciseDepth(t *testing.T) *table {
	x := &table{title: "Depth of the queues (buffers of 4 KiB, 100 keys)"}
	x.row("buffers in flight", "aligned", "unaligned")
	var aligned, unaligned []time.Duration
	depths := []int{10, 100, 1000, 10000}
	for _, n := range depths {
		o := Options{BufferSize: 4 << 10, Memory: 1 << 30, OutputBuffers: n/2 + 2, PerSubpartition: n/4 + 1}
		o.Interval = time.Second + time.Duration(n)*15*time.Millisecond
		a := median(experiment{keys: 100, recordTime: recordTime, o: o, rounds: 4}.run(t))
		o.Unaligned = true
		u := median(experiment{keys: 100, recordTime: recordTime, o: o, rounds: 4}.run(t))
		x.row(n, a.Duration, fmt.Sprintf("%.1f ms", float64(u.Duration.Microseconds())/1000))
		aligned, unaligned = append(aligned, a.Duration), append(unaligned, u.Duration)
	}
	for i := 1; i < len(depths); i++ {
		require.Greater(t, aligned[i], 5*aligned[i-1], "grows with the depth")
	}
	require.Less(t, slices.Max(unaligned), recordTime+4*time.Millisecond, "does not")
	return x
}

// What if alignment takes longer than a checkpoint may? Each crash goes back to
// the same checkpoint; unaligned ones get on.
func exerciseDeathLoop(t *testing.T) *table {
	x := &table{title: "Checkpoint timeout of 2 s, a crash every 7 s, alignment of 2.9 s (10 keys)"}
	x.row("", "restored from", "checkpoints timed out", "records counted in the last checkpoint")
	for _, unaligned := range []bool{false, true} {
		e := experiment{keys: 10, recordTime: recordTime, o: Options{Unaligned: unaligned, Interval: 3 * time.Second, Timeout: 2 * time.Second, TolerableFailures: -1}}
		log := newMemLog()
		exec := e.clock()
		var from []string
		timedOut := 0
		for i := range 6 {
			first := i == 0
			if log.committed != nil {
				from = append(from, fmt.Sprint(log.committed.ID))
			}
			d := e.deploy(t, exec, log, func(r CheckpointResult) {
				if r.Reason == ReasonTimeout {
					timedOut++
				}
			})
			if first { // one before there is backpressure
				d.Trigger(Request{}, func(CheckpointResult) {})
			}
			exec.Run(exec.Now() + 7*time.Second)
			exec.Crash()
		}
		counted := 0
		for _, a := range log.committed.Acks {
			for _, c := range a.Cuts {
				if a.Task.Vertex == "count" && c.Address.Side == inflight.Input {
					counted += int(c.Records)
				}
			}
		}
		require.Len(t, from, 5)
		if distinct := len(slices.Compact(slices.Clone(from))); unaligned {
			require.Equal(t, 5, distinct)
			require.Zero(t, timedOut)
			require.Greater(t, counted, 5*900, "records of two counts in 30 s")
		} else {
			require.Equal(t, 1, distinct, "the same again and again")
			require.GreaterOrEqual(t, timedOut, 6)
		}
		require.Empty(t, log.red)
		x.row(map[bool]string{false: "aligned", true: "unaligned"}[unaligned], strings.Join(from, ", "), timedOut, counted)
	}
	return x
}
