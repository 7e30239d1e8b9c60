package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-io/spillway/dataflow"
)

// The lines of --json, as docs/json.md describes them.

type checkpointLine struct {
	Event                  string        `json:"event"` // checkpoint
	ID                     uint64        `json:"id"`
	State                  string        `json:"state"`
	Reason                 string        `json:"reason,omitempty"`
	Text                   string        `json:"text,omitempty"`
	Kind                   string        `json:"kind"`
	Alignment              string        `json:"alignment"`
	Decision               string        `json:"decision,omitempty"`
	Partial                bool          `json:"partial,omitempty"`
	DurationMs             float64       `json:"duration_ms"`
	AckMs                  float64       `json:"ack_ms"`
	SizeBytes              int64         `json:"size_bytes"`
	ChannelStateBytes      uint64        `json:"channel_state_bytes"`
	StateBytes             uint64        `json:"state_bytes"`
	AlignmentBufferedBytes uint64        `json:"alignment_buffered_bytes"`
	Files                  int           `json:"files"`
	Subtasks               []subtaskLine `json:"subtasks"`
}

type subtaskLine struct {
	Vertex         string  `json:"vertex"`
	Subtask        int     `json:"subtask"`
	StartDelayMs   float64 `json:"start_delay_ms"`
	AlignmentMs    float64 `json:"alignment_ms"`
	SyncMs         float64 `json:"sync_ms"`
	AsyncMs        float64 `json:"async_ms"`
	EndToEndMs     float64 `json:"end_to_end_ms"`
	PersistedBytes uint64  `json:"persisted_bytes"`
	Unaligned      bool    `json:"unaligned"`
}

type restoreLine struct {
	Event      string  `json:"event"` // restore
	Checkpoint uint64  `json:"checkpoint"`
	Buffers    uint64  `json:"buffers"`
	Bytes      uint64  `json:"bytes"`
	DurationMs float64 `json:"duration_ms"`
}

type summaryLine struct {
	Event            string  `json:"event"` // summary
	Completed        int     `json:"completed"`
	Failed           int     `json:"failed"`
	Declined         int     `json:"declined"`
	SuccessRate      float64 `json:"success_rate"`
	Partial          int     `json:"partial,omitempty"`    // of the completed ones
	WholeRate        float64 `json:"whole_rate,omitempty"` // what the success rate were without them
	Measured         int     `json:"measured"`
	DurationP50Ms    float64 `json:"duration_p50_ms"`
	DurationP99Ms    float64 `json:"duration_p99_ms"`
	DurationMinMs    float64 `json:"duration_min_ms"`
	DurationMaxMs    float64 `json:"duration_max_ms"`
	DurationStddevMs float64 `json:"duration_stddev_ms"`
	SizeMinBytes     int64   `json:"size_min_bytes"`
	SizeMaxBytes     int64   `json:"size_max_bytes"`
	SizeDeviation    float64 `json:"size_deviation"`
	SizeUnsteady     bool    `json:"size_unsteady"`
	RecordMs         float64 `json:"record_ms"`
	Restarts         int     `json:"restarts"`
}

type resultLine struct {
	Event           string `json:"event"` // result
	Emitted         uint64 `json:"emitted"`
	Counted         uint64 `json:"counted"`
	Lost            uint64 `json:"lost"`
	Duplicated      uint64 `json:"duplicated"`
	Keyless         uint64 `json:"keyless,omitempty"` // lines without the field of --key
	ReplayedBuffers uint64 `json:"replayed_buffers"`
	ReplayedBytes   uint64 `json:"replayed_bytes"`
}

