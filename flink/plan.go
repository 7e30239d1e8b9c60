package flink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Plan is a checkpoint that has not been written yet: what a rewrite puts into a
// new directory, and what is lost by it. Making it reads, and writes nothing.
type Plan struct {
	Verb string
	// Files are written in this order, and Metadata last.
	Files         []PlannedFile
	Metadata      []byte
	Before, After Totals
	// Lost lists the in-flight data that the new checkpoint does not have.
	Lost []Loss
	// Notes are what is worth knowing about the new checkpoint.
	Notes []inflight.Finding

	c *Checkpoint
	x *Index
}

// Totals count what a checkpoint consists of.
type Totals struct {
	Files    int // in its directory, _metadata not among them
	Handles  int // of channel state
	Channels int
	Buffers  int64
	Bytes    int64 // of channel state, without lengths
	Metadata int
}

// Loss is in-flight data that is lost: of one connection, or of what could be
// told of it.
type Loss struct {
	Edge *Edge // nil if the edge is not known
	// Input and Output are the two ends; nil where that side held nothing.
	Input, Output *ChannelEnd
	Buffers       int64
	Bytes         int64
	// Records counts the records that are lost, if RecordsKnown; otherwise those
	// that could be told.
	Records      int64
	RecordsKnown bool
	Reason       string
}

// ChannelEnd is one end of a connection.
type ChannelEnd struct {
	Task    inflight.Task
	Address inflight.Address
}

// PlannedFile is a file in the directory of the new checkpoint.
type PlannedFile struct {
	Name string
	Size int64
	// Copy is the stream that it is a copy of; null for new channel state.
	Copy   StreamHandle
	Chunks []PlannedChunk
}

// PlannedChunk is a chunk of new channel state, made of ranges of old chunks.
type PlannedChunk struct {
	Length int32
	Parts  []Range
}

// Range is some payload in a stream of the index.
type Range struct {
	Stream int
	Offset int64
	Length int32
}

// bare is a plan in which nothing changes yet.
func (c *Checkpoint) bare(verb string, x *Index) *Plan {
	p := &Plan{Verb: verb, c: c, x: x}
	p.Before = Totals{Channels: len(x.Channels), Metadata: len(c.raw)}
	for range c.channelHandles() {
		p.Before.Handles++
	}
	return p
}

// survey reads all channel state, and refuses a checkpoint that is damaged, also
// where only its seal tells: what is written anew has no seal, and would look right.
func (c *Checkpoint) survey(ctx context.Context, verb string, o VerifyOptions) (*scan, error) {
	v := c.newVerifier()
	seal, err := v.sealOf(ctx, o)
	if err != nil {
		return nil, err
	}
	notes := slices.Clone(v.findings)
	v.index()
	s := c.newScan(v.x, slices.Clone(o.Edges))
	s.sums, s.notes = seal != nil, notes
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	v.findings = append(v.findings, s.findings...)
	if seal != nil {
		if err := v.compare(ctx, seal, s); err != nil {
			return nil, err
		}
	}
	return s, c.refuse(verb, v.x, v.findings)
}

// surveySealed is survey for a rewrite that reads no channel state, or does not
// keep it: without a seal it looks at nothing, and with one, unless streams is
// false, at channel state too. A file that cannot be had is left to who needs it.
func (c *Checkpoint) surveySealed(ctx context.Context, verb string, o VerifyOptions, streams bool) (notes []inflight.Finding, err error) {
	v := c.newVerifier()
	seal, err := v.sealOf(ctx, o)
	if err != nil {
		return nil, err
	}
	notes = slices.Clone(v.findings)
	switch {
	case seal == nil:
	case streams:
		s := c.newScan(v.x, slices.Clone(o.Edges))
		s.sums = true
		if err := s.run(ctx); err != nil {
			return nil, err
		}
		if err := v.compare(ctx, seal, s); err != nil {
			return nil, err
		}
		v.findings = append(v.findings, slices.DeleteFunc(s.findings, func(f inflight.Finding) bool {
			return slices.Contains([]string{CodeMissingFile, CodeUnresolvable, CodeUnreadable}, f.Code)
		})...)
	default:
		if err := v.compareKept(ctx, seal); err != nil {
			return nil, err
		}
	}
	return notes, c.refuse(verb, v.x, v.findings)
}

