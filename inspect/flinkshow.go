package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// FileUse says what lies in a file of a checkpoint of Flink.
type FileUse string

// The uses of files, as used in JSON.
const (
	UseMetadata FileUse = "metadata"
	UseChannels FileUse = "channel-state" // and perhaps other state
	UseState    FileUse = "state"         // keyed and operator state
)

// showFlink describes a checkpoint of Flink. It reads all channel state, since
// only that tells records and edges.
func (i *Inspector) showFlink(ctx context.Context, t *Target, job, dir string, o ShowOptions) (*View, error) {
	c, err := i.openFlink(ctx, t, dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	line, err := i.flinkLine(ctx, job, c)
	if err != nil {
		return nil, err
	}
	i.o.Expect(int64(line.ChannelStateBytes))
	r, err := c.Scan(ctx, flink.VerifyOptions{})
	if err != nil {
		return nil, err
	}
	v := &View{Checkpoint: line, Findings: r.Findings, top: cmp.Or(o.Top, 10), by: o.By}
	f := &flinkView{describer: describer{ctx: ctx, c: c, digest: o.Digest, sums: map[string]string{}}, v: v, r: r, ranges: o.Ranges, files: map[string]*FileLine{}, users: map[string]inflight.Task{}}
	f.build()
	if f.err != nil {
		return nil, f.err
	}
	v.Findings = append(v.Findings, f.found...)
	qualifyFlink(c, v.Findings)
	v.operators = operatorIDs(c)
	return v, nil
}

// operatorIDs maps what findings call the operators of c to their ids.
func operatorIDs(c *flink.Checkpoint) map[string]string {
	ids := map[string]string{}
	for k := range c.Operators {
		ids[c.Label(&c.Operators[k])] = c.Operators[k].ID.String()
	}
	return ids
}

// flinkView fills a View.
type flinkView struct {
	describer
	v      *View
	r      *flink.Report
	ranges bool
	files  map[string]*FileLine     // by name
	users  map[string]inflight.Task // the last subtask that was counted for a file
	next   int                      // channel of the index
	chunks [][]flink.Chunk          // by channel, where ranges are wanted
}

func (f *flinkView) build() {
	f.v.Metadata, f.v.Masters, f.v.Operators = f.metadata(), f.masters(), f.operators()
	f.use(UseMetadata, path.Join(f.c.Dir, f.c.Name), f.v.Metadata.SizeBytes, f.v.Metadata.SizeBytes)
	if f.digest {
		f.files[path.Join(f.c.Dir, f.c.Name)].SHA256 = f.v.Metadata.SHA256
	}
	if f.ranges {
		f.sortChunks()
	}
	for k := range f.c.Operators {
		o := &f.c.Operators[k]
		line := &f.v.Operators[k]
		for j := range o.Subtasks {
			f.subtask(line, o, &o.Subtasks[j])
		}
	}
	f.edges()
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		f.v.Files = append(f.v.Files, *f.files[name])
	}
}

// subtask adds the lines of one subtask.
func (f *flinkView) subtask(op *OperatorLine, o *flink.Operator, s *flink.Subtask) {
	task := inflight.Task{Vertex: op.Vertex, Subtask: s.Index}
	l := SubtaskLine{Type: TypeSubtask, Vertex: op.Vertex, OperatorID: op.OperatorID, Subtask: s.Index, Finished: s.Finished}
	states := f.states(op.Vertex, o, s)
	for _, x := range states {
		l.StateBytes += uint64(max(x.SizeBytes, 0))
	}
	f.v.States = append(f.v.States, states...)
	for h := range s.StateHandles() {
		f.useOf(UseState, h, task)
	}
	streams := map[string]bool{}
	for h := range s.Handles() {
		f.useOf(UseChannels, h.Delegate(), task)
		if h.Delegate().Path() != "" {
			streams[h.Delegate().Key()] = true
		}
		line := f.handle(op.Vertex, o, s, h)
		line.Handle = len(f.v.Handles)
		for _, err := range h.Channels() {
			if err != nil {
				break // it is a finding
			}
			ch := f.channel(f.next, line.Handle)
			f.next++
			line.Channels++
			l.Buffers += ch.Buffers
			if h.Side == inflight.Input {
				l.InputBytes += ch.Bytes
			} else {
				l.OutputBytes += ch.Bytes
			}
		}
		f.v.Handles = append(f.v.Handles, line)
	}
	l.Files = len(streams)
	op.InputBytes, op.OutputBytes, op.StateBytes = op.InputBytes+l.InputBytes, op.OutputBytes+l.OutputBytes, op.StateBytes+l.StateBytes
	f.v.Subtasks = append(f.v.Subtasks, l)
}

