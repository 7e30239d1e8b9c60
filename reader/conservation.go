package reader

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// CodeConservation is the code of a connection that lost, doubled or mixed up
// bytes or records.
const CodeConservation = "conservation"

// Connection is one connection of an edge: from subtask Up of the upstream
// vertex to subtask Down of the downstream one. Upstream it is
// Subpartition{Edge.Partition, Down}, downstream InputChannel{Edge.Gate, Up}.
type Connection struct {
	Edge int // index into Topology.Edges
	Up   int
	Down int
}

// Evidence is what a checkpoint says about what flowed.
type Evidence struct {
	Topology *format.Topology
	Finished []inflight.Task
	State    map[inflight.Task][]Entry
	// Records are counted over captured input ++ captured output of a
	// connection, where somebody can tell records apart.
	Records map[Connection]RecordCount
	// Unread are connections whose captured bytes could not be read when their
	// records were to be counted: what was counted of them proves nothing.
	Unread map[Connection]bool
}

// Verdict says what the evidence proves.
type Verdict string

// The verdicts, as used in JSON.
const (
	Proven      Verdict = "proven"
	NotProvable Verdict = "not-provable"
	Violated    Verdict = "violated"
)

// Flow is the account of one connection: what was emitted upstream, and where it
// went.
type Flow struct {
	Connection
	From, To  inflight.Task // subtask -1: the edge as a whole
	Partition int
	Gate      int

	Emitted  *inflight.Cut // nil where the upstream subtask recorded none
	Consumed *inflight.Cut // nil where the downstream subtask recorded none
	Input    uint64        // bytes captured downstream
	Output   uint64        // bytes captured upstream
	Records  *RecordCount  // of both; nil where they were not counted

	// Difference is what is missing (or, negative, too many) in bytes, and
	// RecordDifference in records; both 0 where it cannot be told.
	Difference       int64
	RecordDifference int64
	Verdict          Verdict
	RecordsProven    bool   // the account holds in records too
	Reason           string // of a verdict other than Proven
}

// Prove draws up the account of every connection that the state knows of, in
// the order of edges and subtasks. It is arithmetic: nothing is read.
func (e Evidence) Prove() []Flow {
	p := prover{Evidence: e, ends: map[Connection]*ends{}}
	for _, t := range slices.SortedFunc(maps.Keys(e.State), inflight.Task.Compare) {
		for i := range e.State[t] {
			p.add(t, &e.State[t][i])
		}
	}
	seen := map[int]bool{}
	for c := range p.ends {
		seen[c.Edge] = true
	}
	for i := range p.edges() {
		if !seen[i] {
			edge := &e.Topology.Edges[i]
			p.flows = append(p.flows, Flow{Connection: Connection{Edge: i, Up: -1, Down: -1}, From: inflight.Task{Vertex: edge.From, Subtask: -1}, To: inflight.Task{Vertex: edge.To, Subtask: -1},
				Partition: edge.Partition, Gate: edge.Gate, Verdict: NotProvable, Reason: "no end of the edge recorded anything"})
		}
	}
	for c, n := range p.ends {
		p.flows = append(p.flows, p.account(c, n))
	}
	slices.SortFunc(p.flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.Edge, b.Edge), cmp.Compare(a.Up, b.Up), cmp.Compare(a.Down, b.Down), a.From.Compare(b.From), a.To.Compare(b.To))
	})
	return p.flows
}

type ends struct{ in, out *Entry }

type prover struct {
	Evidence
	ends  map[Connection]*ends
	flows []Flow
}

func (p *prover) edges() []format.Edge {
	if p.Topology == nil {
		return nil
	}
	return p.Topology.Edges
}

// connection returns the connection that address a of t is an end of, or why
// there is none.
func (p *prover) connection(t inflight.Task, a inflight.Address) (c Connection, why string) {
	i := slices.IndexFunc(p.edges(), func(g format.Edge) bool {
		return a.Side == inflight.Input && g.To == t.Vertex && g.Gate == a.Input.Gate || a.Side == inflight.Output && g.From == t.Vertex && g.Partition == a.Output.Partition
	})
	if i < 0 {
		return c, fmt.Sprintf("%s recorded %s, which no edge has", t, a)
	}
	c = Connection{Edge: i, Up: t.Subtask, Down: a.Output.Subpartition}
	far, other := c.Down, p.Topology.Vertex(p.edges()[i].To)
	if a.Side == inflight.Input {
		c.Up, c.Down = a.Input.Channel, t.Subtask
		far, other = c.Up, p.Topology.Vertex(p.edges()[i].From)
	}
	if other == nil || far >= other.Parallelism {
		return c, fmt.Sprintf("%s recorded %s, and there is no subtask %d at its other end", t, a, far)
	}
	return c, ""
}

