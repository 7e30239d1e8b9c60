// Package config knows the options of a job: one table with their names,
// defaults and meanings, from which files, the environment and the command
// line are read, and from which the options of the packages are filled.
package config

import (
	"slices"
	"strings"
)

// Option is one row of the table.
type Option struct {
	// Key is its name. A part in capitals stands for the name of a source or
	// an edge.
	Key string
	// Default is its value where nothing is given, as it would be written; "": none.
	Default string
	// Doc says what it does, in Markdown.
	Doc string
	// Flink are Flink's names for the same, the present one first.
	Flink []string
	// Articles are names that articles use, and Flink does not know.
	Articles []string

	kind   kind
	values []string // of a choice
	least  int64    // of numbers, durations and sizes
}

const flinkPrefix = "execution.checkpointing."

func flinks(names ...string) []string {
	for i, n := range names {
		if !strings.HasPrefix(n, "taskmanager.") && !strings.HasPrefix(n, "state.") {
			names[i] = flinkPrefix + n
		}
	}
	return names
}

var options = []Option{
	{Key: "checkpoint.interval", Default: "5s", kind: aDuration, Flink: flinks("interval"),
		Doc: "from one trigger to the next; 0: only the final checkpoint of a bounded job"},
	{Key: "checkpoint.timeout", Default: "10m", kind: aDuration, least: 1, Flink: flinks("timeout"),
		Doc: "after which a checkpoint is discarded"},
	{Key: "checkpoint.min-pause", Default: "0", kind: aDuration, Flink: flinks("min-pause"),
		Doc: "between the end of a checkpoint and the next trigger"},
	{Key: "checkpoint.retained", Default: "1", kind: aNumber, least: 1, Flink: flinks("num-retained", "state.checkpoints.num-retained"),
		Doc: "completed checkpoints that stay on the store, savepoints apart"},
	{Key: "checkpoint.max-concurrent", Default: "1", kind: aNumber, least: 1, Flink: flinks("max-concurrent-checkpoints"),
		Doc: "more than 1 is refused together with unaligned; the runtime takes one at a time"},
	{Key: "checkpoint.tolerable-failures", Default: "-1", kind: aNumber, least: -1, Flink: flinks("tolerable-failed-checkpoints"),
		Doc: "failed writes and timeouts in a row, beyond which the job restarts; declined and subsumed ones do not count; -1: any number (Flink: 0)"},
	{Key: "checkpoint.mode", Default: "exactly-once", kind: aChoice, values: []string{"exactly-once", "at-least-once"}, Flink: flinks("mode"),
		Doc: "`exactly-once` or `at-least-once`, which is refused together with unaligned"},

	{Key: "unaligned.enabled", Default: "false", kind: aSwitch, Flink: flinks("unaligned.enabled", "unaligned"), Articles: flinks("unaligned-checkpoint.enabled"),
		Doc: "barriers may overtake data, which is then captured"},
	{Key: "unaligned.aligned-timeout", Default: "0", kind: aDuration, Flink: flinks("aligned-checkpoint-timeout", "alignment-timeout"),
		Articles: flinks("aligned-checkpoint.timeout", "alignment.timeout"),
		Doc:      "0: unaligned from the start; more: aligned first, and from then on unaligned. It switches a checkpoint; only `checkpoint.timeout` discards it"},
	{Key: "unaligned.trigger", Default: "always", kind: aChoice, values: []string{"always", "auto"},
		Doc: "`always`: the timeout alone decides; `auto`: a chain of three questions decides, checkpoint by checkpoint (see Aligned or unaligned)"},
	{Key: "unaligned.force", Default: "false", kind: aSwitch, Articles: flinks("unaligned.force-unaligned"),
		Doc: "skips the chain of `unaligned.trigger=auto`, never the rules of correctness"},
	{Key: "trigger.queue-fill", Default: "0.5", kind: aShare, Doc: "of the chain: how full the queues must be, 0 to 1"},
	{Key: "trigger.overrun-share", Default: "0.3", kind: aShare, Doc: "of the chain: how many of the last alignments took longer than the aligned timeout, 0 to 1"},
	{Key: "trigger.min-free", kind: aSize, Doc: "of the chain: free space on the store; default as `unaligned.max-buffered-data`"},
	{Key: "unaligned.tasks-per-file", Default: "5", kind: aNumber, least: 1, Flink: flinks("unaligned.max-subtasks-per-channel-state-file"),
		Articles: flinks("unaligned.channel-state.number-of-tasks-share-file", "channel-state.number-of-tasks-share-file"),
		Doc:      "subtasks that share a file"},
	{Key: "unaligned.seal-linger", Default: "20ms", kind: aDuration, Doc: "how long a subtask that has finished waits for the others of its file; 0: not at all"},
	{Key: "unaligned.target-file-size", Default: "64MiB", kind: aSize, least: 1, Doc: "a file that has reached it is sealed"},
	{Key: "unaligned.max-buffered-data", Default: "256MiB", kind: aSize, least: 1, Articles: flinks("unaligned.max-buffered-data"),
		Doc: "bytes held in memory until they are durable; over it the checkpoint is declined as a whole, and the next one follows at once, aligned"},
	{Key: "unaligned.max-buffered-data-per-task", kind: aSize, least: 1, Doc: "the same bound for one subtask"},
	{Key: "unaligned.spill-dir", kind: aText, Doc: "a local directory for encoded blocks, used once more than half of the bound is held"},
	{Key: "unaligned.allow-without-source", Default: "false", kind: aSwitch, Articles: flinks("unaligned.allow-checkpoint-without-aligned-barrier"),
		Doc: "a checkpoint may complete without a source subtask that is gone, if that has emitted nothing since its last one; it is marked partial"},
	{Key: "unaligned.source.NAME", Default: "inherit", kind: aChoice, values: []string{"inherit", "aligned", "unaligned"},
		Doc: "`aligned` or `unaligned` for what one source emits; where both meet, all edges into the vertex are aligned"},
	{Key: "unaligned.edge.FROM-TO", Default: "inherit", kind: aChoice, values: []string{"inherit", "aligned", "unaligned"},
		Doc: "the same for one edge"},

	{Key: "network", Default: "local", kind: aChoice, values: []string{"local", "credit"},
		Doc: "`local`: the consumer takes the sender's buffer itself; `credit`: credit-based flow control, bytes are copied to the receiver"},
	{Key: "network.memory", Default: "64MiB", kind: aSize, least: 1, Doc: "of all buffers; a job that needs more is refused"},
	{Key: "network.buffer-size", Default: "32KiB", kind: aSize, least: 16, Flink: flinks("taskmanager.memory.segment-size"), Doc: "of one buffer"},
	{Key: "network.exclusive-buffers", Default: "2", kind: aNumber, Flink: flinks("taskmanager.network.memory.buffers-per-channel"), Doc: "of each credit channel"},
	{Key: "network.floating-buffers", Default: "8", kind: aNumber, Flink: flinks("taskmanager.network.memory.floating-buffers-per-gate"), Doc: "of each gate of credit channels"},
	{Key: "network.overdraft-buffers", Default: "20", kind: aNumber, Flink: flinks("taskmanager.network.memory.max-overdraft-buffers-per-gate"),
		Doc: "of each partition, for records that need more than one buffer; new input gets none"},
	{Key: "network.output-buffers", Default: "0", kind: aNumber, Doc: "of each partition; 0: 2 for each subpartition and 8"},
	{Key: "network.buffers-per-channel", Default: "10", kind: aNumber, least: 1, Flink: flinks("taskmanager.network.memory.max-buffers-per-channel"),
		Doc: "of these, how many one subpartition may hold"},

	{Key: "compression", Default: "auto", kind: aChoice, values: []string{"auto", "none", "s2", "zstd"},
		Doc: "`none`, `s2`, `zstd`, or `auto`: none on a local disk, elsewhere where it pays"},

	{Key: "restore.buffer", Default: "64MiB", kind: aSize, least: 1,
		Doc: "of records that a restore at another parallelism has to sort; at the same parallelism it needs none"},
	{Key: "restore.allow-dropped", kind: aList,
		Doc: "state that may be given up, separated by commas: `vertex:NAME`, `subtask:NAME/N`, `edge:FROM:PARTITION-TO:GATE`"},
	{Key: "restore.allow-older", Default: "false", kind: aSwitch,
		Doc: "where the newest checkpoint is damaged, go back to the next older one"},
}