// channel adds the line of a channel of the index.
func (f *flinkView) channel(k, handle int) *ChannelLine {
	c, seen := &f.r.Index.Channels[k], &f.r.Contents[k]
	l := ChannelLine{Type: TypeChannel, Place: placeOf(&c.Task, &c.Address), Buffers: uint64(seen.Buffers), Bytes: uint64(seen.Bytes), Digest: fmt.Sprintf("%016x", uint64(seen.Digest)),
		Records: ptr(uint64(max(seen.Records, 0)), seen.Records >= 0), StateSize: &c.StateSize, Handle: &handle, Offsets: offsets(c.Offsets)}
	l.OperatorID = c.Operator.ID.String()
	if f.ranges {
		l.Ranges = f.rangesOf(k)
	}
	f.v.Channels = append(f.v.Channels, l)
	return &f.v.Channels[len(f.v.Channels)-1]
}

// use counts what a file holds.
func (f *flinkView) use(use FileUse, name string, size, used int64) *FileLine {
	l := f.files[name]
	if l == nil {
		l = &FileLine{Type: TypeFile, Name: name, SizeBytes: size, Use: use, UsedBytes: new(int64)}
		f.files[name] = l
	}
	if use == UseChannels && l.Use == UseState {
		l.Use = use
	}
	*l.UsedBytes += used
	return l
}

// useOf counts the file that h leads to, for a subtask. What is not there is a
// finding of others.
func (f *flinkView) useOf(use FileUse, h flink.StreamHandle, task inflight.Task) {
	for h.Kind() == flink.KindKeyGroups {
		h = h.Inner()
	}
	if h.Path() == "" {
		return
	}
	at, err := f.c.Locate(f.ctx, h)
	if err != nil {
		if f.err == nil {
			f.err = f.ctx.Err()
		}
		return
	}
	name, key := f.nameOf(at), "stream "+string(h.Bytes())
	used := int64(0)
	if _, known := f.users[key]; !known {
		f.users[key] = task
		if used = at.Info.Size; h.Kind() == flink.KindSegment {
			used = h.Size()
		}
	}
	l := f.use(use, name, at.Info.Size, used)
	l.Moved = at.Moved
	if user := "file " + name; f.users[user] != task || l.Subtasks == 0 {
		f.users[user] = task
		l.Subtasks++
	}
	if f.digest && l.SHA256 == "" {
		l.SHA256 = f.fileSum(at)
	}
}

