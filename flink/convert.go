package flink

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// A converted checkpoint has a vertex for each operator, named by its id, and one
// more with a single subtask, whose state is what is needed to go back.
const (
	flinkVertex = "flink"
	metadataKey = inflight.StateName("metadata")
	fileKey     = "file/" // and the name of a file beside _metadata
	unknown     = "unknown"
	statePiece  = 256 << 10
)

// Conversion is a checkpoint that has not been converted yet. Making it reads,
// and writes nothing.
type Conversion struct {
	Verb       string
	Checkpoint inflight.CheckpointID
	// Channels, Buffers and Bytes of channel state; Files and StateBytes of other
	// state that lies beside _metadata.
	Channels, Buffers, Bytes int64
	Files                    []string
	StateBytes               int64
	// FilesBefore and FilesAfter count what lies in the directory besides the
	// metadata and the manifest.
	FilesBefore, FilesAfter int
	Notes                   []inflight.Finding

	run func(ctx context.Context, dst backends.Backend, dir string) error
}

// Execute writes the converted checkpoint into directory dir of dst, which must
// not hold anything. What was written is removed again when it fails.
func (c *Conversion) Execute(ctx context.Context, dst backends.Backend, dir string) error {
	return c.run(ctx, dst, dir)
}

// ConvertOptions are the options of PlanToSpillway. The zero value is fine.
type ConvertOptions struct {
	// Job is the name of the job. Default: "flink".
	Job string
	// Codec compresses.
	Codec  format.Codec
	Verify VerifyOptions
}

// PlanToSpillway plans to convert c into a checkpoint of Spillway, with
// checksums. The other state of Flink goes along, so that PlanFromSpillway can
// bring it back; only files by absolute path stay where they are.
//
// Positions are not known to Flink: what is converted is restored, but its
// conservation cannot be proven.
func (c *Checkpoint) PlanToSpillway(ctx context.Context, o ConvertOptions) (*Conversion, error) {
	s, err := c.survey(ctx, "convert", o.Verify)
	if err != nil {
		return nil, err
	}
	if c.CheckpointID < 1 || c.CheckpointID > format.MaxCheckpointID {
		return nil, &inflight.Error{Op: "convert", Object: c.Dir, Err: fmt.Errorf("%w: checkpoint id %d", inflight.ErrUnsupported, c.CheckpointID)}
	}
	p := c.bare("convert", s.x)
	if err := p.carry(ctx); err != nil {
		return nil, err
	}
	v := &Conversion{Verb: "convert", Checkpoint: c.CheckpointID, Channels: int64(len(s.x.Channels)), Notes: append(p.Notes, s.notes...)}
	for i := range s.channels {
		v.Buffers += s.channels[i].chunks
		v.Bytes += s.channels[i].bytes
	}
	for _, f := range p.Files {
		v.Files = append(v.Files, f.Name)
		v.StateBytes += f.Size
	}
	p.countBefore(s)
	v.FilesBefore, v.FilesAfter = p.Before.Files, 1
	e := &exporter{c: c, s: s, files: p.Files, o: o}
	v.run = func(ctx context.Context, dst backends.Backend, dir string) error {
		return into(ctx, "convert", dst, dir, func(t *target) (string, []byte, error) {
			m, err := e.write(ctx, t)
			return format.ManifestName, m, err
		})
	}
	return v, nil
}

// exporter writes a checkpoint of Spillway.
type exporter struct {
	c     *Checkpoint
	s     *scan
	files []PlannedFile
	o     ConvertOptions

	enc     *format.Encoder
	members []format.Member
	handles []inflight.Handle // of subtasks that had nothing to capture
	done    []inflight.Task
}

func (e *exporter) write(ctx context.Context, t *target) (manifest []byte, err error) {
	attempt := make([]byte, 8)
	rand.Read(attempt) // never fails
	id := hex.EncodeToString(attempt)
	e.members, e.handles, e.done = nil, nil, nil
	name := format.StateFileName(e.c.CheckpointID, "flink", id)
	var info format.FileInfo
	_, base, _ := strings.Cut(name, "/")
	err = t.create(ctx, base, 0, func(w io.Writer) error {
		e.enc, err = format.NewEncoder(w, name, format.FileHeader{FileID: inflight.NewFileID(), Job: e.job(), Checkpoint: e.c.CheckpointID, Group: "flink"},
			format.EncoderOptions{Codec: e.o.Codec})
		if err != nil {
			return err
		}
		if err = e.tasks(ctx); err != nil {
			e.enc.Discard()
			return err
		}
		info, err = e.enc.Close()
		return err
	})
	if err != nil {
		return nil, err
	}
	handles := e.handles
	for _, m := range e.members {
		handles = append(handles, e.enc.Handle(m))
	}
	return e.manifest(id, handles, info)
}

