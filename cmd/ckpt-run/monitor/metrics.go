package monitor

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// metrics are what /metrics shows. What happens seldom is counted here when it
// happens; what goes on all the time is read from the runtime when asked for.
type metrics struct {
	m        *Monitor
	registry *prometheus.Registry
	own      []prometheus.Collector // ours, of those in the registry

	checkpoints     *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	startDelay      *prometheus.HistogramVec
	alignment       *prometheus.HistogramVec
	async           *prometheus.HistogramVec
	buffered        prometheus.Gauge
	size            prometheus.Gauge
	persisted       *prometheus.CounterVec
	edgePersisted   *prometheus.CounterVec
	fallbacks       prometheus.Counter
	restarts        prometheus.Counter
	held            prometheus.Gauge
	spilled         prometheus.Counter
	files           *prometheus.CounterVec
	retired         prometheus.Counter
	replayed        *prometheus.CounterVec
	replayProgress  prometheus.Gauge
	requests        *prometheus.CounterVec
	requestBytes    *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	retries         *prometheus.CounterVec
	throttles       *prometheus.CounterVec
}

const namespace = "spillway"

func newMetrics(m *Monitor) *metrics {
	x := &metrics{m: m, registry: prometheus.NewRegistry()}
	add := func(c prometheus.Collector) {
		x.registry.MustRegister(c)
		x.own = append(x.own, c)
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
		add(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		add(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		add(g)
		return g
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 20)}, labels) // 0.5 ms to 262 s
		add(h)
		return h
	}
	x.checkpoints = counters("checkpoints_total", "Checkpoints by how they ended; reason is empty for completed ones.", "state", "kind", "alignment", "reason")
	x.duration = seconds("checkpoint_duration_seconds", "From the trigger to the durable manifest, of completed checkpoints.", "alignment")
	x.startDelay = seconds("checkpoint_start_delay_seconds", "From the trigger to a subtask's first barrier.", "vertex")
	x.alignment = seconds("checkpoint_alignment_seconds", "From a subtask's first barrier to its last.", "vertex")
	x.async = seconds("checkpoint_async_seconds", "From a subtask's snapshot to its data being durable.", "vertex")
	x.buffered = gauge("checkpoint_alignment_buffered_bytes", "What stood behind aligned barriers in the last completed checkpoint.")
	x.size = gauge("checkpoint_size_bytes", "What the last completed checkpoint occupies on the store.")
	x.persisted = counters("checkpoint_persisted_bytes_total", "Channel state in completed checkpoints.", "vertex", "side")
	x.edgePersisted = counters("checkpoint_edge_persisted_bytes_total", "Channel state in completed checkpoints, by edge.", "from", "to", "side")
	x.fallbacks = counter("checkpoint_fallbacks_total", "Checkpoints that were aligned since the last one went over max-buffered-data.")
	x.restarts = counter("job_restarts_total", "Restarts of the job in this process.")
	x.held = gauge("writer_buffered_bytes", "Bytes that captures hold in memory, after the last file.")
	x.spilled = counter("writer_spilled_bytes_total", "Bytes moved to the spill directory.")
	x.files = counters("files_total", "Channel-state files by what became of them: sealed, failed, retried.", "outcome")
	x.retired = counter("retired_names_total", "Names that were deleted since no kept checkpoint needs them.")
	x.replayed = counters("replayed_total", "What was replayed on restores, in buffers and bytes.", "unit")
	x.replayProgress = gauge("replay_progress_ratio", "How much of the restore under way is replayed; 1 when it is done.")
	x.requests = counters("backend_requests_total", "Calls to the store.", "operation", "outcome")
	x.requestBytes = counters("backend_request_bytes_total", "Bytes that calls to the store moved.", "operation")
	x.requestDuration = seconds("backend_request_duration_seconds", "How long calls to the store took.", "operation")
	x.retries = counters("backend_retries_total", "Calls to the store that were made again.", "operation")
	x.throttles = counters("backend_throttles_total", "Calls that the store answered with: too many.", "operation")
	gauge("writer_buffered_limit_bytes", "max-buffered-data: what captures may hold in memory.").Set(float64(m.o.Bound))
	add(running{m})
	x.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return x
}

