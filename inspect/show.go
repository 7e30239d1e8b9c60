package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// ConnectionLine is the conservation account of one connection: consumed +
// captured input + captured output = emitted.
type ConnectionLine struct {
	Type            LineType       `json:"type"`
	From            string         `json:"from"`
	FromSubtask     int            `json:"from_subtask"`
	Partition       int            `json:"partition"`
	To              string         `json:"to"`
	ToSubtask       int            `json:"to_subtask"`
	Gate            int            `json:"gate"`
	EmittedBytes    *uint64        `json:"emitted_bytes,omitempty"`
	ConsumedBytes   *uint64        `json:"consumed_bytes,omitempty"`
	InputBytes      uint64         `json:"input_bytes"`
	OutputBytes     uint64         `json:"output_bytes"`
	DifferenceBytes int64          `json:"difference_bytes"` // missing ones; negative: too many
	EmittedRecords  *uint64        `json:"emitted_records,omitempty"`
	ConsumedRecords *uint64        `json:"consumed_records,omitempty"`
	Records         *uint64        `json:"records,omitempty"` // whole ones that were captured
	LeftBytes       uint64         `json:"left_bytes,omitempty"`
	Verdict         reader.Verdict `json:"verdict"`
	RecordsProven   bool           `json:"records_proven"`
	Reason          string         `json:"reason,omitempty"`
}

// ShowOptions are the options of Show.
type ShowOptions struct {
	// Records counts records on all edges as if they were length-prefixed, not
	// only on those that say so.
	Records bool
	// Top is how many channels the tables list. Default 10.
	Top int
	// By orders the tables: BySize, or as they are.
	By string
	// Ranges tells where in files each channel lies.
	Ranges bool
	// Digest reads all files of a checkpoint of Flink, for their SHA-256.
	Digest bool
}

// BySize orders tables by what takes most room.
const BySize = "size"

// View is what Show found.
type View struct {
	Checkpoint  CheckpointLine
	Files       []FileLine
	Subtasks    []SubtaskLine
	Edges       []EdgeLine
	Channels    []ChannelLine
	Connections []ConnectionLine
	Findings    []inflight.Finding
	// Of Flink's only.
	Metadata  *MetadataLine
	Masters   []MasterLine
	Operators []OperatorLine
	States    []StateLine
	Handles   []HandleLine

	top       int
	by        string
	gone      bool              // files were not there while it was looked at
	loose     int               // connections of Flink whose edge is not known
	operators map[string]string // ids of Flink's operators, by vertex
}

