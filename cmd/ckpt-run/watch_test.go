package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/format"
)

// page is what a running job answers.
type page struct {
	t   *testing.T
	url string
}

func (p page) get(path string, code int) []byte {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+path, nil)
	require.NoError(p.t, err)
	answer, err := client.Do(r)
	require.NoError(p.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, code, answer.StatusCode, "%s", body)
	return body
}

// listening runs a job until look returns.
func listening(t *testing.T, look func(page), args ...string) {
	addresses, ended := make(chan string, 1), make(chan int, 1)
	stderr := hook(func(text string) {
		if _, url, found := strings.Cut(text, `msg="live page" url=`); found {
			addresses <- strings.TrimSuffix(strings.TrimSpace(url), "/")
		}
	})
	go func() {
		ended <- run(t.Context(), env{stdout: io.Discard, stderr: stderr}, append(args, "--listen", ":0"))
	}()
	select {
	case url := <-addresses:
		require.Contains(t, url, "http://127.0.0.1:", "no host is this machine only")
		look(page{t, url})
	case <-ended:
		require.Fail(t, "it never listened")
	}
	require.Zero(t, <-ended)
}

// documentedFields are the tables of docs/json.md about what is served, by
// their heads.
func documentedFields(t *testing.T) map[string][]string {
	p, err := os.ReadFile("../../docs/json.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(p), "\n## Answers of ckpt-run --listen\n")
	require.True(t, found)
	tables, head := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		cell, _, row := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		switch {
		case strings.HasPrefix(line, "|---"):
		case !row || !strings.HasPrefix(line, "| "):
			head = ""
		case head == "":
			head = cell
		default:
			tables[head] = append(tables[head], cell)
		}
	}
	return tables
}

// TestListen asks a running job.
func TestListen(t *testing.T) {
	t.Parallel()
	doc := documentedFields(t)
	fields := func(head string, of any) map[string]any {
		m, ok := of.(map[string]any)
		require.True(t, ok, "%s: %v", head, of)
		require.ElementsMatch(t, doc[head], slices.Collect(maps.Keys(m)), head)
		return m
	}
	parse := func(p []byte) (v any) {
		require.NoError(t, json.Unmarshal(p, &v))
		return v
	}
	listening(t, func(p page) {
		var latest map[string]any
		require.Eventually(t, func() bool {
			o := fields("field of `/checkpoints`", parse(p.get("/checkpoints", 200)))
			latest = fields("field of `latest`", o["latest"])
			return latest["completed"] != nil
		}, 30*time.Second, 20*time.Millisecond)
		id := latest["completed"].(map[string]any)["id"].(float64)
		require.Positive(t, id)
		one := parse(p.get(fmt.Sprintf("/checkpoints/%.0f", id), 200))
		require.Equal(t, latest["completed"], one)
		require.Len(t, one.(map[string]any)["subtasks"], 6)
		p.get("/checkpoints/4711", 404)
		p.get("/checkpoints/newest", 400)

		s := fields("field of `/state`", parse(p.get("/state", 200)))
		for name, head := range map[string]string{"vertices": "field of a vertex", "edges": "field of an edge", "checkpoints": "field of a checkpoint of `/state`"} {
			list := s[name].([]any)
			require.NotEmpty(t, list, name)
			first := fields(head, list[0])
			if name == "checkpoints" {
				require.Empty(t, first["line"].(map[string]any)["subtasks"], "they are asked for one by one")
			}
		}
		require.Contains(t, string(p.get("/metrics", 200)), "\nspillway_checkpoint_last_completed_id ")
		require.Contains(t, string(p.get("/", 200)), "<html")
	}, "slow", "unaligned", "--sleep", "1ms", "--interval", "50ms", "--duration", "2s", "--json", "--store", t.TempDir())
}

