package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// faulty is what happens to calls on a store that is opened as "faulty:///dir",
// on disk, or "faulty://mem/dir", in fuzzStore.
var faulty wrap.Rule

func init() {
	backends.Register("faulty", func(_ context.Context, u *url.URL) (backends.Backend, error) {
		if u.Host == "mem" {
			return wrap.NewFaults(&folder{fuzzStore, backends.Below(strings.Trim(u.Path, "/")), u.String()}, faulty), nil
		}
		return wrap.NewFaults(local.New(u.Path), faulty), nil
	})
}

// mustRun runs the inspector and returns what it prints; it must succeed.
func mustRun(t testing.TB, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), testEnv(&stdout, &stderr), args), "%s: %s%s", args, &stdout, &stderr)
	return stdout.String()
}

// rewrites are commands that take SRC and DST and change nothing of what channels
// hold.
var rewrites = map[string]func(t testing.TB, src, dst string, more ...string){
	"compact": func(t testing.TB, src, dst string, more ...string) {
		mustRun(t, append(more, "flink", "compact", "--chunk-size", "1000", "--file-size", "50000", src, dst)...)
	},
	"relocate": func(t testing.TB, src, dst string, more ...string) {
		mustRun(t, append(more, "flink", "relocate", src, dst)...)
	},
	"salvage": func(t testing.TB, src, dst string, more ...string) {
		mustRun(t, append(more, "flink", "salvage", src, dst)...)
	},
	"convert": func(t testing.TB, src, dst string, more ...string) {
		ours := dst + "-ours"
		mustRun(t, append(more, "flink", "convert", "--to", "spillway", "--codec", "s2", src, ours)...)
		mustRun(t, "verify", ours)
		mustRun(t, "roundtrip", ours)
		require.Contains(t, mustRun(t, append(more, "diff", src, ours)...), "subtasks")
		require.NotContains(t, mustRun(t, append(more, "diff", "--json", src, ours)...), `"of":"channel","what":"[^f]`)
		mustRun(t, "flink", "convert", "--from", "spillway", ours, dst)
	},
	"drop": func(t testing.TB, src, dst string, more ...string) {
		mustRun(t, append(more, "flink", "drop", "--all", src, dst)...)
	},
}

// TestFlinkRewriteChains gives what one verb writes to every other.
func TestFlinkRewriteChains(t *testing.T) {
	names := []string{"resume", "file-merging", "inline", "flink-1.17.2-connect-3-4"}
	if raceEnabled {
		names = names[:1]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := flinktest.Unpack(t, name)
			src := filepath.Join(root, flinktest.CheckpointDir(t, root))
			moved := []string{"--moved", "file:/flink/checkpoints/" + name + "=" + root}
			for first, one := range rewrites {
				mid := filepath.Join(t.TempDir(), path.Base(src))
				one(t, src, mid, moved...)
				mustRun(t, append(moved, "verify", mid)...)
				for second, two := range rewrites {
					dst := filepath.Join(t.TempDir(), path.Base(src))
					two(t, mid, dst, moved...)
					mustRun(t, append(moved, "verify", dst)...)
					diff := jsonLines(t, append(moved, "diff", src, dst)...)["difference"]
					for _, d := range diff {
						if d["of"] != "channel" {
							continue
						}
						if first == "drop" || second == "drop" {
							require.Equal(t, "gone", d["change"], "%s, %s", first, second)
							continue
						}
						require.Equal(t, "changed", d["change"], "%s, %s: %s", first, second, d)
						require.NotContains(t, d["fields"], "bytes", "%s, %s: %s", first, second, d)
						require.NotContains(t, d["fields"], "digest", "%s, %s: %s", first, second, d)
						require.NotContains(t, d["fields"], "records", "%s, %s: %s", first, second, d)
					}
				}
			}
		})
	}
}