// ms is d in milliseconds, of three decimals.
func ms(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// lineOf makes the line of a checkpoint; ranks gives the place of a vertex in
// the graph.
func lineOf(r dataflow.CheckpointResult, ranks map[string]int) checkpointLine {
	l := checkpointLine{Event: "checkpoint", ID: uint64(r.ID), State: "completed", Kind: "checkpoint", Alignment: r.Alignment(),
		Decision: r.Decision, Partial: r.Partial(), DurationMs: ms(r.Duration), AckMs: ms(r.AckTime), SizeBytes: r.Committed.Bytes, Files: r.Committed.Files, Subtasks: []subtaskLine{}}
	if r.Savepoint {
		l.Kind = "savepoint"
	}
	if !r.Completed {
		l.State, l.Reason = stateOf(r.Reason), string(r.Reason)
		if r.Cause != nil {
			l.Text = oneLine(r.Cause)
		}
	}
	for _, a := range r.Acks {
		l.ChannelStateBytes += a.Handle.PersistedBytes()
		l.StateBytes += a.Handle.StateBytes
		l.AlignmentBufferedBytes += a.Buffered
		l.Subtasks = append(l.Subtasks, subtaskLine{Vertex: a.Task.Vertex, Subtask: a.Task.Subtask, StartDelayMs: ms(a.StartDelay),
			AlignmentMs: ms(a.Alignment), SyncMs: ms(a.Sync), AsyncMs: ms(a.Async), EndToEndMs: ms(a.EndToEnd),
			PersistedBytes: a.Handle.PersistedBytes(), Unaligned: a.Unaligned && !a.Forced})
	}
	slices.SortStableFunc(l.Subtasks, func(a, b subtaskLine) int {
		return cmp.Or(cmp.Compare(ranks[a.Vertex], ranks[b.Vertex]), cmp.Compare(a.Subtask, b.Subtask))
	})
	return l
}

// skipped reports whether it was not even triggered.
func (l *checkpointLine) skipped() bool { return l.Reason == string(dataflow.ReasonSkipped) }

// title names the checkpoint; one that was skipped has no id.
func (l *checkpointLine) title() string {
	if l.skipped() {
		return l.Kind
	}
	return fmt.Sprintf("%s %d", l.Kind, l.ID)
}

// stateOf is the state of a checkpoint that did not complete.
func stateOf(r dataflow.Reason) string {
	switch {
	case r == dataflow.ReasonTaskStopped || r == dataflow.ReasonTaskFailed:
		return "aborted" // nothing was wrong with it
	case r.Declined():
		return "declined"
	}
	return "failed"
}

// history is what a run has seen of its checkpoints.
type history struct {
	completed, partial, failed, declined, restarts int

	durations []float64 // of what is measured: all but the first, savepoints, and those after the end of the data
	sizes     []float64
}

// add takes in a checkpoint; measure is false for one after the end of the data.
func (h *history) add(l checkpointLine, measure bool) {
	switch l.State {
	case "completed":
		if l.Partial {
			h.partial++
		}
		if h.completed++; h.completed > 1 && l.Kind == "checkpoint" && measure {
			h.durations = append(h.durations, l.DurationMs)
			h.sizes = append(h.sizes, float64(l.SizeBytes))
		}
	case "failed":
		h.failed++
	case "declined":
		h.declined++
	}
}

// unsteady is from what deviation on sizes are marked.
const unsteady = 0.15

// summary sums up.
func (h *history) summary(recordTime time.Duration) summaryLine {
	l := summaryLine{Event: "summary", Completed: h.completed, Failed: h.failed, Declined: h.declined, Measured: len(h.durations),
		RecordMs: ms(recordTime), Restarts: h.restarts}
	if all := h.completed + h.failed + h.declined; all > 0 {
		l.SuccessRate = round(float64(h.completed) / float64(all))
		if l.Partial = h.partial; h.partial > 0 {
			l.WholeRate = round(float64(h.completed-h.partial) / float64(all))
		}
	}
	if len(h.durations) == 0 {
		return l
	}
	d, s := slices.Sorted(slices.Values(h.durations)), slices.Sorted(slices.Values(h.sizes))
	_, sigma := moments(d)
	mean, sizeSigma := moments(s)
	l.DurationP50Ms, l.DurationP99Ms = round(quantile(d, 0.5)), round(quantile(d, 0.99))
	l.DurationMinMs, l.DurationMaxMs, l.DurationStddevMs = round(d[0]), round(d[len(d)-1]), round(sigma)
	l.SizeMinBytes, l.SizeMaxBytes = int64(s[0]), int64(s[len(s)-1])
	if mean > 0 {
		l.SizeDeviation = round(sizeSigma / mean)
	}
	l.SizeUnsteady = l.SizeDeviation > unsteady
	return l
}

// quantile of what is sorted: the smallest value that so much is not above.
func quantile(sorted []float64, q float64) float64 {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func moments(v []float64) (mean, sigma float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		sigma += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(sigma)
}
