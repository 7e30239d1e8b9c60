package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/dataflow"
)

func TestReceived(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		numbers                   []uint64
		counted, lost, duplicated uint64
	}{
		{"in order", []uint64{0, 1, 2}, 3, 0, 0},
		{"one is missing", []uint64{0, 2, 3}, 3, 1, 0},
		{"the first is missing", []uint64{1, 2}, 2, 1, 0},
		{"one comes twice", []uint64{0, 1, 1, 2}, 4, 0, 1},
		{"some come again", []uint64{0, 1, 2, 1, 2, 3}, 6, 0, 2},
		{"two change places", []uint64{0, 2, 1, 3}, 4, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r received
			for _, n := range tc.numbers {
				require.True(t, r.take(kindRecord, n))
			}
			require.False(t, r.take(kindClosing, 7))
			require.Equal(t, []uint64{tc.counted, tc.lost, tc.duplicated}, []uint64{r.Counted, r.Lost, r.Duplicated})
			require.EqualValues(t, 7, *r.Total)
			r.take(kindClosing, 7)
			require.Equal(t, tc.duplicated+1, r.Duplicated, "a second end")
		})
	}
}

// TestAudit puts a thief between sources and counts, and sees that the books
// say what it did.
func TestAudit(t *testing.T) {
	for _, tc := range []struct {
		name             string
		lost, duplicated uint64
		steal            func(n int, r dataflow.Record, emit func(dataflow.Record))
	}{
		{"honest", 0, 0, func(_ int, r dataflow.Record, emit func(dataflow.Record)) { emit(r) }},
		{"takes one", 1, 0, func(n int, r dataflow.Record, emit func(dataflow.Record)) {
			if n != 100 {
				emit(r)
			}
		}},
		{"sends three twice", 0, 3, func(n int, r dataflow.Record, emit func(dataflow.Record)) {
			emit(r)
			if n >= 50 && n < 53 {
				emit(r)
			}
		}},
		{"takes the end", 1, 0, func(_ int, r dataflow.Record, emit func(dataflow.Record)) {
			if r.Body[0] != kindClosing || r.Body[2] == 1 {
				emit(r)
			}
		}},
		{"takes the last ones", 10, 0, func(n int, r dataflow.Record, emit func(dataflow.Record)) {
			if n < 990 || n >= 1000 {
				emit(r)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &pipeline{parallelism: 2, records: 2000, keys: 10, recordBytes: 40}
			g := thief(p, tc.steal)
			require.NoError(t, dataflow.NewJob(g, dataflow.Options{}, nil).Run(t.Context()))
			sum := p.books.balance()
			switch {
			case tc.name == "takes the end":
				require.Equal(t, balance{Emitted: 2000, Counted: 2000, Lost: 2, Open: 2}, sum)
			default:
				require.Equal(t, balance{Emitted: 2000, Counted: 2000 - tc.lost + tc.duplicated, Lost: tc.lost, Duplicated: tc.duplicated}, sum)
			}
		})
	}
}

// thief is the pipeline with a map between source and count that steals from
// what source 0 sends.
func thief(p *pipeline, steal func(n int, r dataflow.Record, emit func(dataflow.Record))) *dataflow.Graph {
	p.graph() // its parts
	payload, text := p.payloadKey()
	g := dataflow.NewGraph()
	g.Source(vertexSource, 2, func(i int) dataflow.Source {
		s := &source{payload: payload, index: i, counts: 2, ending: func() {}}
		s.Source = p.generator(i, s)
		return s
	})
	g.Operator("thief", 2, func(subtask int) dataflow.Operator {
		n := 0
		return dataflow.FlatMap(func(c *dataflow.Context, r dataflow.Record) error {
			if subtask > 0 {
				c.Emit(r)
				return nil
			}
			steal(n, r, c.Emit)
			n++
			return nil
		})(subtask)
	}, dataflow.From(vertexSource, dataflow.Forward()))
	g.Operator(vertexCount, 2, func(int) dataflow.Operator { return &counter{key: keyed(payload), text: text, books: &p.books} },
		dataflow.From("thief", dataflow.Hash(keyed(payload))))
	return g
}

func TestSummary(t *testing.T) {
	var h history
	add := func(state string, duration float64, size int64) {
		h.add(checkpointLine{State: state, Kind: "checkpoint", DurationMs: duration, SizeBytes: size}, true)
	}
	require.Equal(t, summaryLine{Event: "summary"}, h.summary(0))
	add("completed", 1e6, 1e6) // the first
	add("failed", 1e6, 1e6)
	add("declined", 1e6, 1e6)
	add("aborted", 1e6, 1e6)
	for i := range 4 {
		add("completed", float64(10+i), 1000)
	}
	h.add(checkpointLine{State: "completed", Kind: "savepoint", DurationMs: 1e6}, true)
	h.add(checkpointLine{State: "completed", Kind: "checkpoint", DurationMs: 1e6}, false)
	require.Equal(t, summaryLine{Event: "summary", Completed: 7, Failed: 1, Declined: 1, SuccessRate: 0.778, Measured: 4, DurationP50Ms: 11, DurationP99Ms: 13,
		DurationMinMs: 10, DurationMaxMs: 13, DurationStddevMs: 1.118, SizeMinBytes: 1000, SizeMaxBytes: 1000, RecordMs: 5.27}, h.summary(5270*time.Microsecond))
	add("completed", 12, 2000)
	s := h.summary(0)
	require.True(t, s.SizeUnsteady)
	require.Contains(t, (&report{}).summary(s), "unsteady: more than 15 %")
}

func TestText(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.004: "0.00 ms", 0.25: "0.25 ms", 17.36: "17.4 ms", 999: "999 ms", 2950: "2.95 s"} {
		require.Equal(t, want, inMs(v))
	}
	for v, want := range map[float64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 1 << 30: "1.0 GiB", 1 << 50: "1024.0 TiB"} {
		require.Equal(t, want, inBytes(v))
	}
	require.Equal(t, "1.2 M records/s", perSecond(1_200_000, time.Second))
	require.Equal(t, "12 k records/s", perSecond(12_000, time.Second))
	require.Equal(t, "380 records/s", perSecond(190, 500*time.Millisecond))
	require.Equal(t, "a: b ?[31mc", oneLine(errText("a\n b \x1b[31mc")))
	var out strings.Builder
	r := &report{out: &out, json: true}
	r.event(resultLine{Event: "result"}, nil)
	require.Equal(t, `{"event":"result","emitted":0,"counted":0,"lost":0,"duplicated":0,"replayed_buffers":0,"replayed_bytes":0}`+"\n", out.String())
}

type errText string

func (e errText) Error() string { return string(e) }

// TestOwner: closing records get to their counts.
func TestOwner(t *testing.T) {
	for n := 1; n <= dataflow.DefaultMaxParallelism; n++ {
		for i := range n {
			require.Equal(t, i, owner(dataflow.Key{Hash: hashOf(i, n)}, n))
		}
	}
}
