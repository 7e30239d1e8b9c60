package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// ElementLine is a stream element of Flink that ends in a buffer. A value stands
// in the bytes of the buffer.
type ElementLine struct {
	Kind         string `json:"kind"`
	Length       int    `json:"length"`
	Timestamp    *int64 `json:"timestamp,omitempty"`
	OperatorID   string `json:"operator_id,omitempty"` // the origin of a latency marker
	Subtask      *int   `json:"subtask,omitempty"`
	Idle         *bool  `json:"idle,omitempty"`    // of a watermark status
	Backlog      *bool  `json:"backlog,omitempty"` // of attributes
	Subpartition *int   `json:"subpartition,omitempty"`

	value []byte // the beginning, of a record
	head  int    // how many bytes stand before it
}

// String returns the element for people.
func (e *ElementLine) String() string {
	s := e.Kind
	switch {
	case e.Idle != nil:
		s += map[bool]string{true: " idle", false: " active"}[*e.Idle]
	case e.Backlog != nil:
		s += fmt.Sprintf(" backlog=%t", *e.Backlog)
	case e.Subpartition != nil:
		s += fmt.Sprintf(" of subpartition %d", *e.Subpartition)
	case e.Subtask != nil:
		s += fmt.Sprintf(" of %s/%d", e.OperatorID, *e.Subtask)
	}
	if e.Timestamp != nil {
		s += fmt.Sprintf(" at %d", *e.Timestamp)
	}
	return s
}

// elementLine decodes an element of which the first bytes are there.
func elementLine(length int, head []byte) (*ElementLine, error) {
	e, err := flink.DecodeElement(head)
	if err != nil {
		return nil, err
	}
	l := &ElementLine{Kind: e.Kind.String(), Length: length, value: e.Value, head: len(head) - len(e.Value)}
	switch e.Kind {
	case flink.ElementTimestamped:
		l.Timestamp = ptr(e.Timestamp, e.Timestamp != math.MinInt64) // that is none
	case flink.ElementWatermark:
		l.Timestamp = &e.Timestamp
	case flink.ElementLatencyMarker:
		l.Timestamp, l.OperatorID, l.Subtask = &e.Timestamp, e.Operator.String(), &e.Subtask
	case flink.ElementWatermarkStatus:
		l.Idle = &e.Idle
	case flink.ElementAttributes:
		l.Backlog = &e.Backlog
	case flink.ElementInternalWatermark:
		l.Timestamp, l.Subpartition = &e.Timestamp, &e.Subpartition
	}
	return l, nil
}

// flinkDump is a dump of a checkpoint of Flink.
type flinkDump struct {
	*dumper
	describer
	x *flink.Index
	r *flink.BufferReader
	// The elements of a connection begin in its input part and go on in the output
	// part: both share what tells them apart. nil: nothing does.
	splitters []*recordSplitter
}

