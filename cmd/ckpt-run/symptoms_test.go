package main

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A symptom is a row of the table in docs/operations.md.
type symptom struct {
	shows func(t *testing.T, s *seen)         // what the command does
	mends func(t *testing.T, before, s *seen) // what it does with the mend; nil: the command itself applies it
}

// seen is what a command of the table has shown.
type seen struct {
	story
	text    string             // all of it
	metrics map[string]float64 // the highest value of each that the row names
}

func (s *seen) failed(reason string) int {
	return len(s.with(func(l checkpointLine) bool { return l.Reason == reason }))
}

// middle is the median of a number of the checkpoints that completed.
func (s *seen) middle(of func(checkpointLine) float64) float64 {
	var all []float64
	for _, l := range s.with(completed) {
		all = append(all, of(l))
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// travel is how long the last barrier was under way.
func travel(l checkpointLine) (longest float64) {
	for _, s := range l.Subtasks {
		longest = max(longest, s.StartDelayMs+s.AlignmentMs)
	}
	return longest
}

func files(l checkpointLine) float64 { return float64(l.Files) }

// symptoms are the rows, by their first cells.
var symptoms = map[string]symptom{
	"the duration jumps": {
		func(t *testing.T, s *seen) {
			slow := slices.MaxFunc(s.with(completed), func(a, b checkpointLine) int { return cmp.Compare(travel(a), travel(b)) })
			require.Greater(t, travel(slow), 0.5*slow.AckMs)
			require.Greater(t, s.metrics["spillway_checkpoint_start_delay_seconds"], 0.1)
		},
		func(t *testing.T, before, s *seen) { require.Less(t, s.middle(travel), before.middle(travel)/2) },
	},
	"the size grows": {
		func(t *testing.T, s *seen) {
			full := s.checkpoints[0]
			require.Greater(t, float64(full.ChannelStateBytes), 0.5*float64(full.SizeBytes))
			require.Greater(t, s.metrics["spillway_checkpoint_persisted_bytes_total"], 1e4)
		},
		func(t *testing.T, before, s *seen) {
			require.Less(t, float64(s.checkpoints[0].ChannelStateBytes), float64(before.checkpoints[0].ChannelStateBytes)/2)
		},
	},
	"checkpoints are discarded by timeout": {
		func(t *testing.T, s *seen) {
			require.NotZero(t, s.failed("timeout"))
			require.Equal(t, "failed", s.checkpoints[0].State)
			require.NotZero(t, s.metrics[`spillway_checkpoints_total{reason="timeout"}`])
		},
		func(t *testing.T, _, s *seen) { // the aligned timeout of 100 ms has switched it, and discarded nothing
			require.NotEmpty(t, s.with(func(l checkpointLine) bool {
				return completed(l) && l.Alignment != "aligned" && travel(l) >= 100
			}))
		},
	},
	"out of memory, or near it: what was captured waits for the store": {
		func(t *testing.T, s *seen) {
			require.NotZero(t, s.failed("over-budget"))
			require.Contains(t, s.text, "level=WARN msg=fallback")
			require.NotEmpty(t, s.with(func(l checkpointLine) bool { return completed(l) && l.Alignment == "aligned" && l.Decision != "" }))
			require.NotZero(t, s.metrics["spillway_checkpoint_fallbacks_total"])
		},
		func(t *testing.T, _, s *seen) {
			require.Zero(t, s.failed("over-budget"))
			require.Equal(t, "unaligned", s.with(completed)[0].Alignment)
		},
	},
	"out of memory: the process was killed": {
		func(t *testing.T, s *seen) {
			require.Equal(t, 1, s.code)
			require.Contains(t, s.text, `"name":"memory","state":"error"`)
		},
		func(t *testing.T, _, s *seen) {
			require.Contains(t, s.text, `"name":"memory","state":"ok"`)
			require.Zero(t, s.code, s.text)
		},
	},
	"too many open files": {
		func(t *testing.T, s *seen) {
			require.NotZero(t, s.failed("write-failed"))
			require.Contains(t, s.text, "too many open files (raise the limit")
			require.NotZero(t, s.metrics[`spillway_files_total{outcome="failed"}`])
		},
		func(t *testing.T, before, s *seen) {
			require.Less(t, s.failed("write-failed"), before.failed("write-failed"))
		},
	},
	"permission errors": {
		func(t *testing.T, s *seen) {
			require.NotZero(t, s.failed("write-failed"))
			require.Regexp(t, `permission denied \(give user \S+ access to \S+/store/job `, s.text)
			require.NotZero(t, s.metrics[`spillway_backend_requests_total{outcome="permission"}`])
			require.Equal(t, "completed", s.checkpoints[len(s.checkpoints)-1].State, "when it has access again")
		}, nil,
	},
	"small files": {
		func(t *testing.T, s *seen) {
			require.GreaterOrEqual(t, s.middle(files), 16.0)
			require.NotZero(t, s.metrics[`spillway_files_total{outcome="sealed"}`])
		},
		func(t *testing.T, before, s *seen) { require.Less(t, s.middle(files), before.middle(files)/2) },
	},
}

// TestSymptoms runs the commands of the table in docs/operations.md, and again
// with what the table says helps.
func TestSymptoms(t *testing.T) {
	p, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(p), "\n## Troubleshooting\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n## ")
	require.Contains(t, text, "An aligned timeout switches a checkpoint, and only the checkpoint timeout discards it")
	code := regexp.MustCompile("`([^`]+)`")
	c := newClinic(t)
	rows := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| symptom ") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		require.Len(t, cells, 5, line)
		name := strings.TrimSpace(cells[0])
		of, known := symptoms[name]
		require.True(t, known, name)
		rows++
		command := code.FindStringSubmatch(cells[1])[1]
		var metrics []string
		for _, m := range code.FindAllStringSubmatch(cells[3], -1) {
			metrics = append(metrics, m[1])
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.run(t, command, "", metrics)
			of.shows(t, s)
			if of.mends == nil {
				return
			}
			for _, m := range code.FindAllStringSubmatch(cells[4], -1) {
				if strings.HasPrefix(m[1], "--") {
					of.mends(t, s, c.run(t, command, m[1], metrics))
					return
				}
			}
			require.Fail(t, "there is no mend that begins with --")
		})
	}
	require.Len(t, symptoms, rows)
}

