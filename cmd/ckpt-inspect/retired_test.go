package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/inspect"
)

// retiring returns an inspector of a store whose job commits checkpoint 2 and
// deletes checkpoint 1 in front of the n-th opening of a file of that.
func retiring(t *testing.T, n int) (i *inspect.Inspector, dir string, retired *bool) {
	dir = t.TempDir()
	j := &fixtureJob{t: t, dir: filepath.Join(dir, "words"), name: "words"}
	j.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "a0"})
	j.checkpoint(format.Manifest{ID: 1, Attempt: "a0"}, 100, total)
	retired = new(bool)
	var once sync.Once
	retire := wrap.Before(func(wrap.Call) {
		once.Do(func() {
			j.checkpoint(format.Manifest{ID: 2, Attempt: "a0"}, 200, total)
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "words", "chk-0000000001")))
			*retired = true
		})
	})
	ofFile := wrap.And(wrap.On(wrap.OpOpen), wrap.NameHas("chk-0000000001/"), wrap.NameHas(".cstate"))
	var rule wrap.Rule
	rule.When, rule.Then = wrap.Nth(n, ofFile), retire
	return inspect.New(inspect.Options{Open: func(ctx context.Context, url string) (backends.Backend, error) {
		b, err := backends.Open(ctx, url)
		if err != nil {
			return nil, err
		}
		return wrap.NewFaults(b, rule), nil
	}}), dir, retired
}

// TestRetiredWhileRead has a job go on between the reading of a manifest and the
// opening of each of the files: that is never a finding.
func TestRetiredWhileRead(t *testing.T) {
	commands := map[string]func(i *inspect.Inspector, target *inspect.Target) (id inflight.CheckpointID, findings []inflight.Finding, err error){
		"verify": func(i *inspect.Inspector, target *inspect.Target) (id inflight.CheckpointID, findings []inflight.Finding, err error) {
			err = i.Verify(t.Context(), target, inspect.VerifyOptions{}, func(v *inspect.Verification) error {
				findings = v.Findings
				_, err := fmt.Sscanf(v.Name, "checkpoint %d of job words", &id)
				return err
			})
			return id, findings, err
		},
		"show": func(i *inspect.Inspector, target *inspect.Target) (inflight.CheckpointID, []inflight.Finding, error) {
			v, err := i.Show(t.Context(), target, inspect.ShowOptions{})
			if err != nil {
				return 0, nil, err
			}
			return v.Checkpoint.ID, v.Findings, nil
		},
		"roundtrip": func(i *inspect.Inspector, target *inspect.Target) (inflight.CheckpointID, []inflight.Finding, error) {
			r, err := i.Roundtrip(t.Context(), target)
			if err != nil {
				return 0, nil, err
			}
			return r.Checkpoint.ID, r.Findings, nil
		},
		"dump": func(i *inspect.Inspector, target *inspect.Target) (id inflight.CheckpointID, findings []inflight.Finding, err error) {
			files := map[string]bool{}
			findings, err = i.Dump(t.Context(), target, inspect.DumpOptions{}, func(d *inspect.Dumped) error {
				files[filepath.Dir(d.File)] = true
				return nil
			})
			if err == nil {
				require.Len(t, files, 1, "the buffers are of one checkpoint")
			}
			for dir := range files {
				id, _ = format.ParseCheckpointDir(dir)
			}
			return id, findings, err
		},
	}
	for name, command := range commands {
		for _, explicit := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " of its name"}[explicit], func(t *testing.T) {
				for n := 1; ; n++ {
					i, dir, retired := retiring(t, n)
					name := filepath.Join(dir, "words")
					if explicit {
						name = filepath.Join(name, "chk-0000000001")
					}
					target, err := i.Find(t.Context(), name, "")
					require.NoError(t, err)
					defer target.Close()
					if explicit && n > 1 {
						break // files that are open can be read to the end
					}
					id, findings, err := command(i, target)
					if !*retired {
						require.Greater(t, n, 1)
						break
					}
					require.Empty(t, findings)
					if err != nil { // dump had begun to hand out buffers
						require.ErrorIs(t, err, inflight.ErrRetired)
						require.ErrorContains(t, err, "retired while it was being read")
						require.Equal(t, inspect.ExitUsage, inspect.ExitCode(err))
						require.True(t, explicit || n > 1)
						continue
					}
					require.False(t, explicit)
					require.EqualValues(t, 2, id)
				}
			})
		}
	}
}

// TestRetiredWhileAllAreVerified skips what is retired meanwhile.
func TestRetiredWhileAllAreVerified(t *testing.T) {
	for n := range 4 {
		i, dir, retired := retiring(t, n+1)
		target, err := i.Find(t.Context(), filepath.Join(dir, "words"), "")
		require.NoError(t, err)
		defer target.Close()
		require.NoError(t, i.Verify(t.Context(), target, inspect.VerifyOptions{All: true}, func(v *inspect.Verification) error {
			require.Empty(t, v.Findings, v.Name)
			return nil
		}))
		require.True(t, n > 0 || *retired)
	}
}

// TestManifestThatIsNoFile has something else stand in the place of an entry:
// that is damage, and not a checkpoint that is pending.
func TestManifestThatIsNoFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a link to itself": func(path string) error { return os.Symlink(filepath.Base(path), path) },
		"a folder":         func(path string) error { return os.MkdirAll(path, 0o700) },
		"a pipe":           func(path string) error { return exec.Command("mkfifo", path).Run() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := &fixtureJob{t: t, dir: filepath.Join(dir, "words"), name: "words"}
			j.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "a0"})
			j.checkpoint(format.Manifest{ID: 1, Attempt: "a0"}, 100, total)
			slot := filepath.Join(dir, "words", "chk-0000000002")
			require.NoError(t, os.MkdirAll(slot, 0o700))
			require.NoError(t, put(filepath.Join(slot, "_manifest.json")))
			for _, args := range [][]string{{"ls", dir}, {"verify", "--all", dir}, {"verify", filepath.Dir(slot)}, {"verify", slot}} {
				var out, errs strings.Builder
				code := run(t.Context(), env{stdout: &out, stderr: &errs, now: time.Now}, args)
				require.Equal(t, inspect.ExitFindings, code, "%s: %s%s", args, &out, &errs)
				require.Contains(t, out.String(), "chk-0000000002/_manifest.json", "%s", args)
				if args[0] == "verify" {
					require.Contains(t, out.String(), "manifest-damaged")
				}
			}
		})
	}
}
