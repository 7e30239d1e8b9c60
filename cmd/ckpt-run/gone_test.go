package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inspect"
)

// story is what a run said.
type story struct {
	checkpoints []checkpointLine
	restores    []restoreLine
	summary     summaryLine
	result      resultLine
	log         string
	code        int
}

// tell runs a command line with --json.
func tell(t *testing.T, args ...string) story {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), env{stdout: &stdout, stderr: &stderr}, append(args, "--json"))
	s := told(t, stdout.Bytes())
	s.code, s.log = code, stderr.String()
	return s
}

// told reads lines of JSON.
func told(t testing.TB, lines []byte) (s story) {
	for line := range bytes.Lines(lines) {
		var of struct {
			Event string `json:"event"`
		}
		require.NoError(t, json.Unmarshal(line, &of))
		var err error
		switch of.Event {
		case "checkpoint":
			var l checkpointLine
			err = json.Unmarshal(line, &l)
			s.checkpoints = append(s.checkpoints, l)
		case "restore":
			var l restoreLine
			err = json.Unmarshal(line, &l)
			s.restores = append(s.restores, l)
		case "summary":
			err = json.Unmarshal(line, &s.summary)
		case "result":
			err = json.Unmarshal(line, &s.result)
		}
		require.NoError(t, err)
	}
	return s
}

// with returns the checkpoints that are so.
func (s *story) with(so func(checkpointLine) bool) (with []checkpointLine) {
	for _, l := range s.checkpoints {
		if so(l) {
			with = append(with, l)
		}
	}
	return with
}

func completed(l checkpointLine) bool { return l.State == "completed" }

func gone(l checkpointLine) bool { return l.Reason == "source-gone" }

// exact checks that no record was lost or counted twice.
func (s *story) exact(t testing.TB) {
	require.Zero(t, s.code, s.log)
	require.NotZero(t, s.result.Emitted)
	require.Equal(t, []uint64{s.result.Emitted, 0, 0}, []uint64{s.result.Counted, s.result.Lost, s.result.Duplicated})
}

// silent is a source that says nothing more from 150 ms on, and is gone from
// 900 to 1,400 ms.
const silent = "unaligned --sleep 200us --set network.buffer-size=2kb --interval 50ms --duration 1600ms --fault source:0:stall@150ms+1300ms --fault source:0:gone@900ms+500ms"

// TestSourceGone: a checkpoint fails without a source that is gone, unless the
// option allows it: then it is partial, and restores exactly.
func TestSourceGone(t *testing.T) {
	t.Parallel()
	without := tell(t, append(strings.Fields(silent), "--store", t.TempDir())...)
	without.exact(t)
	failed := without.with(gone)
	require.NotEmpty(t, failed)
	for _, l := range failed {
		require.Equal(t, "failed", l.State)
		require.Equal(t, "source/0: the source subtask is gone, and unaligned.allow-without-source is false", l.Text)
	}
	require.NotEmpty(t, without.with(completed))
	require.Less(t, without.summary.SuccessRate, 1.0)
	require.Zero(t, without.summary.WholeRate)
	require.Contains(t, without.log, "reason=source-gone")

	store := t.TempDir()
	allowed := tell(t, append(strings.Fields(silent), "--store", store, "--set", "unaligned.allow-without-source=true", "--set", "checkpoint.retained=100")...)
	allowed.exact(t)
	require.Empty(t, allowed.with(gone), allowed.log)
	partial := allowed.with(func(l checkpointLine) bool { return l.Partial })
	require.NotEmpty(t, partial)
	for _, l := range partial {
		require.Equal(t, "completed", l.State)
	}
	require.Equal(t, 1.0, allowed.summary.SuccessRate)
	require.Equal(t, len(partial), allowed.summary.Partial)
	require.InDelta(t, 1-float64(len(partial))/float64(len(allowed.checkpoints)), allowed.summary.WholeRate, 0.001)
	require.Contains(t, (&report{}).summary(allowed.summary), "without unaligned.allow-without-source")
	require.Contains(t, (&report{}).checkpoint(partial[0]), "partial: a source subtask was gone")

	last := partial[len(partial)-1]
	require.Contains(t, shown(t, dirOf(store, last.ID)), "partial: a source subtask was gone")
	whole := allowed.checkpoints[slices.IndexFunc(allowed.checkpoints, completed)]
	require.NotContains(t, shown(t, dirOf(store, whole.ID)), "partial")
	again := tell(t, "unaligned", "--duration", "100ms", "--sleep", "100us", "--restore", dirOf(store, last.ID))
	again.exact(t)
	require.Equal(t, last.ID, again.restores[0].Checkpoint)
	require.Contains(t, again.log, "level=WARN msg=\"the checkpoint is partial: a source subtask was gone when it was taken\"")
}

