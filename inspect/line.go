package inspect

import (
	"time"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// LineType tells the lines of a report apart, as "type" in their JSON. Lines of
// dump and findings have none.
type LineType string

// The types of lines, as used in JSON.
const (
	TypeCheckpoint   LineType = "checkpoint"   // a slot of a job's log: CheckpointLine
	TypeSubtask      LineType = "subtask"      // what one subtask captured: SubtaskLine
	TypeEdge         LineType = "edge"         // what was in flight on an edge: EdgeLine
	TypeChannel      LineType = "channel"      // one address of a subtask: ChannelLine
	TypeConnection   LineType = "connection"   // the conservation proof of a connection: ConnectionLine
	TypeFile         LineType = "file"         // a file that a checkpoint refers to: FileLine
	TypeReplay       LineType = "replay"       // one channel, captured and replayed: ReplayLine
	TypeObject       LineType = "object"       // an object of a job, and what gc does with it: ObjectLine
	TypeSummary      LineType = "summary"      // the sums of a collection: SummaryLine
	TypeFinding      LineType = "finding"      // what is wrong: NoteLine
	TypeCapabilities LineType = "capabilities" // what a store promises: CapabilitiesLine
	TypeCheck        LineType = "check"        // one promise of a store, tried: CheckLine
	TypeMetadata     LineType = "metadata"     // the _metadata of Flink: MetadataLine
	TypeMaster       LineType = "master"       // state of a hook of Flink's coordinator: MasterLine
	TypeOperator     LineType = "operator"     // an operator of Flink: OperatorLine
	TypeState        LineType = "state"        // keyed or operator state of a subtask of Flink: StateLine
	TypeHandle       LineType = "handle"       // a handle of channel state of Flink: HandleLine
	TypeUsage        LineType = "usage"        // what takes room: UsageLine
	TypeDifference   LineType = "difference"   // what differs between two checkpoints: DifferenceLine
	TypePlan         LineType = "plan"         // a rewrite: PlanLine
	TypeLoss         LineType = "loss"         // in-flight data that a rewrite gives up: LossLine
	TypeSeal         LineType = "seal"         // a seal: SealLine
)

// Place says which subtask and address a line is about. What does not concern
// it is left out.
type Place struct {
	Vertex       *string `json:"vertex,omitempty"`
	OperatorID   string  `json:"operator_id,omitempty"` // of Flink
	Subtask      *int    `json:"subtask,omitempty"`
	Side         string  `json:"side,omitempty"` // input, output or state
	Gate         *int    `json:"gate,omitempty"`
	Channel      *int    `json:"channel,omitempty"`
	Partition    *int    `json:"partition,omitempty"`
	Subpartition *int    `json:"subpartition,omitempty"`
	StateName    *string `json:"name,omitempty"`
}

// placeOf returns the place of an address of a task; both may be nil.
func placeOf(t *inflight.Task, a *inflight.Address) (p Place) {
	if t != nil {
		p.Vertex, p.Subtask = &t.Vertex, &t.Subtask
	}
	if a == nil {
		return p
	}
	p.Side = a.Side.String()
	switch a.Side {
	case inflight.Input:
		p.Gate, p.Channel = &a.Input.Gate, &a.Input.Channel
	case inflight.Output:
		p.Partition, p.Subpartition = &a.Output.Partition, &a.Output.Subpartition
	case inflight.State:
		p.StateName = (*string)(&a.State)
	}
	return p
}

// CheckpointLine is one slot of a job's log: a checkpoint, what was to become
// one, or a claim.
type CheckpointLine struct {
	Type LineType              `json:"type"`
	Job  string                `json:"job,omitempty"`
	Dir  string                `json:"dir"` // on the backend
	ID   inflight.CheckpointID `json:"id"`
	// Flink: it is one of Flink's. MetadataVersion is that of its _metadata.
	Flink           bool `json:"flink,omitempty"`
	MetadataVersion int  `json:"metadata_version,omitempty"`
	// State is empty for a claim.
	State     catalog.State    `json:"state,omitempty"`
	Kind      string           `json:"kind,omitempty"` // checkpoint, savepoint or claim; left out where it cannot be told
	Alignment format.Alignment `json:"alignment,omitempty"`
	Mode      format.Mode      `json:"mode,omitempty"`
	Epoch     *inflight.Epoch  `json:"epoch,omitempty"`
	Attempt   string           `json:"attempt,omitempty"`
	// SizeBytes is what it occupies on the backend, manifest included.
	SizeBytes         int64                   `json:"size_bytes"`
	ChannelStateBytes uint64                  `json:"channel_state_bytes"`
	StateBytes        uint64                  `json:"state_bytes"`
	Files             int                     `json:"files"`          // channel-state files
	Kept              *bool                   `json:"kept,omitempty"` // the tip, or kept by it; left out where the log was not read
	SelfContained     bool                    `json:"self_contained,omitempty"`
	Partial           bool                    `json:"partial,omitempty"`
	Base              *inflight.CheckpointID  `json:"base,omitempty"` // of a claim
	Keep              []inflight.CheckpointID `json:"keep,omitempty"`
	PassedOver        []inflight.CheckpointID `json:"passed_over,omitempty"`
	Reason            string                  `json:"reason,omitempty"` // of an id that was given up
	Text              string                  `json:"text,omitempty"`   // the same for people, or what is wrong
	Modified          string                  `json:"modified,omitempty"`
	AgeMS             *int64                  `json:"age_ms,omitempty"`
	// The timings are those of _stats.json; they are left out where there is none.
	DurationMS *float64 `json:"duration_ms,omitempty"`
	AckMS      *float64 `json:"ack_ms,omitempty"`

	leftovers int
}

// SubtaskLine is what one subtask captured. The timings are those of
// _stats.json.
type SubtaskLine struct {
	Type         LineType `json:"type"`
	Vertex       string   `json:"vertex"`
	OperatorID   string   `json:"operator_id,omitempty"` // of Flink
	Subtask      int      `json:"subtask"`
	Finished     bool     `json:"finished,omitempty"` // it had ended before
	Missing      bool     `json:"missing,omitempty"`  // it is not in the checkpoint
	Files        int      `json:"files"`
	Buffers      uint64   `json:"buffers"`
	InputBytes   uint64   `json:"input_bytes"`
	OutputBytes  uint64   `json:"output_bytes"`
	StateBytes   uint64   `json:"state_bytes"`
	StartDelayMS *float64 `json:"start_delay_ms,omitempty"`
	AlignmentMS  *float64 `json:"alignment_ms,omitempty"`
	SyncMS       *float64 `json:"sync_ms,omitempty"`
	AsyncMS      *float64 `json:"async_ms,omitempty"`
	EndToEndMS   *float64 `json:"end_to_end_ms,omitempty"`
	Unaligned    *bool    `json:"unaligned,omitempty"`
}

// EdgeLine is what was in flight on one edge.
type EdgeLine struct {
	Type        LineType `json:"type"`
	From        string   `json:"from"`
	Partition   int      `json:"partition"`
	To          string   `json:"to"`
	Gate        int      `json:"gate"`
	Partitioner string   `json:"partitioner"`
	Connections int      `json:"connections"`
	Busy        int      `json:"busy"` // connections with captured bytes
	InputBytes  uint64   `json:"input_bytes"`
	OutputBytes uint64   `json:"output_bytes"`
	Buffers     uint64   `json:"buffers"`
	Records     *uint64  `json:"records,omitempty"` // whole ones, where they are length-prefixed
	// Skew is the share of the busiest connection: 1 means that it has everything.
	Skew float64 `json:"skew"`
	// Evidence: the edge was inferred, from so many connections on which a record
	// goes on from one end to the other.
	Evidence *int `json:"evidence,omitempty"`
}

// ChannelLine is what was captured of one address.
type ChannelLine struct {
	Type LineType `json:"type"`
	Place
	Buffers uint64  `json:"buffers"`
	Bytes   uint64  `json:"bytes"`
	Digest  string  `json:"digest"`            // CRC-64/NVME of the bytes
	Records *uint64 `json:"records,omitempty"` // that end here, where they are length-prefixed
	// Epoch, StreamOffset and StreamEnd say where the bytes stand in the stream of
	// the connection.
	Epoch        *inflight.Epoch `json:"epoch,omitempty"`
	StreamOffset *uint64         `json:"stream_offset,omitempty"`
	StreamEnd    *uint64         `json:"stream_end,omitempty"`
	Gaps         int             `json:"gaps,omitempty"`
	// CutBytes and CutRecords are what had been consumed or emitted at the snapshot.
	CutBytes   *uint64 `json:"cut_bytes,omitempty"`
	CutRecords *uint64 `json:"cut_records,omitempty"`
	// StateSize and Offsets are what the handle of Flink says; Handle is the
	// number of its line.
	StateSize *int64  `json:"state_size,omitempty"`
	Handle    *int    `json:"handle,omitempty"`
	Offsets   []int64 `json:"offsets,omitempty"`
	// Ranges are where in files it lies.
	Ranges []RangeLine `json:"ranges,omitempty"`
}

// RangeLine is a part of a file.
type RangeLine struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
}