// TestFlinkInterrupted ends rewrites at every operation on the store that they
// write to: there is a whole checkpoint, or nothing.
func TestFlinkInterrupted(t *testing.T) {
	root := flinktest.Unpack(t, "stateful-heap")
	t.Cleanup(func() { faulty = wrap.Rule{} })
	for _, verb := range []string{"compact", "relocate", "salvage", "convert --to spillway"} {
		var broken, interrupted, whole int
		for k := 1; whole == 0; k++ {
			for _, fails := range []bool{false, true} {
				fuzzStore = mem.New(mem.Options{})
				store, dst := fuzzStore, "faulty://mem/new/chk-2"
				dir := filepath.Join(t.TempDir(), "store")
				if verb == "compact" {
					dst = "faulty://" + dir + "/new/chk-2"
				}
				ctx, cancel := context.WithCancel(t.Context())
				faulty = wrap.Rule{When: wrap.And(wrap.AtOp(k), wrap.Not(wrap.On(wrap.OpRemove))), Then: wrap.Before(func(wrap.Call) { cancel() })}
				if fails {
					faulty.Then = wrap.Fail(inflight.ErrNoSpace)
				}
				var stdout, stderr bytes.Buffer
				args := append(append([]string{"flink"}, strings.Fields(verb)...), root, dst)
				code := run(ctx, testEnv(&stdout, &stderr), args)
				cancel()
				switch code {
				case 0:
					whole++
				case 2:
					broken++
					require.True(t, fails)
					require.Contains(t, stderr.String(), "no space left")
				case 130:
					interrupted++
					require.False(t, fails)
				default:
					require.Fail(t, "exit code", "%s, operation %d: %d: %s", verb, k, code, &stderr)
				}
				left := contentsOf(t, store)
				if entries, err := os.ReadDir(filepath.Join(dir, "new")); err == nil {
					left += len(entries)
				}
				if left > 0 {
					mustRun(t, "verify", strings.NewReplacer("faulty://mem", "fuzz://", "faulty://", "").Replace(dst))
				} else {
					require.NotZero(t, code, "%s, operation %d", verb, k)
				}
			}
		}
		require.Greater(t, broken, 4, verb)
		require.Greater(t, interrupted, 4, verb)
	}
}

// TestFlinkIntoEmptyDirectory has an empty directory where a verb shall write one:
// it is refused as a full one is, since another may be about to write there.
func TestFlinkIntoEmptyDirectory(t *testing.T) {
	root := flinktest.Unpack(t, "resume")
	ours := filepath.Join(t.TempDir(), "ours")
	mustRun(t, "flink", "convert", "--to", "spillway", root, ours)
	for _, verb := range []string{"compact", "drop --all", "relocate", "salvage", "convert --to spillway", "convert --from spillway"} {
		src := root
		if strings.Contains(verb, "--from") {
			src = ours
		}
		for _, more := range []string{"", "--dry-run"} {
			dst := t.TempDir()
			var stdout, stderr bytes.Buffer
			args := slices.Concat([]string{"flink"}, strings.Fields(verb), strings.Fields(more), []string{src, dst})
			require.Equal(t, 2, run(t.Context(), testEnv(&stdout, &stderr), args), "%s: %s%s", args, &stdout, &stderr)
			require.Contains(t, stderr.String(), filepath.Base(dst)+": file already exists (give a directory that does not exist)")
			left, err := os.ReadDir(dst)
			require.NoError(t, err)
			require.Empty(t, left)
		}
	}
}

// contentsOf counts objects, and what unfinished writers left.
func contentsOf(t testing.TB, b backends.Backend) (n int) {
	for _, err := range b.List(t.Context(), "") {
		require.NoError(t, err)
		n++
	}
	for _, err := range b.Leftovers(t.Context(), "") {
		require.NoError(t, err)
		n++
	}
	return n
}

// toStore copies a directory into a store in memory, below a folder.
func toStore(t testing.TB, dir, folder string) *mem.Backend {
	b := mem.New(mem.Options{})
	require.NoError(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(p)
		require.NoError(t, err)
		rel, err := filepath.Rel(dir, p)
		require.NoError(t, err)
		put(t, b, path.Join(folder, filepath.ToSlash(rel)), content)
		return nil
	}))
	return b
}