// refuse refuses a checkpoint for the first error among findings. Metadata that is
// not what was sealed explains all others; and an error about a whole file gives
// way to one that knows where in it.
func (c *Checkpoint) refuse(verb string, x *Index, findings []inflight.Finding) error {
	var first *inflight.Finding
	for i := range findings {
		f := &findings[i]
		switch {
		case f.Severity != inflight.SeverityError:
		case first == nil, f.Code == CodeSealMetadata,
			first.Code == CodeSealFile && f.Object == first.Object && first.Offset < 0 && f.Offset >= 0:
			first = f
		}
	}
	if first == nil {
		return nil
	}
	channels := slices.ContainsFunc(x.Streams, func(s Stream) bool { return s.Handle.String() == first.Object })
	mend := "salvage it first"
	switch {
	case first.Code == CodeSeal:
		mend = "put the seal back, or move it away where the checkpoint is known to be right"
	case first.Code == CodeSealMetadata, first.Code == CodeSealFile && !channels:
		mend = "put it back as it was sealed, or take an older checkpoint; to go on all the same, move the seal away"
	}
	return c.damaged(verb, *first, mend)
}

// content is what a channel is to hold: ranges of payload in the order of its
// stream, one for each chunk.
type content struct {
	channel int // index into Index.Channels
	parts   []Range
}

// contentOf is what channel i holds, up to keep bytes of payload.
func (s *scan) contentOf(i int, keep int64) content {
	c := content{channel: i}
	stream := s.x.Channels[i].Stream
	for _, k := range s.chunksOf(i) {
		chunk := s.x.Streams[stream].Chunks[k]
		if keep <= 0 || chunk.Length < 0 {
			break
		}
		n := int32(min(int64(chunk.Length), keep))
		if keep -= int64(n); n > 0 {
			c.parts = append(c.parts, Range{stream, chunk.Offset + lengthSize, n})
		}
	}
	return c
}

// chunksOf returns the indexes, in its stream, of the chunks of channel i.
func (s *scan) chunksOf(i int) []int {
	if s.byChannel == nil {
		s.byChannel = make([][]int, len(s.x.Channels))
		for _, st := range s.x.Streams {
			for k, c := range st.Chunks {
				s.byChannel[c.Channel] = append(s.byChannel[c.Channel], k)
			}
		}
	}
	return s.byChannel[i]
}

// layout says how new channel state is cut.
type layout struct {
	chunk int32 // the length that chunks should have; 0: as they are
	file  int64 // the size at which the next file is begun
}

// lay puts contents into new files: the channels of a subtask one after another.
// It returns the handles of each subtask's sides, by the index of a channel of
// theirs.
func (p *Plan) lay(contents []content, l layout) error {
	names := p.namer()
	type side struct {
		op      *Operator
		subtask int
		side    inflight.Side
	}
	type group struct {
		file     int
		channels []Channel
	}
	groups := map[side][]group{}
	first := len(p.Files)
	for _, c := range contents {
		if len(c.parts) == 0 {
			continue
		}
		if n := len(p.Files); n == first || p.Files[n-1].Size >= l.file {
			p.Files = append(p.Files, PlannedFile{Name: names("channel-state"), Size: headerSize})
		}
		f := &p.Files[len(p.Files)-1]
		old := &p.x.Channels[c.channel]
		ch := Channel{Address: old.Address, Subtask: old.Subtask}
		for _, chunk := range cut(c.parts, l.chunk) {
			ch.Offsets = appendI64(ch.Offsets, f.Size)
			ch.StateSize += lengthSize + int64(chunk.Length)
			f.Size += lengthSize + int64(chunk.Length)
			f.Chunks = append(f.Chunks, chunk)
			p.After.Buffers++
			p.After.Bytes += int64(chunk.Length)
		}
		p.After.Channels++
		k := side{old.Operator, old.Task.Subtask, old.Address.Side}
		list := groups[k]
		if len(list) == 0 || list[len(list)-1].file != len(p.Files)-1 {
			list = append(list, group{file: len(p.Files) - 1})
		}
		list[len(list)-1].channels = append(list[len(list)-1].channels, ch)
		groups[k] = list
	}
	handles := map[side][]ChannelHandle{}
	for k, list := range groups {
		for _, g := range list {
			delegate, err := NewRelativeFile(p.Files[g.file].Name, p.Files[g.file].Size)
			if err != nil {
				return err
			}
			handles[k] = append(handles[k], NewChannelHandle(delegate, g.channels, true))
		}
	}
	return p.rewrite(Changes{Channels: func(o *Operator, s *Subtask) (input, output []ChannelHandle, changed bool) {
		input, output = handles[side{o, s.Index, inflight.Input}], handles[side{o, s.Index, inflight.Output}]
		return input, output, len(s.Input)+len(s.Output) > 0
	}})
}

