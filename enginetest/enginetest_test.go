package enginetest

import (
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options are those for toy; more rounds where the long tests are asked for.
func options() Options {
	o := Options{BufferSize: toyBuffer, VirtualTime: true}
	if os.Getenv("SPILLWAY_CRASH") != "" {
		o.Rounds = 500
	}
	return o
}

// TestRun runs the kit on an engine without a fault, as a test of an engine does.
func TestRun(t *testing.T) {
	o := options()
	o.Rounds, o.Seed = 2, 100
	Run(t, &toy{}, o)
}

// TestEach shows that the kit does what it says: that there were crashes,
// instances that were fenced, checkpoints that were given up, data in flight, and
// proofs.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Tally
		for r := range Each(t.Context(), &toy{}, options()) {
			require.NoError(t, r.Err, r.Name)
			require.Empty(t, r.Skipped, r.Name)
			t.Logf("%s: %s", r.Name, r.Tally)
			all.add(r.Tally)
		}
		require.True(t, all.Exact())
		require.Zero(t, all.NotProvable)
		require.Greater(t, all.Proven, 1000)
		require.Greater(t, all.Captured, uint64(50_000))
		require.Greater(t, all.Crashes, 100)
		require.Greater(t, all.Fenced, 15)
		require.Greater(t, all.GivenUp, 10)
	})
}

// TestPlants shows that the kit finds what goes wrong in an engine, and says what
// it is.
func TestPlants(t *testing.T) {
	for _, tc := range []struct{ plant, check, want string }{
		{"drops overtaken output", "barriers/unaligned", `not conserved:(?s:.*)bytes are missing`},
		{"drops overtaken output", "barriers/timeout", `not conserved:(?s:.*)bytes are missing`},
		{"drops arriving input", "barriers/unaligned", `not conserved:(?s:.*)bytes are missing`},
		{"forgets the partial record", "partial-records/around-a-buffer", `not conserved:`},
		{"forgets the partial record", "partial-records/many-buffers", `not conserved:`},
		{"wrong channel", "kill/moments", `not conserved:`},
		{"replays twice", "partial-records/around-a-buffer", `not conserved`},
		{"replays twice", "kill/moments", `not conserved|LOSS|DUP|CORRUPT`},
		{"notifies before the commit", "kill/operations", `DUP [1-9]`},
		{"ignores fencing", "zombie/running", `another instance had taken over, and checkpoint \d+ was reported as complete`},
		{"ignores fencing", "zombie/paused", `another instance had taken over|DUP [1-9]`},
		{"starts afresh", "barriers/aligned", `Restore: the newest checkpoint was \d+, and the job began afresh`},
		{"claims nothing", "barriers/unaligned", `Restore: nobody has claimed the job on the store`},
		{"starts afresh where it does not fit", "topology/refused", `DUP [1-9]`},
		{"says it is complete", "abort/failed-call", `checkpoint \d+ was reported as complete, and|LOSS [1-9]`},
		{"says it is complete", "abort/full-store", `checkpoint 2 was reported as complete, and the newest on the store is 1`},
		{"dies of a failed checkpoint", "abort/partial-write", `a fault of the store cost more than one checkpoint`},
		{"forgets what a failed checkpoint had", "abort/full-store", `LOSS [1-9]`},
		{"waits for a store that hangs", "abort/hanging-store", `Trigger did not return in 30s`},
		{"barriers of old checkpoints count", "abort/impatient", `not conserved`},
		{"replays twice", "barriers/after-restore", `not conserved|LOSS|DUP|CORRUPT`},
		{"never aligns", "barriers/aligned", `its alignment is "unaligned" in a job whose barriers are aligned`},
		{"never aligns", "barriers/long-timeout", `the timeout is an hour, and \d+ bytes in flight were captured`},
		{"calls it aligned", "barriers/unaligned", `it is aligned, and has \d+ bytes of data in flight`},
		{"takes one more record", "kill/moments", `not conserved|DUP [1-9]`},
		{"new data overtakes", "barriers/unaligned", `DISORDER [1-9]|CORRUPT [1-9]|not conserved`},
		{"positions begin again", "barriers/unaligned", `consumed went back|emitted went back|not conserved`},
		{"swaps two buffers", "partial-records/many-buffers", `CORRUPT [1-9]|not conserved`},
		{"mixes up bytes", "barriers/in-a-row", `LOSS \d+ DUP 0 CORRUPT [1-9]\d* DISORDER 0: .* came out`},
		{"ends without a checkpoint", "barriers/finished", `DUP [1-9]`},
	} {
		t.Run(tc.plant+"/"+tc.check, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := Checks()
				c := all[slices.IndexFunc(all, func(c Check) bool { return c.Name == tc.check })]
				_, err := c.Run(t.Context(), &toy{plant: tc.plant}, options())
				require.Error(t, err)
				require.Regexp(t, `^seed \d+, (un)?(aligned|timeout): `, err.Error())
				require.Regexp(t, tc.want, err.Error())
				t.Log(err)
			})
		})
	}
}