func (e *exporter) job() string { return cmp.Or(e.o.Job, "flink") }

func (e *exporter) manifest(attempt string, handles []inflight.Handle, info format.FileInfo) ([]byte, error) {
	p, err := e.c.Properties()
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: e.job(), ID: e.c.CheckpointID, Attempt: attempt, Mode: format.ExactlyOnce,
		Alignment: format.Aligned, SelfContained: true, Topology: &format.Topology{}, Finished: e.done}
	if len(e.s.x.Channels) > 0 {
		m.Alignment = format.Unaligned
	}
	m.Savepoint = err == nil && p != nil && p.Savepoint
	m.Topology.Vertices = append(m.Topology.Vertices, format.Vertex{ID: flinkVertex, Parallelism: 1})
	for i := range e.c.Operators {
		o := &e.c.Operators[i]
		if o.Parallelism > 0 {
			m.Topology.Vertices = append(m.Topology.Vertices, format.Vertex{ID: o.ID.String(), Parallelism: o.Parallelism, MaxParallelism: o.MaxParallelism,
				Attributes: map[string]string{"name": o.Name, "uid": o.UID}})
		}
	}
	handles = append(handles, e.edges(m.Topology)...)
	order := map[string]int{}
	for i, v := range m.Topology.Vertices {
		order[v.ID] = i
	}
	byTask := func(a, b inflight.Task) int {
		return cmp.Or(cmp.Compare(order[a.Vertex], order[b.Vertex]), cmp.Compare(a.Subtask, b.Subtask))
	}
	slices.SortFunc(handles, func(a, b inflight.Handle) int { return byTask(a.Task, b.Task) })
	slices.SortFunc(m.Finished, byTask)
	m.SetHandles(handles, info)
	return format.EncodeManifest(m)
}

// edges adds the edges. The far end of one that is not known is a vertex that
// stands for whatever is there; it returns the handles of its subtasks, which are
// empty.
func (e *exporter) edges(t *format.Topology) (handles []inflight.Handle) {
	for _, d := range e.s.edges {
		t.Edges = append(t.Edges, format.Edge{From: d.From.ID.String(), Partition: d.Partition, To: d.To.ID.String(), Gate: d.Gate, Partitioner: unknown})
	}
	n, parallelism := 0, 0
	add := func(list []*ends, known func(format.Edge, *ends) bool, edge func(p *ends) format.Edge) {
		for _, p := range list {
			if !slices.ContainsFunc(t.Edges, func(g format.Edge) bool { return known(g, p) }) {
				t.Edges = append(t.Edges, edge(p))
				n, parallelism = n+1, max(parallelism, p.other)
			}
		}
	}
	add(e.s.gates, func(g format.Edge, p *ends) bool { return g.To == p.op.ID.String() && g.Gate == p.number },
		func(p *ends) format.Edge {
			return format.Edge{From: unknown, Partition: n, To: p.op.ID.String(), Gate: p.number, Partitioner: unknown}
		})
	add(e.s.parts, func(g format.Edge, p *ends) bool { return g.From == p.op.ID.String() && g.Partition == p.number },
		func(p *ends) format.Edge {
			return format.Edge{From: p.op.ID.String(), Partition: p.number, To: unknown, Gate: n, Partitioner: unknown}
		})
	if n > 0 {
		t.Vertices = append(t.Vertices, format.Vertex{ID: unknown, Parallelism: parallelism})
		for i := range parallelism {
			handles = append(handles, inflight.Handle{Task: inflight.Task{Vertex: unknown, Subtask: i}, Checkpoint: e.c.CheckpointID})
		}
	}
	return handles
}