func put(t testing.TB, b backends.Backend, name string, content []byte) {
	o, err := b.Create(context.WithoutCancel(t.Context()), name, backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(content)
	require.NoError(t, err)
	_, err = o.Finish(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
}

// TestFlinkOnAnyStore looks at checkpoints on a store that is no disk, and
// rewrites from one store to another.
func TestFlinkOnAnyStore(t *testing.T) {
	for _, name := range []string{"resume", "stateful-rocksdb-incremental", "flink-1.17.2-keyed-2x2", "savepoint-native"} {
		root := flinktest.Unpack(t, name)
		fuzzStore = toStore(t, root, "flink/"+name)
		dir := flinktest.CheckpointDir(t, root)
		src, there := filepath.Join(root, dir), "fuzz:///flink/"+name+"/"+dir
		moved := []string{"--moved", "file:/flink/checkpoints/" + name + "=" + root}
		movedThere := []string{"--moved", "file:/flink/checkpoints/" + name + "=fuzz:///flink/" + name}
		for _, command := range []string{"channels", "du", "dump --digest --records"} {
			args := append(strings.Fields(command), "--json")
			require.Equal(t, mustRun(t, slices.Concat(moved, args, []string{src})...), mustRun(t, slices.Concat(movedThere, args, []string{there})...), command)
		}
		mustRun(t, append(movedThere, "verify", there)...)
		mustRun(t, append(movedThere, "show", there)...)
		require.Contains(t, mustRun(t, "ls", strings.TrimSuffix(there, "/"+path.Base(there))), "Flink job")

		new := t.TempDir() + "/new"
		mustRun(t, append(movedThere, "flink", "relocate", there, new)...)
		mustRun(t, "verify", new)
		mustRun(t, append(moved, "flink", "relocate", src, "fuzz:///copies/"+name)...)
		mustRun(t, "flink", "seal", "fuzz:///copies/"+name)
		require.Contains(t, mustRun(t, "verify", "fuzz:///copies/"+name), "; sealed")
		require.Contains(t, mustRun(t, "diff", new, "fuzz:///copies/"+name), "no difference")
		require.Contains(t, mustRun(t, "ls", "fuzz:///copies"), "Flink")
	}
}

// TestFlinkRoots has jobs of Flink beside jobs of Spillway.
func TestFlinkRoots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	require.NoError(t, os.CopyFS(filepath.Join(dir, "flow"), os.DirFS(flinktest.Unpack(t, "keyed-2x2"))))
	backup := filepath.Join(dir, "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(filepath.Join(dir, "flow", "chk-2"))))
	require.Contains(t, mustRun(t, "ls", backup), "Flink")
	ls := mustRun(t, "ls", dir)
	require.Contains(t, ls, "job words\n")
	require.Contains(t, ls, "Flink job flow\n")
	require.Contains(t, mustRun(t, "verify", "--all", dir), "Flink checkpoint 2 of job flow")
	require.Contains(t, mustRun(t, "show", "--job", "flow", dir), "Flink checkpoint 2 of job flow")
	require.Contains(t, mustRun(t, "show", "--job", "words", dir), "checkpoint 5 of job words")
	require.NotContains(t, mustRun(t, "gc", "-n", dir), "flow")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 2, run(t.Context(), testEnv(&stdout, &stderr), []string{"show", dir}))
	require.Contains(t, stderr.String(), "there are several jobs: flow, other, words")
	require.Equal(t, 2, run(t.Context(), testEnv(&stdout, &stderr), []string{"show", "--job", "none", dir}))
	require.Contains(t, stderr.String(), "name one of: flow, other, words")
}

// TestFlinkRunning reads a job of Flink whose newest checkpoint goes away.
func TestFlinkRunning(t *testing.T) {
	root := flinktest.Unpack(t, "resume")
	fuzzStore = toStore(t, root, "resume")
	for _, d := range []string{"chk-4", "chk-5"} {
		for info, err := range fuzzStore.List(t.Context(), "resume/chk-3/") {
			require.NoError(t, err)
			p, err := os.ReadFile(filepath.Join(filepath.Dir(root), filepath.FromSlash(info.Name)))
			require.NoError(t, err)
			if path.Base(info.Name) == "_metadata" {
				binary.BigEndian.PutUint64(p[8:], uint64(d[4]-'0'))
			}
			put(t, fuzzStore, strings.Replace(info.Name, "chk-3", d, 1), p)
		}
	}
	t.Cleanup(func() { faulty = wrap.Rule{} })
	all := fuzzStore.Snapshot()
	var gone atomic.Bool
	retire := func() {
		gone.Store(false)
		faulty = wrap.Rule{When: wrap.And(wrap.On(wrap.OpOpen, wrap.OpStat), wrap.NameHas("chk-5/f")), Then: wrap.Before(func(wrap.Call) {
			if !gone.Swap(true) {
				require.NoError(t, fuzzStore.RemoveAll(t.Context(), "resume/chk-5"))
			}
		})}
	}
	for _, command := range []string{"verify", "verify --all", "show", "dump", "du", "channels"} {
		fuzzStore.Restore(all)
		retire()
		out := mustRun(t, append(strings.Fields(command), "faulty://mem/resume")...)
		require.True(t, gone.Load())
		require.Contains(t, out, map[bool]string{true: "chk-4", false: "checkpoint 4"}[command == "dump"])
		require.NotContains(t, out, "checkpoint 5")
	}
	fuzzStore.Restore(all)
	retire()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 2, run(t.Context(), testEnv(&stdout, &stderr), []string{"verify", "faulty://mem/resume/chk-5"}))
	require.Contains(t, stderr.String(), "retired while it was being read")
}

