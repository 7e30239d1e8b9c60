package config

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

var rewrite = flag.Bool("rewrite", false, "write the table in docs/operations.md anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDefaults: what is not given is what the packages take by themselves.
func TestDefaults(t *testing.T) {
	s, err := new(Config).Settings()
	require.NoError(t, err)
	require.Equal(t, dataflow.Options{Interval: 5 * time.Second, Timeout: 10 * time.Minute, TolerableFailures: -1, Memory: 64 << 20, BufferSize: 32 << 10,
		ExclusiveBuffers: 2, FloatingBuffers: 8, OverdraftBuffers: 20, PerSubpartition: 10}, s.Dataflow)
	require.Equal(t, writer.Options{TasksPerFile: writer.DefaultTasksPerFile, SealLinger: writer.DefaultSealLinger, TargetFileSize: writer.DefaultTargetFileSize,
		MaxBuffered: writer.DefaultMaxBuffered, Codec: format.CodecAuto}, s.Writer)
	require.Equal(t, 1, s.Catalog.Retained)
	require.Empty(t, s.Restore)
	require.False(t, s.Start.AllowOlder)
	for _, e := range new(Config).Effective() {
		require.Equal(t, "default", e.Origin, e.Key)
		require.NotEmpty(t, e.Doc)
	}
	require.Empty(t, new(Config).Warnings())
}

// TestEveryOption gives each option another value than its default, and sees
// that something becomes of it: a setting, a refusal, or a warning.
func TestEveryOption(t *testing.T) {
	plain, err := new(Config).Settings()
	require.NoError(t, err)
	other := map[string]string{"checkpoint.mode": "AT_LEAST_ONCE", "unaligned.trigger": "auto", "network": "credit", "compression": "zstd",
		"unaligned.spill-dir": "/spill", "restore.allow-dropped": "vertex:count", "unaligned.source.orders": "aligned", "unaligned.edge.a-b": "aligned"}
	for _, o := range Options() {
		key := strings.NewReplacer("NAME", "orders", "FROM-TO", "a-b").Replace(o.Key)
		value := other[key]
		switch {
		case value != "":
		case o.Default == "false":
			value = "true"
		case o.kind == aShare:
			value = "0.75"
		default:
			value = "7"
		}
		if o.kind == aSize || o.kind == aNumber {
			value = "77"
		}
		c := &Config{}
		require.NoError(t, c.Set(Command, "--set", key, value), key)
		s, err := c.Settings()
		switch {
		case err != nil:
			require.ErrorIs(t, err, inflight.ErrConfig, key)
		case len(c.Warnings()) > 0:
			require.Contains(t, c.Warnings()[0], key+" has no effect: ")
		case key != "unaligned.force":
			require.NotEqual(t, plain, s, key)
		}
	}
}

func TestPrecedence(t *testing.T) {
	const key = "checkpoint.interval"
	for _, tc := range []struct {
		name   string
		layers []Layer
		want   string
		origin string
	}{
		{"nothing", nil, "5s", "default"},
		{"preset", []Layer{Preset}, "1s", "1"},
		{"file over preset", []Layer{Preset, File}, "2s", "2"},
		{"in any order", []Layer{File, Preset}, "2s", "2"},
		{"environment over file", []Layer{File, Environment}, "3s", "3"},
		{"command over all", []Layer{Command, Environment, File, Preset}, "4s", "4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Config{}
			for _, l := range tc.layers {
				require.NoError(t, c.Set(l, fmt.Sprint(int(l)), key, fmt.Sprintf("%ds", l)))
			}
			require.Equal(t, tc.want, c.Value(key))
			require.Equal(t, tc.origin, c.Effective()[0].Origin)
		})
	}
}

// TestTwice: a layer must not say two things, under whichever names.
func TestTwice(t *testing.T) {
	c := &Config{}
	require.NoError(t, c.Set(Command, "--interval", "checkpoint.interval", "1s"))
	require.NoError(t, c.Set(Command, "--set", "execution.checkpointing.interval", "1000"), "the same")
	err := c.Set(Command, "--set", "execution.checkpointing.interval", "2 s")
	require.EqualError(t, err, "configure checkpoint.interval: configuration: it is 1s by --set execution.checkpointing.interval, and 2s by --set execution.checkpointing.interval (leave one of them out)")
}

