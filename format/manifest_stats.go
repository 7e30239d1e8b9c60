package format

import (
	"encoding/json"
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// maxStats bounds the statistics of one checkpoint.
const maxStats = 64 << 20

// CheckpointStats is chk-<id>/_stats.json: how a checkpoint went. It is written
// best effort and is not needed to restore; fields may be added. Durations are
// in milliseconds and begin at the trigger.
type CheckpointStats struct {
	ID        inflight.CheckpointID `json:"id"`
	State     string                `json:"state"`
	Reason    string                `json:"reason,omitempty"`   // of failed, declined, aborted
	Decision  string                `json:"decision,omitempty"` // why it went as it did, if that was decided
	Kind      string                `json:"kind,omitempty"`     // checkpoint, savepoint
	Alignment Alignment             `json:"alignment,omitempty"`
	Triggered string                `json:"triggered,omitempty"` // RFC 3339
	// DurationMS runs to the durable manifest, AckMS to the last acknowledgement.
	DurationMS             float64        `json:"duration_ms"`
	AckMS                  float64        `json:"ack_ms"`
	SizeBytes              int64          `json:"size_bytes,omitempty"`
	ChannelStateBytes      uint64         `json:"channel_state_bytes,omitempty"`
	StateBytes             uint64         `json:"state_bytes,omitempty"`
	AlignmentBufferedBytes uint64         `json:"alignment_buffered_bytes,omitempty"`
	Files                  int            `json:"files,omitempty"`
	Subtasks               []SubtaskStats `json:"subtasks,omitempty"`
}

// SubtaskStats is the part of one subtask.
type SubtaskStats struct {
	inflight.Task
	StartDelayMS   float64 `json:"start_delay_ms"`
	AlignmentMS    float64 `json:"alignment_ms"`
	SyncMS         float64 `json:"sync_ms"`
	AsyncMS        float64 `json:"async_ms"`
	EndToEndMS     float64 `json:"end_to_end_ms"`
	PersistedBytes uint64  `json:"persisted_bytes"`
	StateBytes     uint64  `json:"state_bytes,omitempty"`
	Unaligned      bool    `json:"unaligned"`
}

// EncodeStats returns the JSON of s.
func EncodeStats(s *CheckpointStats) ([]byte, error) {
	p, err := json.Marshal(s)
	if err != nil { // a NaN
		return nil, &inflight.Error{Op: "encode", Object: StatsName, Err: err}
	}
	return append(p, '\n'), nil
}

// DecodeStats reads the JSON of EncodeStats.
func DecodeStats(p []byte) (*CheckpointStats, error) {
	if len(p) > maxStats {
		return nil, &FormatError{Code: CodeStats, Offset: -1, Text: fmt.Sprintf("statistics: %d bytes, at most %d", len(p), maxStats), Err: inflight.ErrTooLarge}
	}
	s := new(CheckpointStats)
	if err := json.Unmarshal(p, s); err != nil {
		return nil, &FormatError{Code: CodeStats, Offset: -1, Text: fmt.Sprintf("statistics: %v", err), Err: inflight.ErrCorrupt}
	}
	return s, nil
}
