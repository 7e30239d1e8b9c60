package attach

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// The codes of what is wrong with a checkpoint that is not committed for it,
// beside those of package reader.
const (
	CodeMissingSubtask = "missing-subtask" // neither acknowledged nor finished
	CodeEndedEarly     = "ended-early"     // has ended, and a subtask upstream of it has not
	CodeMissingFile    = format.CodeMissingFile
	CodeFileSize       = "file-size"      // a file is not as long as it was written
	CodeWentBack       = "went-back"      // a connection stands before where the last checkpoint had it
	CodeSourceGap      = "source-gap"     // a source has moved on further than it emitted
	CodeSourceOverlap  = "source-overlap" // a source has emitted more than it moved on
	CodeOversized      = "oversized"      // more was captured than the queues can hold
)

// oversize is how much more than what the queues can hold counts as a fault of
// ours rather than as load.
const oversize = 1.2

// CompletionError says what is wrong with a checkpoint that is durable.
type CompletionError struct{ Findings []inflight.Finding }

// Error returns the findings, one after the other.
func (e *CompletionError) Error() string {
	var lines []string
	for _, f := range e.Findings {
		lines = append(lines, f.String())
	}
	return "the checkpoint would not restore: " + strings.Join(lines, "; ")
}

// Unwrap returns dataflow.ErrCheckFailed.
func (e *CompletionError) Unwrap() error { return dataflow.ErrCheckFailed }

// completion holds a checkpoint against what it says of itself, and against the
// last one that was completed, before it is committed. It is used by one
// goroutine.
type completion struct {
	j    *Job
	last *account // nil: there is none
	next *account // of the one that is being committed
}

// account is where everything stood.
type account struct {
	flows   []reader.Flow
	sources map[inflight.Task]progress
}

// progress is how far a source has come.
type progress struct {
	position uint64   // records that its position has passed
	emitted  []uint64 // records, into each of its partitions that takes each record once
}

// base makes a checkpoint that is restored the one to go on from; state is what
// was read of it for that.
func (c *completion) base(m *format.Manifest, state map[inflight.Task][]reader.Entry) {
	c.last = &account{flows: accountOf(m, state)}
}

// accountOf draws up the account of each connection in bytes.
func accountOf(m *format.Manifest, state map[inflight.Task][]reader.Entry) []reader.Flow {
	return reader.Evidence{Topology: m.Topology, Finished: m.Finished, State: state}.Prove()
}

// accept makes the checkpoint that was checked the last one.
func (c *completion) accept(id inflight.CheckpointID) {
	if c.next == nil {
		return
	}
	c.last, c.next = c.next, nil
	if c.j.o.Accounted != nil {
		c.j.o.Accounted(id, c.last.flows)
	}
}

// check answers a *CompletionError for a checkpoint that must not be committed.
// bound is what may have been in flight in bytes; 0: nobody knows.
func (c *completion) check(ctx context.Context, m *format.Manifest, acks []dataflow.Ack, bound int64) error {
	dir := format.CheckpointDir(m.ID)
	findings := append(missing(m, dir), early(m, dir)...)
	files, err := c.files(ctx, m)
	if err != nil {
		return err
	}
	if findings = append(findings, files...); len(findings) > 0 {
		return &CompletionError{findings}
	}
	flows, err := c.flows(ctx, m, path.Join(c.j.o.Name, dir))
	if err != nil {
		return err
	}
	c.next = &account{flows: flows, sources: sources(m.Topology, acks)}
	for _, f := range flows {
		if f.Verdict == reader.Violated {
			findings = append(findings, flowFinding(dir, reader.CodeConservation, f))
		}
	}
	if c.last != nil {
		for _, f := range reader.Regressed(c.last.flows, flows) {
			findings = append(findings, flowFinding(dir, CodeWentBack, f))
		}
		findings = append(findings, c.next.contiguous(c.last, dir)...)
	}
	if held := int64(m.PersistedBytes()); bound > 0 && float64(held) > oversize*float64(bound) {
		findings = append(findings, finding(dir, CodeOversized, "%d bytes were captured, the queues hold %d", held, bound))
	}
	if len(findings) > 0 {
		return &CompletionError{findings}
	}
	return nil
}

func finding(object, code, format string, args ...any) inflight.Finding {
	return inflight.Finding{Severity: inflight.SeverityError, Code: code, Object: object, Offset: -1, Text: fmt.Sprintf(format, args...)}
}

func flowFinding(object, code string, f reader.Flow) inflight.Finding {
	return finding(object, code, "%s to %s: %s", f.From, f.To, f.Reason)
}

