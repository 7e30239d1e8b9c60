// Package flink_test lets real Apache Flink 2.3.0 restore what package flink
// wrote, and counts every record. SPILLWAY_E2E=full runs the long forms.
package flink_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/e2e/need"
)

// javaDir holds the programs around Flink.
const javaDir = "../java"

// full reports whether the long forms are wanted.
func full() bool { return os.Getenv("SPILLWAY_E2E") == "full" }

// report is what the run has to show: a line for each restore, in build/.
var report struct {
	sync.Mutex
	lines []string
}

// say adds a line to the report.
func say(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	report.Lock()
	defer report.Unlock()
	report.lines = append(report.lines, line)
}

func TestMain(m *testing.M) {
	code := m.Run()
	server.stop()
	timed.stop()
	if len(report.lines) > 0 {
		name := filepath.Join("..", "..", "build", "e2e-flink.txt")
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(strings.Join(report.lines, "\n")+"\n"), 0o644)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// requireJava compiles the programs. Without a JDK or Maven the test is left out,
// which under CI is an error.
func requireJava(t testing.TB) {
	t.Helper()
	need.Java(t, "real Flink")
	out, err := exec.CommandContext(t.Context(), filepath.Join(javaDir, "run.sh"), "build").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// jvm is a process with real Flink in it that answers requests (Serve.java). It
// starts with the first one; after a restore that hangs the next starts another.
type jvm struct {
	sync.Mutex
	options string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errs    strings.Builder
	tmp     string
}

var (
	// server runs jobs of seconds: the better compiler would cost more than it saves.
	server = jvm{options: "-XX:TieredStopAtLevel=1"}
	// timed is as fast as Java can be.
	timed jvm
)

// ask sends a request and decodes the answer into v. An ERROR fails the test.
func (j *jvm) ask(t testing.TB, v any, verb string, request map[string]any) {
	t.Helper()
	j.Lock()
	defer j.Unlock()
	if j.cmd == nil {
		requireJava(t)
		require.NoError(t, j.start())
	}
	request["verb"] = verb
	line, err := json.Marshal(request)
	require.NoError(t, err)
	_, err = j.in.Write(append(line, '\n'))
	require.NoError(t, err)
	line, err = j.out.ReadBytes('\n')
	if err != nil {
		j.stopLocked()
	}
	require.NoError(t, err, "%s", &j.errs)
	var state struct {
		State  string
		Causes []string
	}
	require.NoError(t, json.Unmarshal(line, &state))
	if state.State == "HANGS" {
		j.stopLocked()
	}
	require.NotEqual(t, "ERROR", state.State, "%s %v: %s", verb, request, strings.Join(state.Causes, "; "))
	require.NoError(t, json.Unmarshal(line, v))
}

func (j *jvm) start() (err error) {
	if j.tmp, err = os.MkdirTemp("", "e2e-flink-"); err != nil {
		return err
	}
	j.errs.Reset()
	j.cmd = exec.Command(filepath.Join(javaDir, "run.sh"), "serve")
	j.cmd.Env = append(os.Environ(), "E2E_JVM="+j.options+" -Djava.io.tmpdir="+j.tmp)
	j.cmd.Stderr = &j.errs
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		return err
	}
	j.out = bufio.NewReader(out)
	return j.cmd.Start()
}

func (j *jvm) stop() {
	j.Lock()
	defer j.Unlock()
	j.stopLocked()
}

// stopLocked ends the process: it does so by itself at the end of its input.
func (j *jvm) stopLocked() {
	if j.cmd == nil {
		return
	}
	_ = j.in.Close()
	_ = j.cmd.Wait() // whatever it says, it has ended
	_ = os.RemoveAll(j.tmp)
	j.cmd = nil
}