func TestAliases(t *testing.T) {
	for _, o := range Options() {
		for _, name := range o.Flink {
			c := &Config{}
			require.NoError(t, c.Set(File, "file", name, sample(&o)), name)
			require.True(t, c.isSet(o.Key), name)
			require.Empty(t, c.Notes(), name)
		}
		for _, name := range o.Articles {
			c := &Config{}
			require.NoError(t, c.Set(File, "file", name, sample(&o)), name)
			require.True(t, c.isSet(o.Key), name)
			require.Equal(t, []string{name + " (file) is no option of Flink: it is taken for " + o.Key}, c.Notes())
		}
	}
}

// sample is a value that is not the default.
func sample(o *Option) string {
	switch o.kind {
	case aSwitch:
		return "true"
	case aChoice:
		return o.values[len(o.values)-1]
	}
	return "16384"
}

func TestUnknown(t *testing.T) {
	for name, want := range map[string]string{
		"checkpoint.intervall":                     "did you mean checkpoint.interval?",
		"unaligned.alligned-timeout":               "did you mean unaligned.aligned-timeout?",
		"execution.checkpointing.unalinged":        "did you mean execution.checkpointing.unaligned?",
		"execution.checkpointing.unaligned.forced": "it would allow custom partitioners, which are always aligned here; it does not mean unaligned.force",
		"state.checkpoints.dir":                    "say it with --store",
		"jobmanager.rpc.address":                   "see ckpt-run config for all",
		"":                                         "see ckpt-run config for all",
	} {
		err := new(Config).Set(Command, "--set", name, "1")
		require.ErrorIs(t, err, inflight.ErrConfig)
		var e *inflight.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Mend, name)
	}
}

func TestBadValues(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{"checkpoint.interval", "soon", `"soon" is no duration`},
		{"checkpoint.interval", "-1s", `"-1s" is no duration`},
		{"checkpoint.interval", "", `"" is no duration`},
		{"checkpoint.interval", "9999999999999999999", "is no duration"},
		{"checkpoint.interval", "400000000 days", "is no duration"},
		{"checkpoint.timeout", "0", "it must be more than 0"},
		{"checkpoint.retained", "0", "0 is not within 1 and"},
		{"checkpoint.retained", "many", `"many" is no whole number`},
		{"checkpoint.tolerable-failures", "-2", "-2 is not within -1 and"},
		{"unaligned.enabled", "perhaps", `"perhaps" is neither true nor false`},
		{"trigger.queue-fill", "1.5", `"1.5" is no share`},
		{"trigger.queue-fill", "NaN", `"NaN" is no share`},
		{"network", "carrier-pigeon", `"carrier-pigeon" is none of local, credit`},
		{"network.buffer-size", "8", "8 is too small; 16 at least"},
		{"network.memory", "64 parsecs", "is no size"},
		{"network.memory", "9999999999 tb", "is no size"},
	} {
		err := new(Config).Set(Command, "--set", tc.key, tc.value)
		require.ErrorIs(t, err, inflight.ErrConfig, tc)
		require.ErrorContains(t, err, tc.want)
		require.ErrorContains(t, err, "configure "+tc.key+" (--set): ")
	}
}

// TestContradictions are refused, with the mend.
func TestContradictions(t *testing.T) {
	for _, tc := range []struct{ set, want string }{
		{"unaligned.enabled=true checkpoint.mode=at-least-once", "cannot use unaligned checkpoints with at-least-once mode (set it to exactly-once, or unaligned.enabled to false)"},
		{"unaligned.enabled=true checkpoint.max-concurrent=2", "unaligned checkpoints come one at a time (set it to 1, or unaligned.enabled to false)"},
		{"network=credit network.exclusive-buffers=0 network.floating-buffers=0", "a gate without buffers receives nothing (give it or network.floating-buffers 1 at least)"},
		{"unaligned.max-buffered-data=1kb unaligned.max-buffered-data-per-task=1mb", "one subtask may not hold more than all (set it lower, or raise unaligned.max-buffered-data)"},
		{"restore.allow-dropped=count", `"count" names nothing (write vertex:NAME, subtask:NAME/N or edge:FROM:PARTITION-TO:GATE)`},
		{"restore.allow-dropped=vertex:", `"vertex:" names nothing`},
		{"restore.allow-dropped=subtask:count", `"subtask:count" names nothing`},
		{"restore.allow-dropped=edge:a-b", `"edge:a-b" names nothing`},
	} {
		_, err := given(t, tc.set).Settings()
		require.ErrorIs(t, err, inflight.ErrConfig, tc.set)
		require.ErrorContains(t, err, tc.want)
	}
}