// cut cuts ranges into chunks of about n bytes each; 0 leaves them.
func cut(parts []Range, n int32) (chunks []PlannedChunk) {
	if n == 0 {
		for _, r := range parts {
			chunks = append(chunks, PlannedChunk{Length: r.Length, Parts: []Range{r}})
		}
		return chunks
	}
	var c PlannedChunk
	for _, r := range parts {
		for r.Length > 0 {
			k := min(r.Length, n-c.Length)
			c.Parts = append(c.Parts, Range{r.Stream, r.Offset, k})
			c.Length += k
			r.Offset, r.Length = r.Offset+int64(k), r.Length-k
			if c.Length == n {
				chunks, c = append(chunks, c), PlannedChunk{}
			}
		}
	}
	if c.Length > 0 {
		chunks = append(chunks, c)
	}
	return chunks
}

// rewrite makes the metadata, and counts it.
func (p *Plan) rewrite(c Changes) (err error) {
	if p.Metadata, err = p.c.Rewrite(c); err != nil {
		return err
	}
	m, err := Parse(p.Metadata)
	if err != nil {
		return err
	}
	p.After.Handles = 0
	for range m.channelHandles() {
		p.After.Handles++
	}
	p.After.Metadata, p.After.Files = len(p.Metadata), len(p.Files)
	return nil
}

// namer returns a function that makes names that no file of the plan has.
func (p *Plan) namer() func(base string) string {
	taken := map[string]bool{MetadataName: true}
	for _, f := range p.Files {
		taken[f.Name] = true
	}
	n := 0
	return func(base string) string {
		for {
			n++
			if name := fmt.Sprintf("%s-%d", base, n); !taken[name] {
				taken[name] = true
				return name
			}
		}
	}
}

// carry plans to copy the files in the directory that other state lies in: they
// are named relative to it. Absolute paths stay what they are.
func (p *Plan) carry(ctx context.Context) error {
	absolute := map[string]bool{}
	copied := map[string]bool{}
	for i := range p.c.Operators {
		for j := range p.c.Operators[i].Subtasks {
			for h := range p.c.Operators[i].Subtasks[j].StateHandles() {
				for h.Kind() == KindKeyGroups {
					h = h.Inner()
				}
				switch h.Kind() {
				case KindFile, KindSegment:
					absolute[h.Path()] = true
				case KindRelativeFile:
					if err := p.copyFile(ctx, h, h.Path(), copied); err != nil {
						return err
					}
				}
			}
		}
	}
	if len(absolute) > 0 {
		p.note(inflight.SeverityInfo, CodeMovedPath, "%d files by absolute path stay where they are; the new checkpoint needs them: %s", len(absolute), slices.Min(slices.Collect(maps.Keys(absolute))))
	}
	return nil
}