// tasks writes the state of all subtasks.
func (e *exporter) tasks(ctx context.Context) error {
	if err := e.flink(ctx); err != nil {
		return err
	}
	channels := map[inflight.Task][]int{}
	for i := range e.s.x.Channels {
		c := &e.s.x.Channels[i]
		t := inflight.Task{Vertex: c.Operator.ID.String(), Subtask: c.Task.Subtask}
		channels[t] = append(channels[t], i)
	}
	for i := range e.c.Operators {
		o := &e.c.Operators[i]
		finished := map[int]bool{}
		for _, s := range o.Subtasks {
			finished[s.Index] = s.Finished
		}
		for n := range o.Parallelism {
			t := inflight.Task{Vertex: o.ID.String(), Subtask: n}
			switch {
			case o.Finished || finished[n]:
				e.done = append(e.done, t)
			case len(channels[t]) == 0:
				e.handles = append(e.handles, inflight.Handle{Task: t, Checkpoint: e.c.CheckpointID})
			default:
				if err := e.task(ctx, t, channels[t]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (e *exporter) task(ctx context.Context, t inflight.Task, channels []int) error {
	m, err := e.enc.Begin(t, nil)
	if err != nil {
		return err
	}
	e.members = append(e.members, m)
	r := e.c.Reader(e.s.x)
	defer r.Close()
	for _, i := range channels {
		for b, err := range r.Buffers(ctx, i) {
			if err != nil {
				return err
			}
			if err := e.enc.Append(m, e.s.x.Channels[i].Address, inflight.PosUnknown, b.Bytes); err != nil {
				return err
			}
		}
	}
	return e.enc.Complete(m)
}

// flink writes what is needed to go back: the metadata, and the files beside it.
func (e *exporter) flink(ctx context.Context) error {
	m, err := e.enc.Begin(inflight.Task{Vertex: flinkVertex}, nil)
	if err != nil {
		return err
	}
	e.members = append(e.members, m)
	for p := range slices.Chunk(e.c.raw, statePiece) {
		if err := e.enc.Append(m, metadataKey.Address(), inflight.PosUnknown, p); err != nil {
			return err
		}
	}
	for _, f := range e.files {
		r, err := e.c.openStream(ctx, f.Copy)
		if err != nil {
			return err
		}
		err = r.pieces(ctx, func(p []byte) error {
			return e.enc.Append(m, inflight.StateName(fileKey+f.Name).Address(), inflight.PosUnknown, p)
		})
		r.close()
		if err != nil {
			return err
		}
	}
	return e.enc.Complete(m)
}

// pieces visits all bytes of a stream, in order.
func (r *streamReader) pieces(ctx context.Context, fn func(p []byte) error) error {
	for at := int64(0); at < r.size; {
		p, err := r.view(ctx, at, int(min(r.size-at, statePiece)), r.size)
		if err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// PlanFromSpillway plans to convert the checkpoint of Spillway in directory dir
// of b back into one of Flink. It must have come from Flink: what is not channel
// state comes from there. The caller keeps b open until the plan is executed.
func PlanFromSpillway(ctx context.Context, b backends.Backend, dir string) (*Conversion, error) {
	job, base := path.Split(dir)
	i := &importer{r: func() *reader.Reader { return reader.Open(b, strings.TrimRight(job, "/"), reader.Options{}) }, dir: base}
	v := &Conversion{Verb: "convert"}
	err := i.with(ctx, func(cp *reader.Checkpoint) error { return i.plan(ctx, cp, v) })
	if err != nil {
		return nil, err
	}
	v.run = func(ctx context.Context, dst backends.Backend, dir string) error {
		return into(ctx, "convert", dst, dir, func(t *target) (last string, content []byte, err error) {
			err = i.with(ctx, func(cp *reader.Checkpoint) error {
				content, err = i.write(ctx, cp, t)
				return err
			})
			return MetadataName, content, err
		})
	}
	return v, nil
}

// importer writes a checkpoint of Flink.
type importer struct {
	r     func() *reader.Reader
	dir   string
	meta  *Metadata
	files []string
}

func (i *importer) with(ctx context.Context, fn func(*reader.Checkpoint) error) error {
	r := i.r()
	cp, err := r.Checkpoint(ctx, i.dir)
	if err == nil {
		err = fn(cp)
	}
	return errors.Join(err, r.Close())
}

func (i *importer) plan(ctx context.Context, cp *reader.Checkpoint, v *Conversion) error {
	v.Checkpoint = cp.Manifest.ID
	foreign := func(why string) error {
		return &inflight.Error{Op: "convert", Object: cp.Dir, Err: fmt.Errorf("%w: %s", inflight.ErrMismatch, why), Mend: "only what was converted from Flink can go back"}
	}
	if cp.Manifest.Handle(inflight.Task{Vertex: flinkVertex}) == nil {
		return foreign("there is no metadata of Flink in it")
	}
	raw, err := i.state(ctx, cp, metadataKey)
	if err != nil {
		return err
	}
	if i.meta, err = Parse(raw); err != nil {
		return err
	}
	s, err := cp.Subtask(ctx, inflight.Task{Vertex: flinkVertex})
	if err != nil {
		return err
	}
	for e := range s.Entries() {
		if name, ok := strings.CutPrefix(string(e.Address.State), fileKey); ok {
			if strings.Contains(name, "/") || name == MetadataName {
				s.Close()
				return foreign(fmt.Sprintf("a file named %.80q", name))
			}
			i.files = append(i.files, name)
			v.StateBytes += int64(e.Bytes)
		}
	}
	s.Close()
	v.Files, v.FilesBefore, v.FilesAfter = i.files, len(cp.Manifest.Files), len(i.files)
	for _, h := range cp.Manifest.Handles {
		if h.Task.Vertex == flinkVertex || len(h.Segments) == 0 {
			continue
		}
		o := i.operator(h.Task.Vertex)
		if o == nil || o.Subtask(h.Task.Subtask) == nil || o.Subtask(h.Task.Subtask).Finished {
			return foreign(fmt.Sprintf("channel state of %s, which the metadata does not know", h.Task))
		}
		s, err := cp.Subtask(ctx, h.Task)
		if err != nil {
			return err
		}
		for e := range s.Entries() {
			if e.Address.Side != inflight.State && e.Bytes > 0 {
				if v.Channels++; v.Channels == 1 {
					v.FilesAfter++
				}
				v.Buffers += int64(e.Buffers)
				v.Bytes += int64(e.Bytes)
			}
		}
		s.Close()
	}
	return nil
}

func (i *importer) operator(id string) *Operator {
	n := slices.IndexFunc(i.meta.Operators, func(o Operator) bool { return o.ID.String() == id })
	if n < 0 {
		return nil
	}
	return &i.meta.Operators[n]
}

// state reads a state of the extra vertex.
func (i *importer) state(ctx context.Context, cp *reader.Checkpoint, name inflight.StateName) ([]byte, error) {
	var raw []byte
	err := i.eachState(ctx, cp, name, func(p []byte) error {
		if raw = append(raw, p...); len(raw) > MaxMetadata {
			return inflight.ErrTooLarge
		}
		return nil
	})
	return raw, err
}

func (i *importer) eachState(ctx context.Context, cp *reader.Checkpoint, name inflight.StateName, fn func(p []byte) error) error {
	s, err := cp.Subtask(ctx, inflight.Task{Vertex: flinkVertex})
	if err != nil {
		return err
	}
	defer s.Close()
	for b, err := range s.Select(ctx, func(a inflight.Address) bool { return a == name.Address() }, inflight.State) {
		if err != nil {
			return err
		}
		if err := fn(b.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// write writes the files, and returns the metadata.
func (i *importer) write(ctx context.Context, cp *reader.Checkpoint, t *target) ([]byte, error) {
	for _, name := range i.files {
		err := t.create(ctx, name, 0, func(w io.Writer) error {
			return i.eachState(ctx, cp, inflight.StateName(fileKey+name), func(p []byte) error { _, err := w.Write(p); return err })
		})
		if err != nil {
			return nil, err
		}
	}
	name := "channel-state"
	for n := 1; slices.Contains(i.files, name); n++ {
		name = fmt.Sprintf("channel-state-%d", n)
	}
	channels := map[inflight.Task][]Channel{}
	var size int64
	write := func(w io.Writer) error {
		sw := NewStateWriter(w)
		for _, h := range cp.Manifest.Handles {
			if h.Task.Vertex == flinkVertex || h.PersistedBytes() == 0 {
				continue
			}
			list, err := i.channels(ctx, cp, h.Task, sw)
			if err != nil {
				return err
			}
			channels[h.Task] = list
		}
		size = sw.Size()
		return nil
	}
	if slices.ContainsFunc(cp.Manifest.Handles, func(h inflight.Handle) bool { return h.Task.Vertex != flinkVertex && h.PersistedBytes() > 0 }) {
		if err := t.create(ctx, name, 0, write); err != nil {
			return nil, err
		}
	}
	delegate, err := NewRelativeFile(name, size)
	if err != nil {
		return nil, err
	}
	return i.meta.Rewrite(Changes{Channels: func(o *Operator, s *Subtask) (input, output []ChannelHandle, changed bool) {
		sides := map[inflight.Side][]Channel{}
		for _, c := range channels[inflight.Task{Vertex: o.ID.String(), Subtask: s.Index}] {
			sides[c.Address.Side] = append(sides[c.Address.Side], c)
		}
		of := func(list []Channel) []ChannelHandle {
			if len(list) == 0 {
				return nil
			}
			return []ChannelHandle{NewChannelHandle(delegate, list, true)}
		}
		return of(sides[inflight.Input]), of(sides[inflight.Output]), len(channels) > 0 || len(s.Input)+len(s.Output) > 0
	}})
}

// channels writes the buffers of one subtask.
func (i *importer) channels(ctx context.Context, cp *reader.Checkpoint, t inflight.Task, sw *StateWriter) ([]Channel, error) {
	s, err := cp.Subtask(ctx, t)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var list []Channel
	at := map[inflight.Address]int{}
	for b, err := range s.Buffers(ctx, inflight.Output, inflight.Input) {
		if err != nil {
			return nil, err
		}
		k, ok := at[b.Address]
		if !ok {
			k = len(list)
			at[b.Address] = k
			list = append(list, Channel{Address: b.Address, Subtask: t.Subtask})
		}
		offset, err := sw.Append(b.Bytes)
		if err != nil {
			return nil, err
		}
		list[k].Offsets = appendI64(list[k].Offsets, offset)
		list[k].StateSize += lengthSize + int64(len(b.Bytes))
	}
	slices.SortFunc(list, func(a, b Channel) int { return a.Address.Compare(b.Address) })
	return list, nil
}
