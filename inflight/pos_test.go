package inflight_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestAdvance counts two records, of two epochs.
func TestAdvance(t *testing.T) {
	c := inflight.Cut{Address: inflight.Subpartition{Subpartition: 1}.Address(), Epoch: 3, Bytes: 100, Records: 7, RecordsKnown: true}
	require.Equal(t, inflight.Pos{Epoch: 3, Offset: 100, Seq: 7}, c.Advance(3, 20))
	require.Equal(t, inflight.Pos{Epoch: 9, Offset: 120, Seq: 8}, c.Advance(9, 5))
	require.Equal(t, inflight.Cut{Address: c.Address, Epoch: 9, Bytes: 125, Records: 9, RecordsKnown: true}, c)
}
