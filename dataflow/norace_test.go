//go:build !race

package dataflow

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What stands here has one goroutine and much to do, or measures time: with -race
// it is not there at all, rather than passing without a look.

// The exercises of the README, in virtual time, stand between two marks there.
// -rewrite (a flag of datadriven) writes them anew.
const readme, tablesBegin, tablesEnd = "../README.md", "<!-- exercises -->\n", "<!-- end of exercises -->"

func TestExercises(t *testing.T) {
	var out strings.Builder
	for _, exercise := range []func(*testing.T) *table{
		exerciseTimeout, exerciseSize, exerciseInputBound, exerciseMixed, exerciseDepth, exerciseDeathLoop,
	} {
		x := exercise(t)
		t.Log(x)
		fmt.Fprintln(&out, x)
	}
	text, err := os.ReadFile(readme)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), tablesBegin)
	require.True(t, ok)
	now, after, ok := strings.Cut(rest, tablesEnd)
	require.True(t, ok)
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(readme, []byte(before+tablesBegin+out.String()+tablesEnd+after), 0o600))
		return
	}
	require.Equal(t, out.String(), now, "go test ./dataflow -run TestExercises -rewrite")
}

// TestExperiment has the bars of the experiment, as far as virtual time can.
func TestExperiment(t *testing.T) {
	const sleep = 5270 * time.Microsecond // what a sleep of 5 ms takes
	between := func(t *testing.T, low, got, high time.Duration) {
		require.LessOrEqual(t, low, got)
		require.LessOrEqual(t, got, high)
	}
	for _, keys := range []int{10, 100} {
		low, high := 2700*time.Millisecond, 3200*time.Millisecond
		if keys == 100 {
			low, high = 1500*time.Millisecond, 1900*time.Millisecond
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{}}).run(t) {
			t.Logf("%d keys, aligned: %v, %d bytes", keys, r.Duration, r.size(""))
			between(t, low, r.Duration, high)
			require.Zero(t, r.size(""))
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Unaligned: true}}).run(t) {
			t.Logf("%d keys, unaligned: %v, %d bytes, %d at the sources", keys, r.Duration, r.size(""), r.size("source"))
			between(t, 0, r.Duration, sleep+4*time.Millisecond)
			require.InDelta(t, 625_000, r.size(""), 75_000)
			require.Greater(t, float64(r.size("source")), 0.88*float64(r.size("")))
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Unaligned: true, AlignedTimeout: time.Second}}).run(t) {
			t.Logf("%d keys, mixed: %v, %d bytes, %s", keys, r.Duration, r.size(""), r.Alignment())
			between(t, time.Second, r.Duration, time.Second+sleep+20*time.Millisecond)
			require.Greater(t, r.size(""), uint64(100_000))
			require.Less(t, r.size(""), uint64(550_000))
			for _, a := range r.Acks {
				if a.Task.Vertex == "source" && a.Unaligned {
					require.InDelta(t, time.Second, a.Async, float64(20*time.Millisecond))
				}
			}
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Credit: true}}).run(t) {
			t.Logf("%d keys, aligned, credit: %v", keys, r.Duration)
		}
		for _, r := range (experiment{keys: keys, recordTime: sleep, o: Options{Credit: true, Unaligned: true}}).run(t) {
			bound := uint64(2*2+8+2) * 32 << 10 // of each gate, plus partial records
			t.Logf("%d keys, unaligned, credit: %v, %d bytes, %d at the sources", keys, r.Duration, r.size(""), r.size("source"))
			require.LessOrEqual(t, r.size("count"), 2*bound)
		}
	}
	// What a slow barrier waits for is said after a second.
	var said []string
	experiment{keys: 10, recordTime: sleep, o: Options{Trace: func(e TraceEvent) {
		if e.Point == PointSlow && e.Checkpoint == 2 {
			said = append(said, e.Task.String()+": "+e.Text)
		}
	}}}.run(t)
	slices.Sort(said)
	require.Len(t, said, 3, "the count of six keys waits for both sources, its sink for it")
	for i, want := range []string{`count/1: no barrier of gate 0 channel 0; \d{6}`, `count/1: no barrier of gate 0 channel 1; \d{6}`, `sink/1: no barrier of gate 0 channel 1; 0`} {
		require.Regexp(t, "^"+want+" bytes stand in front$", said[i])
	}

	// Without backpressure.
	for _, r := range (experiment{keys: 10, recordTime: 0, o: Options{Interval: 20 * time.Millisecond}}).run(t) {
		between(t, 0, r.Duration, 40*time.Millisecond)
	}
}

// TestFreezeIsShort takes a picture of 100 MB of keyed state while it changes.
func TestFreezeIsShort(t *testing.T) {
	blob := Codec[[1000]byte]{Append: func(dst []byte, v *[1000]byte) []byte { return append(dst, v[:]...) }}
	s := &Keyed[[1000]byte]{codec: blob, root: &node[[1000]byte]{}}
	var k [8]byte
	const keys = 100_000
	for i := range uint64(keys) {
		binary.BigEndian.PutUint64(k[:], i)
		s.Put(Key{k[:], int32(rand.Uint32())})
	}
	start := time.Now()
	f := s.Freeze()
	took := time.Since(start)
	require.Less(t, took, 10*time.Millisecond)
	require.Greater(t, len(encoded(f)), keys*1000)
	t.Logf("the synchronous part took %v", took)
}