func given(t *testing.T, set string) *Config {
	c := &Config{}
	for s := range strings.FieldsSeq(set) {
		key, value, _ := strings.Cut(s, "=")
		require.NoError(t, c.Set(Command, "--set", key, value))
	}
	return c
}

func TestWarnings(t *testing.T) {
	for set, want := range map[string][]string{
		"":                             nil,
		"unaligned.aligned-timeout=1s": {"unaligned.aligned-timeout has no effect: unaligned.enabled is false"},
		"unaligned.aligned-timeout=0":  nil,
		"unaligned.source.orders=aligned unaligned.edge.a-b=unaligned": {"unaligned.source.orders has no effect: unaligned.enabled is false",
			"unaligned.edge.a-b has no effect: unaligned.enabled is false"},
		"unaligned.enabled=true unaligned.aligned-timeout=1s checkpoint.timeout=1s":               {"unaligned.aligned-timeout has no effect: the checkpoint is discarded after 1s, before it would switch"},
		"unaligned.force=true trigger.min-free=1mb":                                               {"unaligned.force has no effect: unaligned.trigger is always", "trigger.min-free has no effect: unaligned.trigger is always"},
		"unaligned.trigger=auto trigger.min-free=1mb":                                             {"unaligned.trigger has no effect: unaligned.enabled is false", "trigger.min-free has no effect: unaligned.enabled is false"},
		"unaligned.enabled=true unaligned.trigger=auto trigger.min-free=1mb":                      nil,
		"unaligned.enabled=true unaligned.trigger=auto unaligned.force=true trigger.queue-fill=1": {"trigger.queue-fill has no effect: unaligned.force is true"},
		"checkpoint.max-concurrent=2":                                                             {"checkpoint.max-concurrent has no effect: the runtime takes one checkpoint at a time"},
		"network.exclusive-buffers=3":                                                             {"network.exclusive-buffers has no effect: network is local"},
		"network.exclusive-buffers=3 network=credit":                                              nil,
		"restore.buffer=1mb":                                                                      {"restore.buffer has no effect: the parallelism does not change"},
	} {
		require.Equal(t, want, given(t, set).Warnings(), set)
	}
}

func TestSettings(t *testing.T) {
	s, err := given(t, "unaligned.enabled=true unaligned.aligned-timeout=500 network=credit network.exclusive-buffers=0 network.overdraft-buffers=0 unaligned.seal-linger=0 "+
		"unaligned.source.cdc=aligned unaligned.source.log=unaligned unaligned.edge.a-b=ALIGNED restore.allow-older=true compression=s2 "+
		"restore.allow-dropped=vertex:a,subtask:b/3;edge:a:0-b:1").Settings()
	require.NoError(t, err)
	require.Equal(t, 500*time.Millisecond, s.Dataflow.AlignedTimeout)
	require.Equal(t, []int{-1, 8, -1}, []int{s.Dataflow.ExclusiveBuffers, s.Dataflow.FloatingBuffers, s.Dataflow.OverdraftBuffers}, "none, as dataflow wants it")
	require.Negative(t, s.Writer.SealLinger)
	require.Equal(t, []string{"cdc"}, s.Dataflow.AlignedSources)
	require.Equal(t, []string{"a-b"}, s.Dataflow.AlignedEdges)
	require.True(t, s.Start.AllowOlder)
	require.Equal(t, format.CodecS2, s.Writer.Codec)
	require.Equal(t, []restore.Scope{{Vertex: "a"}, {Task: &inflight.Task{Vertex: "b", Subtask: 3}}, {Edge: &restore.EdgeName{From: "a", To: "b", Gate: 1}}}, s.Restore.AllowDropped)
}

