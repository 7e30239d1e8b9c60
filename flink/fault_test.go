package flink

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

func plans(t *testing.T) map[string]interface {
	Execute(ctx context.Context, dst backends.Backend, dir string) error
} {
	c, _ := openFixture(t, "stateful-heap")
	compact, err := c.PlanCompact(t.Context(), CompactOptions{FileSize: 100_000})
	require.NoError(t, err)
	convert, err := c.PlanToSpillway(t.Context(), ConvertOptions{})
	require.NoError(t, err)
	return map[string]interface {
		Execute(ctx context.Context, dst backends.Backend, dir string) error
	}{MetadataName: compact, "_manifest.json": convert}
}

func list(t *testing.T, b backends.Backend) (names []string) {
	for info, err := range b.List(t.Context(), "new/") {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	return names
}

// TestExecuteFaults fails at each operation on the store that is written to.
func TestExecuteFaults(t *testing.T) {
	for last, plan := range plans(t) {
		count := wrap.NewFaults(mem.New(mem.Options{}))
		require.NoError(t, plan.Execute(t.Context(), count, "new/chk-2"))
		whole := list(t, count)
		for k := 1; k <= count.Ops(); k++ {
			b := mem.New(mem.Options{})
			err := plan.Execute(t.Context(), wrap.NewFaults(b, wrap.Rule{When: wrap.AtOp(k), Then: wrap.Fail(inflight.ErrUnavailable)}), "new/chk-2")
			if err != nil {
				require.ErrorIs(t, err, inflight.ErrUnavailable, k)
				names := list(t, b)
				require.True(t, len(names) == 0 || len(names) == len(whole), "%d: %v", k, names) // the last sync of names
			}

			// After a crash there is no checkpoint, or all of it.
			b = mem.New(mem.Options{})
			_ = plan.Execute(t.Context(), wrap.NewFaults(b, wrap.Rule{When: wrap.AtOp(k), Then: wrap.Kill()}), "new/chk-2")
			b = b.CrashClone(rand.New(rand.NewPCG(1, uint64(k))), mem.CrashConfig{})
			if _, err := b.Stat(t.Context(), "new/chk-2/"+last); err == nil {
				require.Len(t, list(t, b), len(whole), k)
			}
		}
		b := mem.New(mem.Options{})
		lose := wrap.Rule{When: wrap.And(wrap.On(wrap.OpFinish), wrap.NameHas(last)), Then: wrap.LoseAnswer()}
		require.ErrorIs(t, plan.Execute(t.Context(), wrap.NewFaults(b, lose), "new/chk-2"), inflight.ErrOutcomeUnknown)
		require.Equal(t, len(whole), len(list(t, b)), "what may be a checkpoint keeps its files")
	}
}

// TestVerifyFaults fails at each operation on the store that is read.
func TestVerifyFaults(t *testing.T) {
	c, _ := openFixture(t, "keyed-2x2-share3")
	count := wrap.NewFaults(c.Backend())
	_, err := Verify(t.Context(), count, c.Dir, VerifyOptions{})
	require.NoError(t, err)
	for k := 1; k <= count.Ops(); k++ {
		b := wrap.NewFaults(c.Backend(), wrap.Rule{When: wrap.AtOp(k), Then: wrap.Fail(inflight.ErrPermission)})
		r, err := Verify(t.Context(), b, c.Dir, VerifyOptions{})
		if err != nil {
			require.ErrorIs(t, err, inflight.ErrPermission)
			continue
		}
		require.NotEmpty(t, r.Findings, k)

		// A call that hangs ends with the context.
		ctx, cancel := context.WithCancelCause(t.Context())
		b.Set(wrap.Rule{When: wrap.AtOp(k), Then: wrap.Before(func(wrap.Call) { cancel(errors.New("enough")) })})
		_, err = Verify(ctx, b, c.Dir, VerifyOptions{})
		require.ErrorIs(t, err, context.Canceled, k)
	}
}