// TestSourceGoneAfterRecords: without its position, what a source has emitted
// since its last checkpoint would come again; with the option, too, a checkpoint fails.
func TestSourceGoneAfterRecords(t *testing.T) {
	t.Parallel()
	s := tell(t, strings.Fields("unaligned --sleep 100us --interval 400ms --duration 1900ms --set network.buffer-size=2kb --store "+t.TempDir()+
		" --set unaligned.allow-without-source=true --fault source:0:gone@700ms+900ms")...)
	s.exact(t)
	failed := s.with(gone)
	require.NotEmpty(t, failed)
	for _, l := range failed {
		require.Equal(t, "source/0: the source subtask is gone, and has emitted records since its last checkpoint", l.Text)
	}
	require.Empty(t, s.with(func(l checkpointLine) bool { return l.Partial }))
	require.Equal(t, "completed", s.checkpoints[len(s.checkpoints)-1].State, "when it is back")
}

// TestSourceGoneFromTheStart: nobody knows where a source stands that was never in a
// checkpoint.
func TestSourceGoneFromTheStart(t *testing.T) {
	t.Parallel()
	s := tell(t, strings.Fields("unaligned --sleep 100us --interval 50ms --duration 400ms --set network.buffer-size=2kb --store "+t.TempDir()+
		" --set unaligned.allow-without-source=true --fault source:0:gone@0s+300ms")...)
	s.exact(t)
	failed := s.with(gone)
	require.NotEmpty(t, failed)
	require.Equal(t, "source/0: the source subtask is gone, and was in no checkpoint before", failed[0].Text)
}

// TestSourceDisconnects: sources that have lost their connections take barriers
// and snapshot their positions, without any option, while the queues drain.
func TestSourceDisconnects(t *testing.T) {
	t.Parallel()
	r := newTrial(t, 3000)
	s := tell(t, "unaligned", "--input", r.input, "--output", r.output, "--sleep", "100us", "--interval", "50ms", "--store", r.store,
		"--set", "network.buffer-size=1kb", "--set", "network.output-buffers=6", "--set", "network.buffers-per-channel=3",
		"--fault", "source:0:disconnect@150ms+600ms", "--fault", "source:1:disconnect@150ms+600ms")
	s.exact(t)
	r.exact()
	require.Equal(t, len(s.checkpoints), len(s.with(completed)), s.log)
	require.Empty(t, s.with(func(l checkpointLine) bool { return l.Partial }))
	require.Equal(t, 1.0, s.summary.SuccessRate)
	var story strings.Builder
	for _, l := range s.checkpoints {
		story.WriteString(map[bool]string{true: "-", false: "+"}[l.ChannelStateBytes == 0])
	}
	require.Regexp(t, `\+-+\+`, story.String(), "checkpoints of empty queues between such of full ones")
}

// shown is what "ckpt-inspect show" prints of a checkpoint.
func shown(t *testing.T, checkpoint string) string {
	i := inspect.New(inspect.Options{})
	target, err := i.Find(t.Context(), checkpoint, "")
	require.NoError(t, err)
	defer target.Close()
	v, err := i.Show(t.Context(), target, inspect.ShowOptions{})
	require.NoError(t, err)
	return v.Tables()[0].Note
}

func dirOf(store string, id uint64) string { return fmt.Sprintf("%s/job/chk-%010d", store, id) }