func TestCheckGraph(t *testing.T) {
	g := dataflow.NewGraph()
	g.Source("orders", 1, func(int) dataflow.Source { return nil })
	g.Operator("count", 1, nil, dataflow.From("orders", dataflow.Rebalance()))
	require.NoError(t, given(t, "unaligned.source.orders=aligned unaligned.edge.orders-count=aligned").CheckGraph(g))
	require.ErrorContains(t, given(t, "unaligned.source.count=aligned").CheckGraph(g), "unaligned.source.count: configuration: there is no such source (the sources are orders)")
	require.ErrorContains(t, given(t, "unaligned.edge.count-orders=aligned").CheckGraph(g), "there is no such edge (the edges are orders-count)")
}

func TestDurationsAndSizes(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "250": 250 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "10 min": 10 * time.Minute, "1m30s": 90 * time.Second,
		"2 days": 48 * time.Hour, "7us": 7 * time.Microsecond, " 3 H ": 3 * time.Hour, "10m": 10 * time.Minute, "100ms": 100 * time.Millisecond} {
		d, err := ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d, text)
	}
	for text, want := range map[string]int64{"0": 0, "65536": 65536, "64 mb": 64 << 20, "64MiB": 64 << 20, "1.5k": 1536, "2 gibibytes": 2 << 30, "1TB": 1 << 40} {
		n, err := ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, 1<<52).Draw(t, "duration"))
		got, err := ParseDuration(FormatDuration(d))
		require.NoError(t, err)
		require.Equal(t, d, got)
		n := rapid.Int64Range(0, 1<<52).Draw(t, "size")
		if rapid.Bool().Draw(t, "round") {
			n &^= 1<<20 - 1
		}
		size, err := ParseSize(FormatSize(n))
		require.NoError(t, err)
		require.Equal(t, n, size)
	})
	_, err := ParseSize(fmt.Sprint(uint64(math.MaxUint64)))
	require.Error(t, err)
}

func TestFiles(t *testing.T) {
	want := map[string]string{"checkpoint.interval": "3s", "unaligned.enabled": "true", "unaligned.aligned-timeout": "1s", "trigger.queue-fill": "0.25",
		"network": "credit", "network.buffer-size": "8KiB", "restore.allow-dropped": "vertex:a,vertex:b", "checkpoint.mode": "exactly-once"}
	for name, text := range map[string]string{
		"nested.yaml": `
# as people write it
checkpoint:
  interval: 3000
  mode: EXACTLY_ONCE
unaligned:
  enabled: true
  aligned-timeout: "1 s"
trigger: {queue-fill: 0.25}
network: credit
network.buffer-size: 8kb
restore:
  allow-dropped: [vertex:a, "vertex:b"]
`,
		"flink.yaml": `
execution:
  checkpointing:
    interval: 3 s
    mode: exactly-once
    unaligned: {enabled: true}
    aligned-checkpoint-timeout: 1000
trigger.queue-fill: 25%
network: credit
taskmanager.memory.segment-size: 8 kb
restore.allow-dropped: vertex:a, vertex:b
`,
		"job.properties": `
! as Java writes it
checkpoint.interval = 3s
checkpoint.mode: exactly-once
unaligned.enabled=true
# a comment
unaligned.aligned-timeout=1000
trigger.queue-fill=0.25
network=credit
network.buffer-size=8192
restore.allow-dropped=vertex:a,vertex:b
`,
	} {
		c := &Config{}
		require.NoError(t, c.LoadFile(write(t, name, text)), name)
		for key, value := range want {
			require.Equal(t, value, c.Value(key), "%s: %s", name, key)
		}
		require.Len(t, c.given, len(want))
	}
	require.NoError(t, new(Config).LoadFile(write(t, "empty.yaml", "")))
	require.NoError(t, new(Config).LoadFile(write(t, "comment.yaml", "# nothing\n---\n")))
}

