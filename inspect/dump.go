package inspect

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// Filter chooses subtasks and addresses; what is nil or empty chooses all.
type Filter struct {
	Vertex                  string
	Subtask                 *int
	Side                    string // input, output or state
	Gate, Channel           *int
	Partition, Subpartition *int
}

// sides are the names of sides in the order in which they are dumped.
var sides = []inflight.Side{inflight.Input, inflight.Output, inflight.State}

// check refuses a filter that nothing can pass.
func (f *Filter) check() error {
	if f.Side != "" && !slices.ContainsFunc(sides, func(s inflight.Side) bool { return s.String() == f.Side }) {
		return fail("dump", "side "+f.Side, inflight.ErrConfig, "use input, output or state")
	}
	for _, n := range []*int{f.Subtask, f.Gate, f.Channel, f.Partition, f.Subpartition} {
		if n != nil && *n < 0 {
			return fail("dump", "", fmt.Errorf("%w: %d is negative", inflight.ErrConfig, *n), "subtasks, gates, channels and partitions count from 0")
		}
	}
	input, output := f.Gate != nil || f.Channel != nil, f.Partition != nil || f.Subpartition != nil
	if input && f.Side != "" && f.Side != inflight.Input.String() || output && f.Side != "" && f.Side != inflight.Output.String() {
		return fail("dump", "side "+f.Side, fmt.Errorf("%w: gate and channel are of the input side, partition and subpartition of the output side", inflight.ErrConfig), "choose one side")
	}
	if (f.Gate != nil || f.Channel != nil) && (f.Partition != nil || f.Subpartition != nil) {
		return fail("dump", "", fmt.Errorf("%w: gate and channel are of the input side, partition and subpartition of the output side", inflight.ErrConfig), "choose one side")
	}
	return nil
}

// fits refuses a filter that nothing of a topology can pass, and says what there
// is.
func (f *Filter) fits(name string, m *format.Topology) error {
	none := func(what, there string) error {
		return fail("dump", name, fmt.Errorf("%w: there is no %s", inflight.ErrConfig, what), "there are: "+there)
	}
	var ids, tasks []string
	chosen := map[string]bool{}
	for _, v := range m.Vertices {
		ids = append(ids, v.ID)
		if f.Vertex == "" || f.Vertex == v.ID {
			tasks = append(tasks, fmt.Sprintf("%s/0 to %d", v.ID, v.Parallelism-1))
			chosen[v.ID] = f.Subtask == nil || *f.Subtask < v.Parallelism
		}
	}
	switch {
	case len(tasks) == 0:
		return none(fmt.Sprintf("vertex %q", f.Vertex), few(ids))
	case !slices.Contains(slices.Collect(maps.Values(chosen)), true):
		return none(fmt.Sprintf("subtask %d", *f.Subtask), few(tasks))
	}
	for _, side := range []struct {
		of           inflight.Side
		port, lane   *int
		ports, lanes string
	}{{inflight.Input, f.Gate, f.Channel, "gate", "channel"}, {inflight.Output, f.Partition, f.Subpartition, "partition", "subpartition"}} {
		if side.port == nil && side.lane == nil {
			continue
		}
		var there []string
		found := false
		for _, e := range m.Edges {
			near, far, port := e.To, e.From, e.Gate
			if side.of == inflight.Output {
				near, far, port = e.From, e.To, e.Partition
			}
			n := 0
			if v := m.Vertex(far); v != nil {
				n = v.Parallelism
			}
			if chosen[near] {
				there = append(there, fmt.Sprintf("%s %s %d %s 0 to %d", near, side.ports, port, side.lanes, n-1))
				found = found || (side.port == nil || *side.port == port) && (side.lane == nil || *side.lane < n)
			}
		}
		if !found && len(m.Edges) > 0 {
			what := []string{}
			if side.port != nil {
				what = append(what, fmt.Sprintf("%s %d", side.ports, *side.port))
			}
			if side.lane != nil {
				what = append(what, fmt.Sprintf("%s %d", side.lanes, *side.lane))
			}
			return none(strings.Join(what, " "), cmp.Or(few(there), "none of that side"))
		}
	}
	return nil
}

