package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/trigger"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// Settings are the options of the packages, filled from a Config.
type Settings struct {
	Dataflow dataflow.Options
	Writer   writer.Options
	Catalog  catalog.Options
	Start    catalog.StartOptions
	Restore  restore.Options
	// Trigger is the chain of unaligned.trigger=auto; nil: always. It does not
	// know the store yet.
	Trigger *trigger.Chain
}

// Settings fills the options of the packages. It refuses what contradicts
// itself, with the mend.
func (c *Config) Settings() (s *Settings, err error) {
	if err := c.contradictions(); err != nil {
		return nil, err
	}
	s = &Settings{
		Dataflow: dataflow.Options{
			Interval: as[time.Duration](c, "checkpoint.interval"), Timeout: as[time.Duration](c, "checkpoint.timeout"),
			MinPause: as[time.Duration](c, "checkpoint.min-pause"), TolerableFailures: as[int](c, "checkpoint.tolerable-failures"),
			AtLeastOnce: as[string](c, "checkpoint.mode") == "at-least-once",
			Unaligned:   as[bool](c, "unaligned.enabled"), AlignedTimeout: as[time.Duration](c, "unaligned.aligned-timeout"),
			AllowWithoutSource: as[bool](c, "unaligned.allow-without-source"),
			Credit:             as[string](c, "network") == "credit",
			Memory:             int(as[int64](c, "network.memory")), BufferSize: int(as[int64](c, "network.buffer-size")),
			ExclusiveBuffers: orNone(as[int](c, "network.exclusive-buffers")), FloatingBuffers: orNone(as[int](c, "network.floating-buffers")),
			OverdraftBuffers: orNone(as[int](c, "network.overdraft-buffers")),
			OutputBuffers:    as[int](c, "network.output-buffers"), PerSubpartition: as[int](c, "network.buffers-per-channel"),
		},
		Writer: writer.Options{
			TasksPerFile: as[int](c, "unaligned.tasks-per-file"), SealLinger: cmp.Or(as[time.Duration](c, "unaligned.seal-linger"), -1),
			TargetFileSize: as[int64](c, "unaligned.target-file-size"), MaxBuffered: as[int64](c, "unaligned.max-buffered-data"),
			MaxBufferedPerTask: as[int64](c, "unaligned.max-buffered-data-per-task"), SpillDir: as[string](c, "unaligned.spill-dir"),
		},
		Catalog: catalog.Options{Retained: as[int](c, "checkpoint.retained"), MaxConcurrent: 1},
		Start:   catalog.StartOptions{AllowOlder: as[bool](c, "restore.allow-older")},
	}
	if s.Writer.Codec, err = format.ParseCodec(as[string](c, "compression")); err != nil {
		return nil, err
	}
	if s.Dataflow.Unaligned && as[string](c, "unaligned.trigger") == "auto" {
		s.Trigger = &trigger.Chain{QueueFill: as[float64](c, "trigger.queue-fill"), OverrunShare: as[float64](c, "trigger.overrun-share"),
			AlignedTimeout: s.Dataflow.AlignedTimeout, MinFree: cmp.Or(as[int64](c, "trigger.min-free"), s.Writer.MaxBuffered), Force: as[bool](c, "unaligned.force")}
	}
	for key, e := range c.within("unaligned.source.") {
		if e.text == "aligned" {
			s.Dataflow.AlignedSources = append(s.Dataflow.AlignedSources, key)
		}
	}
	for key, e := range c.within("unaligned.edge.") {
		if e.text == "aligned" {
			s.Dataflow.AlignedEdges = append(s.Dataflow.AlignedEdges, key)
		}
	}
	for _, text := range as[[]string](c, "restore.allow-dropped") {
		scope, err := parseScope(text)
		if err != nil {
			return nil, err
		}
		s.Restore.AllowDropped = append(s.Restore.AllowDropped, scope)
	}
	return s, nil
}

