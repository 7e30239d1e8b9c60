package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type line struct {
	ID    int    `json:"id"`
	State string `json:"state"`
}

// slow is a job whose count holds it up; its tasks have run for so long.
func slow(seconds *int, subtasks int) Options {
	edge := dataflow.EdgeInfo{From: "source", To: "count", Kind: dataflow.KindHash, Unaligned: true}
	return Options{Job: "words", Store: "file:///ckpt", Bound: 1 << 20,
		Vertices: []dataflow.VertexInfo{{Name: "source", Parallelism: subtasks, Source: true}, {Name: "count", Parallelism: subtasks}},
		Edges:    []dataflow.EdgeInfo{edge},
		Stats: func() dataflow.Stats {
			s := dataflow.Stats{Fill: 0.5, Edges: []dataflow.EdgeStats{{Edge: edge, Queued: 512, Capacity: 1024}},
				Latency: dataflow.LatencyStats{Markers: 3, P50: 20 * time.Millisecond, P99: time.Second}}
			d := time.Duration(*seconds) * time.Second
			for i := range subtasks {
				s.Tasks = append(s.Tasks,
					dataflow.TaskStats{Task: inflight.Task{Vertex: "source", Subtask: i}, Records: uint64(100 * *seconds), Busy: d / 10, Backpressured: d * 9 / 10},
					dataflow.TaskStats{Task: inflight.Task{Vertex: "count", Subtask: i}, Records: uint64(90 * *seconds), Busy: d})
			}
			return s
		}}
}

func completed(id int, size int64) dataflow.CheckpointResult {
	h := inflight.Handle{InputBytes: 10, OutputBytes: 20}
	return dataflow.CheckpointResult{ID: inflight.CheckpointID(id), Completed: true, Duration: 12 * time.Millisecond, Committed: dataflow.Committed{Bytes: size, Files: 1},
		Acks: []dataflow.Ack{{Task: inflight.Task{Vertex: "source"}, Handle: h, Unaligned: true, Buffered: 7}}}
}

// get asks the monitor, which answers with the code.
func get(t *testing.T, m *Monitor, path string, code int) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Result().Body)
	require.NoError(t, err)
	require.Equal(t, code, w.Code, "%s: %s", path, body)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'self'")
	return string(body)
}

func TestCheckpoints(t *testing.T) {
	seconds := 1
	m := New(slow(&seconds, 1))
	require.JSONEq(t, `{"counts":{},"success_rate":null,"latest":{"completed":null,"savepoint":null,"failed":null,"restored":null},"history":[]}`, get(t, m, "/checkpoints", 200))

	m.Restored(map[string]int{"checkpoint": 0})
	m.Checkpoint(completed(1, 100), "completed", line{1, "completed"}, line{1, "completed"})
	m.Checkpoint(dataflow.CheckpointResult{ID: 2, Reason: dataflow.ReasonOverBudget, Cause: inflight.ErrOverBudget}, "declined", line{2, "declined"}, line{2, "declined"})
	save := completed(3, 300)
	save.Savepoint = true
	m.Checkpoint(save, "completed", line{3, "completed"}, line{3, "completed"})
	m.Checkpoint(completed(4, 100), "completed", line{4, "completed, in full"}, line{4, "completed"})
	require.JSONEq(t, `{"counts":{"completed":3,"declined":1},"success_rate":0.75,
		"latest":{"completed":{"id":4,"state":"completed, in full"},"savepoint":{"id":3,"state":"completed"},"failed":{"id":2,"state":"declined"},"restored":{"checkpoint":0}},
		"history":[{"id":4,"state":"completed"},{"id":3,"state":"completed"},{"id":2,"state":"declined"},{"id":1,"state":"completed"}]}`, get(t, m, "/checkpoints", 200))
	require.JSONEq(t, `{"id":2,"state":"declined"}`, get(t, m, "/checkpoints/2", 200))
	require.JSONEq(t, `{"id":4,"state":"completed, in full"}`, get(t, m, "/checkpoints/4", 200))
	require.Contains(t, get(t, m, "/checkpoints/9", 404), "checkpoint 9 is not remembered")
	require.Contains(t, get(t, m, "/checkpoints/x", 400), "number")
}

func TestCheckpointsAreForgotten(t *testing.T) {
	seconds := 1
	m := New(slow(&seconds, 1))
	for i := range kept + 10 {
		m.Checkpoint(completed(i, 100), "completed", line{i, "completed"}, line{i, "completed"})
	}
	get(t, m, "/checkpoints/9", 404)
	get(t, m, "/checkpoints/10", 200)
	require.Contains(t, get(t, m, "/checkpoints", 200), fmt.Sprintf(`"completed":%d`, kept+10))
}

