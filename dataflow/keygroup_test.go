package dataflow

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeyGroupsAsFlink has the ten keys of the experiment go where Flink sends
// them: six to subtask 1, four to subtask 0.
func TestKeyGroupsAsFlink(t *testing.T) {
	want := []int{1, 1, 1, 1, 0, 1, 0, 1, 0, 0}
	sel := Hash(IntKey).selector(2, DefaultMaxParallelism, nil)
	for key, to := range want {
		require.Equal(t, to, sel(binary.BigEndian.AppendUint32(nil, uint32(key))), "key %d", key)
	}
}

func TestStringKeyAsJava(t *testing.T) {
	for text, hash := range map[string]int32{"": 0, "a": 97, "hello": 99162322, "Aa": 2112, "BB": 2112, "é": 233, "日本": 835047, "😀": 1772899} {
		require.Equal(t, hash, StringKey([]byte(text)).Hash, text)
	}
}

func TestPartitioners(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	counts := func(p Partitioner, n int) []int {
		sel := p.selector(n, DefaultMaxParallelism, r)
		got := make([]int, n)
		for i := range 1000 {
			if to := sel(strconv.AppendInt(nil, int64(i), 10)); to >= 0 {
				got[to]++
			}
		}
		return got
	}
	require.Equal(t, []int{250, 250, 250, 250}, counts(Rebalance(), 4))
	require.Equal(t, []int{1000, 0}, counts(Global(), 2))
	require.Equal(t, []int{0, 0}, counts(Broadcast(), 2), "to all")
	require.Equal(t, []int{0, 1000}, counts(Custom(func([]byte, int) int { return 1 }), 2))
	for _, n := range counts(Shuffle(), 4) {
		require.InDelta(t, 250, n, 60)
	}

	for _, tc := range []struct {
		p        Partitioner
		up, down int
		want     [][]int
	}{
		{Forward(), 2, 2, [][]int{{0}, {1}}},
		{Rescale(), 2, 4, [][]int{{0, 1}, {2, 3}}},
		{Rescale(), 4, 2, [][]int{{0}, {0}, {1}, {1}}},
		{Rescale(), 2, 3, [][]int{{0, 1}, {2}}},
		{Rescale(), 3, 2, [][]int{{0}, {0, 1}, {1}}},
		{Hash(IntKey), 1, 3, [][]int{{0, 1, 2}}},
	} {
		for u, want := range tc.want {
			require.Equal(t, want, tc.p.targets(u, tc.up, tc.down), "%s %d→%d, subtask %d", tc.p.Kind, tc.up, tc.down, u)
		}
	}
}

func TestPlan(t *testing.T) {
	none := func(int) Operator { return nil }
	source := func(int) Source { return nil }
	g := NewGraph()
	g.Source("log", 2, source)
	g.Source("cdc", 1, source)
	g.Operator("parse", 2, none, From("log", Rebalance()))
	g.Operator("join", 2, none, From("parse", Hash(LineKey)), From("cdc", Hash(LineKey)))
	g.Operator("sink", 2, none, From("join", Forward()))
	var lines []string
	for _, e := range g.Edges(Options{Unaligned: true, AlignedSources: []string{"cdc"}}) {
		lines = append(lines, e.String())
	}
	require.Equal(t, []string{
		"log → parse (rebalance): unaligned",
		"parse → join (hash): aligned, since cdc → join is",
		"cdc → join (hash): aligned, since its source is set to",
		"join → sink (forward): aligned, since it is pointwise",
	}, lines)
	require.Equal(t, "log → parse (rebalance): aligned, since unaligned checkpoints are off", g.Edges(Options{})[0].String())

	// What could wait for itself.
	g = NewGraph()
	g.Source("a", 2, source)
	g.Operator("b", 2, none, From("a", Forward()))
	g.Operator("c", 2, none, From("b", Hash(LineKey)))
	g.Operator("d", 2, none, From("b", Broadcast()))
	g.Operator("e", 2, none, From("c", Forward()), From("d", Forward()))
	require.Equal(t, "b → c (hash): aligned, since b above and e below it are, and meet beside it", g.Edges(Options{Unaligned: true})[1].String())
}

func TestGraphRefuses(t *testing.T) {
	source := func(int) Source { return &Generator{} }
	op := Map(func(b []byte) ([]byte, error) { return b, nil })
	for want, build := range map[string]func(*Graph){
		"build graph: vertex b has no input":                                              func(g *Graph) { g.Operator("b", 1, op) },
		`build graph: vertex b reads from "x", which does not exist before it`:            func(g *Graph) { g.Operator("b", 1, op, From("x", Global())) },
		`build graph: vertex "a": a name is needed, once`:                                 func(g *Graph) { g.Source("a", 1, source) },
		"build graph: vertex b: parallelism 129 is not within 1 and 128":                  func(g *Graph) { g.Source("b", 129, source) },
		"build graph: a to b: a forward edge needs equal parallelisms, these are 2 and 3": func(g *Graph) { g.Operator("b", 3, op, From("a", Forward())) },
		"build graph: a to b: a hash edge needs a key function":                           func(g *Graph) { g.Operator("b", 3, op, From("a", Hash(nil))) },
	} {
		g := NewGraph()
		g.Source("a", 2, source)
		build(g)
		_, err := Deploy(NewGoroutines(), g, Options{}, nil, nil)
		require.EqualError(t, err, want)
	}
	g := NewGraph()
	g.Source("a", 2, source)
	_, err := Deploy(NewGoroutines(), g, Options{Unaligned: true, AtLeastOnce: true}, nil, nil)
	require.ErrorContains(t, err, "cannot use unaligned checkpoints with at-least-once mode")
	g.Operator("b", 100, op, From("a", Rebalance()))
	_, err = Deploy(NewGoroutines(), g, Options{Memory: 1 << 20}, nil, nil)
	require.ErrorContains(t, err, "set it to")
}