// FileLine is a channel-state file of a checkpoint.
type FileLine struct {
	Type      LineType `json:"type"`
	Name      string   `json:"name"` // relative to the job; of Flink, to the store
	FileID    string   `json:"file_id,omitempty"`
	SizeBytes int64    `json:"size_bytes"`
	Subtasks  int      `json:"subtasks"` // that have a section in it, or a handle that leads to it
	// Of Flink: what lies in it, how much of it belongs to the checkpoint, whether
	// it is not where its path leads.
	Use       FileUse `json:"use,omitempty"`
	UsedBytes *int64  `json:"used_bytes,omitempty"`
	Moved     bool    `json:"moved,omitempty"`
	SHA256    string  `json:"sha256,omitempty"`
}

// FindingLine is one finding of verify.
type FindingLine struct {
	Severity inflight.Severity `json:"severity"`
	Code     string            `json:"code"`
	Object   string            `json:"object"`
	Offset   *int64            `json:"offset,omitempty"`
	Place
	Text string `json:"text"`
}

// NoteLine is a finding in a report of another kind.
type NoteLine struct {
	Type LineType `json:"type"`
	FindingLine
}

// appendNotes adds findings to the lines of a report.
func appendNotes(lines []any, findings []inflight.Finding, operators map[string]string) []any {
	for _, f := range findings {
		lines = append(lines, &NoteLine{TypeFinding, findingLine(f, operators)})
	}
	return lines
}