func TestState(t *testing.T) {
	seconds := 1
	m := New(slow(&seconds, 2))
	m.Checkpoint(completed(1, 100), "completed", line{1, "completed"}, line{1, "completed"})
	ask := func() (s state) {
		require.NoError(t, json.Unmarshal([]byte(get(t, m, "/state", 200)), &s))
		return s
	}
	first := ask()
	require.Zero(t, first.RecordsPerSec, "there is nothing to compare with")
	m.rates.at = m.rates.at.Add(-10 * time.Second)
	seconds = 11
	s := ask()
	require.InDelta(t, 200, s.RecordsPerSec, 5)
	require.Equal(t, "count", s.Bottleneck)
	require.InDelta(t, 0.9, s.Vertices[0].Subtasks[1].Backpressured, 0.01)
	require.InDelta(t, 1, s.Vertices[1].Subtasks[0].Busy, 0.01)
	require.Equal(t, []edgeState{{From: "source", To: "count", Kind: "hash", Unaligned: true, Queued: 512, Capacity: 1024}}, s.Edges)
	require.InDelta(t, 20, *s.LatencyP50Ms, 0.01)
	require.Len(t, s.Checkpoints, 1)
	require.Equal(t, s.Vertices, ask().Vertices, "two who look at once see the same")
}

// A task that began anew has not gone back.
func TestRestartedTasks(t *testing.T) {
	var r rates
	task := inflight.Task{Vertex: "count"}
	now := time.Now()
	r.look(now, []dataflow.TaskStats{{Task: task, Records: 1000, Busy: time.Hour}})
	got := r.look(now.Add(10*time.Second), []dataflow.TaskStats{{Task: task, Records: 50, Busy: time.Second, Idle: time.Second}})
	require.Equal(t, []share{{Task: task, Busy: 0.5, Idle: 0.5, PerSecond: 5}}, got)
}

