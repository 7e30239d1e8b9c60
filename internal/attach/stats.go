package attach

import (
	"time"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
)

// statistics say how a checkpoint went.
type statistics struct{ format.CheckpointStats }

// stats draws up the statistics of a slot that was decided just now.
func (k *slot) stats(state catalog.State, reason string) *statistics {
	now := time.Now()
	k.s.mu.Lock()
	kind := catalog.SlotCheckpoint
	if k.savepoint {
		kind = catalog.SlotSavepoint
	}
	k.s.mu.Unlock()
	s := &statistics{format.CheckpointStats{ID: k.ID(), State: string(state), Reason: reason, Decision: k.decision, Kind: kind,
		Triggered: k.begun.UTC().Format(time.RFC3339Nano), DurationMS: ms(now.Sub(k.begun))}}
	if k.acked.IsZero() {
		return s
	}
	s.AckMS = ms(k.acked.Sub(k.begun))
	s.Alignment = alignment(k.acks)
	for _, a := range k.acks {
		s.AlignmentBufferedBytes += a.Buffered
		s.Subtasks = append(s.Subtasks, format.SubtaskStats{Task: a.Task,
			StartDelayMS: ms(a.StartDelay), AlignmentMS: ms(a.Alignment), SyncMS: ms(a.Sync), AsyncMS: ms(a.Async), EndToEndMS: ms(a.EndToEnd),
			PersistedBytes: a.Handle.PersistedBytes(), StateBytes: a.Handle.StateBytes, Unaligned: a.Unaligned && !a.Forced})
	}
	return s
}

// complete adds what is known of a checkpoint that is committed.
func (s *statistics) complete(c *catalog.Checkpoint, size int64) {
	m := c.Manifest
	s.SizeBytes, s.Files = size, len(m.Files)
	s.ChannelStateBytes, s.StateBytes = m.PersistedBytes(), m.StateBytes()
}

// keep writes statistics, off the path of everything else.
func (s *store) keep(stats *statistics) {
	if s.j.o.Decorate != nil {
		s.j.o.Decorate(&stats.CheckpointStats)
	}
	s.tidy.do(func() { _ = s.coord.WriteStats(s.life, &stats.CheckpointStats) }) // no restore needs them
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