// Options returns the table, in the order of the documentation.
func Options() []Option { return slices.Clone(options) }

// refused are keys that are known not to exist here, and what to do instead.
var refused = map[string]string{
	flinkPrefix + "unaligned.forced":                       "it would allow custom partitioners, which are always aligned here; it does not mean unaligned.force",
	flinkPrefix + "dir":                                    "say it with --store",
	"state.checkpoints.dir":                                "say it with --store",
	"state.backend.checkpoint.dir":                         "say it with --store",
	"execution.state-recovery.path":                        "say it with --restore",
	"execution.savepoint.path":                             "say it with --restore",
	flinkPrefix + "unaligned.interruptible-timers.enabled": "timers always make room for a barrier here; leave it out",
	"parallelism.default":                                  "say it with --parallelism",
}

// names are all names of an option: its own, Flink's, and those of articles.
func (o *Option) names() []string { return slices.Concat([]string{o.Key}, o.Flink, o.Articles) }

// pattern returns what a key with a name in it begins with; "" for others.
func (o *Option) pattern() string {
	i := strings.LastIndexByte(o.Key, '.')
	if part := o.Key[i+1:]; part != strings.ToUpper(part) {
		return ""
	}
	return o.Key[:i+1]
}

// find returns the option that name means, and its key: that of the option,
// or with a name in it. article tells that only articles call it so.
func find(name string) (o *Option, key string, article bool) {
	for i := range options {
		o := &options[i]
		if p := o.pattern(); p != "" {
			if strings.HasPrefix(name, p) && len(name) > len(p) {
				return o, name, false
			}
			continue
		}
		if slices.Contains(o.names(), name) {
			return o, o.Key, slices.Contains(o.Articles, name)
		}
	}
	return nil, "", false
}

// nearest returns the name of an option that is most like name; "": none is.
func nearest(name string) string {
	best, least := "", max(2, len(name)/3)+1
	for i := range options {
		for _, n := range options[i].names() {
			if d := distance(name, n); d < least {
				best, least = n, d
			}
		}
	}
	return best
}

// distance is how many letters have to be put in, left out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
