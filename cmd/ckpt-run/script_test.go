package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asCommand is the variable that makes the test's binary the command itself.
const asCommand = "CKPT_RUN_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// TestScripts runs the scripts in testdata. The commands of one block share a
// directory, $T; run with -rewrite to write what they print anew:
//
//	run           one command a line
//	              write FILE TEXT (\n is a new line), ls, cat GLOB, remove FILE, env NAME=VALUE
//
// Times, sizes and temporary names are masked.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Equal(t, "run", d.Cmd)
			s := &scene{t: t, dir: t.TempDir()}
			for line := range strings.Lines(d.Input) {
				s.line(strings.TrimSpace(line))
			}
			return s.out.String()
		})
	})
}

// scene is where a script plays.
type scene struct {
	t       *testing.T
	dir     string
	environ []string
	out     strings.Builder
}

func (s *scene) line(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "write":
		name, text, _ := strings.Cut(rest, " ")
		require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(strings.ReplaceAll(text, `\n`, "\n")), 0o600))
	case "remove":
		require.NoError(s.t, os.RemoveAll(filepath.Join(s.dir, rest)))
	case "env":
		s.environ = append(s.environ, rest)
	case "ls", "cat":
		names, err := filepath.Glob(filepath.Join(s.dir, rest))
		require.NoError(s.t, err)
		for _, name := range names {
			fmt.Fprintln(&s.out, strings.TrimPrefix(name, s.dir+"/"))
			if verb == "cat" {
				data, err := os.ReadFile(name)
				require.NoError(s.t, err)
				s.out.Write(data)
			}
		}
	default:
		s.command(strings.Fields(strings.ReplaceAll(line, "$T", s.dir)))
	}
}

func (s *scene) command(args []string) {
	if s.out.Len() > 0 {
		fmt.Fprintln(&s.out)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, env{stdout: &stdout, stderr: &stderr, environ: s.environ}, args)
	if strings.Contains(strings.Join(args, " "), "--json") {
		for line := range strings.Lines(stdout.String()) {
			require.True(s.t, json.Valid([]byte(line)), line)
		}
	}
	s.out.WriteString(s.mask(stdout.String()))
	for line := range strings.Lines(stderr.String()) {
		s.out.WriteString("stderr: " + s.mask(line))
	}
	if code != 0 {
		fmt.Fprintf(&s.out, "exit %d\n", code)
	}
}

var masks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`/[^ ]*/ckpt-run-\d+`), "$$TEMP"},
	{regexp.MustCompile(`time=\S+ `), ""},
	{regexp.MustCompile(`("[a-z0-9_]*(?:_ms|bytes|buffers|files|deviation)":)[0-9.e+-]+`), "${1}N"},
	{regexp.MustCompile(`"size_unsteady":\w+`), `"size_unsteady":B`},
	{regexp.MustCompile(`(?m)^(  (?:source|changes|count|sink)/\d) .*$`), "$1 …"},
	{regexp.MustCompile(`\b\d+(?:\.\d+)? (?:ms|s|B|KiB|MiB|GiB|TiB)\b`), "N"},
	{regexp.MustCompile(`(the limit is|durable after) [0-9.]+(?:ms|µs|s)?`), "$1 N"},
	{regexp.MustCompile(` \d+ (file|buffer)s?\b([^=])`), " N ${1}s$2"},
	{regexp.MustCompile(`(?m)^(  subtask) .*$`), "$1 …"},
}

func (s *scene) mask(text string) string {
	text = strings.ReplaceAll(text, s.dir, "$T")
	for _, m := range masks {
		text = m.what.ReplaceAllString(text, m.with)
	}
	return text
}

// TestExamples runs the examples of the help texts, for a short time.
func TestExamples(t *testing.T) {
	root := newRoot(&env{})
	for _, cmd := range append(root.Commands(), root) {
		if cmd.Name() == "completion" || cmd.Name() == "help" {
			continue
		}
		require.NotEmpty(t, cmd.Example)
		require.NotEmpty(t, cmd.Short)
		require.NotEmpty(t, cmd.Long)
		for line := range strings.Lines(cmd.Example) {
			t.Run(strings.TrimSpace(line), func(t *testing.T) {
				dir := t.TempDir()
				t.Setenv("TMPDIR", dir)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "words"), []byte("to\nbe\nor\nnot\nto\nbe\n"), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "job.yaml"), []byte("network: credit\n"), 0o600))
				line = strings.NewReplacer("/ckpt ", dir+"/ckpt ", " words", " "+dir+"/words", " counts", " "+dir+"/counts", "job.yaml", dir+"/job.yaml").Replace(line)
				args := strings.Fields(line)[1:]
				if args[0] == "slow" { // not for half a minute
					args = append(args, "--duration", "150ms", "--interval", "50ms", "--sleep", "100us")
				}
				var stdout, stderr bytes.Buffer
				require.Zero(t, run(t.Context(), env{stdout: &stdout, stderr: &stderr}, args), &stderr)
				require.NotZero(t, stdout.Len())
				require.NotContains(t, stderr.String(), "level=ERROR")
			})
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), env{stdout: &stdout, stderr: &stderr}, []string{"--version"}))
	require.Regexp(t, `^ckpt-run \S+, channel-state files of version 1, manifests of version 1\n$`, stdout.String())
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"config", "--help"}} {
		stdout.Reset()
		require.Zero(t, run(t.Context(), env{stdout: &stdout, stderr: &stderr}, args))
		require.Contains(t, stdout.String(), "Usage:")
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, len([]rune(line)), 140, line)
		}
	}
	require.Zero(t, stderr.Len())
}

// TestCannotPrint has a standard output that is full.
func TestCannotPrint(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, args := range [][]string{{"config"}, {"fast", "--records", "10", "--json"}} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), env{stdout: full{}, stderr: &stderr}, args), args)
		require.Contains(t, stderr.String(), "ckpt-run: no space left on device\n")
	}
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
