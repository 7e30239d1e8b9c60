package dataflow

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Options are the options of a job; docs/operations.md describes them. Zero
// values mean the defaults. They do not change while a job runs.
type Options struct {
	Interval          time.Duration // of checkpoints; 0: none
	Timeout           time.Duration // of a checkpoint; default 10 minutes
	MinPause          time.Duration // between two checkpoints
	TolerableFailures int           // in a row; -1: any number
	AtLeastOnce       bool          // barriers block nothing; not with Unaligned

	Unaligned      bool
	AlignedTimeout time.Duration // 0: unaligned from the start
	// AlignedSources and AlignedEdges ("from-to") may hold no channel state.
	AlignedSources, AlignedEdges []string

	// AllowWithoutSource lets a checkpoint complete while a source subtask is gone
	// that has emitted nothing since its last acknowledged checkpoint: it is
	// partial, and has that checkpoint's state of it.
	AllowWithoutSource bool

	Credit           bool          // network channels instead of local ones
	Memory           int           // bytes of all buffers; default 64 MiB
	BufferSize       int           // default 32 KiB
	ExclusiveBuffers int           // of a network channel; default 2; -1: none
	FloatingBuffers  int           // of a gate; default 8
	OutputBuffers    int           // of a partition; default 2 × subpartitions + 8
	PerSubpartition  int           // of these; default 10
	OverdraftBuffers int           // of a partition, for what is under way; default 20; -1: none
	Restarts         int           // after failures; -1: any number
	RestartDelay     time.Duration // before the first; it doubles up to 30 s; default 100 ms
	Seed             uint64        // of Shuffle and Context.Rand
	// LatencyInterval is how often each source marks a record, to see how long
	// it takes to a sink; 0: never.
	LatencyInterval time.Duration
	// Decide is asked by the coordinator before each unaligned checkpoint of the
	// rhythm; nil: it goes as the options say. It may look, not wait.
	Decide func(QueueState) Decision
	// Trace is told of everything, Log of what an operator should know: barriers
	// that wait, the first unaligned one, a switch, a fallback. Both are called
	// from any goroutine, and are short.
	Trace, Log     func(TraceEvent)
	OnCheckpoint   func(CheckpointResult)
	OnRestart      func(attempt int, cause error)
	parallelism    map[string]int // by vertex
	maxParallelism int
}

// withDefaults fills in what is zero.
func (o Options) withDefaults(g *Graph) *Options {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Minute)
	o.Memory = cmp.Or(o.Memory, 64<<20)
	o.BufferSize = cmp.Or(o.BufferSize, 32<<10)
	o.ExclusiveBuffers = max(0, cmp.Or(o.ExclusiveBuffers, 2))
	o.FloatingBuffers = max(0, cmp.Or(o.FloatingBuffers, 8))
	o.PerSubpartition = cmp.Or(o.PerSubpartition, 10)
	o.OverdraftBuffers = max(0, cmp.Or(o.OverdraftBuffers, 20))
	o.maxParallelism = g.MaxParallelism
	o.parallelism = map[string]int{}
	for _, v := range g.vertices {
		o.parallelism[v.name] = v.parallelism
	}
	return &o
}

// check refuses what cannot work.
func (o *Options) check(g *Graph) error {
	bad := func(object, format string, args ...any) error {
		return &inflight.Error{Op: "configure", Object: object, Err: fmt.Errorf(format+": %w", append(args, inflight.ErrConfig)...)}
	}
	switch {
	case o.AtLeastOnce && o.Unaligned:
		return bad("checkpoint.mode", "cannot use unaligned checkpoints with at-least-once mode")
	case o.AlignedTimeout < 0:
		return bad("unaligned.aligned-timeout", "%v is negative", o.AlignedTimeout)
	case o.BufferSize < 16:
		return bad("network.buffer-size", "%d bytes hold no record's head", o.BufferSize)
	case o.Credit && o.ExclusiveBuffers+o.FloatingBuffers < 1:
		return bad("network.exclusive-buffers", "a gate without buffers receives nothing")
	}
	for _, name := range o.AlignedSources {
		if v := g.vertex(name); v == nil || v.newSource == nil {
			return bad("unaligned.source."+name, "there is no such source")
		}
	}
	for _, name := range o.AlignedEdges {
		if !slices.ContainsFunc(g.Edges(Options{}), func(e EdgeInfo) bool { return e.From+"-"+e.To == name }) {
			return bad("unaligned.edge."+name, "there is no such edge")
		}
	}
	return nil
}

// barrier makes the barrier of a checkpoint that is triggered now.
func (o *Options) barrier(id inflight.CheckpointID, now time.Duration, savepoint bool, c Choice) barrier {
	b := barrier{id: id, at: now, alignment: Aligned, timeout: never, savepoint: savepoint, passage: &passage{}}
	switch {
	case o.AtLeastOnce:
		b.alignment = AtLeastOnce
	case savepoint || !o.Unaligned || c == ChooseAligned:
	case o.AlignedTimeout == 0 || c == ChooseUnaligned:
		b.alignment = Unaligned
	case o.AlignedTimeout < math.MaxInt64:
		b.timeout = o.AlignedTimeout
	}
	return b
}