// TestFlinkDamagedAnyhow changes checkpoints at random: every command says what
// is wrong in order, or nothing.
func TestFlinkDamagedAnyhow(t *testing.T) {
	n := 12
	if raceEnabled {
		n = 3
	}
	if os.Getenv("SPILLWAY_CRASH") != "" {
		n = 3000
	}
	seed := uint64(1)
	if os.Getenv("SPILLWAY_CRASH") != "" {
		seed = rand.Uint64()
	}
	for _, name := range []string{"resume", "keyed-2x2-share1", "flink-1.17.2-connect-3-4"} {
		root := flinktest.Unpack(t, name)
		fuzzStore = toStore(t, root, "x")
		dir := flinktest.CheckpointDir(t, root)
		var names []string
		for info, err := range fuzzStore.List(t.Context(), "x/"+dir+"/") {
			require.NoError(t, err)
			names = append(names, info.Name)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		for range n {
			victim := names[r.IntN(len(names))]
			was, err := os.ReadFile(filepath.Join(root, strings.TrimPrefix(victim, "x/")))
			require.NoError(t, err)
			put(t, fuzzStore, victim, damage(r, bytes.Clone(was)))
			anyhow(t, "fuzz:///x/"+dir, fmt.Sprintf("%s, %s, seed %d", name, victim, seed))
			put(t, fuzzStore, victim, was)
		}
		mustRun(t, "verify", "fuzz:///x/"+dir)
	}
}

// TestFlinkFileGone: a file that a checkpoint refers to and that is not there is a
// fault of the checkpoint, not of who has named it.
func TestFlinkFileGone(t *testing.T) {
	root := flinktest.Unpack(t, "resume")
	fuzzStore = toStore(t, root, "x")
	dir := "x/" + flinktest.CheckpointDir(t, root)
	for info, err := range fuzzStore.List(t.Context(), dir+"/") {
		require.NoError(t, err)
		if path.Base(info.Name) != "_metadata" {
			require.NoError(t, fuzzStore.Remove(t.Context(), info.Name))
		}
	}
	anyhow(t, "fuzz:///"+dir, "files gone")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(t.Context(), testEnv(&stdout, &stderr), []string{"flink", "relocate", "fuzz:///" + dir, "fuzz:///new"}))
	require.Contains(t, stderr.String(), "does not exist")
	require.Contains(t, stderr.String(), "put the file back")
}