// describe tells of the metrics that are ours.
func (x *metrics) describe(ch chan<- *prometheus.Desc) {
	for _, c := range x.own {
		c.Describe(ch)
	}
}

// checkpoint counts a checkpoint.
func (x *metrics) checkpoint(r dataflow.CheckpointResult, state string) {
	kind := "checkpoint"
	if r.Savepoint {
		kind = "savepoint"
	}
	x.checkpoints.WithLabelValues(state, kind, r.Alignment(), string(r.Reason)).Inc()
	if !r.Completed {
		return
	}
	x.duration.WithLabelValues(r.Alignment()).Observe(r.Duration.Seconds())
	x.size.Set(float64(r.Committed.Bytes))
	var buffered uint64
	for _, a := range r.Acks {
		v := a.Task.Vertex
		x.startDelay.WithLabelValues(v).Observe(a.StartDelay.Seconds())
		x.alignment.WithLabelValues(v).Observe(a.Alignment.Seconds())
		x.async.WithLabelValues(v).Observe(a.Async.Seconds())
		x.persisted.WithLabelValues(v, "input").Add(float64(a.Handle.InputBytes))
		x.persisted.WithLabelValues(v, "output").Add(float64(a.Handle.OutputBytes))
		buffered += a.Buffered
	}
	x.buffered.Set(float64(buffered))
}

func (x *metrics) accounted(flows []reader.Flow) {
	for _, f := range flows {
		if f.Input > 0 {
			x.edgePersisted.WithLabelValues(f.From.Vertex, f.To.Vertex, "input").Add(float64(f.Input))
		}
		if f.Output > 0 {
			x.edgePersisted.WithLabelValues(f.From.Vertex, f.To.Vertex, "output").Add(float64(f.Output))
		}
	}
}

// observe counts an event of the toolkit.
func (x *metrics) observe(e *inflight.Event) {
	switch e.Name {
	case inflight.EventFileSealed:
		x.files.WithLabelValues("sealed").Inc()
	case inflight.EventFileFailed:
		x.files.WithLabelValues("failed").Inc()
	case inflight.EventFileRetried:
		x.files.WithLabelValues("retried").Inc()
	case inflight.EventBuffered:
		x.held.Set(float64(e.Bytes))
	case inflight.EventSpilled:
		x.spilled.Add(float64(e.Bytes))
	case inflight.EventRetired:
		x.retired.Add(float64(e.Count))
	case inflight.EventReplayProgress:
		if e.Total > 0 {
			x.replayProgress.Set(float64(e.Bytes) / float64(e.Total))
		}
	case inflight.EventReplayDone:
		x.replayProgress.Set(1)
		x.replayed.WithLabelValues("buffers").Add(float64(e.Count))
		x.replayed.WithLabelValues("bytes").Add(float64(e.Bytes))
	case inflight.EventRequest:
		x.request(e)
	case inflight.EventRetried:
		x.retries.WithLabelValues(e.Object).Inc()
	case inflight.EventThrottled:
		x.throttles.WithLabelValues(e.Object).Inc()
	}
}

func (x *metrics) request(e *inflight.Event) {
	x.requests.WithLabelValues(e.Object, outcome(e.Err)).Add(float64(max(e.Count, 1)))
	if e.Bytes > 0 {
		x.requestBytes.WithLabelValues(e.Object).Add(float64(e.Bytes))
	}
	x.requestDuration.WithLabelValues(e.Object).Observe(e.Duration.Seconds())
}

// outcome is how a call to the store ended, in one word.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, inflight.ErrNotExist):
		return "not-found"
	case errors.Is(err, inflight.ErrExist):
		return "exists"
	case errors.Is(err, fs.ErrPermission):
		return "permission"
	case errors.Is(err, inflight.ErrOutcomeUnknown):
		return "unknown"
	}
	return "failed"
}

