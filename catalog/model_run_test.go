package catalog

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestModel explores all interleavings within bounds. SPILLWAY_CRASH=1, as in
// make crash, adds larger bounds. The invariants:
//
//	I1  the latest checkpoint is readable in every state, and so is the base of a
//	    restore that has not been superseded
//	I2  what is notified is one chain
//	I3  a restart in any state goes on from everything notified
//	I4  what the tip keeps is readable
//	I5  everyone dead, late creates applied, one gc that claims: what is there is
//	    what is referred to
//	I6  who is fenced has ended, with no other error than that
//	I7  nothing is notified or restored that an earlier restore rolled back
func TestModel(t *testing.T) {
	small := map[string]modelConfig{
		"one coordinator, collector, fault": {coordinators: []int{2}, faults: 1, collectors: 1},
		"two coordinators":                  {coordinators: []int{1, 1}},
		"two coordinators, fault":           {coordinators: []int{1, 0}, faults: 1},
		"three coordinators":                {coordinators: []int{0, 0, 0}},
	}
	medium := map[string]modelConfig{
		"2 coordinators × 2, 1":             {coordinators: []int{2, 1}},
		"2 coordinators × 1, collector":     {coordinators: []int{1, 1}, collectors: 1},
		"2 coordinators × 1, fault":         {coordinators: []int{1, 1}, faults: 1},
		"2 coordinators, fault, collector":  {coordinators: []int{1, 0}, faults: 1, collectors: 1},
		"3 coordinators × 1, 0, 0":          {coordinators: []int{1, 0, 0}},
		"2 coordinators × 2, 1, scan":       {coordinators: []int{2, 1}, scan: scanAscending},
		"2 coordinators, each read a step":  {coordinators: []int{1, 1}, fine: true},
		"2 coordinators × 2, 1, concurrent": {coordinators: []int{2, 1}, concurrent: 2},
		"2 coordinators, collector claims":  {coordinators: []int{1, 0}, collectors: 1, fence: true},
		"2 coordinators × 2, 1, older wish": {coordinators: []int{2, 1}, retained: 2, older: true},
	}
	large := map[string]modelConfig{
		"2 coordinators × 2":                                 {coordinators: []int{2, 2}},
		"2 coordinators, each read and folder a step":        {coordinators: []int{1, 1}, fine: true, scan: scanAscending},
		"2 coordinators × 2, 1, each read a step":            {coordinators: []int{2, 1}, fine: true},
		"2 coordinators × 2, 1, collector, each read a step": {coordinators: []int{2, 1}, collectors: 1, fine: true},
		"2 coordinators × 3, 2":                              {coordinators: []int{3, 2}},
		"2 coordinators × 4, 2":                              {coordinators: []int{4, 2}},
		"2 coordinators × 2, 1, fault":                       {coordinators: []int{2, 1}, faults: 1},
		"2 coordinators, 2 faults":                           {coordinators: []int{1, 1}, faults: 2},
		"2 coordinators × 1, fault, collector":               {coordinators: []int{1, 1}, faults: 1, collectors: 1},
		"2 coordinators × 2, 1, collector":                   {coordinators: []int{2, 1}, collectors: 1},
		"3 coordinators":                                     {coordinators: []int{1, 1, 1}},
		"3 coordinators, fault":                              {coordinators: []int{1, 1, 0}, faults: 1},
		"ascending scan, fault":                              {coordinators: []int{2, 1}, faults: 1, scan: scanAscending},
		"each read a step, fault, collector":                 {coordinators: []int{1, 1}, faults: 1, collectors: 1, fine: true},
		"concurrent checkpoints, fault":                      {coordinators: []int{2, 1}, concurrent: 2, faults: 1},
		"concurrent checkpoints, collector":                  {coordinators: []int{2, 2}, concurrent: 2, collectors: 1},
		"2 collectors that claim":                            {coordinators: []int{1, 1}, collectors: 2, fence: true},
		"collector that claims, fault":                       {coordinators: []int{1, 1}, collectors: 1, fence: true, faults: 1},
		"back to an older one, fault":                        {coordinators: []int{2, 1}, retained: 2, older: true, faults: 1},
		"back to an older one, collector":                    {coordinators: []int{2, 1}, retained: 2, older: true, collectors: 1},
	}
	for name, cfg := range small {
		t.Run(name, func(t *testing.T) { mustHold(t, cfg) })
	}
	if slow(t) {
		return
	}
	for name, cfg := range medium {
		t.Run(name, func(t *testing.T) { mustHold(t, cfg) })
	}
	if os.Getenv("SPILLWAY_CRASH") == "" {
		return
	}
	for name, cfg := range large {
		cfg.limit = 5_000_000 // some minutes
		t.Run(name, func(t *testing.T) { mustHold(t, cfg) })
	}
}

