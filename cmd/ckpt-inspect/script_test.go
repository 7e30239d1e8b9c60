package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// asCommand is the variable that makes the test's binary the command itself.
const asCommand = "CKPT_INSPECT_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// TestScripts runs the scripts in testdata. Each command works on a fresh copy
// of the fixture, $T; run with -rewrite to write what they print anew:
//
//	run           one command of the inspector a line
//	defect        the same after lines that damage files:
//	              flip FILE OFFSET [BIT], cut FILE LENGTH, zero FILE OFFSET LENGTH, append FILE TEXT,
//	              swap FILE FILE, move FILE FILE, copy FILE FILE, remove FILE, write FILE TEXT,
//	              manifest FILE OLD NEW (replaces text, and makes the checksum right)
//	flink NAME    the same on a checkpoint of real Flink in place of the fixture
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			dir := filepath.Join(t.TempDir(), "ckpt")
			switch d.Cmd {
			case "run", "defect":
				fixture(t, dir)
				golden(t, filepath.Join(dir, "golden"))
			case "flink":
				dir = flinkFixture(t, d.CmdArgs[0].Key)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				words := strings.Fields(line)
				if edit := edits[words[0]]; edit != nil {
					edit(t, dir, words[1:])
					continue
				}
				if out.Len() > 0 {
					fmt.Fprintln(&out)
				}
				inspectOnce(t, dir, words, &out)
			}
			return out.String()
		})
	})
}

// flinkFixture unpacks a checkpoint of real Flink, an hour old.
func flinkFixture(t testing.TB, name string) string {
	dir := flinktest.Unpack(t, name)
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		age(t, path)
		return err
	}))
	return dir
}

// golden copies the golden files of version 1.
func golden(t testing.TB, dir string) {
	names, err := filepath.Glob("../../testdata/v1/*.cstate")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for _, n := range names {
		p, err := os.ReadFile(n)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(n)), p, 0o600))
	}
}

// inspectOnce runs the inspector and prints what it says, with $T for dir.
func inspectOnce(t testing.TB, dir string, words []string, out *strings.Builder) {
	var args []string
	for _, w := range words {
		args = append(args, strings.ReplaceAll(w, "$T", dir))
	}
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), testEnv(&stdout, &stderr), args)
	if len(words) > 0 && strings.Contains(strings.Join(words, " "), "--json") {
		for line := range strings.Lines(stdout.String()) {
			require.True(t, json.Valid([]byte(line)), line)
		}
	}
	hide := func(s string) string { return strings.ReplaceAll(s, dir, "$T") }
	out.WriteString(hide(stdout.String()))
	if stderr.Len() > 0 {
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line: %s", &stderr)
		out.WriteString("stderr: " + hide(stderr.String()))
	}
	if code != 0 || stdout.Len()+stderr.Len() == 0 {
		fmt.Fprintf(out, "exit %d\n", code)
	}
}

func testEnv(stdout, stderr *bytes.Buffer) env {
	return env{stdout: stdout, stderr: stderr, now: func() time.Time { return now }}
}

// edits are what a script can do to files.
var edits = map[string]func(t testing.TB, dir string, args []string){
	"flip": func(t testing.TB, dir string, args []string) {
		bit := 0
		if len(args) > 2 {
			bit = number(t, args[2])
		}
		change(t, dir, args[0], func(p []byte) []byte {
			p[number(t, args[1])] ^= 1 << bit
			return p
		})
	},
	"cut": func(t testing.TB, dir string, args []string) {
		change(t, dir, args[0], func(p []byte) []byte { return p[:number(t, args[1])] })
	},
	"zero": func(t testing.TB, dir string, args []string) {
		change(t, dir, args[0], func(p []byte) []byte {
			at := number(t, args[1])
			clear(p[at:min(len(p), at+number(t, args[2]))])
			return p
		})
	},
	"append": func(t testing.TB, dir string, args []string) {
		change(t, dir, args[0], func(p []byte) []byte { return append(p, strings.Join(args[1:], " ")...) })
	},
	"write": func(t testing.TB, dir string, args []string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, args[0])), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, args[0]), []byte(strings.Join(args[1:], " ")), 0o600))
	},
	"remove": func(t testing.TB, dir string, args []string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, args[0])))
	},
	"copy": func(t testing.TB, dir string, args []string) {
		to := filepath.Join(dir, args[1])
		require.NoError(t, os.CopyFS(to, os.DirFS(filepath.Join(dir, args[0]))))
		require.NoError(t, filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
			age(t, path)
			return err
		}))
	},
	"move": func(t testing.TB, dir string, args []string) {
		to := filepath.Join(dir, args[1])
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, os.Rename(filepath.Join(dir, args[0]), to))
	},
	"swap": func(t testing.TB, dir string, args []string) {
		a, b := filepath.Join(dir, args[0]), filepath.Join(dir, args[1])
		require.NoError(t, os.Rename(a, a+".swap"))
		require.NoError(t, os.Rename(b, a))
		require.NoError(t, os.Rename(a+".swap", b))
	},
	"manifest": func(t testing.TB, dir string, args []string) {
		change(t, dir, args[0], func(p []byte) []byte {
			s := strings.Replace(string(p), args[1], args[2], 1)
			require.NotEqual(t, string(p), s)
			const tail = len(`xxxxxxxx"}` + "\n")
			s = s[:len(s)-tail]
			return fmt.Appendf(nil, "%s%08x\"}\n", s, format.Checksum([]byte(s)))
		})
	},
}

func number(t testing.TB, s string) int {
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func change(t testing.TB, dir, name string, f func([]byte) []byte) {
	path := filepath.Join(dir, name)
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, f(p), 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}
