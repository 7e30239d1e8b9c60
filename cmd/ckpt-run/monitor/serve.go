package monitor

import (
	"embed"
	"encoding/json"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillway-io/spillway/dataflow"
)

//go:embed page page.html
var files embed.FS

var page = template.Must(template.ParseFS(files, "page.html"))

// Handler serves, for reading only:
//
//	/                    the live page, and /page/ what it consists of
//	/state               what the page shows, as JSON
//	/checkpoints         the latest of each kind, counts, and what is remembered
//	/checkpoints/{id}    one of them, as ckpt-run --json prints it
//	/metrics             for Prometheus
func (m *Monitor) Handler() http.Handler {
	static, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", m.servePage)
	mux.Handle("GET /page/", http.StripPrefix("/page/", http.FileServerFS(static)))
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { reply(w, m.state()) })
	mux.HandleFunc("GET /checkpoints", func(w http.ResponseWriter, _ *http.Request) { reply(w, m.overview()) })
	mux.HandleFunc("GET /checkpoints/{id}", m.serveCheckpoint)
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{}))
	return secure(mux)
}

// secure keeps the page to itself: nothing is loaded from elsewhere.
func secure(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

func (m *Monitor) servePage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, m.o) // the reader has gone
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // the reader has gone
}

func (m *Monitor) serveCheckpoint(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "a checkpoint's id is a number", http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	i := slices.IndexFunc(m.checkpoints, func(e entry) bool { return uint64(e.result.ID) == id && e.result.Reason != dataflow.ReasonSkipped })
	var line any
	if i >= 0 {
		line = m.checkpoints[i].line
	}
	m.mu.Unlock()
	if i < 0 {
		http.Error(w, "checkpoint "+r.PathValue("id")+" is not remembered: /checkpoints lists those that are", http.StatusNotFound)
		return
	}
	reply(w, line)
}

// overview is what /checkpoints answers.
type overview struct {
	Counts      map[string]int `json:"counts"` // by state
	SuccessRate *float64       `json:"success_rate"`
	Latest      latest         `json:"latest"`
	History     []any          `json:"history"` // newest first
}

type latest struct {
	Completed any `json:"completed"`
	Savepoint any `json:"savepoint"`
	Failed    any `json:"failed"`
	Restored  any `json:"restored"`
}

func (m *Monitor) overview() overview {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := overview{Counts: map[string]int{}, SuccessRate: number(m.successRate()), Latest: latest{Restored: m.restore}, History: []any{}}
	for state, n := range m.counts {
		o.Counts[state] = n
	}
	for _, e := range slices.Backward(m.checkpoints) {
		o.History = append(o.History, e.brief)
		switch {
		case !e.result.Completed:
			o.Latest.Failed = first(o.Latest.Failed, e.line)
		case e.result.Savepoint:
			o.Latest.Savepoint = first(o.Latest.Savepoint, e.line)
		default:
			o.Latest.Completed = first(o.Latest.Completed, e.line)
		}
	}
	return o
}

func first(a, b any) any {
	if a != nil {
		return a
	}
	return b
}

// number is f, or nothing: JSON has no NaN.
func number(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

// state is what the page shows.
type state struct {
	UptimeSeconds float64           `json:"uptime_seconds"`
	RecordsPerSec float64           `json:"records_per_second"` // that sources emit
	Fill          float64           `json:"fill"`
	LatencyP50Ms  *float64          `json:"latency_p50_ms"`
	LatencyP99Ms  *float64          `json:"latency_p99_ms"`
	Bottleneck    string            `json:"bottleneck"`
	AgeSeconds    *float64          `json:"last_completed_age_seconds"`
	SuccessRate   *float64          `json:"success_rate"`
	SizeDeviation *float64          `json:"size_deviation"`
	Vertices      []vertexState     `json:"vertices"`
	Edges         []edgeState       `json:"edges"`
	Checkpoints   []checkpointState `json:"checkpoints"` // oldest first
}

type vertexState struct {
	Name      string         `json:"name"`
	PerSecond float64        `json:"per_second"`
	Subtasks  []subtaskState `json:"subtasks"`
}

type subtaskState struct {
	Busy          float64 `json:"busy"`
	Idle          float64 `json:"idle"`
	Backpressured float64 `json:"backpressured"`
	PerSecond     float64 `json:"per_second"`
}

type edgeState struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Kind      string `json:"kind"`
	Unaligned bool   `json:"unaligned"`
	Why       string `json:"why"`
	Queued    int64  `json:"queued"`
	Capacity  int64  `json:"capacity"`
}

type checkpointState struct {
	At   int64 `json:"at"` // ms since 1970
	Line any   `json:"line"`
}

// shown is how many checkpoints the page shows.
const shown = 100

func (m *Monitor) state() state {
	stats := m.o.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	shares := m.rates.look(now, stats.Tasks)
	s := state{UptimeSeconds: now.Sub(m.begun).Seconds(), Fill: stats.Fill, Bottleneck: m.o.bottleneck(shares),
		SuccessRate: number(m.successRate()), SizeDeviation: number(m.deviation()), Edges: []edgeState{}, Checkpoints: []checkpointState{}}
	if stats.Latency.Markers > 0 {
		s.LatencyP50Ms, s.LatencyP99Ms = number(1000*stats.Latency.P50.Seconds()), number(1000*stats.Latency.P99.Seconds())
	}
	if !m.completed.IsZero() {
		s.AgeSeconds = number(now.Sub(m.completed).Seconds())
	}
	for _, v := range m.o.Vertices {
		x := vertexState{Name: v.Name, Subtasks: []subtaskState{}}
		for _, t := range shares {
			if t.Task.Vertex == v.Name {
				x.Subtasks = append(x.Subtasks, subtaskState{t.Busy, t.Idle, t.Backpressured, t.PerSecond})
				x.PerSecond += t.PerSecond
			}
		}
		if v.Source {
			s.RecordsPerSec += x.PerSecond
		}
		s.Vertices = append(s.Vertices, x)
	}
	for i, e := range m.o.Edges {
		x := edgeState{From: e.From, To: e.To, Kind: string(e.Kind), Unaligned: e.Unaligned, Why: e.Why}
		if i < len(stats.Edges) {
			x.Queued, x.Capacity = stats.Edges[i].Queued, stats.Edges[i].Capacity
		}
		s.Edges = append(s.Edges, x)
	}
	for _, e := range m.checkpoints[max(0, len(m.checkpoints)-shown):] {
		s.Checkpoints = append(s.Checkpoints, checkpointState{e.at.UnixMilli(), e.brief})
	}
	return s
}
