package catalog

import "testing"

func TestModelScale(t *testing.T) {
	for name, cfg := range map[string]modelConfig{
		"22":     {coordinators: []int{2, 2}, limit: 500000},
		"211":    {coordinators: []int{2, 1}, collectors: 1, limit: 500000},
		"21 f":   {coordinators: []int{2, 1}, faults: 1, limit: 500000},
		"111":    {coordinators: []int{1, 1, 1}, limit: 500000},
		"42":     {coordinators: []int{4, 2}, limit: 500000},
		"11 g f": {coordinators: []int{1, 1}, collectors: 1, faults: 1, limit: 500000},
	} {
		t.Run(name, func(t *testing.T) { explore(t, cfg) })
	}
}
