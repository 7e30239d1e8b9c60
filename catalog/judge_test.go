package catalog_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestJudgeWaits has a coordinator take over whose claim is written, but not there
// yet, when the older one checks its slot, and is asked who that is.
func TestJudgeWaits(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	open := func(rules ...wrap.Rule) (*catalog.Log, *wrap.Faults) {
		f := wrap.NewFaults(local.New(dir), rules...)
		l, err := catalog.Open(f, "job", catalog.Options{})
		require.NoError(t, err)
		return l, f
	}
	manifest := func(dir string) wrap.Predicate {
		return wrap.Nth(1, wrap.And(wrap.On(wrap.OpFinish), wrap.NameHas(dir+"/_manifest")))
	}
	written, goOn, claimed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	heirs, _ := open(wrap.Rule{When: manifest("chk-0000000002"), Then: wrap.Before(func(wrap.Call) { close(written); <-goOn })})
	var heir *catalog.Coordinator
	olders, faults := open(wrap.Rule{When: manifest("chk-0000000001"), Then: func(_ context.Context, _ *wrap.Faults, _ *wrap.Call, do func() error) error {
		err := do()
		go func() {
			var err error
			heir, err = heirs.Start(ctx, catalog.StartOptions{})
			claimed <- err
		}()
		<-written
		return err
	}})
	older, err := olders.Start(ctx, catalog.StartOptions{})
	require.NoError(t, err)
	p, err := older.Begin()
	require.NoError(t, err)
	_, err = p.Abort(ctx, format.Cause{Reason: "x"})
	require.ErrorIs(t, err, inflight.ErrFenced)
	looks := 0
	faults.Set(wrap.Rule{When: wrap.On(wrap.OpOpen), Then: wrap.Before(func(wrap.Call) { // of the newest entry, after a look at all names
		if looks++; looks == 1 {
			close(goOn)
			require.NoError(t, <-claimed)
		}
	})})
	require.ErrorIs(t, older.Judge(ctx, older.Err()), inflight.ErrFenced)
	require.Equal(t, 2, looks)
	require.EqualValues(t, 2, heir.Epoch())
}
