package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/inspect"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// commands returns all commands but those of cobra.
func commands() (list []*cobra.Command) {
	root := newRoot(&env{})
	list = []*cobra.Command{root}
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" && cmd.Name() != "help" {
			list = append(append(list, cmd), cmd.Commands()...)
		}
	}
	return list
}

// TestExamples runs every example of every help text, on the fixture in place
// of /ckpt, and on a checkpoint of Flink in place of /flink.
func TestExamples(t *testing.T) {
	for _, cmd := range commands() {
		t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "-"), func(t *testing.T) {
			require.NotEmpty(t, cmd.Example)
			require.NotEmpty(t, cmd.Short)
			require.NotEmpty(t, cmd.Long)
			for line := range strings.Lines(cmd.Example) {
				dir := filepath.Join(t.TempDir(), "ckpt")
				fixture(t, dir)
				// In the help the newest checkpoint is number 7, and there is one job.
				line = strings.NewReplacer("chk-0000000007/g0-a1", "chk-0000000005/g0-a3", "chk-0000000007", "chk-0000000005").Replace(line)
				flink := ""
				if strings.Contains(line, "/flink") {
					flink = flinktest.Unpack(t, "resume")
				}
				if cmd.Name() == "show" || cmd.Name() == "roundtrip" {
					require.NoError(t, os.RemoveAll(filepath.Join(dir, "other")))
				}
				root := dir
				if cmd.Name() == "backend-check" {
					root = "mem://examples" // a disk takes seconds to sync all that
				}
				args := strings.Fields(strings.NewReplacer("/ckpt", root, " /flink", " "+flink, "'", "").Replace(line))
				require.Equal(t, "ckpt-inspect", args[0])
				var stdout, stderr bytes.Buffer
				require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), args[1:]), "%s%s", line, &stderr)
				require.NotZero(t, stdout.Len(), line)
				require.Zero(t, stderr.Len())
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), []string{"--version"}))
	require.Regexp(t, `^ckpt-inspect \S+, channel-state files of version 1, manifests of version 1\n$`, stdout.String())

	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"-h"}} {
		stdout.Reset()
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), args))
		require.Contains(t, stdout.String(), "Exit codes: 0 all is right")
	}
	for _, cmd := range commands() {
		stdout.Reset()
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), append(strings.Fields(cmd.CommandPath())[1:], "--help")))
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, len(line), 130, line)
		}
	}
	require.Zero(t, stderr.Len())
}

// TestCannotPrint has a standard output that is full.
func TestCannotPrint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	for _, args := range [][]string{{"ls", dir}, {"ls", "--json", dir}, {"dump", dir + "/words"}, {"dump", "--json", dir + "/words"}, {"verify", dir + "/words"}} {
		var stderr bytes.Buffer
		e := testEnv(nil, &stderr)
		e.stdout = full{}
		require.Equal(t, 2, run(t.Context(), e, args), args)
		require.Equal(t, "ckpt-inspect: no space left on device\n", stderr.String())
	}
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestUnknownScheme is no script, since the schemes that are known will grow.
func TestUnknownScheme(t *testing.T) {
	for _, command := range []string{"ls", "verify", "gc", "backend-check"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), testEnv(&stdout, &stderr), []string{command, "gopher://host/ckpt"}))
		require.Regexp(t, `^ckpt-inspect: open gopher://host/ckpt: configuration: no backend for "gopher://" \(known here: .*file, .*, or a plain path\)\n$`, stderr.String())
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), []string{"completion", shell}))
		require.Contains(t, stdout.String(), "ckpt-inspect")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), []string{cobra.ShellCompRequestCmd, "dump", "--side", ""}))
	require.Contains(t, stdout.String(), "input\noutput\nstate\n")
	for line, want := range map[string]string{"show --by ": "size\n", "flink ": "compact\tPut many", "flink convert --to ": "spillway\n", "flink convert --codec ": "none\ns2\nzstd\nauto\n"} {
		stdout.Reset()
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...)))
		require.Contains(t, stdout.String(), want, line)
	}
}

func TestColours(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	output := func(colour bool, args ...string) string {
		var stdout, stderr bytes.Buffer
		e := testEnv(&stdout, &stderr)
		e.colour = colour
		run(t.Context(), e, args)
		return stdout.String()
	}
	for _, args := range [][]string{{"ls", dir}, {"show", dir + "/words"}, {"verify", dir + "/words/chk-0000000006/g0-a3.cstate"}, {"dump", dir + "/words"}} {
		plain, coloured := output(false, args...), output(true, args...)
		require.NotContains(t, plain, "\x1b")
		require.Contains(t, coloured, "\x1b[1m")
		require.Equal(t, plain, regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(coloured, ""), "colours change nothing else")
	}
	require.NotContains(t, output(true, "ls", "--json", dir), "\x1b")
}