// TestFlinkRewriteObeysSeal changes a byte that only the seal can tell: every verb
// refuses it, also in a dry run, and writes nothing; salvage gives it up.
func TestFlinkRewriteObeysSeal(t *testing.T) {
	const file = "fb3b9906-0dd2-4953-9823-42b6df96c353"
	verbs := []string{"compact", "drop --edge rec=>count", "relocate", "relocate --path file:/a=file:/b", "convert --to spillway"}
	for _, disk := range []bool{true, false} {
		root := flinktest.Unpack(t, "resume")
		fuzzStore = toStore(t, root, "x")
		src, out := root+"/chk-3", t.TempDir()
		if !disk {
			src, out = "fuzz:///x/chk-3", "fuzz:///new"
		}
		mustRun(t, "flink", "seal", src)
		for _, verb := range verbs {
			mustRun(t, slices.Concat([]string{"flink"}, strings.Fields(verb), []string{"-n", src, out + "/whole"})...)
		}
		name := filepath.Join(root, "chk-3", file)
		p, err := os.ReadFile(name)
		require.NoError(t, err)
		p[5000] ^= 1
		if disk {
			require.NoError(t, os.WriteFile(name, p, 0o600))
		} else {
			put(t, fuzzStore, "x/chk-3/"+file, p)
		}
		before := contentsOf(t, fuzzStore)
		for _, verb := range verbs {
			for _, more := range []string{"", "--dry-run"} {
				var stdout, stderr bytes.Buffer
				args := slices.Concat([]string{"flink"}, strings.Fields(verb), strings.Fields(more), []string{src, out + "/new"})
				require.Equal(t, 1, run(t.Context(), testEnv(&stdout, &stderr), args), "%s: %s%s", args, &stdout, &stderr)
				require.Regexp(t, "it is damaged: error seal-chunk "+file+" at [0-9]+ .*: not the chunk that was sealed \\(salvage it first\\)\n$", stderr.String())
				require.Empty(t, stdout.String())
				require.Equal(t, before, contentsOf(t, fuzzStore))
				if disk {
					left, err := os.ReadDir(out)
					require.NoError(t, err)
					require.Empty(t, left)
				}
			}
		}
		mustRun(t, "flink", "drop", "--all", src, out+"/dropped")
		mustRun(t, "flink", "salvage", src, out+"/salvaged")
		mustRun(t, "flink", "compact", out+"/salvaged", out+"/compact")
	}
}

// damage changes some bytes.
func damage(r *rand.Rand, p []byte) []byte {
	at := r.IntN(len(p))
	switch r.IntN(4) {
	case 0:
		return p[:at]
	case 1:
		p[at] ^= 1 << r.IntN(8)
	case 2:
		for i := at; i < min(len(p), at+8); i++ {
			p[i] = byte(r.IntN(256))
		}
	case 3:
		return slices.Insert(p, at, byte(r.IntN(256)))
	}
	return p
}

// anyhow runs every command on a checkpoint that may be damaged.
func anyhow(t *testing.T, url, what string) {
	for _, command := range []string{"verify", "verify --json", "ls", "show", "channels", "du", "dump --digest --records --json", "diff " + url,
		"flink compact -n", "flink salvage -n", "flink drop --all -n", "flink relocate -n", "flink convert --to spillway -n", "flink seal -n"} {
		args := append(strings.Fields(command), url)
		if strings.HasPrefix(command, "flink") && !strings.Contains(command, "seal") {
			args = append(args, "fuzz:///new")
		}
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), testEnv(&stdout, &stderr), args)
		require.Contains(t, []int{0, 1}, code, "%s: %s: %s", what, command, &stderr)
		require.LessOrEqual(t, strings.Count(stderr.String(), "\n"), 1)
		if command == "verify" && code == 0 {
			// What is right can be rewritten.
			require.Zero(t, run(t.Context(), testEnv(&stdout, &stderr), []string{"flink", "compact", "-n", url, "fuzz:///new"}), "%s: %s", what, &stderr)
		}
	}
}

// TestFlinkDoc looks for the output that docs/flink.md shows in the scripts.
func TestFlinkDoc(t *testing.T) {
	doc, err := os.ReadFile("../../docs/flink.md")
	require.NoError(t, err)
	var shown strings.Builder
	for _, name := range []string{"flink", "flink-rewrite", "flink-damage"} {
		p, err := os.ReadFile(filepath.Join("testdata/scripts", name))
		require.NoError(t, err)
		shown.Write(p)
	}
	lines := strings.Split(strings.ReplaceAll(shown.String(), "$T", "/flink/resume"), "\n")
	checked := 0
	for line := range strings.Lines(string(doc)) {
		line, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		if !is || line == "" || line == "…" || strings.HasPrefix(line, "$ ") {
			continue
		}
		checked++
		line = strings.ReplaceAll(line, "/flink/new", "/flink/resume/new")
		require.Contains(t, lines, line)
	}
	require.Greater(t, checked, 30)
}
