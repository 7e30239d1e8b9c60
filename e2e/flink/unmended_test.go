package flink_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestUnmended is the control: what Flink does with the same damage by itself.
func TestUnmended(t *testing.T) {
	j, path, _, _, _ := damaged(t, damage{do: chunkLength(inflight.Input, -4)})
	r := j.restore(t, "unmended: length of an input chunk - 4", path, j.splits)
	require.Equal(t, "FINISHED", r.State, "Flink notices nothing")
	require.Greater(t, len(r.Missing), 1000, "and loses what comes behind, new data too")

	j, path, _, _, _ = damaged(t, damage{do: cutIn(inflight.Input)})
	limit := 10
	if full() {
		limit = 60
	}
	r = j.restoreWithin(t, "unmended: a file cut in an input chunk", path, j.splits, limit)
	require.Equal(t, "HANGS", r.State, "%v", r.Causes)
	require.NotEmpty(t, r.Busy, "a thread spins")
}