// TestSkipped leaves out what does not concern an engine.
func TestSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Rounds, o.Modes, o.Processes, o.Skip = 1, []Mode{Unaligned}, true, map[string]string{"kill/moments": "its reason"}
		skipped := map[string]string{}
		for r := range Each(t.Context(), &toy{}, o) {
			require.NoError(t, r.Err, r.Name)
			if r.Skipped != "" {
				skipped[r.Name] = r.Skipped
			}
		}
		require.Equal(t, "the engine has no aligned barriers", skipped["barriers/aligned"])
		require.Equal(t, "the store of another process cannot be given faults", skipped["zombie/paused"])
		require.Equal(t, "its reason", skipped["kill/moments"])
		require.Len(t, skipped, 11)
		all := Checks()
		_, err := all[0].Run(t.Context(), &toy{}, o)
		_, ok := errors.AsType[*Skipped](err)
		require.True(t, ok)
		require.EqualError(t, err, "skipped: the engine has no aligned barriers")
	})
}

// TestJudge counts what became of records.
func TestJudge(t *testing.T) {
	in := [][]string{{"k1-s0-0-a", "k1-s0-1-b", "x"}, {"k1-s1-0-c", "x"}}
	for _, tc := range []struct {
		name  string
		out   Output
		want  Tally
		first string
	}{
		{"exact", Output{Order: []string{"k1-s0-0-a", "k1-s1-0-c", "x", "x", "k1-s0-1-b"}}, Tally{}, ""},
		{"counts only", Output{Counts: map[string]int{"k1-s0-0-a": 1, "k1-s0-1-b": 1, "k1-s1-0-c": 1, "x": 2}}, Tally{}, ""},
		{"nothing", Output{}, Tally{Loss: 5}, `"k1-s0-0-a" came out 0 times and not 1`},
		{"lost and doubled", Output{Counts: map[string]int{"k1-s0-0-a": 3, "k1-s0-1-b": 1, "k1-s1-0-c": 1, "x": 1}}, Tally{Loss: 1, Dup: 2}, `"k1-s0-0-a" came out 3 times and not 1`},
		{"corrupt", Output{Counts: map[string]int{"k1-s0-0-a": 1, "k1-s0-1-b": 1, "k1-s1-0-c": 1, "x": 2, "y": 2, "z": 0}}, Tally{Corrupt: 2}, `"y" came out and was never put in`},
		{"disorder", Output{Order: []string{"k1-s0-1-b", "k1-s0-0-a", "k1-s1-0-c", "x", "x"}}, Tally{Disorder: 1}, `"k1-s0-0-a" came out behind number 1`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, first := judge(in, tc.out)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.first, first)
			require.Equal(t, tc.want == Tally{}, got.Exact())
		})
	}
	require.Equal(t, "k1", Key("k1-s0-0-a"))
	require.Equal(t, "x", Key("x"))
}