// copyFile plans to copy the stream of h under name, once.
func (p *Plan) copyFile(ctx context.Context, h StreamHandle, name string, copied map[string]bool) error {
	if copied[name] {
		return nil
	}
	copied[name] = true
	r, err := p.c.openStream(ctx, h)
	if errors.Is(err, inflight.ErrNotExist) { // what the user has named is there
		err = &inflight.Error{Op: p.Verb, Object: path.Join(p.c.Dir, p.c.Name), Err: fmt.Errorf("%w: %w", inflight.ErrDamaged, err), Mend: "put the file back, or take an older checkpoint"}
	}
	if err != nil {
		return err
	}
	r.close()
	p.Files = append(p.Files, PlannedFile{Name: name, Size: r.size, Copy: h})
	return nil
}

func (p *Plan) note(sev inflight.Severity, code, format string, args ...any) {
	p.Notes = append(p.Notes, inflight.Finding{Severity: sev, Code: code, Object: path.Join(p.c.Dir, p.c.Name), Offset: -1, Text: fmt.Sprintf(format, args...)})
}

// Execute writes the new checkpoint into directory dir of dst, which must not
// exist. _metadata comes last: before it, there is no checkpoint. What
// was written is removed again when it fails.
func (p *Plan) Execute(ctx context.Context, dst backends.Backend, dir string) error {
	return into(ctx, p.Verb, dst, dir, func(t *target) (last string, content []byte, err error) {
		w := &planWriter{p: p, streams: map[int]*streamReader{}}
		defer w.close()
		for i := range p.Files {
			f := &p.Files[i]
			write := w.copy
			if f.Copy.IsNull() {
				write = w.state
			}
			if err := t.create(ctx, f.Name, f.Size, func(o io.Writer) error { return write(ctx, f, o) }); err != nil {
				return "", nil, err
			}
		}
		return MetadataName, p.Metadata, nil
	})
}

// Vacant answers ErrExist if there is anything in directory dir of dst, finished
// or not, or a file of that name, or the directory itself: an empty one may be
// somebody's who is about to write there. An empty directory is found where the
// store has such, and lets its parent be listed.
func Vacant(ctx context.Context, verb string, dst backends.Backend, dir string) error {
	taken := func(name string) error {
		return &inflight.Error{Op: verb, Object: name, Err: inflight.ErrExist, Mend: "give a directory that does not exist"}
	}
	if dir != "" {
		switch _, err := dst.Stat(ctx, dir); {
		case err == nil:
			return taken(dir)
		case !errors.Is(err, inflight.ErrNotExist):
			return err
		}
	}
	for info, err := range dst.List(ctx, backends.Below(dir)) {
		if err == nil {
			return taken(info.Name)
		}
		if !errors.Is(err, inflight.ErrNotExist) {
			return err
		}
	}
	for l, err := range dst.Leftovers(ctx, dir) {
		if err == nil {
			return taken(l.Name)
		}
		if !errors.Is(err, inflight.ErrNotExist) {
			return err
		}
	}
	if dir == "" {
		return nil
	}
	parent, base := path.Split(strings.TrimRight(dir, "/"))
	for name, err := range dst.Children(ctx, parent) {
		switch {
		case errors.Is(err, inflight.ErrNotExist), errors.Is(err, inflight.ErrPermission):
			return nil
		case err != nil:
			return err
		case name == base:
			return taken(dir)
		}
	}
	return nil
}

// target is a new directory that is being written.
type target struct {
	dst     backends.Backend
	dir     string
	written []string
}

// into writes the directory dir of dst, which must not exist: first what fn
// creates, then the one file that it returns.
func into(ctx context.Context, verb string, dst backends.Backend, dir string, fn func(t *target) (last string, content []byte, err error)) error {
	if err := Vacant(ctx, verb, dst, dir); err != nil {
		return err
	}
	t := &target{dst: dst, dir: dir}
	last, content, err := fn(t)
	if err == nil {
		err = dst.SyncNames(ctx, dir)
	}
	if err == nil {
		if err = writeFile(ctx, dst, path.Join(dir, last), content); err == nil {
			return dst.SyncNames(ctx, dir)
		}
		if errors.Is(err, inflight.ErrOutcomeUnknown) {
			return err // there may be a checkpoint: its files stay
		}
	}
	// A name that nobody has goes along, so that a store with folders removes the
	// empty one of a file that was given up.
	return errors.Join(err, dst.Remove(context.WithoutCancel(ctx), append(t.written, path.Join(dir, "none"))...))
}