// add files an entry under its connection.
func (p *prover) add(t inflight.Task, e *Entry) {
	if e.Address.Side == inflight.State {
		return
	}
	c, why := p.connection(t, e.Address)
	if why != "" {
		f := Flow{Connection: Connection{Edge: -1}, From: t, To: t, Partition: e.Address.Output.Partition, Gate: e.Address.Input.Gate, Verdict: Violated, Reason: why}
		if len(p.edges()) == 0 {
			f.Verdict, f.Reason = NotProvable, "the topology lists no edges"
		}
		p.flows = append(p.flows, f)
		return
	}
	n := p.ends[c]
	if n == nil {
		n = &ends{}
		p.ends[c] = n
	}
	if e.Address.Side == inflight.Input {
		n.in = e
	} else {
		n.out = e
	}
}

// account draws up one connection.
func (p *prover) account(c Connection, n *ends) Flow {
	edge := &p.Topology.Edges[c.Edge]
	f := Flow{Connection: c, From: inflight.Task{Vertex: edge.From, Subtask: c.Up}, To: inflight.Task{Vertex: edge.To, Subtask: c.Down}, Partition: edge.Partition, Gate: edge.Gate}
	in, out := Entry{Start: inflight.PosUnknown, End: inflight.PosUnknown}, Entry{Start: inflight.PosUnknown, End: inflight.PosUnknown}
	if n.in != nil {
		in = *n.in
	}
	if n.out != nil {
		out = *n.out
	}
	f.Input, f.Output = in.Bytes, out.Bytes
	if in.HasCut {
		f.Consumed = &in.Cut
	}
	if out.HasCut {
		f.Emitted = &out.Cut
	}
	if r, ok := p.Records[c]; ok && !p.Unread[c] {
		f.Records = &r
	} else if in.Bytes+out.Bytes == 0 {
		f.Records = &RecordCount{}
	}
	f.Verdict = Proven
	for _, check := range []string{f.sum(), continuity(&f, &in, &out), f.records()} {
		if check != "" {
			f.Verdict, f.Reason, f.RecordsProven = Violated, check, false
			return f
		}
	}
	if p.Unread[c] {
		f.Verdict, f.Reason = NotProvable, "captured bytes could not be read"
	}
	if why := p.unprovable(&f, &in, &out); why != "" {
		f.Verdict, f.Reason = NotProvable, why
	}
	return f
}

// sum checks consumed + captured = emitted, in bytes.
func (f *Flow) sum() string {
	if f.Emitted == nil || f.Consumed == nil {
		return ""
	}
	f.Difference = int64(f.Emitted.Bytes - f.Consumed.Bytes - f.Input - f.Output)
	switch {
	case f.Difference > 0:
		return fmt.Sprintf("%d bytes are missing", f.Difference)
	case f.Difference < 0:
		return fmt.Sprintf("%d bytes too many", -f.Difference)
	}
	return ""
}

// continuity checks that consumed, captured input, captured output and emitted
// join without a gap.
func continuity(f *Flow, in, out *Entry) string {
	if in.Gaps+out.Gaps > 0 {
		return "captured bytes do not follow on each other"
	}
	type part struct {
		what       string
		start, end inflight.Pos
	}
	var parts []part
	if f.Consumed != nil {
		at := inflight.Pos{Offset: f.Consumed.Bytes}
		parts = append(parts, part{"what was consumed", at, at})
	}
	if in.Bytes > 0 {
		parts = append(parts, part{"captured input", in.Start, in.End})
	}
	if out.Bytes > 0 {
		parts = append(parts, part{"captured output", out.Start, out.End})
	}
	if f.Emitted != nil {
		at := inflight.Pos{Offset: f.Emitted.Bytes}
		parts = append(parts, part{"what was emitted", at, at})
	}
	for i := 1; i < len(parts); i++ {
		a, b := parts[i-1], parts[i]
		ends := i == len(parts)-1 && f.Emitted != nil
		if a.end.Known() && b.start.Known() && a.end.Offset != b.start.Offset {
			if ends {
				return fmt.Sprintf("%s ends at %d, emitted are %d", a.what, a.end.Offset, b.start.Offset)
			}
			return fmt.Sprintf("%s ends at %d, %s begins at %d", a.what, a.end.Offset, b.what, b.start.Offset)
		}
	}
	return ""
}

