package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/inspect"
)

// TestGarbage kills a run at an operation of its store: while it writes a file,
// enters a checkpoint, and deletes what that has made superfluous. gc names all
// that is there, and with --fence leaves nothing that is not kept or referred
// to. What is kept restores.
func TestGarbage(t *testing.T) {
	moments := []string{"at=12", "at=23", "at=34", "at=1&of=remove", "at=2&of=remove&after=1", "at=3&of=remove", "at=5&of=remove&after=1", "at=8&of=remove"}
	if thorough {
		moments = nil
		for at := 1; at < 60; at++ {
			moments = append(moments, fmt.Sprintf("at=%d", 3+at), fmt.Sprintf("at=%d&of=remove", at)) // before, there is no job
		}
	}
	for i, when := range moments {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			r := newTrial(t, 600, crashModes[i%len(crashModes)]...)
			r.args = append(r.args, "--sleep", "500us", "--interval", "20ms", "--set", "network.buffer-size=2kb")
			p := r.start("pausing://" + r.store + "?" + when)
			stopped := p.said("at rest: ")
			require.True(t, stopped || thorough, "it has no such operation")
			if stopped {
				require.NoError(t, p.Process.Kill())
			}
			p.end()
			r.swept()
			code, last := r.start(r.store, "--restore", "latest").end()
			require.Zero(t, code, last)
			r.exact()
		})
	}
}

// swept looks at the plan of gc, and at what gc --fence leaves.
func (r *trial) swept() {
	i := inspect.New(inspect.Options{})
	collect := func(o inspect.CollectOptions) *inspect.Collection {
		job, err := i.Find(r.t.Context(), r.store+"/job", "")
		require.NoError(r.t, err)
		defer job.Close()
		c, err := i.Collect(r.t.Context(), job, o)
		require.NoError(r.t, err)
		return c
	}
	there := r.stored()
	planned := map[string]catalog.Class{}
	for _, o := range collect(inspect.CollectOptions{DryRun: true}).Objects {
		planned[o.Name] = o.Class
	}
	for _, name := range there {
		require.Contains(r.t, planned, name, "gc does not name it")
		require.NotEqual(r.t, catalog.ClassUnknown, planned[name], name)
	}
	collect(inspect.CollectOptions{Fence: true})
	left := map[string]catalog.Class{}
	for _, o := range collect(inspect.CollectOptions{DryRun: true}).Objects {
		left[o.Name] = o.Class
	}
	for _, name := range r.stored() {
		require.Contains(r.t, []catalog.Class{catalog.ClassKept, catalog.ClassReferenced}, left[name], "%s is left", name)
	}
}

// unfinished is a file under the name that it has while it is written; it is
// listed under the one that it would have got.
var unfinished = regexp.MustCompile(`/\.([^/]+)~[0-9a-f]+\.tmp$`)

// stored are the files of the job.
func (r *trial) stored() (names []string) {
	require.NoError(r.t, filepath.WalkDir(r.store, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, unfinished.ReplaceAllString(strings.TrimPrefix(path, r.store+"/"), "/$1"))
		}
		return err
	}))
	return names
}