func (f *Filter) task(t inflight.Task) bool {
	return (f.Vertex == "" || f.Vertex == t.Vertex) && (f.Subtask == nil || *f.Subtask == t.Subtask)
}

func (f *Filter) address(a inflight.Address) bool {
	is := func(want *int, side inflight.Side, n int) bool { return want == nil || a.Side == side && *want == n }
	return (f.Side == "" || f.Side == a.Side.String()) &&
		is(f.Gate, inflight.Input, a.Input.Gate) && is(f.Channel, inflight.Input, a.Input.Channel) &&
		is(f.Partition, inflight.Output, a.Output.Partition) && is(f.Subpartition, inflight.Output, a.Output.Subpartition)
}

// DumpOptions are the options of Dump.
type DumpOptions struct {
	Filter
	// Digest computes the SHA-256 of each buffer.
	Digest bool
	// Hex adds the bytes of each buffer to its line.
	Hex bool
	// Records tells records apart, on all edges, as if they were length-prefixed,
	// and keeps how they begin; without it those of edges that say so are counted.
	Records bool
}

// Dumped is one buffer. It is valid until the call that got it returns.
type Dumped struct {
	BufferLine
	Bytes []byte
	// Ended are the records that end in the buffer, with DumpOptions.Records.
	Ended []Record
	flink bool
}

// Title says which address the buffer is of, and which file it lies in.
func (d *Dumped) Title() string {
	return oneLine(fmt.Sprintf("%s %s in %s", d.task(), d.address(), d.File))
}

// String says where the buffer stands in the stream, how long it is, and where
// it lies.
func (d *Dumped) String() string {
	pos := inflight.PosUnknown
	if d.StreamOffset != nil {
		pos = inflight.Pos{Epoch: *d.Epoch, Offset: *d.StreamOffset, Seq: *d.Seq}
	}
	s := fmt.Sprintf("%s: %d bytes at %d", pos, d.Length, d.Offset)
	if d.flink { // which knows no positions
		s = fmt.Sprintf("%d bytes at %d", d.Length, d.Offset)
	}
	if d.Gap {
		s = "(bytes are missing) " + s
	}
	if d.Records != nil {
		s += ", " + plural(int(*d.Records), "record") + " end" + map[bool]string{true: "s"}[*d.Records == 1]
	}
	if d.SHA256 != "" {
		s += ", sha256 " + d.SHA256
	}
	return s
}

// Dump hands every captured buffer that the filter chooses to yield, subtask by
// subtask; what yield answers ends the dump. Damage does not: what is intact is
// dumped, and the findings say what is not.
func (i *Inspector) Dump(ctx context.Context, t *Target, o DumpOptions, yield func(*Dumped) error) ([]inflight.Finding, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if t.Kind == TargetFile {
		return i.dumpFile(ctx, t, newDumper(o, yield))
	}
	var findings []inflight.Finding
	err := i.settled(ctx, t, func(job, dir string) (_, _ bool, err error) {
		began := false
		d := newDumper(o, func(b *Dumped) error {
			began = true
			return yield(b)
		})
		if t.Flink {
			findings, err = i.dumpFlink(ctx, t, dir, d)
			return d.stop == nil && (gone(t, err) || lacks(findings, nil)), began, err
		}
		c, err := i.openDir(ctx, t, job, dir)
		if err != nil {
			return gone(t, err), false, err
		}
		defer c.Close()
		findings, err = i.dumpCheckpoint(ctx, c, d)
		return d.stop == nil && lacks(findings, err), began, err
	})
	if errors.Is(err, inflight.ErrRetired) {
		return nil, err
	}
	return findings, err
}

func newDumper(o DumpOptions, yield func(*Dumped) error) *dumper {
	return &dumper{o: o, yield: yield, splitters: map[reader.Connection]*recordSplitter{}, loose: map[end]*recordSplitter{}, broken: map[inflight.Task]bool{}}
}