func TestProgress(t *testing.T) {
	var stderr bytes.Buffer
	clock := now
	e := testEnv(nil, &stderr)
	e.now = func() time.Time { return clock }
	read := func(p *progress, n int64) { p.Observe(inflight.Event{Name: inflight.EventRequest, Bytes: n}) }

	p := newProgress(&e)
	p.expect(1000)
	clock = clock.Add(time.Hour)
	read(p, 100)
	p.done()
	require.Zero(t, stderr.Len(), "not on a terminal")

	e.progress = true
	p = newProgress(&e)
	p.expect(1000)
	read(p, 100)
	require.Zero(t, stderr.Len(), "not at once")
	clock = clock.Add(time.Second)
	read(p, 400)
	require.Contains(t, stderr.String(), "reading")
	require.Contains(t, stderr.String(), "50%")
	read(p, 1000) // more than was expected
	p.done()
	shown := stderr.Len()
	read(p, 100)
	require.Equal(t, shown, stderr.Len(), "nothing after the end")
}

// TestInterrupted shows that every command ends with its context.
func TestInterrupted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"ls", dir}, {"show", dir + "/words"}, {"dump", dir + "/words"}, {"verify", "--all", dir}, {"roundtrip", dir + "/words"}, {"gc", dir}, {"backend-check", dir},
		{"channels", dir + "/words"}, {"du", dir + "/words"}, {"diff", dir + "/words", dir + "/words"}, {"flink", "seal", dir}, {"flink", "compact", dir, dir + "/new"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 130, run(ctx, testEnv(&stdout, &stderr), args), args)
		require.Equal(t, "ckpt-inspect: interrupted\n", stderr.String())
	}
	require.FileExists(t, dir+"/words/chk-0000000001/_manifest.json")
}

// TestReadOnly shows that looking writes nothing.
func TestReadOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	fixture(t, dir)
	before := contents(t, dir)
	for _, args := range [][]string{{"ls", dir}, {"show", dir + "/words"}, {"dump", dir + "/words"}, {"verify", "--all", dir}, {"roundtrip", dir + "/words"}, {"gc", "-n", dir}, {"gc", "-n", "--fence", dir},
		{"channels", dir + "/words"}, {"du", dir + "/words"}, {"diff", dir + "/words", dir + "/other"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), args), "%s: %s", args, &stderr)
		require.Equal(t, before, contents(t, dir), args)
	}
}

// TestReadOnlyFlink shows the same on a checkpoint of Flink, where a plan is no
// more than a plan.
func TestReadOnlyFlink(t *testing.T) {
	dir := flinktest.Unpack(t, "resume")
	before := contents(t, dir)
	for _, line := range []string{"ls", "show --digest", "channels", "du", "dump --records", "verify --all", "flink seal -n", "flink compact -n", "flink drop --all -n", "flink relocate -n", "flink salvage -n", "flink convert --to spillway -n"} {
		args := append(strings.Fields(line), dir)
		if strings.HasPrefix(line, "flink") && !strings.Contains(line, "seal") {
			args = append(args, filepath.Join(dir, "new", "chk-3"))
		}
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(t.Context(), testEnv(&stdout, &stderr), args), "%s: %s", args, &stderr)
		require.Equal(t, before, contents(t, dir), args)
	}
}

// contents returns all files below dir.
func contents(t testing.TB, dir string) map[string]string {
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		files[path] = ""
		if !d.IsDir() {
			p, err := os.ReadFile(path)
			require.NoError(t, err)
			files[path] = string(p)
		}
		return nil
	}))
	return files
}

// TestControlCharacters are quoted, wherever they come from.
func TestControlCharacters(t *testing.T) {
	var out, errs strings.Builder
	code := run(t.Context(), env{stdout: &out, stderr: &errs, now: time.Now}, []string{"ls", filepath.Join(t.TempDir(), "a\x1b[31mb")})
	require.Equal(t, inspect.ExitUsage, code)
	require.NotContains(t, errs.String(), "\x1b")
	require.Contains(t, errs.String(), `a\x1b[31mb`)
}
