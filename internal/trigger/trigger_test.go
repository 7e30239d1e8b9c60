package trigger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The table is the one of docs/operations.md.
func TestChain(t *testing.T) {
	const second = time.Second
	took := func(over, under int) (d []time.Duration) {
		for range over {
			d = append(d, 2*second)
		}
		for range under {
			d = append(d, second)
		}
		return d
	}
	for _, row := range []struct {
		name       string
		fill       float64
		alignments []time.Duration
		free       int64 // -1: the store cannot tell
		state      int64
		force      bool
		choice     dataflow.Choice
		reason     string
	}{
		{"all three hold", 0.82, took(6, 14), 1 << 30, 0, false, dataflow.ChooseUnaligned, "queues 82 % full (threshold 50 %)"},
		{"at the thresholds", 0.5, took(6, 14), 256 << 20, 0, false, dataflow.ChooseUnaligned, "queues 50 % full (threshold 50 %)"},
		{"queues not full", 0.49, took(20, 0), 1 << 30, 0, false, dataflow.ChooseAligned, "queues 49 % full (threshold 50 %)"},
		{"few overruns", 1, took(5, 15), 1 << 30, 0, false, dataflow.ChooseAligned, "5 of 20 alignments over 1s (threshold 30 %)"},
		{"no overruns", 1, took(0, 1), 1 << 30, 0, false, dataflow.ChooseAligned, "0 of 1 alignments over 1s (threshold 30 %)"},
		{"no history counts as overrun", 1, nil, 1 << 30, 0, false, dataflow.ChooseUnaligned, "queues 100 % full (threshold 50 %)"},
		{"little room", 1, nil, 255 << 20, 0, false, dataflow.ChooseAligned, "255 MiB free (threshold 256 MiB)"},
		{"a store that cannot tell has room", 1, nil, -1, 1, false, dataflow.ChooseUnaligned, "queues 100 % full (threshold 50 %)"},
		{"room for the state only", 1, nil, 4 << 10, 4 << 10, false, dataflow.ChooseAligned, "4.0 KiB free (threshold 256 MiB)"},
		{"not even that", 1, nil, 2 << 10, 4 << 10, false, dataflow.ChooseSkip, "2.0 KiB free, the state alone needs 4.0 KiB"},
		{"forced", 0, took(0, 20), 0, 1, true, dataflow.ChooseUnaligned, "unaligned.force"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := Chain{QueueFill: 0.5, OverrunShare: 0.3, AlignedTimeout: second, MinFree: 256 << 20, Force: row.force,
				Free: func() (int64, bool) { return row.free, row.free >= 0 }, State: func() int64 { return row.state }}
			got := c.Decide(dataflow.QueueState{Queued: int64(1000 * row.fill), Capacity: 1000, Alignments: row.alignments})
			require.Equal(t, dataflow.Decision{Choice: row.choice, Reason: row.reason}, got)
		})
	}
	t.Run("nobody to ask", func(t *testing.T) {
		got := Chain{}.Decide(dataflow.QueueState{Queued: 1, Capacity: 1})
		require.Equal(t, dataflow.ChooseUnaligned, got.Choice)
	})
}

// store answers what it is told to.
type store struct {
	backends.Backend
	free int64
	err  error
}

func (s *store) Space(context.Context) (backends.Space, error) {
	return backends.Space{Free: s.free}, s.err
}

func TestSpace(t *testing.T) {
	b := &store{err: inflight.ErrUnsupported}
	s := NewSpace(t.Context(), b)
	_, known := s.Free()
	require.False(t, known)

	ask := func() (int64, bool) {
		s.Refresh(t.Context())
		s.Wait()
		return s.Free()
	}
	b.free, b.err = 7, nil
	free, known := ask()
	require.True(t, known)
	require.EqualValues(t, 7, free)

	b.free, b.err = 0, inflight.ErrUnavailable // says nothing about the room
	free, known = ask()
	require.True(t, known)
	require.EqualValues(t, 7, free)
}
