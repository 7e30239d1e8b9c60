package catalog

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestModel explores all interleavings within bounds (commit-protocol §4, §5 of
// docs/architecture.md name the invariants). SPILLWAY_CRASH=1, as in make
// crash, adds bounds that take some minutes each.
func TestModel(t *testing.T) {
	small := map[string]modelConfig{
		"two coordinators":                   {coordinators: []int{2, 2}},
		"two coordinators, collector":        {coordinators: []int{1, 1}, collectors: 1},
		"two coordinators, fault":            {coordinators: []int{1, 1}, faults: 1},
		"two coordinators, fault, collector": {coordinators: []int{1, 0}, faults: 1, collectors: 1},
		"three coordinators":                 {coordinators: []int{1, 0, 0}},
		"one coordinator, collector, fault":  {coordinators: []int{2}, faults: 1, collectors: 1},
		"ascending scan":                     {coordinators: []int{2, 1}, scan: scanAscending},
		"each read a step":                   {coordinators: []int{1, 1}, fine: true},
		"concurrent checkpoints":             {coordinators: []int{2, 1}, concurrent: 2},
		"collector that claims":              {coordinators: []int{1, 0}, collectors: 1, fence: true},
		"back to an older one":               {coordinators: []int{2, 1}, retained: 2, older: true},
	}
	large := map[string]modelConfig{
		"2 coordinators × 3, 2":              {coordinators: []int{3, 2}},
		"2 coordinators × 4, 2":              {coordinators: []int{4, 2}},
		"2 coordinators × 2, 1, fault":       {coordinators: []int{2, 1}, faults: 1},
		"2 coordinators, 2 faults":           {coordinators: []int{1, 1}, faults: 2},
		"2 coordinators, fault, collector":   {coordinators: []int{1, 1}, faults: 1, collectors: 1},
		"2 coordinators × 2, 1, collector":   {coordinators: []int{2, 1}, collectors: 1},
		"3 coordinators":                     {coordinators: []int{1, 1, 1}},
		"3 coordinators, fault":              {coordinators: []int{1, 1, 0}, faults: 1},
		"ascending scan, fault":              {coordinators: []int{2, 1}, faults: 1, scan: scanAscending},
		"each read a step, fault, collector": {coordinators: []int{1, 1}, faults: 1, collectors: 1, fine: true, limit: 20_000_000},
		"concurrent checkpoints, fault":      {coordinators: []int{2, 1}, concurrent: 2, faults: 1},
		"concurrent checkpoints, collector":  {coordinators: []int{2, 2}, concurrent: 2, collectors: 1},
		"2 collectors that claim":            {coordinators: []int{1, 1}, collectors: 2, fence: true},
		"collector that claims, fault":       {coordinators: []int{1, 1}, collectors: 1, fence: true, faults: 1},
		"back to an older one, fault":        {coordinators: []int{2, 1}, retained: 2, older: true, faults: 1},
		"back to an older one, collector":    {coordinators: []int{2, 1}, retained: 2, older: true, collectors: 1},
	}
	for name, cfg := range small {
		t.Run(name, func(t *testing.T) { mustHold(t, cfg) })
	}
	if os.Getenv("SPILLWAY_CRASH") == "" {
		return
	}
	for name, cfg := range large {
		t.Run(name, func(t *testing.T) { mustHold(t, cfg) })
	}
}

func mustHold(t *testing.T, cfg modelConfig) {
	e, err := explore(t, cfg)
	require.NoError(t, err, "after:\n%s", strings.Join(e.failPath, "\n"))
}

func explore(t *testing.T, cfg modelConfig) (*explorer, error) {
	begun := time.Now()
	e := newExplorer(cfg)
	err := e.run()
	t.Logf("%d states, %d steps, %d positions of the real code, %d stores, %v", len(e.visited), e.steps, len(e.nodes), len(e.stores), time.Since(begun).Round(time.Millisecond))
	return e, err
}

// TestModelNeedsEachRule leaves out one rule at a time: the counterexamples of
// the protocol must be found.
func TestModelNeedsEachRule(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  modelConfig
		want string
	}{
		"C1: sinks that do not compare epochs": {modelConfig{coordinators: []int{1, 1}, rollbackAll: true}, "I7"},
		"C2: no list after a commit":           {modelConfig{coordinators: []int{2, 2}, without: ruleCheckCommit}, "I2"},
		"C3: no list after an aborted id":      {modelConfig{coordinators: []int{1, 1}, faults: 1, without: ruleCheckAbort}, "I1"},
		"C4: no list after a claim":            {modelConfig{coordinators: []int{3, 0}, without: ruleCheckClaim}, "I7"},
		"C5: a list in no order":               {modelConfig{coordinators: []int{4, 0}, scan: scanDescending}, "I7"},
		"C6: ids with gaps":                    {modelConfig{coordinators: []int{2, 1}, without: ruleNoGaps}, "I7"},
		"C7: aborted ids above the tip go":     {modelConfig{coordinators: []int{2, 1}, faults: 1, collectors: 1, without: ruleKeepAborted}, "I5"},
		"C8: files go while undecided":         {modelConfig{coordinators: []int{1, 1}, faults: 1, without: ruleDecidedFirst}, "I"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := explore(t, tc.cfg)
			require.ErrorContains(t, err, tc.want)
			t.Logf("%v after:\n%s", err, strings.Join(e.failPath, "\n"))
		})
	}
}