// running is what is read from the runtime when somebody asks.
type running struct{ m *Monitor }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	recordsDesc    = desc("records_total", "Records that a subtask processed, or a source emitted.", "vertex", "subtask")
	timeDesc       = desc("task_time_seconds_total", "What a subtask's time went to: busy, idle, backpressured.", "vertex", "subtask", "state")
	shareDesc      = desc("task_time_ratio", "What a subtask's time went to lately, as a share.", "vertex", "subtask", "state")
	overdraftDesc  = desc("overdraft_buffers_total", "Buffers taken beyond the pool for a record under way.", "vertex", "subtask")
	inflightDesc   = desc("inflight_bytes", "What lies in the queues of an edge.", "from", "to", "gate")
	capacityDesc   = desc("queue_capacity_bytes", "What the queues of an edge can hold.", "from", "to", "gate")
	latencyP50Desc = desc("record_latency_p50_seconds", "How long marked records took from a source to a sink, lately: the median.")
	latencyP99Desc = desc("record_latency_p99_seconds", "How long marked records took from a source to a sink, lately: all but 1 %.")
	bottleneckDesc = desc("bottleneck", "1 for the vertex that holds the job up.", "vertex")
	ageDesc        = desc("checkpoint_last_completed_age_seconds", "Since the last completed checkpoint; since the start of the process where there is none.")
	lastDesc       = desc("checkpoint_last_completed_id", "Id of the last completed checkpoint.")
	rateDesc       = desc("checkpoint_success_ratio", "Share of the checkpoints of this process that completed.")
	deviationDesc  = desc("checkpoint_size_deviation_ratio", "Standard deviation of the last 20 sizes by their mean.")
	openFilesDesc  = desc("open_files", "Open file descriptors of the process.")
)

// Describe implements prometheus.Collector.
func (c running) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{recordsDesc, timeDesc, shareDesc, overdraftDesc, inflightDesc, capacityDesc, latencyP50Desc, latencyP99Desc, bottleneckDesc, ageDesc, lastDesc, rateDesc, deviationDesc, openFilesDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c running) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		if !math.IsNaN(v) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	stats := c.m.o.Stats()
	for _, t := range stats.Tasks {
		v, i := t.Task.Vertex, strconv.Itoa(t.Task.Subtask)
		counter(recordsDesc, float64(t.Records), v, i)
		counter(timeDesc, t.Busy.Seconds(), v, i, "busy")
		counter(timeDesc, t.Idle.Seconds(), v, i, "idle")
		counter(timeDesc, t.Backpressured.Seconds(), v, i, "backpressured")
		counter(overdraftDesc, float64(t.Overdrafts), v, i)
	}
	for _, e := range stats.Edges {
		gate := strconv.Itoa(e.Edge.Gate)
		gauge(inflightDesc, float64(e.Queued), e.Edge.From, e.Edge.To, gate)
		gauge(capacityDesc, float64(e.Capacity), e.Edge.From, e.Edge.To, gate)
	}
	if stats.Latency.Markers > 0 {
		gauge(latencyP50Desc, stats.Latency.P50.Seconds())
		gauge(latencyP99Desc, stats.Latency.P99.Seconds())
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	shares := c.m.rates.look(time.Now(), stats.Tasks)
	for _, s := range shares {
		v, i := s.Task.Vertex, strconv.Itoa(s.Task.Subtask)
		gauge(shareDesc, s.Busy, v, i, "busy")
		gauge(shareDesc, s.Idle, v, i, "idle")
		gauge(shareDesc, s.Backpressured, v, i, "backpressured")
	}
	if v := c.m.o.bottleneck(shares); v != "" {
		gauge(bottleneckDesc, 1, v)
	}
	since := c.m.completed
	if since.IsZero() {
		since = c.m.begun
	}
	gauge(ageDesc, time.Since(since).Seconds())
	for i := len(c.m.checkpoints) - 1; i >= 0; i-- {
		if r := c.m.checkpoints[i].result; r.Completed {
			gauge(lastDesc, float64(r.ID))
			break
		}
	}
	gauge(rateDesc, c.m.successRate())
	gauge(deviationDesc, c.m.deviation())
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		gauge(openFilesDesc, float64(len(open)))
	}
}