func (i *Inspector) dumpCheckpoint(ctx context.Context, c *checkpoint, d *dumper) ([]inflight.Finding, error) {
	i.o.Expect(c.Manifest.FileBytes())
	if err := d.o.fits(c.Dir, c.Manifest.Topology); err != nil {
		return nil, err
	}
	d.wiring = wiring{c.Manifest.Topology, d.o.Records}
	err := d.checkpoint(ctx, c)
	findings := append(d.findings, c.reread...)
	c.qualify(findings)
	return findings, d.reason(err)
}

// dumper is one dump.
type dumper struct {
	o        DumpOptions
	yield    func(*Dumped) error
	wiring   wiring
	findings []inflight.Finding
	// Records of a connection begin in its input part and go on in the output
	// part; those of a bare file are told apart address by address.
	splitters map[reader.Connection]*recordSplitter
	loose     map[end]*recordSplitter
	broken    map[inflight.Task]bool // bytes are missing: nobody can tell where records begin
	stop      error                  // of yield
}

// errStop says that yield ended the dump: what it answered is in dumper.stop.
var errStop = errors.New("stop")

func (d *dumper) reason(err error) error {
	if errors.Is(err, errStop) {
		return d.stop
	}
	return err
}

// checkpoint dumps the subtasks of a checkpoint. To tell records apart the
// input parts of all connections come first.
func (d *dumper) checkpoint(ctx context.Context, c *checkpoint) error {
	phases := [][]inflight.Side{sides}
	if d.wiring.wanted() {
		phases = [][]inflight.Side{{inflight.Input}, {inflight.Output}, {inflight.State}}
	}
	for _, phase := range phases {
		for _, h := range c.Manifest.Handles {
			if !d.needs(h, phase) {
				continue
			}
			if err := d.subtask(ctx, c, &h, phase); err != nil {
				return err
			}
		}
	}
	return nil
}

// needs reports whether anything of h has to be read in a phase.
func (d *dumper) needs(h inflight.Handle, phase []inflight.Side) bool {
	bytes := map[inflight.Side]uint64{inflight.Input: h.InputBytes, inflight.Output: h.OutputBytes, inflight.State: h.StateBytes}
	wanted := d.o.task(h.Task) || d.wiring.wanted() && len(phase) == 1 && phase[0] == inflight.Input
	return wanted && slices.ContainsFunc(phase, func(s inflight.Side) bool { return bytes[s] > 0 })
}

// subtask dumps a subtask, or what is intact of it.
func (d *dumper) subtask(ctx context.Context, c *checkpoint, h *inflight.Handle, phase []inflight.Side) error {
	done := map[inflight.Address]int{}
	s, err := c.Subtask(ctx, h.Task)
	if err == nil {
		err = d.buffers(ctx, s, phase, done, nil)
		s.Close()
	}
	if err == nil || ctx.Err() != nil || !d.damage(err, c.Dir, &h.Task) {
		return err
	}
	d.broken[h.Task] = true
	files := map[string]bool{}
	skip := map[inflight.Address]int{}
	for a, n := range done {
		skip[a] = n
	}
	for _, seg := range h.Segments {
		if files[seg.File] {
			continue
		}
		files[seg.File] = true
		name := strings.TrimPrefix(strings.TrimPrefix(c.Manifest.Resolve(c.Dir, seg.File), c.job), "/")
		f, err := c.r.File(ctx, name)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue // missing: that is what stopped the subtask
		}
		if f.FileID != seg.FileID {
			continue // swapped with another
		}
		if err := d.fileSubtask(ctx, f, h.Task, phase, skip); err != nil {
			return err
		}
	}
	return nil
}

// damage reports whether err is damage, which is a finding, and not the end.
func (d *dumper) damage(err error, object string, t *inflight.Task) bool {
	if errors.Is(err, errStop) || ExitCode(err) != ExitFindings && !errors.Is(err, inflight.ErrNotExist) {
		return false
	}
	f := findingOf(err, object)
	f.Task = t
	if !slices.ContainsFunc(d.findings, func(n inflight.Finding) bool { return n.String() == f.String() }) {
		d.findings = append(d.findings, f)
	}
	return true
}