// TestListenOnUsedPort: it says so before the job claims anything.
func TestListenOnUsedPort(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	store := t.TempDir()
	var stderr bytes.Buffer
	require.Equal(t, 2, run(t.Context(), env{stdout: io.Discard, stderr: &stderr}, []string{"--records", "10", "--store", store, "--listen", l.Addr().String()}))
	require.Contains(t, stderr.String(), "address already in use (name a free port, or 0 for any)")
	require.NoDirExists(t, store+"/job")
}

// TestTrigger: what was decided, and why, is in the log, in the line of the
// checkpoint, and on the store.
func TestTrigger(t *testing.T) {
	const silent = " --fault source:0:stall@0s+300ms --fault source:1:stall@0s+300ms"
	for _, tc := range []struct{ name, args, alignment, why string }{
		{"full queues", "slow", "unaligned", `queues \d+ % full \(threshold 50 %\)`},
		{"empty queues", "fast" + silent, "aligned", `queues 0 % full \(threshold 50 %\)`},
		{"a threshold of 0", "fast --set trigger.queue-fill=0" + silent, "unaligned", `queues 0 % full \(threshold 0 %\)`},
		{"no room", "slow --set trigger.min-free=1000TiB", "aligned", `\S+ .iB free \(threshold 1000 TiB\)`},
		{"short alignments", "fast --set unaligned.aligned-timeout=1m --set trigger.queue-fill=0" + silent, "aligned",
			`0 of \d+ alignments over 1m0s \(threshold 30 %\)`},
		{"forced", "fast --set unaligned.force=true" + silent, "unaligned", `unaligned\.force`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			store := t.TempDir()
			s := tell(t, strings.Fields(tc.args+" --sleep 1ms --interval 100ms --duration 700ms --store "+store+
				" --set unaligned.enabled=true --set unaligned.trigger=auto --set checkpoint.retained=50")...)
			s.exact(t)
			decided := s.with(func(l checkpointLine) bool { return l.Decision != "" && completed(l) })
			require.NotEmpty(t, decided, s.log)
			i := slices.IndexFunc(decided, func(l checkpointLine) bool { return l.Alignment == tc.alignment })
			require.GreaterOrEqual(t, i, 0, s.log)
			l := decided[i]
			require.Regexp(t, "^"+tc.why+"$", l.Decision)
			require.Contains(t, s.log, fmt.Sprintf(`msg="checkpoint %d: %s, %s" checkpoint=%d alignment=%s`, l.ID, l.Alignment, l.Decision, l.ID, l.Alignment))
			stats, err := os.ReadFile(filepath.Join(dirOf(store, l.ID), "_stats.json"))
			require.NoError(t, err)
			var onStore format.CheckpointStats
			require.NoError(t, json.Unmarshal(stats, &onStore))
			require.Equal(t, l.Decision, onStore.Decision)
			require.Len(t, onStore.Subtasks, len(l.Subtasks))
			for _, task := range onStore.Subtasks {
				require.Equal(t, tc.alignment == "unaligned" && task.Vertex != vertexSink, task.Unaligned, task.Vertex)
			}
			for _, task := range l.Subtasks {
				require.Equal(t, tc.alignment == "unaligned" && task.Vertex != vertexSink, task.Unaligned, "%s: a pointwise edge stays aligned", task.Vertex)
			}
		})
	}
}

// free is the free space of stores opened as "narrow:///dir".
var free atomic.Int64

func init() {
	backends.Register("narrow", func(_ context.Context, u *url.URL) (backends.Backend, error) { return narrow{local.New(u.Path)}, nil })
}

type narrow struct{ backends.Backend }

func (narrow) Space(context.Context) (backends.Space, error) {
	return backends.Space{Free: free.Load()}, nil
}

