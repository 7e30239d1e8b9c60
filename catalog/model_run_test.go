package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestModel(t *testing.T) {
	for name, cfg := range map[string]modelConfig{
		"2 coordinators": {coordinators: []int{2, 1}},
		"with collector": {coordinators: []int{1, 1}, collectors: 1},
		"with fault":     {coordinators: []int{1, 1}, faults: 1},
	} {
		t.Run(name, func(t *testing.T) { explore(t, cfg) })
	}
}

func explore(t *testing.T, cfg modelConfig) {
	begun := time.Now()
	e := newExplorer(cfg)
	err := e.run()
	t.Logf("%d states, %d steps, %d positions of the real code, %d stores, %v", len(e.visited), e.steps, len(e.nodes), len(e.stores), time.Since(begun).Round(time.Millisecond))
	require.NoError(t, err, "after:\n%s", strings.Join(e.failPath, "\n"))
}