func TestBottleneck(t *testing.T) {
	o := Options{Vertices: []dataflow.VertexInfo{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		Edges: []dataflow.EdgeInfo{{From: "a", To: "b"}, {From: "b", To: "c"}}}
	of := func(a, b, c share) string {
		a.Task.Vertex, b.Task.Vertex, c.Task.Vertex = "a", "b", "c"
		return o.bottleneck([]share{a, b, c})
	}
	back, busy, idle := share{Backpressured: 0.9}, share{Busy: 0.9}, share{Idle: 0.9}
	require.Equal(t, "b", of(back, busy, idle))
	require.Equal(t, "c", of(back, back, busy))
	require.Empty(t, of(busy, idle, idle), "nobody waits")
	require.Empty(t, of(back, back, idle), "the sink's store is slow, or the network is")
}

func TestMetrics(t *testing.T) {
	seconds := 1
	m := New(slow(&seconds, 1))
	m.Checkpoint(completed(1, 100), "completed", line{}, line{})
	m.Checkpoint(completed(2, 300), "completed", line{}, line{})
	m.Checkpoint(dataflow.CheckpointResult{ID: 3, Reason: dataflow.ReasonTimeout}, "failed", line{}, line{})
	m.FellBack()
	m.Restarted()
	m.Accounted(2, []reader.Flow{{From: inflight.Task{Vertex: "source"}, To: inflight.Task{Vertex: "count"}, Input: 3, Output: 4}})
	for _, e := range []inflight.Event{
		{Name: inflight.EventFileSealed}, {Name: inflight.EventFileFailed}, {Name: inflight.EventFileRetried}, {Name: inflight.EventBuffered, Bytes: 77},
		{Name: inflight.EventSpilled, Bytes: 5}, {Name: inflight.EventRetired, Count: 6}, {Name: inflight.EventReplayProgress, Bytes: 1, Total: 4},
		{Name: inflight.EventReplayDone, Count: 2, Bytes: 9}, {Name: inflight.EventRequest, Object: "create", Bytes: 10},
		{Name: inflight.EventRetried, Object: "put"}, {Name: inflight.EventThrottled, Object: "put"},
		{Name: inflight.EventRequest, Object: "create", Err: inflight.ErrExist}, {Name: inflight.EventRequest, Object: "open", Err: errors.New("broken")},
	} {
		m.Observe(e)
	}
	text := get(t, m, "/metrics", 200)
	for _, want := range []string{
		`spillway_checkpoints_total{alignment="unaligned",kind="checkpoint",reason="",state="completed"} 2`,
		`spillway_checkpoints_total{alignment="aligned",kind="checkpoint",reason="timeout",state="failed"} 1`,
		`spillway_checkpoint_duration_seconds_count{alignment="unaligned"} 2`,
		`spillway_checkpoint_size_bytes 300`, `spillway_checkpoint_size_deviation_ratio 0.5`, `spillway_checkpoint_success_ratio 0.66`,
		`spillway_checkpoint_alignment_buffered_bytes 7`, `spillway_checkpoint_last_completed_id 2`, `spillway_checkpoint_last_completed_age_seconds 0.`,
		`spillway_checkpoint_persisted_bytes_total{side="output",vertex="source"} 40`,
		`spillway_checkpoint_edge_persisted_bytes_total{from="source",side="input",to="count"} 3`,
		`spillway_checkpoint_fallbacks_total 1`, `spillway_job_restarts_total 1`, `spillway_writer_buffered_bytes 77`, `spillway_writer_buffered_limit_bytes 1.048576e+06`,
		`spillway_writer_spilled_bytes_total 5`, `spillway_retired_names_total 6`, `spillway_replay_progress_ratio 1`, `spillway_replayed_total{unit="bytes"} 9`,
		`spillway_backend_requests_total{operation="create",outcome="exists"} 1`, `spillway_backend_requests_total{operation="open",outcome="failed"} 1`,
		`spillway_backend_retries_total{operation="put"} 1`, `spillway_backend_throttles_total{operation="put"} 1`,
		`spillway_backend_request_bytes_total{operation="create"} 10`, `spillway_files_total{outcome="sealed"} 1`,
		`spillway_inflight_bytes{from="source",gate="0",to="count"} 512`, `spillway_queue_capacity_bytes{from="source",gate="0",to="count"} 1024`,
		`spillway_task_time_ratio{state="backpressured",subtask="0",vertex="source"} 0.9`, `spillway_bottleneck{vertex="count"} 1`,
		`spillway_record_latency_p99_seconds 1`, `spillway_records_total{subtask="0",vertex="count"} 90`, `spillway_open_files `,
	} {
		require.Contains(t, text, want)
	}
	problems, err := testutil.GatherAndLint(m.metrics.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestPage(t *testing.T) {
	seconds := 1
	o := slow(&seconds, 1)
	o.Job = `<script>"x"</script>`
	m := New(o)
	text := get(t, m, "/", 200)
	require.NotContains(t, text, o.Job, "names are escaped")
	require.NotContains(t, text, "http://")
	require.NotContains(t, text, "https://")
	for _, name := range []string{"page.js", "page.css", "uplot.js", "uplot.css", "icon.svg", "uplot.LICENSE"} {
		require.NotEmpty(t, get(t, m, "/page/"+name, 200))
	}
	get(t, m, "/nowhere", 404)

	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/checkpoints", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code, "it is for reading only")
}

// BenchmarkObserve is what an event costs: of what captures hold, which is the
// most frequent one, and of a call to the store, which takes microseconds at least.
// Records are counted by the tasks, and read when somebody asks.
func BenchmarkObserve(b *testing.B) {
	seconds := 1
	m := New(slow(&seconds, 1))
	for _, e := range []inflight.Event{{Name: inflight.EventBuffered, Bytes: 77}, {Name: inflight.EventRequest, Object: "write", Bytes: 77, Duration: time.Millisecond}} {
		b.Run(string(e.Name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.Observe(e)
			}
		})
	}
}

// BenchmarkState is how long the answers take with 1,000 subtasks and as many
// checkpoints as are remembered.
func BenchmarkState(b *testing.B) {
	seconds := 1
	m := New(slow(&seconds, 500))
	for i := range kept {
		m.Checkpoint(completed(i, 100), "completed", line{i, "completed"}, line{i, "completed"})
	}
	h := m.Handler()
	for _, path := range []string{"/state", "/checkpoints", "/metrics"} {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(b.Context(), http.MethodGet, path, nil))
			}
		})
	}
}

// Every metric that the dashboard and the documentation name exists, and the
// documentation names every metric of ours.
func TestDocumented(t *testing.T) {
	seconds := 1
	m := New(slow(&seconds, 1))
	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 1000)
	m.metrics.describe(descs)
	close(descs)
	name := regexp.MustCompile(`fqName: "(spillway_[a-z0-9_]+)"`)
	for d := range descs {
		known[name.FindStringSubmatch(d.String())[1]] = true
	}
	used := regexp.MustCompile(`\bspillway_[a-z0-9_]+`)
	for _, file := range []string{"grafana.json", "operations.md"} {
		text, err := os.ReadFile("../../../docs/" + file)
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, n := range used.FindAllString(string(text), -1) {
			base := strings.TrimSuffix(strings.TrimSuffix(n, "_bucket"), "_count")
			require.True(t, known[n] || known[base], "%s: there is no metric %s", file, n)
			seen[n], seen[base] = true, true
		}
		for n := range known {
			require.True(t, seen[n], "%s: it leaves %s out", file, n)
		}
	}
}