// slow reports that this run leaves out what takes some seconds.
func slow(t *testing.T) bool {
	if raceEnabled || testing.Short() {
		t.Log("left out: bounds that take seconds, with -race or -short")
		return true
	}
	return false
}

func mustHold(t *testing.T, cfg modelConfig) {
	e, err := explore(t, cfg)
	require.NoError(t, err, "after:\n%s", strings.Join(e.failPath, "\n"))
}

func explore(t *testing.T, cfg modelConfig) (*explorer, error) {
	begun := time.Now()
	e := newExplorer(cfg)
	err := e.run()
	if cfg.limit > 0 && len(e.visited) >= cfg.limit {
		t.Log("not to the end")
	}
	t.Logf("%d states, %d steps, %d positions of the real code, %d stores, %v", len(e.visited), e.steps, len(e.nodes), len(e.stores), time.Since(begun).Round(time.Millisecond))
	return e, err
}

// TestModelNeedsEachRule leaves out one rule at a time: the counterexamples of
// the protocol must be found.
func TestModelNeedsEachRule(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  modelConfig
		want string
		long bool
	}{
		"C1: sinks that do not compare epochs": {cfg: modelConfig{coordinators: []int{1, 1}, rollbackAll: true}, want: "I7"},
		"C2: no list after a commit":           {cfg: modelConfig{coordinators: []int{2, 2}, without: ruleCheckCommit}, want: "I2"},
		"C3: no list after an aborted id":      {cfg: modelConfig{coordinators: []int{1, 1}, faults: 1, without: ruleCheckAbort}, want: "I1"},
		"C4: no list after a claim":            {cfg: modelConfig{coordinators: []int{3, 0}, without: ruleCheckClaim}, want: "I7"},
		"C5: a list in no order":               {cfg: modelConfig{coordinators: []int{4, 0}, scan: scanDescending}, want: "I7", long: true},
		"C6: ids with gaps":                    {cfg: modelConfig{coordinators: []int{2, 1}, without: ruleNoGaps}, want: "I7"},
		"C7: aborted ids above the tip go":     {cfg: modelConfig{coordinators: []int{2, 1}, faults: 1, collectors: 1, without: ruleKeepAborted}, want: "I5"},
		"what was listed is read once":         {cfg: modelConfig{coordinators: []int{2, 1}, collectors: 1, fine: true, without: ruleReadTwice}, want: "I4", long: true},
		"own pending slots are not looked at":  {cfg: modelConfig{coordinators: []int{2, 1}, concurrent: 2, without: ruleOwnSlots}, want: "I2"},
		"C8: files go while undecided":         {cfg: modelConfig{coordinators: []int{1, 1}, faults: 1, without: ruleDecidedFirst}, want: "I"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.long && slow(t) {
				return
			}
			e, err := explore(t, tc.cfg)
			require.ErrorContains(t, err, tc.want)
			t.Logf("%v after:\n%s", err, strings.Join(e.failPath, "\n"))
		})
	}
}