func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"a.yaml", "checkpoint.interval: 3s\nnothing.known: 1\n", "a.yaml:2): configuration: not an option"},
		{"a.yaml", "checkpoint.interval: soon\n", `a.yaml:1): configuration: "soon" is no duration`},
		{"a.yaml", "checkpoint: {interval: 1s}\ncheckpoint.interval: 2s\n", "it is 1s by "},
		{"a.yaml", "checkpoint.interval:\n", "configure checkpoint.interval (DIR/a.yaml:1): configuration: there is no value"},
		{"a.yaml", "checkpoint: [{interval: 1s}]\n", "a list of more than plain values"},
		{"a.yaml", "checkpoint.interval: &a 1s\ncheckpoint.timeout: *a\n", "there is no value"},
		{"a.yaml", "just words\n", "configure DIR/a.yaml:1: configuration: there is no value"},
		{"a.yaml", "a: [1\nb: }", "a.yaml: configuration: "},
		{"a.yaml", strings.Repeat("a:\n ", 1), "there is no value"},
		{"deep.yaml", strings.Repeat("{a: ", 40) + "1" + strings.Repeat("}", 40), "it nests too deep"},
		{"a.properties", "checkpoint.interval\n", `configure DIR/a.properties:1: configuration: "checkpoint.interval" has no value`},
		{"large.yaml", strings.Repeat("#", maxFile+1), "too large"},
	} {
		path := write(t, tc.name, tc.text)
		err := new(Config).LoadFile(path)
		require.ErrorContains(t, err, strings.ReplaceAll(tc.want, "DIR", filepath.Dir(path)), "%s", tc.text[:min(60, len(tc.text))])
	}
	require.ErrorIs(t, new(Config).LoadFile(filepath.Join(t.TempDir(), "none.yaml")), os.ErrNotExist)
	require.ErrorContains(t, new(Config).LoadFile(t.TempDir()), "it is no file")
}

func write(t testing.TB, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestEnvironment(t *testing.T) {
	c := &Config{}
	require.NoError(t, c.LoadEnv([]string{"HOME=/root", "SPILLWAY_CRASH=1", "SPILLWAY_CHECKPOINT_MIN_PAUSE=1s", "SPILLWAY_NETWORK=credit",
		"SPILLWAY_UNALIGNED_SOURCE_Orders=aligned", "SPILLWAY_UNALIGNED_EDGE_a-b=aligned", "SPILLWAY_UNALIGNED_MAX_BUFFERED_DATA_PER_TASK=1mb"}))
	require.Len(t, c.given, 5)
	require.Equal(t, "1s", c.Value("checkpoint.min-pause"))
	require.Equal(t, "aligned", c.Value("unaligned.source.Orders"))
	require.Equal(t, "1MiB", c.Value("unaligned.max-buffered-data-per-task"))
	for _, e := range c.Effective() {
		require.Contains(t, []string{"default", "environment"}, e.Origin)
	}
	require.ErrorContains(t, c.LoadEnv([]string{"SPILLWAY_CHECKPOINT_INTERVALL=1s"}), "did you mean checkpoint.interval?")
	require.ErrorContains(t, c.LoadEnv([]string{"SPILLWAY_NETWORK=x"}), `network (environment): configuration: "x" is none of local, credit`)
	seen := map[string]bool{}
	for _, o := range Options() {
		require.False(t, seen[o.EnvName()], o.EnvName())
		seen[o.EnvName()] = true
	}
}

const docs = "../../docs/operations.md"

// TestDocs: the table of docs/operations.md is this package's.
func TestDocs(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "| option | default | also called | meaning |\n|---|---|---|---|\n")
	for _, o := range Options() {
		var also []string
		for _, n := range o.Flink {
			also = append(also, "`"+n+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", o.Key, strings.ReplaceAll(o.Default, "-1", "−1"), strings.Join(also, ", "), o.Doc)
	}
	data, err := os.ReadFile(docs)
	require.NoError(t, err)
	const begin, end = "<!-- options: go test ./internal/config -rewrite -->\n", "<!-- end of options -->\n"
	before, rest, ok := strings.Cut(string(data), begin)
	require.True(t, ok)
	table, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *rewrite {
		require.NoError(t, os.WriteFile(docs, []byte(before+begin+b.String()+end+after), 0o600))
		return
	}
	require.Equal(t, b.String(), table)
}

// FuzzFile: no file makes it panic.
func FuzzFile(f *testing.F) {
	f.Add("a.yaml", "checkpoint: {interval: 1s}")
	f.Add("a.properties", "network=credit")
	f.Add("a.yaml", "? - a\n: b\n&x y: *x\n!!int 3: |\n  z\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		ext := ".yaml"
		if strings.HasSuffix(name, ".properties") {
			ext = ".properties"
		}
		_ = new(Config).LoadFile(write(t, "f"+ext, text))
	})
}