// missing names the subtasks that the checkpoint has nothing of.
func missing(m *format.Manifest, dir string) (findings []inflight.Finding) {
	have := map[inflight.Task]bool{}
	for _, h := range m.Handles {
		have[h.Task] = true
	}
	for _, t := range m.Finished {
		have[t] = true
	}
	for _, v := range m.Topology.Vertices {
		for i := range v.Parallelism {
			if t := (inflight.Task{Vertex: v.ID, Subtask: i}); !have[t] {
				f := finding(dir, CodeMissingSubtask, "it has neither acknowledged nor finished")
				f.Task = &t
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// early names the subtasks that have ended although one upstream of them has not.
// A restore would not start them, and the other one would wait for them.
func early(m *format.Manifest, dir string) (findings []inflight.Finding) {
	for _, e := range m.Topology.Edges {
		if e.Partitioner == string(dataflow.KindForward) || e.Partitioner == string(dataflow.KindRescale) {
			continue // not each is connected with all
		}
		runs := -1
		for i := range m.Topology.Vertex(e.From).Parallelism {
			if !slices.Contains(m.Finished, inflight.Task{Vertex: e.From, Subtask: i}) {
				runs = i
			}
		}
		for _, t := range m.Finished {
			if t.Vertex == e.To && runs >= 0 {
				f := finding(dir, CodeEndedEarly, "it has ended before %s, which is upstream of it", inflight.Task{Vertex: e.From, Subtask: runs})
				f.Task = &t
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// files looks at every file that the checkpoint refers to.
func (c *completion) files(ctx context.Context, m *format.Manifest) (findings []inflight.Finding, err error) {
	for _, f := range m.Files {
		info, err := c.j.o.Backend.Stat(ctx, path.Join(c.j.o.Name, f.Name))
		switch {
		case errors.Is(err, inflight.ErrNotExist):
			findings = append(findings, finding(f.Name, CodeMissingFile, "the file is not there"))
		case err != nil:
			return nil, err
		case info.Size != f.Size:
			findings = append(findings, finding(f.Name, CodeFileSize, "it has %d bytes, %d were written", info.Size, f.Size))
		}
	}
	return findings, nil
}

// flows reads the sections of a checkpoint, which checks them, and draws up the
// account of each connection in bytes. What subtasks share is read once: all stay
// open until the last one is read.
func (c *completion) flows(ctx context.Context, m *format.Manifest, dir string) ([]reader.Flow, error) {
	cp := c.j.reader.At(m, dir)
	state := make(map[inflight.Task][]reader.Entry, len(m.Handles))
	for _, h := range m.Handles {
		s, err := cp.Subtask(ctx, h.Task)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		state[h.Task] = slices.AppendSeq(make([]reader.Entry, 0, s.Len()), s.Entries())
	}
	return accountOf(m, state), nil
}

// sources notes how far each source has come, where it says so.
func sources(t *format.Topology, acks []dataflow.Ack) map[inflight.Task]progress {
	found := map[inflight.Task]progress{}
	for _, a := range acks {
		if !a.PositionKnown {
			continue
		}
		p := progress{position: a.Position}
		for _, e := range t.Edges {
			if e.From == a.Task.Vertex && e.Partitioner != string(dataflow.KindBroadcast) {
				p.emitted = append(p.emitted, emitted(a.Cuts, e.Partition)-a.Marks[e.Partition])
			}
		}
		found[a.Task] = p
	}
	return found
}

// emitted counts the records that went into a partition.
func emitted(cuts []inflight.Cut, partition int) (records uint64) {
	for _, c := range cuts {
		if c.Address.Side == inflight.Output && c.Address.Output.Partition == partition {
			records += c.Records
		}
	}
	return records
}

// contiguous checks that sources have emitted since last what their positions
// have passed since.
func (a *account) contiguous(last *account, dir string) (findings []inflight.Finding) {
	for t, now := range a.sources {
		was, ok := last.sources[t]
		if !ok || len(was.emitted) != len(now.emitted) {
			continue
		}
		passed := int64(now.position - was.position)
		for i := range now.emitted {
			sent := int64(now.emitted[i] - was.emitted[i])
			code := CodeSourceGap
			if sent > passed {
				code = CodeSourceOverlap
			}
			if sent != passed {
				f := finding(dir, code, "its position has passed %d records since the last checkpoint, and it emitted %d", passed, sent)
				f.Task = &t
				findings = append(findings, f)
			}
		}
	}
	slices.SortFunc(findings, func(a, b inflight.Finding) int { return a.Task.Compare(*b.Task) })
	return findings
}