// Show describes a checkpoint from its manifest, indexes and statistics; data
// is read only to count records. Of a slot that is no checkpoint it shows what
// List does.
func (i *Inspector) Show(ctx context.Context, t *Target, o ShowOptions) (*View, error) {
	if o.Top < 0 {
		return nil, fail("show", t.Name, fmt.Errorf("%w: the %d fullest channels are wanted", inflight.ErrConfig, o.Top), "ask for 1 or more")
	}
	if o.By != "" && o.By != BySize {
		return nil, fail("show", t.Name, fmt.Errorf("%w: no order %q", inflight.ErrConfig, o.By), "use size")
	}
	var v *View
	err := i.settled(ctx, t, func(job, dir string) (_, _ bool, err error) {
		if t.Flink {
			if v, err = i.showFlink(ctx, t, job, dir, o); err != nil {
				return gone(t, err), false, err
			}
			return lacks(v.Findings, nil), false, nil
		}
		c, err := i.openDir(ctx, t, job, dir)
		if err != nil {
			if t.Kind == TargetCheckpoint {
				if v = i.showSlot(ctx, t); v != nil {
					return false, false, nil
				}
			}
			return gone(t, err), false, err
		}
		defer c.Close()
		if v, err = i.showCheckpoint(ctx, c, o); err != nil {
			return lacks(nil, err), false, err
		}
		return v.gone || lacks(v.Findings, nil), false, nil
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (i *Inspector) showCheckpoint(ctx context.Context, c *checkpoint, o ShowOptions) (*View, error) {
	a, err := i.account(ctx, c, o.Records)
	if err != nil {
		return nil, err
	}
	v := &View{Checkpoint: i.line(ctx, c), Findings: a.findings, top: cmp.Or(o.Top, 10), by: o.By, gone: a.gone()}
	stats, err := c.stats(ctx)
	if err != nil {
		f := findingOf(err, c.Dir+"/"+format.StatsName)
		f.Severity = inflight.SeverityWarning
		v.Findings = append(v.Findings, f)
	}
	if stats != nil {
		v.Checkpoint.DurationMS, v.Checkpoint.AckMS = &stats.DurationMS, &stats.AckMS
	}
	v.files(c.Manifest)
	v.subtasks(c.Manifest, a, stats)
	v.channels(c.Manifest, a)
	if o.Ranges {
		if err := v.ranges(ctx, c); err != nil {
			return nil, err
		}
	}
	v.edges(c.Manifest, a)
	for k := range a.flows {
		f := &a.flows[k]
		v.Connections = append(v.Connections, connectionLine(f))
		if f.Verdict == reader.Violated {
			v.Findings = append(v.Findings, f.Finding(c.Dir))
		}
	}
	v.Findings = append(v.Findings, c.reread...)
	c.qualify(v.Findings)
	return v, nil
}

// showSlot shows a slot that holds something else than a whole checkpoint; nil:
// it holds nothing, or a damaged one.
func (i *Inspector) showSlot(ctx context.Context, t *Target) *View {
	l, err := i.List(ctx, t)
	if err != nil {
		return nil
	}
	switch c := l.Checkpoints[0]; c.State {
	case catalog.StateDamaged, catalog.StateCompleted:
		return nil
	default:
		return &View{Checkpoint: c}
	}
}

func (v *View) files(m *format.Manifest) {
	sections := map[string]int{}
	for i := range m.Handles {
		for _, s := range m.Handles[i].Segments {
			sections[s.File]++
		}
	}
	for _, f := range m.Files {
		v.Files = append(v.Files, FileLine{Type: TypeFile, Name: f.Name, FileID: f.FileID.String(), SizeBytes: f.Size, Subtasks: sections[f.Name]})
	}
}

func (v *View) subtasks(m *format.Manifest, a *account, stats *format.CheckpointStats) {
	times := map[inflight.Task]*format.SubtaskStats{}
	if stats != nil {
		for i := range stats.Subtasks {
			times[stats.Subtasks[i].Task] = &stats.Subtasks[i]
		}
	}
	lines := make(map[inflight.Task]int, len(m.Handles))
	add := func(t inflight.Task) *SubtaskLine {
		lines[t] = len(v.Subtasks)
		l := SubtaskLine{Type: TypeSubtask, Vertex: t.Vertex, Subtask: t.Subtask}
		if s := times[t]; s != nil {
			l.StartDelayMS, l.AlignmentMS, l.SyncMS, l.AsyncMS, l.EndToEndMS, l.Unaligned = &s.StartDelayMS, &s.AlignmentMS, &s.SyncMS, &s.AsyncMS, &s.EndToEndMS, &s.Unaligned
		}
		v.Subtasks = append(v.Subtasks, l)
		return &v.Subtasks[len(v.Subtasks)-1]
	}
	for i := range m.Handles {
		h := &m.Handles[i]
		l := add(h.Task)
		l.InputBytes, l.OutputBytes, l.StateBytes = h.InputBytes, h.OutputBytes, h.StateBytes
		l.Files = len(h.Segments)
		for _, e := range a.state[h.Task] {
			l.Buffers += e.Buffers
		}
	}
	for _, t := range m.Finished {
		i, ok := lines[t] // it may have a handle
		if !ok {
			i = len(v.Subtasks)
			add(t)
		}
		v.Subtasks[i].Finished = true
	}
	for _, t := range m.Missing() {
		add(t).Missing = true
	}
}

func (v *View) channels(m *format.Manifest, a *account) {
	w := wiring{topology: m.Topology}
	for i := range m.Handles {
		t := m.Handles[i].Task
		for _, e := range a.state[t] {
			l := ChannelLine{Type: TypeChannel, Place: placeOf(&t, &e.Address), Buffers: e.Buffers, Bytes: e.Bytes, Digest: fmt.Sprintf("%016x", uint64(e.Digest)), Gaps: e.Gaps,
				Epoch: ptr(e.Start.Epoch, e.Start.Known()), StreamOffset: ptr(e.Start.Offset, e.Start.Known()), StreamEnd: ptr(e.End.Offset, e.End.Known()),
				CutBytes: ptr(e.Cut.Bytes, e.HasCut), CutRecords: ptr(e.Cut.Records, e.HasCut && e.Cut.RecordsKnown)}
			if a.records != nil {
				at := end{t, e.Address}
				if k, ok := w.connection(at); ok {
					n, counted := a.records.connections[k]
					l.Records = ptr(a.records.ends[at], counted && !n.Bad)
				}
			}
			v.Channels = append(v.Channels, l)
		}
	}
}

func (v *View) edges(m *format.Manifest, a *account) {
	busiest := make([]uint64, len(m.Topology.Edges))
	for _, e := range m.Topology.Edges {
		v.Edges = append(v.Edges, EdgeLine{Type: TypeEdge, From: e.From, Partition: e.Partition, To: e.To, Gate: e.Gate, Partitioner: e.Partitioner})
	}
	for i := range a.flows {
		f := &a.flows[i]
		if f.Edge < 0 || f.Down < 0 {
			continue
		}
		l := &v.Edges[f.Edge]
		l.Connections++
		n := f.Input + f.Output
		if n > 0 {
			l.Busy++
		}
		busiest[f.Edge] = max(busiest[f.Edge], n)
		l.InputBytes, l.OutputBytes = l.InputBytes+f.Input, l.OutputBytes+f.Output
	}
	w := wiring{topology: m.Topology}
	for t, entries := range a.state {
		for _, e := range entries {
			if k := w.edge(t.Vertex, e.Address); k >= 0 {
				v.Edges[k].Buffers += e.Buffers
			}
		}
	}
	if a.records != nil {
		for c, n := range a.records.connections {
			l := &v.Edges[c.Edge]
			if l.Records == nil {
				l.Records = new(uint64)
			}
			*l.Records += n.Whole
		}
	}
	for i := range v.Edges {
		if n := v.Edges[i].InputBytes + v.Edges[i].OutputBytes; n > 0 {
			v.Edges[i].Skew = share(busiest[i], n)
		}
	}
}

// share is part of whole, of 4 decimals.
func share(part, whole uint64) float64 { return math.Round(1e4*float64(part)/float64(whole)) / 1e4 }

func connectionLine(f *reader.Flow) ConnectionLine {
	l := ConnectionLine{Type: TypeConnection, From: f.From.Vertex, FromSubtask: f.From.Subtask, Partition: f.Partition, To: f.To.Vertex, ToSubtask: f.To.Subtask, Gate: f.Gate,
		InputBytes: f.Input, OutputBytes: f.Output, DifferenceBytes: f.Difference, Verdict: f.Verdict, RecordsProven: f.RecordsProven, Reason: oneLine(f.Reason)}
	if c := f.Emitted; c != nil {
		l.EmittedBytes, l.EmittedRecords = &c.Bytes, ptr(c.Records, c.RecordsKnown)
	}
	if c := f.Consumed; c != nil {
		l.ConsumedBytes, l.ConsumedRecords = &c.Bytes, ptr(c.Records, c.RecordsKnown)
	}
	if f.Records != nil {
		l.Records, l.LeftBytes = &f.Records.Whole, f.Records.Left
	}
	return l
}

// Lines returns the lines of the checkpoint, its files, subtasks, edges,
// channels and connections, and what is wrong; of Flink's, those of its metadata
// too.
func (v *View) Lines() []any {
	lines := []any{&v.Checkpoint}
	if v.Metadata != nil {
		lines = append(lines, v.Metadata)
	}
	lines = appendLines(lines, v.Masters)
	lines = appendLines(lines, v.Files)
	lines = appendLines(lines, v.Operators)
	lines = appendLines(lines, v.Subtasks)
	lines = appendLines(lines, v.States)
	lines = appendLines(lines, v.Handles)
	lines = appendLines(lines, v.Edges)
	lines = appendLines(lines, v.Channels)
	return appendNotes(appendLines(lines, v.Connections), v.Findings, v.operators)
}

func appendLines[T any](lines []any, more []T) []any {
	for i := range more {
		lines = append(lines, &more[i])
	}
	return lines
}

// Failed reports whether something of it cannot be read, or is not conserved.
func (v *View) Failed() bool { return failed(v.Findings) }

// Tables returns tables of the checkpoint, its subtasks, edges, fullest
// channels, connections, and of what is wrong.
func (v *View) Tables() []Table {
	c := &v.Checkpoint
	if v.Metadata != nil {
		return v.flinkTables()
	}
	head := Table{Title: c.title(), Note: c.summary()}
	if len(v.Subtasks) == 0 {
		return []Table{head}
	}
	tables := []Table{head, v.subtaskTable(), v.edgeTable()}
	if t := v.channelTable(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	tables = append(tables, connectionTable(v.Connections))
	if len(v.Findings) > 0 {
		tables = append(tables, findingTable(v.Findings, nil))
	}
	return tables
}

// title names the slot: "checkpoint 7 of job words: completed".
func (c *CheckpointLine) title() string {
	title := fmt.Sprintf("%s %d", cmp.Or(c.Kind, "slot"), c.ID)
	if c.Flink {
		title = "Flink " + title
	}
	if c.Job != "" {
		title += " of job " + c.Job
	}
	if c.State != "" {
		title += ": " + string(c.State)
	}
	return oneLine(title)
}

// summary says in a line or two what the slot is.
func (c *CheckpointLine) summary() string {
	if c.State != catalog.StateCompleted {
		return oneLine(c.note())
	}
	s := fmt.Sprintf("%s, %s, epoch %s, age %s\n%s in %s on the store, channel state %s, operator state %s", c.Alignment, c.Mode, dash(c.Epoch), c.age(),
		size(c.SizeBytes), plural(c.Files, "file"), size(c.ChannelStateBytes), size(c.StateBytes))
	if c.DurationMS != nil {
		s += fmt.Sprintf("\ncomplete after %s, last acknowledgement after %s", millis(c.DurationMS), millis(c.AckMS))
	}
	for _, n := range []struct {
		is   bool
		text string
	}{{c.Partial, "partial: a source subtask was gone; its state is that of an older checkpoint"}, {!c.SelfContained && c.Files > 0, "refers to files of older checkpoints: its directory alone does not restore"}} {
		if n.is {
			s += "\n" + n.text
		}
	}
	return s
}

func (v *View) subtaskTable() Table {
	t := Table{Title: "subtasks", Columns: columns("SUBTASK", "#INPUT", "#OUTPUT", "#STATE", "#BUFFERS", "#FILES")}
	timed := slices.ContainsFunc(v.Subtasks, func(l SubtaskLine) bool { return l.EndToEndMS != nil })
	if timed {
		t.Columns = append(t.Columns, columns("#START DELAY", "#ALIGNMENT", "#SYNC", "#ASYNC", "#END TO END", "UNALIGNED")...)
	}
	lines := slices.Clone(v.Subtasks)
	if v.by == BySize {
		slices.SortStableFunc(lines, func(a, b SubtaskLine) int { return cmp.Compare(b.bytes(), a.bytes()) })
	}
	for _, l := range lines {
		r := newRow(TonePlain, inflight.Task{Vertex: l.Vertex, Subtask: l.Subtask}, sizeOrDash(l.InputBytes), sizeOrDash(l.OutputBytes), sizeOrDash(l.StateBytes), l.Buffers, l.Files)
		if timed {
			unaligned := "-"
			if l.Unaligned != nil {
				unaligned = map[bool]string{true: "yes", false: "no"}[*l.Unaligned]
			}
			r.Cells = append(r.Cells, millis(l.StartDelayMS), millis(l.AlignmentMS), millis(l.SyncMS), millis(l.AsyncMS), millis(l.EndToEndMS), unaligned)
		}
		switch {
		case l.Finished:
			r.Tone, r.Cells[1] = ToneQuiet, "finished"
		case l.Missing:
			r.Tone, r.Cells[1] = ToneError, "missing"
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

func (v *View) edgeTable() Table {
	t := Table{Title: "edges", Columns: columns("FROM", "TO", "PARTITIONER", "#CONNECTIONS", "#BUSY", "#INPUT", "#OUTPUT", "#BUFFERS", "#RECORDS", "#SKEW")}
	lines := slices.Clone(v.Edges)
	if v.by == BySize {
		slices.SortStableFunc(lines, func(a, b EdgeLine) int {
			return cmp.Compare(b.InputBytes+b.OutputBytes, a.InputBytes+a.OutputBytes)
		})
	}
	for _, l := range lines {
		skew := "-"
		if l.Skew > 0 {
			skew = fmt.Sprintf("%.0f%%", 100*l.Skew)
		}
		t.add(TonePlain, fmt.Sprintf("%s partition %d", l.From, l.Partition), fmt.Sprintf("%s gate %d", l.To, l.Gate), orDash(l.Partitioner),
			l.Connections, l.Busy, sizeOrDash(l.InputBytes), sizeOrDash(l.OutputBytes), l.Buffers, dash(l.Records), skew)
	}
	if len(t.Rows) > 0 {
		t.Note = "skew: the share of the busiest connection"
	}
	return t
}

func (v *View) channelTable() Table {
	t := Table{Title: "fullest channels", Columns: columns("SUBTASK", "ADDRESS", "#BYTES", "#SHARE", "#BUFFERS", "#RECORDS")}
	if !v.Checkpoint.Flink { // which has no positions
		t.Columns = append(t.Columns, columns("#FROM", "#TO")...)
	}
	full := slices.Clone(v.Channels)
	full = slices.DeleteFunc(full, func(l ChannelLine) bool { return l.Bytes == 0 || l.Side == inflight.State.String() })
	slices.SortStableFunc(full, func(a, b ChannelLine) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, l := range full[:min(v.top, len(full))] {
		r := newRow(TonePlain, l.task(), l.address(), size(l.Bytes), fmt.Sprintf("%.0f%%", 100*float64(l.Bytes)/float64(v.Checkpoint.ChannelStateBytes)), l.Buffers, dash(l.Records))
		if !v.Checkpoint.Flink {
			r.Cells = append(r.Cells, dash(l.StreamOffset), dash(l.StreamEnd))
		}
		t.Rows = append(t.Rows, r)
	}
	if n := len(full) - len(t.Rows); n > 0 {
		t.Note = fmt.Sprintf("and %d more", n)
	}
	return t
}

// task returns "vertex/subtask", or "".
func (p Place) task() string {
	if p.Vertex == nil {
		return ""
	}
	return inflight.Task{Vertex: *p.Vertex, Subtask: *p.Subtask}.String()
}

// address returns for example "gate 0 channel 2", or "".
func (p Place) address() string {
	switch {
	case p.Gate != nil:
		return inflight.InputChannel{Gate: *p.Gate, Channel: *p.Channel}.Address().String()
	case p.Partition != nil:
		return inflight.Subpartition{Partition: *p.Partition, Subpartition: *p.Subpartition}.Address().String()
	case p.StateName != nil:
		return inflight.StateName(*p.StateName).Address().String()
	}
	return ""
}

// manyConnections is how many connections a table lists.
const manyConnections = 50

// connectionTable lists what is not proven first.
func connectionTable(lines []ConnectionLine) Table {
	t := Table{Title: "conservation: consumed + input + output = emitted", Columns: columns("FROM", "TO", "#CONSUMED", "#INPUT", "#OUTPUT", "#EMITTED", "#DIFFERENCE", "#RECORDS", "VERDICT")}
	rank := map[reader.Verdict]int{reader.Violated: 0, reader.NotProvable: 1, reader.Proven: 2}
	count := [3]int{}
	for _, l := range lines {
		count[rank[l.Verdict]]++
	}
	sorted := slices.Clone(lines)
	slices.SortStableFunc(sorted, func(a, b ConnectionLine) int { return rank[a.Verdict] - rank[b.Verdict] })
	for _, l := range sorted[:min(len(sorted), manyConnections)] {
		tone := [...]Tone{ToneError, ToneQuiet, ToneGood}[rank[l.Verdict]]
		verdict := string(l.Verdict)
		if l.Reason != "" {
			verdict += ": " + l.Reason
		}
		t.add(tone, fmt.Sprintf("%s partition %d", subtaskOrAll(l.From, l.FromSubtask), l.Partition), fmt.Sprintf("%s gate %d", subtaskOrAll(l.To, l.ToSubtask), l.Gate),
			dash(l.ConsumedBytes), l.InputBytes, l.OutputBytes, dash(l.EmittedBytes), l.DifferenceBytes, l.recordsText(), verdict)
	}
	t.Note = fmt.Sprintf("%d proven, %d not provable, %d violated", count[2], count[1], count[0])
	if n := len(lines) - len(t.Rows); n > 0 {
		t.Note += fmt.Sprintf(" (%d of them not shown)", n)
	}
	return t
}

func subtaskOrAll(vertex string, subtask int) string {
	if subtask < 0 {
		return vertex
	}
	return inflight.Task{Vertex: vertex, Subtask: subtask}.String()
}

// recordsText is the account in records: consumed + captured = emitted.
func (l *ConnectionLine) recordsText() string {
	if l.ConsumedRecords == nil || l.EmittedRecords == nil || l.Records == nil {
		return dash(l.Records)
	}
	sign := "="
	if *l.ConsumedRecords+*l.Records != *l.EmittedRecords {
		sign = "≠"
	}
	return fmt.Sprintf("%d+%d%s%d", *l.ConsumedRecords, *l.Records, sign, *l.EmittedRecords)
}

// bytes is all that was captured.
func (l *SubtaskLine) bytes() uint64 { return l.InputBytes + l.OutputBytes + l.StateBytes }

// findingTable lists findings for people.
func findingTable(findings []inflight.Finding, operators map[string]string) Table {
	t := Table{Title: "findings", Columns: columns("SEVERITY", "CODE", "OBJECT", "#OFFSET", "CONCERNS", "TEXT")}
	for _, f := range findings {
		l := findingLine(f, operators)
		concerns := l.task()
		if a := l.address(); a != "" {
			concerns += " " + a
		}
		t.add(ToneOf(f.Severity), f.Severity, f.Code, f.Object, dash(l.Offset), orDash(concerns), l.Text)
	}
	return t
}
