package flink_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestUnmended is the control: what Flink does with the same damage by itself.
func TestUnmended(t *testing.T) {
	j, path, _, _, _ := damaged(t, damage{do: chunkLength(inflight.Input, -4)})
	r := j.restore(t, "unmended: length of an input chunk - 4", path, j.splits, how{})
	require.Equal(t, "FINISHED", r.State, "Flink notices nothing")
	require.Greater(t, len(r.Missing), 1000, "and loses what comes behind, new data too")

	// Its own way to leave the channel state of a checkpoint out.
	j, root, dir := fixture(t, "resume")
	r = j.restore(t, "without channel state, by Flink's option", filepath.Join(root, dir), j.splits,
		how{settings: map[string]string{"execution.state-recovery.without-channel-state.checkpoint-id": "3"}})
	require.Equal(t, "FINISHED", r.State)
	require.Greater(t, r.Counted, j.n+1000, "the sources forget where they were, and read again")

	j, path, _, _, _ = damaged(t, damage{do: cutIn(inflight.Input)})
	limit := 10
	if full() {
		limit = 60
	}
	r = j.restore(t, "unmended: a file cut in an input chunk", path, j.splits, how{limit: limit})
	require.Equal(t, "HANGS", r.State, "%v", r.Causes)
	require.NotEmpty(t, r.Busy, "a thread spins")
}