// TestSkipped: where not even the state fits, a checkpoint is skipped: the log,
// the lines, the metrics and the summary say so. It takes no slot, and when there
// is room again, the next one completes.
func TestSkipped(t *testing.T) {
	free.Store(1 << 50)
	store := t.TempDir()
	args := strings.Fields("slow unaligned --sleep 1ms --interval 50ms --set unaligned.trigger=auto --set checkpoint.retained=50 --store narrow://" + store)
	begun, skipped, resumed := make(chan string, 1), make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var stdout, stderr bytes.Buffer
	lines := hook(func(line string) {
		mu.Lock()
		defer mu.Unlock()
		stdout.WriteString(line)
		s := told(t, stdout.Bytes())
		n := len(s.with(func(l checkpointLine) bool { return l.Reason == "skipped" }))
		switch last := s.checkpoints; {
		case len(last) == 0:
		case completed(last[len(last)-1]) && n == 0:
			free.Store(1) // its state is known by now
		case n == 2 && last[len(last)-1].Reason == "skipped":
			close(skipped)
		case n > 2 && completed(last[len(last)-1]):
			select {
			case <-resumed:
			default:
				close(resumed)
			}
		}
	})
	log := hook(func(line string) {
		mu.Lock()
		defer mu.Unlock()
		stderr.WriteString(line)
		if _, url, found := strings.Cut(line, `msg="live page" url=`); found {
			begun <- strings.TrimSuffix(strings.TrimSpace(url), "/")
		}
	})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, env{stdout: lines, stderr: log}, slices.Concat(args, []string{"--duration", "0", "--json", "--listen", ":0"}))
	}()
	wait := func(c <-chan struct{}) {
		select {
		case <-c:
		case <-code:
			require.Fail(t, "it has ended")
		}
	}
	wait(skipped)
	p := page{t, <-begun}
	require.Regexp(t, `\nspillway_checkpoints_total\{alignment="aligned",kind="checkpoint",reason="skipped",state="declined"\} \d+\n`, string(p.get("/metrics", 200)))
	free.Store(1 << 50)
	wait(resumed)
	end()
	require.Equal(t, 130, <-code)

	s := told(t, stdout.Bytes())
	next := uint64(1)
	for _, l := range s.checkpoints {
		if l.Reason == "skipped" {
			require.Equal(t, "declined", l.State)
			require.Regexp(t, `^1 B free, the state alone needs \S+ .?i?B$`, l.Decision)
			require.Contains(t, stderr.String(), `msg="checkpoint skipped: `+l.Decision+`"`)
			require.Zero(t, l.ID)
			require.Equal(t, "checkpoint  skipped: "+l.Decision+"\n", new(report).checkpoint(l))
			continue
		}
		require.Equal(t, next, l.ID, "one that is skipped takes no slot")
		next++
	}
	require.NotContains(t, stderr.String(), "checkpoint not completed")
	require.Len(t, s.with(func(l checkpointLine) bool { return l.Reason == "skipped" }), s.summary.Declined)

	s = tell(t, slices.Concat(args, []string{"--restore", "latest", "--duration", "200ms"})...)
	require.Zero(t, s.code, s.log)
	s.exact(t)
}

// TestFallbackPerTask: the bound of one subtask is as good as that of all.
func TestFallbackPerTask(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	s := tell(t, strings.Fields("slow unaligned --sleep 1ms --interval 100ms --duration 600ms --set unaligned.max-buffered-data-per-task=16KiB"+
		" --set checkpoint.retained=50 --store "+store)...)
	s.exact(t)
	i := slices.IndexFunc(s.checkpoints, func(l checkpointLine) bool { return l.Reason == "over-budget" })
	require.GreaterOrEqual(t, i, 0, s.log)
	require.Equal(t, "declined", s.checkpoints[i].State)
	require.Contains(t, s.log, "level=WARN msg=fallback")
	next := s.checkpoints[i+1]
	require.Equal(t, []string{"completed", "aligned", "the last checkpoint went over the memory bound"}, []string{next.State, next.Alignment, next.Decision})
	files, err := filepath.Glob(dirOf(store, s.checkpoints[i].ID) + "/*.cstate")
	require.NoError(t, err)
	require.Empty(t, files, "nothing of it stays")
}