// clinic is where commands run: as a user without rights, since nothing is
// forbidden to root.
type clinic struct{ bin string }

func newClinic(t *testing.T) *clinic {
	c := &clinic{shared(t)}
	exe, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.bin+"/program", exe, 0o755))
	script := "#!/bin/sh\ncase $1 in doctor) ;; *) set -- \"$@\" --listen 127.0.0.1:0;; esac\nexec env " + asCommand + "=1 " + c.bin + "/program \"$@\" --json $MEND\n"
	require.NoError(t, os.WriteFile(c.bin+"/ckpt-run", []byte(script), 0o755))
	return c
}

// shared returns a directory that every user can enter.
func shared(t *testing.T) string {
	dir, err := os.MkdirTemp("", "symptoms-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// run runs a line of shell, in which ckpt-run has also the flags of mend, and
// prints JSON, and listens.
func (c *clinic) run(t *testing.T, command, mend string, metrics []string) *seen {
	dir := shared(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"), "TMPDIR="+dir, "MEND="+mend)
	if os.Geteuid() == 0 {
		const nobody = 65534
		require.NoError(t, os.Chown(dir, nobody, nobody))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	s := &seen{metrics: map[string]float64{}}
	var stdout, stderr bytes.Buffer
	var looks sync.WaitGroup
	ended := make(chan struct{})
	cmd.Stdout = &stdout
	cmd.Stderr = hook(func(text string) {
		stderr.WriteString(text)
		if _, url, found := strings.Cut(text, "msg=\"live page\" url="); found {
			looks.Go(func() { s.look(strings.TrimSpace(url)+"metrics", metrics, ended) })
		}
	})
	err := cmd.Run()
	close(ended)
	looks.Wait()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	s.story = told(t, stdout.Bytes())
	s.code, s.log, s.text = cmd.ProcessState.ExitCode(), stderr.String(), stdout.String()+stderr.String()
	if !strings.Contains(command, "ckpt-run doctor") {
		s.exact(t)
	}
	return s
}

// look reads metrics until the command ends.
func (s *seen) look(url string, names []string, ended <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		answer, err := client.Get(url)
		if err != nil {
			continue // it has ended, or has no file left
		}
		page, _ := io.ReadAll(answer.Body) // as much as there is
		_ = answer.Body.Close()
		for _, name := range names {
			s.metrics[name] = max(s.metrics[name], highest(string(page), name))
		}
	}
}

// highest is the highest value of a metric, or of the sum of a histogram, that
// has those labels.
func highest(page, name string) (v float64) {
	name, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		base, has, _ := strings.Cut(series, "{")
		if strings.TrimSuffix(base, "_sum") != name || !strings.Contains(has, labels) {
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err == nil {
			v = max(v, f)
		}
	}
	return v
}