// findingLine describes a finding; operators are the ids of Flink's operators, by
// vertex.
func findingLine(f inflight.Finding, operators map[string]string) FindingLine {
	l := FindingLine{Severity: f.Severity, Code: f.Code, Object: f.Object, Place: placeOf(f.Task, f.Address), Text: Shorten(oneLine(f.Text))}
	if f.Task != nil {
		l.OperatorID = operators[f.Task.Vertex]
	}
	if f.Offset >= 0 {
		l.Offset = &f.Offset
	}
	return l
}

// BufferLine is one captured buffer.
type BufferLine struct {
	Place
	Epoch        *inflight.Epoch `json:"epoch,omitempty"`
	StreamOffset *uint64         `json:"stream_offset,omitempty"`
	Seq          *uint64         `json:"seq,omitempty"`
	// Offset is where the buffer's first byte lies in its file, or the block that
	// it lies in where that is compressed.
	Offset  int64   `json:"offset"`
	Length  int     `json:"length"`
	SHA256  string  `json:"sha256,omitempty"`
	File    string  `json:"file,omitempty"` // relative to the job; of Flink, to the store
	Gap     bool    `json:"gap,omitempty"`  // bytes are missing before it
	Hex     string  `json:"hex,omitempty"`
	Records *uint64 `json:"records,omitempty"` // that end in it
	// StartPos is where in File the stream begins that Offset counts in, of Flink.
	StartPos *int64        `json:"start_pos,omitempty"`
	Elements []ElementLine `json:"elements,omitempty"` // that end in it, of Flink
}

// ObjectLine is one object of a job, and what a collection does with it.
type ObjectLine struct {
	Type      LineType              `json:"type"`
	Job       string                `json:"job,omitempty"`
	Name      string                `json:"name"` // on the backend
	ID        inflight.CheckpointID `json:"id"`
	SizeBytes int64                 `json:"size_bytes"`
	Class     catalog.Class         `json:"class"`
	Delete    bool                  `json:"delete"`
}

// SummaryLine has the sums of a collection of one job.
type SummaryLine struct {
	Type        LineType               `json:"type"`
	Job         string                 `json:"job,omitempty"`
	DryRun      bool                   `json:"dry_run"`
	Tip         *inflight.CheckpointID `json:"tip,omitempty"`
	Objects     int                    `json:"objects"`
	SizeBytes   int64                  `json:"size_bytes"`
	Delete      int                    `json:"delete"`
	DeleteBytes int64                  `json:"delete_bytes"`
	Text        string                 `json:"text,omitempty"` // why nothing may be deleted
}

// ptr returns a pointer to v, nil where it is not known.
func ptr[T any](v T, known bool) *T {
	if !known {
		return nil
	}
	return &v
}

// stamp returns t in the form of JSON, and its age.
func (i *Inspector) stamp(t time.Time) (modified string, ageMS *int64) {
	if t.IsZero() {
		return "", nil
	}
	return t.UTC().Format(time.RFC3339), ptr(i.o.Now().Sub(t).Milliseconds(), true)
}