// edges adds the edges, from the connections.
func (f *flinkView) edges() {
	at := map[*flink.Edge]int{}
	busiest := map[int]uint64{}
	for k := range f.r.Edges {
		e := &f.r.Edges[k]
		at[e] = len(f.v.Edges)
		f.v.Edges = append(f.v.Edges, EdgeLine{Type: TypeEdge, From: f.c.Label(e.From), Partition: e.Partition, To: f.c.Label(e.To), Gate: e.Gate, Evidence: &e.Evidence, Records: new(uint64)})
	}
	for _, n := range f.r.Connections {
		if n.Edge == nil {
			f.v.loose++
			continue
		}
		k := at[n.Edge]
		l := &f.v.Edges[k]
		l.Connections++
		if n.Bytes > 0 {
			l.Busy++
		}
		busiest[k] = max(busiest[k], uint64(n.Bytes))
		l.Buffers += uint64(n.Buffers)
		if n.Input >= 0 {
			l.InputBytes += uint64(f.r.Contents[n.Input].Bytes)
		}
		if n.Output >= 0 {
			l.OutputBytes += uint64(f.r.Contents[n.Output].Bytes)
		}
		if !n.RecordsKnown {
			l.Records = nil
		} else if l.Records != nil {
			*l.Records += uint64(n.Records)
		}
	}
	for k := range f.v.Edges {
		l := &f.v.Edges[k]
		if n := l.InputBytes + l.OutputBytes; n > 0 {
			l.Skew = share(busiest[k], n)
		}
	}
}

// operatorTable lists the operators of Flink; those that take most room in
// _metadata first, if that is asked for.
func (v *View) operatorTable() Table {
	t := Table{Title: "operators", Columns: columns("NAME", "UID", "ID", "#PARALLELISM", "#MAX", "#INPUT", "#OUTPUT", "#STATE", "#METADATA")}
	lines := v.Operators
	if v.by == BySize {
		t.Columns = append(t.Columns, columns("#CHANNELS", "#KEYED", "#OPERATOR", "#INLINE", "#SHARE")...)
		lines = slices.Clone(lines)
		slices.SortStableFunc(lines, func(a, b OperatorLine) int { return cmp.Compare(b.MetadataBytes, a.MetadataBytes) })
	}
	for _, l := range lines {
		state := sizeOrDash(l.StateBytes)
		if l.Finished {
			state = "finished"
		}
		r := newRow(TonePlain, orDash(l.Name), orDash(l.UID), l.OperatorID, l.Parallelism, l.MaxParallelism, sizeOrDash(l.InputBytes), sizeOrDash(l.OutputBytes), state, size(l.MetadataBytes))
		if v.by == BySize {
			for _, n := range []int{l.ChannelsBytes, l.KeyedBytes, l.OperatorBytes, l.InlineBytes} {
				r.Cells = append(r.Cells, sizeOrDash(uint64(n)))
			}
			r.Cells = append(r.Cells, fmt.Sprintf("%.0f%%", 100*float64(l.MetadataBytes)/float64(v.Metadata.SizeBytes)))
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

// flinkSummary says in a few lines what the checkpoint is.
func (v *View) flinkSummary() string {
	c := &v.Checkpoint
	s := fmt.Sprintf("_metadata of version %d, %s, age %s\n%s in %s on the store, channel state %s, other state %s", c.MetadataVersion, size(v.Metadata.SizeBytes), c.age(),
		size(c.SizeBytes), plural(len(v.Files), "file"), size(c.ChannelStateBytes), size(c.StateBytes))
	if v.Metadata.Properties != "" {
		s += "\n" + oneLine(v.Metadata.Properties)
	}
	if !c.SelfContained {
		s += "\nnames files by absolute path: its directory alone does not restore"
	}
	return s
}

// flinkTables returns the tables of a checkpoint of Flink.
func (v *View) flinkTables() []Table {
	tables := []Table{{Title: v.Checkpoint.title(), Note: v.flinkSummary()}, v.operatorTable()}
	if len(v.Subtasks) > 0 {
		tables = append(tables, v.subtaskTable())
	}
	edges := v.edgeTable()
	if v.loose > 0 {
		edges.Note = strings.TrimPrefix(fmt.Sprintf("%s\n%s without an edge that the records tell", edges.Note, plural(v.loose, "channel")), "\n")
	}
	if len(edges.Rows) > 0 || v.loose > 0 {
		tables = append(tables, edges)
	}
	if t := v.channelTable(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	if len(v.Findings) > 0 {
		tables = append(tables, findingTable(v.Findings, v.operators))
	}
	return tables
}