// create writes one file.
func (t *target) create(ctx context.Context, name string, size int64, write func(io.Writer) error) error {
	name = path.Join(t.dir, name)
	o, err := t.dst.Create(ctx, name, backends.CreateOptions{Exclusive: true, SizeHint: size})
	if err != nil {
		return err
	}
	if err := write(o); err != nil {
		return errors.Join(err, o.Abort(context.WithoutCancel(ctx)))
	}
	_, err = o.Finish(ctx)
	if err == nil || errors.Is(err, inflight.ErrOutcomeUnknown) {
		t.written = append(t.written, name)
	}
	return err
}

// planWriter writes the files of a plan.
type planWriter struct {
	p       *Plan
	streams map[int]*streamReader
	kept    int64 // bytes of streams in memory
}

func (w *planWriter) close() {
	for _, r := range w.streams {
		r.close()
	}
}

func (w *planWriter) copy(ctx context.Context, f *PlannedFile, o io.Writer) error {
	r, err := w.p.c.openStream(ctx, f.Copy)
	if err != nil {
		return err
	}
	defer r.close()
	if r.size != f.Size {
		return &inflight.Error{Op: w.p.Verb, Object: f.Copy.String(), Err: fmt.Errorf("%w: it had %d bytes when the plan was made, and has %d", inflight.ErrCorrupt, f.Size, r.size)}
	}
	return r.pieces(ctx, func(p []byte) error {
		_, err := o.Write(p)
		return err
	})
}

// state writes a new channel-state file.
func (w *planWriter) state(ctx context.Context, f *PlannedFile, o io.Writer) error {
	sw := NewStateWriter(o)
	for i := range f.Chunks {
		if _, err := sw.Begin(int(f.Chunks[i].Length)); err != nil {
			return err
		}
		for _, part := range f.Chunks[i].Parts {
			if err := w.part(ctx, part, sw); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *planWriter) part(ctx context.Context, part Range, sw *StateWriter) error {
	r, err := w.stream(ctx, part.Stream)
	if err != nil {
		return err
	}
	for at, end := part.Offset, part.Offset+int64(part.Length); at < end; {
		if end > r.size {
			return &inflight.Error{Op: w.p.Verb, Object: r.name, Err: fmt.Errorf("%w: it is shorter than when the plan was made", inflight.ErrTorn)}
		}
		p, err := r.view(ctx, at, int(end-at), end)
		if err != nil {
			return err
		}
		if _, err := sw.Write(p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// stream returns the reader of stream i. Small ones are read as a whole, and as
// many stay open as fit into the memory bound.
func (w *planWriter) stream(ctx context.Context, i int) (*streamReader, error) {
	if r := w.streams[i]; r != nil {
		return r, nil
	}
	r, err := w.p.c.openStream(ctx, w.p.x.Streams[i].Handle)
	if err != nil {
		return nil, err
	}
	if r.data == nil && r.size <= wholeStream {
		err = r.load(ctx)
		r.close()
		if err != nil {
			return nil, err
		}
	}
	if w.kept += int64(len(r.data)); w.kept > cacheLimit || len(w.streams) >= maxOpenStreams {
		w.close()
		clear(w.streams)
		w.kept = int64(len(r.data))
	}
	w.streams[i] = r
	return r, nil
}

const maxOpenStreams = 32

// String returns the loss on one line.
func (l Loss) String() string {
	at := func(e *ChannelEnd) string {
		if e == nil {
			return "nothing"
		}
		return fmt.Sprintf("%s %s", e.Task, e.Address)
	}
	records := fmt.Sprintf("%d records", l.Records)
	if !l.RecordsKnown {
		records = fmt.Sprintf("at least %d records", l.Records)
	}
	return fmt.Sprintf("%s → %s: %d bytes in %d buffers, %s: %s", at(l.Output), at(l.Input), l.Bytes, l.Buffers, records, l.Reason)
}