// fileSubtask dumps what a file holds of a subtask, but for the first buffers of
// addresses that were dumped before.
func (d *dumper) fileSubtask(ctx context.Context, f *reader.File, t inflight.Task, phase []inflight.Side, skip map[inflight.Address]int) error {
	s, err := f.Subtask(t)
	if err == nil {
		err = d.buffers(ctx, s, phase, map[inflight.Address]int{}, skip)
		s.Close()
	}
	if err != nil && ctx.Err() == nil && d.damage(err, f.Name, &t) {
		return nil
	}
	return err
}

// buffers dumps the buffers of s, counts them in done, and leaves out as many of
// each address as skip says.
func (d *dumper) buffers(ctx context.Context, s *reader.Subtask, phase []inflight.Side, done, skip map[inflight.Address]int) error {
	for b, err := range s.Buffers(ctx, phase...) {
		if err != nil {
			return err
		}
		if skip[b.Address] > 0 {
			skip[b.Address]--
			continue
		}
		done[b.Address]++
		if d.stop = d.buffer(b); d.stop != nil {
			return errStop
		}
	}
	return nil
}

func (d *dumper) buffer(b *reader.Buffer) error {
	out := Dumped{Bytes: b.Bytes}
	if s := d.splitter(end{b.Task, b.Address}); s != nil {
		n, ended := s.add(b.Bytes)
		out.Records, out.Ended = ptr(n, !s.bad), ended
	}
	if !d.o.task(b.Task) || !d.o.address(b.Address) {
		return nil
	}
	known := b.Pos.Known()
	out.Place = placeOf(&b.Task, &b.Address)
	out.Epoch, out.StreamOffset, out.Seq = ptr(b.Pos.Epoch, known), ptr(b.Pos.Offset, known), ptr(b.Pos.Seq, known)
	out.File, out.Offset, out.Length, out.Gap = b.File, b.Offset, len(b.Bytes), b.Gap
	d.complete(&out)
	return d.yield(&out)
}

// complete adds what the options want of the bytes.
func (d *dumper) complete(out *Dumped) {
	if d.o.Digest {
		out.SHA256 = hexSum(out.Bytes)
	}
	if d.o.Hex {
		out.Hex = hex.EncodeToString(out.Bytes)
	}
}

// splitter returns what tells the records of e apart; nil: nothing does.
func (d *dumper) splitter(e end) *recordSplitter {
	if e.address.Side == inflight.State {
		return nil
	}
	if d.wiring.topology == nil {
		if !d.o.Records {
			return nil
		}
		s := d.loose[e]
		if s == nil {
			s = &recordSplitter{keep: true}
			d.loose[e] = s
		}
		return s
	}
	k, ok := d.wiring.countable(e)
	if !ok || d.broken[d.wiring.up(k)] || d.broken[d.wiring.down(k)] {
		return nil
	}
	s := d.splitters[k]
	if s == nil {
		s = &recordSplitter{keep: d.o.Records}
		d.splitters[k] = s
	}
	return s
}

// dumpFile dumps a bare file.
func (i *Inspector) dumpFile(ctx context.Context, t *Target, d *dumper) ([]inflight.Finding, error) {
	f, r, err := i.scanFile(ctx, t)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for _, n := range f.Findings {
		if n.Severity != inflight.SeverityInfo && n.Code != format.CodeIncomplete {
			d.findings = append(d.findings, n)
		}
	}
	var members []string
	for _, m := range f.Members {
		members = append(members, m.Task.String())
	}
	if len(members) > 0 && !slices.ContainsFunc(f.Members, func(m *format.ScannedMember) bool { return d.o.task(m.Task) }) {
		return nil, fail("dump", t.Name, fmt.Errorf("%w: the file has nothing of such a subtask", inflight.ErrConfig), "there are: "+few(members))
	}
	for _, m := range f.Members {
		if !d.o.task(m.Task) || m.Section != nil && m.Section.Status == format.StatusAborted {
			continue // the bytes of an aborted capture are dead
		}
		if err := d.fileSubtask(ctx, f, m.Task, sides, nil); err != nil {
			return d.findings, d.reason(err)
		}
	}
	return d.findings, nil
}