// records checks consumed + captured = emitted, in records.
func (f *Flow) records() string {
	if f.Emitted == nil || f.Consumed == nil || !f.Emitted.RecordsKnown || !f.Consumed.RecordsKnown {
		return ""
	}
	if f.Records == nil {
		if f.Consumed.Records > f.Emitted.Records {
			return fmt.Sprintf("%d records were consumed, %d emitted", f.Consumed.Records, f.Emitted.Records)
		}
		return ""
	}
	f.RecordDifference = int64(f.Emitted.Records - f.Consumed.Records - f.Records.Whole)
	switch {
	case f.Records.Bad:
		return "captured bytes are not whole records from a boundary on"
	case f.Records.Left > 0:
		return fmt.Sprintf("%d bytes are left over behind the last whole record", f.Records.Left)
	case f.RecordDifference > 0:
		return fmt.Sprintf("%d records are missing", f.RecordDifference)
	case f.RecordDifference < 0:
		return fmt.Sprintf("%d records too many", -f.RecordDifference)
	}
	f.RecordsProven = true
	return ""
}

// unprovable says what is missing for a proof.
func (p *prover) unprovable(f *Flow, in, out *Entry) string {
	switch {
	case f.Emitted == nil && slices.Contains(p.Finished, f.From):
		return "the upstream subtask had finished"
	case f.Consumed == nil && slices.Contains(p.Finished, f.To):
		return "the downstream subtask had finished"
	case f.Emitted == nil && f.Consumed == nil:
		return "neither end recorded where it stood"
	case f.Emitted == nil:
		return "the upstream subtask did not record what it had emitted"
	case f.Consumed == nil:
		return "the downstream subtask did not record what it had consumed"
	case in.Bytes > 0 && !(in.Start.Known() && in.End.Known()), out.Bytes > 0 && !(out.Start.Known() && out.End.Known()):
		return "captured bytes have no positions"
	}
	return ""
}

// Regressed returns the flows of after that have gone back since before, an
// earlier checkpoint that it descends from: what was consumed and emitted only
// grows.
func Regressed(before, after []Flow) (bad []Flow) {
	type key struct {
		from, to        inflight.Task
		partition, gate int
	}
	old := make(map[key]*Flow, len(before))
	for i := range before {
		f := &before[i]
		old[key{f.From, f.To, f.Partition, f.Gate}] = f
	}
	for _, f := range after {
		o := old[key{f.From, f.To, f.Partition, f.Gate}]
		if o == nil {
			continue
		}
		for _, c := range []struct {
			what     string
			was, now *inflight.Cut
		}{{"consumed", o.Consumed, f.Consumed}, {"emitted", o.Emitted, f.Emitted}} {
			if c.was == nil || c.now == nil {
				continue
			}
			records := c.was.RecordsKnown && c.now.RecordsKnown && c.now.Records < c.was.Records
			if c.now.Bytes < c.was.Bytes || records {
				f.Verdict, f.Reason = Violated, fmt.Sprintf("%s went back: %d bytes and %d records before, %d and %d now", c.what, c.was.Bytes, c.was.Records, c.now.Bytes, c.now.Records)
				bad = append(bad, f)
				break
			}
		}
	}
	return bad
}

// Finding returns f as a finding about object: an error where it is violated,
// otherwise information.
func (f *Flow) Finding(object string) inflight.Finding {
	n := inflight.Finding{Severity: inflight.SeverityInfo, Code: CodeConservation, Object: object, Offset: -1, Text: f.Reason}
	if f.Verdict == Violated {
		n.Severity, n.Err = inflight.SeverityError, inflight.ErrCorrupt
	}
	if f.Edge < 0 {
		return n
	}
	n.Text = fmt.Sprintf("%s → %s (partition %d, gate %d): %s", f.From, f.To, f.Partition, f.Gate, cmp.Or(f.Reason, string(f.Verdict)))
	if f.Down >= 0 {
		a := inflight.InputChannel{Gate: f.Gate, Channel: f.Up}.Address()
		n.Task, n.Address = &f.To, &a
	}
	return n
}

// Table returns flows as a table for people.
func Table(flows []Flow) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FROM\tTO\tEMITTED\tCONSUMED\tINPUT\tOUTPUT\tDIFFERENCE\tRECORDS\tVERDICT")
	for i := range flows {
		f := &flows[i]
		records := "-"
		if f.RecordsProven {
			records = fmt.Sprintf("%d+%d=%d", f.Consumed.Records, f.Records.Whole, f.Emitted.Records)
		} else if f.Records != nil && f.Verdict == Violated && f.RecordDifference != 0 {
			records = fmt.Sprintf("%+d", -f.RecordDifference)
		}
		verdict := string(f.Verdict)
		if f.Reason != "" {
			verdict += ": " + f.Reason
		}
		fmt.Fprintf(w, "%s:%d\t%s:%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", f.From, f.Partition, f.To, f.Gate, cutBytes(f.Emitted), cutBytes(f.Consumed), f.Input, f.Output, f.Difference, records, verdict)
	}
	_ = w.Flush() // into memory
	return b.String()
}

func cutBytes(c *inflight.Cut) string {
	if c == nil {
		return "?"
	}
	return fmt.Sprint(c.Bytes)
}