// orNone returns n as dataflow wants it, where 0 means the default.
func orNone(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// within returns what is given below a prefix, in order, by the rest of the key.
func (c *Config) within(prefix string) func(yield func(string, entry) bool) {
	return func(yield func(string, entry) bool) {
		for _, key := range slices.Sorted(maps.Keys(c.given)) {
			if rest, ok := strings.CutPrefix(key, prefix); ok && !yield(rest, c.given[key]) {
				return
			}
		}
	}
}

// contradictions refuses options that cannot hold together.
func (c *Config) contradictions() error {
	unaligned := as[bool](c, "unaligned.enabled")
	switch {
	case unaligned && as[string](c, "checkpoint.mode") == "at-least-once":
		return refuse("checkpoint.mode", "set it to exactly-once, or unaligned.enabled to false", "cannot use unaligned checkpoints with at-least-once mode")
	case unaligned && as[int](c, "checkpoint.max-concurrent") > 1:
		return refuse("checkpoint.max-concurrent", "set it to 1, or unaligned.enabled to false", "unaligned checkpoints come one at a time")
	case as[string](c, "network") == "credit" && as[int](c, "network.exclusive-buffers")+as[int](c, "network.floating-buffers") == 0:
		return refuse("network.exclusive-buffers", "give it or network.floating-buffers 1 at least", "a gate without buffers receives nothing")
	case as[int64](c, "unaligned.max-buffered-data-per-task") > as[int64](c, "unaligned.max-buffered-data"):
		return refuse("unaligned.max-buffered-data-per-task", "set it lower, or raise unaligned.max-buffered-data", "one subtask may not hold more than all")
	}
	return nil
}

// Warnings are the options that were given and can have no effect.
func (c *Config) Warnings() (warnings []string) {
	warn := func(key, format string, args ...any) {
		if c.isSet(key) {
			warnings = append(warnings, key+" has no effect: "+fmt.Sprintf(format, args...))
		}
	}
	timeout := as[time.Duration](c, "unaligned.aligned-timeout")
	if !as[bool](c, "unaligned.enabled") {
		const off = "unaligned.enabled is false"
		warn("unaligned.aligned-timeout", off)
		for key := range c.within("unaligned.source.") {
			warn("unaligned.source."+key, off)
		}
		for key := range c.within("unaligned.edge.") {
			warn("unaligned.edge."+key, off)
		}
	} else if limit := as[time.Duration](c, "checkpoint.timeout"); timeout >= limit {
		warn("unaligned.aligned-timeout", "the checkpoint is discarded after %s, before it would switch", FormatDuration(limit))
	}
	why := ""
	switch {
	case as[string](c, "unaligned.trigger") != "auto":
		why = "unaligned.trigger is always"
	case !as[bool](c, "unaligned.enabled"):
		why = "unaligned.enabled is false"
		warn("unaligned.trigger", "%s", why)
	}
	if why != "" {
		warn("unaligned.force", "%s", why)
	} else if as[bool](c, "unaligned.force") {
		why = "unaligned.force is true"
	}
	if why != "" {
		for _, key := range []string{"trigger.queue-fill", "trigger.overrun-share", "trigger.min-free"} {
			warn(key, "%s", why)
		}
	}
	warn("checkpoint.max-concurrent", "the runtime takes one checkpoint at a time")
	warn("restore.buffer", "the parallelism does not change")
	if as[string](c, "network") != "credit" {
		warn("network.exclusive-buffers", "network is local")
		warn("network.floating-buffers", "network is local")
	}
	return warnings
}

// CheckGraph refuses options about sources and edges that a graph does not have.
func (c *Config) CheckGraph(g *dataflow.Graph) error {
	var sources, edges []string
	for _, v := range g.Vertices() {
		if v.Source {
			sources = append(sources, v.Name)
		}
	}
	for _, e := range g.Edges(dataflow.Options{}) {
		edges = append(edges, e.From+"-"+e.To)
	}
	for name := range c.within("unaligned.source.") {
		if !slices.Contains(sources, name) {
			return refuse("unaligned.source."+name, "the sources are "+strings.Join(sources, ", "), "there is no such source")
		}
	}
	for name := range c.within("unaligned.edge.") {
		if !slices.Contains(edges, name) {
			return refuse("unaligned.edge."+name, "the edges are "+strings.Join(edges, ", "), "there is no such edge")
		}
	}
	return nil
}

// parseScope reads one item of restore.allow-dropped.
func parseScope(text string) (s restore.Scope, err error) {
	bad := refuse("restore.allow-dropped", "write vertex:NAME, subtask:NAME/N or edge:FROM:PARTITION-TO:GATE", "%q names nothing", text)
	what, name, _ := strings.Cut(text, ":")
	switch what {
	case "vertex":
		s.Vertex = name
	case "subtask":
		vertex, n, _ := strings.Cut(name, "/")
		index, err := strconv.Atoi(n)
		if err != nil || index < 0 || vertex == "" {
			return s, bad
		}
		s.Task = &inflight.Task{Vertex: vertex, Subtask: index}
	case "edge":
		from, to, _ := strings.Cut(name, "-")
		e := restore.EdgeName{}
		var partition, gate string
		e.From, partition, _ = strings.Cut(from, ":")
		e.To, gate, _ = strings.Cut(to, ":")
		var errs [2]error
		e.Partition, errs[0] = strconv.Atoi(partition)
		e.Gate, errs[1] = strconv.Atoi(gate)
		if errs != [2]error{} || e.From == "" || e.To == "" {
			return s, bad
		}
		s.Edge = &e
	}
	if name == "" || what != "vertex" && what != "subtask" && what != "edge" {
		return s, bad
	}
	return s, nil
}