// dumpFlink dumps the checkpoint of Flink in dir.
func (i *Inspector) dumpFlink(ctx context.Context, t *Target, dir string, d *dumper) ([]inflight.Finding, error) {
	c, err := i.openFlink(ctx, t, dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f := &flinkDump{dumper: d, describer: describer{ctx: ctx, c: c}, x: c.Index()}
	if err := f.fits(); err != nil {
		return nil, err
	}
	for _, bad := range f.x.Damaged {
		if n := bad.Err.Finding(dir); d.o.task(bad.Task) {
			n.Task = &bad.Task
			d.findings = append(d.findings, n)
		}
	}
	phases := [][]inflight.Side{sides}
	i.expect(ctx, c, 1)
	if d.o.Records {
		i.expect(ctx, c, 1)
		if err := f.connect(ctx); err != nil {
			return nil, err
		}
		phases = [][]inflight.Side{{inflight.Input}, {inflight.Output}}
	}
	f.r = c.Reader(f.x)
	defer f.r.Close()
	for _, phase := range phases {
		for k := range f.x.Channels {
			if ch := &f.x.Channels[k]; slices.Contains(phase, ch.Address.Side) && f.needs(k) {
				if err := f.channel(ctx, k); err != nil {
					return d.findings, d.reason(err)
				}
			}
		}
	}
	qualifyFlink(c, d.findings)
	return d.findings, nil
}

// chosen reports whether the filter chooses channel k.
func (f *flinkDump) chosen(k int) bool {
	ch := &f.x.Channels[k]
	return f.operator(ch.Operator) && (f.o.Subtask == nil || *f.o.Subtask == ch.Task.Subtask) && f.o.address(ch.Address)
}

// operator reports whether the filter chooses o, by label, name, uid or id.
func (f *flinkDump) operator(o *flink.Operator) bool {
	return f.o.Vertex == "" || slices.Contains([]string{f.c.Label(o), o.Name, o.UID, o.ID.String()}, f.o.Vertex)
}

// needs reports whether channel k has to be read: records may begin in an input
// part that was not chosen.
func (f *flinkDump) needs(k int) bool {
	if f.chosen(k) {
		return true
	}
	return f.splitters != nil && f.x.Channels[k].Address.Side == inflight.Input && slices.ContainsFunc(f.partners(k), f.chosen)
}

// partners are the output channels that go on with the records of channel k.
func (f *flinkDump) partners(k int) (list []int) {
	if s := f.splitters[k]; s != nil && s.partner >= 0 {
		list = append(list, s.partner)
	}
	return list
}

// fits refuses a filter that nothing can pass, and says what there is.
func (f *flinkDump) fits() error {
	if f.o.Side == inflight.State.String() {
		return fail("dump", f.c.Dir, fmt.Errorf("%w: keyed and operator state of Flink is not looked into", inflight.ErrUnsupported), "show tells where it lies")
	}
	none := func(what string, there []string) error {
		return fail("dump", f.c.Dir, fmt.Errorf("%w: there is no %s", inflight.ErrConfig, what), "there are: "+cmp.Or(few(there), "none"))
	}
	var labels, tasks, channels []string
	for k := range f.c.Operators {
		o := &f.c.Operators[k]
		labels = append(labels, f.c.Label(o))
		if f.operator(o) {
			tasks = append(tasks, fmt.Sprintf("%s/0 to %d", f.c.Label(o), o.Parallelism-1))
		}
	}
	if len(tasks) == 0 {
		return none(fmt.Sprintf("operator %q", f.o.Vertex), labels)
	}
	if f.o.Subtask != nil && !slices.ContainsFunc(f.c.Operators, func(o flink.Operator) bool { return f.operator(&o) && *f.o.Subtask < o.Parallelism }) {
		return none(fmt.Sprintf("subtask %d", *f.o.Subtask), tasks)
	}
	if f.o.Gate == nil && f.o.Channel == nil && f.o.Partition == nil && f.o.Subpartition == nil {
		return nil
	}
	for k := range f.x.Channels {
		if f.chosen(k) {
			return nil
		}
		if ch := &f.x.Channels[k]; f.operator(ch.Operator) && (f.o.Subtask == nil || *f.o.Subtask == ch.Task.Subtask) {
			channels = append(channels, fmt.Sprintf("%s %s", ch.Task, ch.Address))
		}
	}
	return none("captured channel that the filter chooses", channels)
}

// connect finds out which channels go on with the records of which.
func (f *flinkDump) connect(ctx context.Context) error {
	r, err := f.c.Scan(ctx, flink.VerifyOptions{})
	if err != nil {
		return err
	}
	f.x = r.Index
	f.splitters = make([]*recordSplitter, len(f.x.Channels))
	for _, n := range r.Connections {
		s := &recordSplitter{keep: true, partner: n.Output}
		if n.Input >= 0 {
			f.splitters[n.Input] = s
			s.bad = !r.Contents[n.Input].Whole
		}
		if n.Output >= 0 && n.Edge != nil {
			f.splitters[n.Output] = s
		}
	}
	return nil
}

// channel dumps one channel. What cannot be read is a finding.
func (f *flinkDump) channel(ctx context.Context, k int) error {
	ch := &f.x.Channels[k]
	stream := f.x.Streams[ch.Stream].Handle
	file, _ := f.fileOf(stream)
	start := stream.StartPos()
	if stream.Kind() == flink.KindByteStream {
		start = stream.DataOffset()
	}
	for b, err := range f.r.Buffers(ctx, k) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			n := findingOf(err, stream.String())
			if n.Offset < 0 && b.Offset > 0 {
				n.Offset = b.Offset
			}
			n.Task, n.Address = &ch.Task, &ch.Address
			if ExitCode(err) != ExitFindings && !errors.Is(err, inflight.ErrNotExist) && !errors.Is(err, inflight.ErrConfig) {
				return err
			}
			f.findings = append(f.findings, n)
			if f.splitters != nil && f.splitters[k] != nil {
				f.splitters[k].bad = true
			}
			continue
		}
		out := Dumped{Bytes: b.Bytes, flink: true}
		f.split(k, &out)
		if !f.chosen(k) {
			continue
		}
		out.Place = placeOf(&ch.Task, &ch.Address)
		out.OperatorID = ch.Operator.ID.String()
		out.File, out.Offset, out.Length = file, b.Offset, len(b.Bytes)
		out.StartPos = ptr(start, start != 0)
		f.complete(&out)
		if f.stop = f.yield(&out); f.stop != nil {
			return errStop
		}
	}
	return nil
}

// split tells the elements apart that end in a buffer of channel k.
func (f *flinkDump) split(k int, out *Dumped) {
	if f.splitters == nil || f.splitters[k] == nil {
		return
	}
	s := f.splitters[k]
	_, ended := s.add(out.Bytes)
	records := uint64(0)
	for _, r := range ended {
		e, err := elementLine(r.Length, r.Preview)
		if err != nil {
			s.bad = true // verify says what is wrong
			break
		}
		if e.Kind == flink.ElementRecord.String() {
			records++
		}
		out.Elements = append(out.Elements, *e)
		out.Ended = append(out.Ended, Record{Length: r.Length, Preview: e.value, Element: e})
	}
	out.Records = ptr(records, !s.bad)
}

// value describes a record of Flink: when it happened, and how it begins.
func (r Record) value() string {
	s := strings.TrimPrefix(r.Element.String(), "record")
	more := ""
	if len(r.Preview) < r.Length-r.Element.head {
		more = "…"
	}
	return fmt.Sprintf("record%s of %s: %q%s", s, plural(r.Length, "byte"), r.Preview, more)
}
