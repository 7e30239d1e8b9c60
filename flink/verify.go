package flink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// VerifyOptions are the options of Verify.
type VerifyOptions struct {
	OpenOptions
	// Edges of the job graph, where they are known. Others are inferred.
	Edges []Edge
	// NoSeal: a seal beside the checkpoint is not looked at.
	NoSeal bool
	// Seal to compare with, instead of the one beside the checkpoint.
	Seal *Seal
}

// Report is what Verify found.
type Report struct {
	Findings []inflight.Finding
	// Edges are those given and those inferred.
	Edges []Edge
	// Sealed: there was a seal, and checksums were compared with it. StateSealed:
	// those of the files of keyed and operator state too.
	Sealed, StateSealed bool
	// Index lists the channels; the lengths of chunks that could be read are known.
	Index *Index
	// Channels, Buffers and Bytes count what could be read.
	Channels, Buffers, Bytes int64
	// Contents, in the order of Index.Channels, and Connections say it one by one.
	// Only Scan fills them.
	Contents    []Contents
	Connections []Connection
}

// Verify checks the checkpoint in directory dir on b, as far as its structure
// says what is right: everything in _metadata, that files are there and as long
// as they should be, that chunks lie side by side, and that every connection is
// whole stream elements. Where a seal lies beside the checkpoint, checksums are
// compared as well; without one, a changed byte in a record's value is not
// found.
//
// It never stops at the first finding. An error means that ctx has ended, or
// that the store does not give the metadata.
func Verify(ctx context.Context, b backends.Backend, dir string, o VerifyOptions) (*Report, error) {
	c, err := Open(ctx, b, dir, o.OpenOptions)
	var bad *FormatError
	if errors.As(err, &bad) {
		r := &Report{Findings: []inflight.Finding{bad.Finding(path.Join(dir, MetadataName))}}
		return r, r.sealOfDamaged(ctx, b, dir, o)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Verify(ctx, o)
}

// Verify is Verify for a checkpoint that is open; the OpenOptions are not looked
// at.
func (c *Checkpoint) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	v := c.newVerifier()
	v.metadata()
	v.index()
	if err := v.stateFiles(ctx); err != nil {
		return nil, err
	}
	if err := v.foreign(ctx); err != nil {
		return nil, err
	}
	seal, err := v.sealOf(ctx, o)
	if err != nil {
		return nil, err
	}
	s := c.newScan(v.x, slices.Clone(o.Edges))
	s.sums = seal != nil
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	v.sizes(s)
	v.findings = append(v.findings, s.findings...)
	if seal != nil {
		if err := v.compare(ctx, seal, s); err != nil {
			return nil, err
		}
	}
	sortFindings(v.findings)
	r := s.report()
	r.Findings, r.Sealed = v.findings, seal != nil
	r.StateSealed = seal != nil && len(seal.Files) > 0
	return r, nil
}

// sortFindings orders findings by where they are.
func sortFindings(list []inflight.Finding) {
	address := func(f *inflight.Finding) (a inflight.Address) {
		if f.Address != nil {
			a = *f.Address
		}
		return a
	}
	slices.SortStableFunc(list, func(a, b inflight.Finding) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Code, b.Code),
			address(&a).Compare(address(&b)), cmp.Compare(a.Text, b.Text))
	})
}

// verifier collects findings.
type verifier struct {
	c        *Checkpoint
	x        *Index
	meta     string
	findings []inflight.Finding
}

func (c *Checkpoint) newVerifier() *verifier {
	return &verifier{c: c, meta: path.Join(c.Dir, c.Name), x: c.Index()}
}

func (v *verifier) find(sev inflight.Severity, code string, offset int, format string, args ...any) *inflight.Finding {
	f := inflight.Finding{Severity: sev, Code: code, Object: v.meta, Offset: int64(offset), Text: fmt.Sprintf(format, args...)}
	if sev == inflight.SeverityError {
		f.Err = inflight.ErrCorrupt
	}
	v.findings = append(v.findings, f)
	return &v.findings[len(v.findings)-1]
}

// metadata checks what concerns no single channel.
func (v *verifier) metadata() {
	v.checkpointID()
	for _, odd := range v.c.odd {
		v.find(inflight.SeverityWarning, CodeMetadata, int(odd.Offset), "%s", odd.Text)
	}
	p := v.properties()
	seen := map[OperatorID]bool{}
	for i := range v.c.Operators {
		o := &v.c.Operators[i]
		if seen[o.ID] {
			v.find(inflight.SeverityError, CodeOperator, o.at, "operator %s is there twice", o.ID)
		}
		seen[o.ID] = true
		if o.UID != "" && OperatorIDOf(o.UID) != o.ID {
			v.find(inflight.SeverityWarning, CodeOperator, o.at, "operator %s has uid %q, which belongs to id %s", o.ID, o.UID, OperatorIDOf(o.UID))
		}
		if o.Parallelism == 0 {
			v.find(inflight.SeverityError, CodeOperator, o.at, "operator %s has no subtasks", o.ID)
		}
		if o.MaxParallelism > maxParallelism {
			v.find(inflight.SeverityWarning, CodeOperator, o.at, "max parallelism %d; Flink has at most %d", o.MaxParallelism, maxParallelism)
		}
		v.operator(o, p)
	}
}

// maxParallelism is the largest that Flink allows.
const maxParallelism = 1 << 15

func (v *verifier) checkpointID() {
	if id, ok := strings.CutPrefix(path.Base(v.c.Dir), "chk-"); ok {
		if n, err := strconv.ParseUint(id, 10, 64); err == nil && inflight.CheckpointID(n) != v.c.CheckpointID {
			v.find(inflight.SeverityWarning, CodeCheckpointID, 8, "checkpoint %d in a directory named chk-%s", v.c.CheckpointID, id)
		}
	}
}

func (v *verifier) properties() *Properties {
	end := v.c.tail
	p, err := v.c.Properties()
	var bad *FormatError
	if errors.As(err, &bad) {
		v.findings = append(v.findings, bad.Finding(v.meta))
		return nil
	}
	if p != nil {
		end = p.end
		if text, fatal := p.problem(v.c.raw[v.c.tail:end]); fatal {
			v.find(inflight.SeverityError, CodeProperties, v.c.tail, "%s", text)
		} else if text != "" {
			v.find(inflight.SeverityWarning, CodeProperties, v.c.tail, "%s", text)
		}
		if p.Null && strings.HasPrefix(path.Base(v.c.Dir), "savepoint-") {
			v.find(inflight.SeverityWarning, CodeSavepoint, v.c.tail, "a savepoint without its properties: Flink takes it for a checkpoint, and in CLAIM mode may delete files that later checkpoints use")
		}
	}
	if end < len(v.c.raw) {
		v.find(inflight.SeverityWarning, CodeTrailing, end, "%d bytes behind the end, which Flink does not look at", len(v.c.raw)-end)
	}
	return p
}

func (v *verifier) operator(o *Operator, p *Properties) {
	seen := map[int]bool{}
	savepoint := p != nil && p.Savepoint
	for i := range o.Subtasks {
		s := &o.Subtasks[i]
		if seen[s.Index] {
			v.find(inflight.SeverityError, CodeSubtask, s.at, "subtask %d of %s is there twice: Flink takes one of them", s.Index, name(o))
		}
		seen[s.Index] = true
		if savepoint && len(s.Input)+len(s.Output) > 0 {
			v.find(inflight.SeverityError, CodeSavepoint, s.span, "channel state of %s/%d in a savepoint, which is always aligned", name(o), s.Index)
		}
		if savepoint && p.Format == "CANONICAL" && s.ManagedKeyed != nil && s.ManagedKeyed.Kind != KeyedSavepoint {
			v.find(inflight.SeverityWarning, CodeSavepoint, s.ManagedKeyed.at, "keyed state of %s/%d is a %s in a canonical savepoint", name(o), s.Index, s.ManagedKeyed.Kind)
		}
		for _, k := range []*KeyedState{s.ManagedKeyed, s.RawKeyed} {
			if k != nil {
				v.keyed(o, s, k)
			}
		}
		for _, st := range []*OperatorState{s.ManagedOperator, s.RawOperator} {
			if st != nil {
				v.operatorState(o, s, st)
			}
		}
	}
	if n := len(seen); n > 0 && n < o.Parallelism {
		v.find(inflight.SeverityWarning, CodeSubtask, o.at, "%d of %d subtasks of %s are there", n, o.Parallelism, name(o))
	}
}

// keyed checks key groups against what subtask s owns.
func (v *verifier) keyed(o *Operator, s *Subtask, k *KeyedState) {
	first := (s.Index*o.MaxParallelism + o.Parallelism - 1) / o.Parallelism
	last := ((s.Index+1)*o.MaxParallelism - 1) / o.Parallelism
	if end := k.FirstKeyGroup + k.KeyGroups - 1; k.FirstKeyGroup != first || end != last {
		v.find(inflight.SeverityWarning, CodeKeyGroups, k.at, "key groups %d to %d of %s/%d, which owns %d to %d", k.FirstKeyGroup, end, name(o), s.Index, first, last)
	}
	if size := k.Delegate.Size(); !k.Delegate.IsNull() && size >= 0 {
		for offset := range k.Offsets.All() {
			if offset < -1 || offset > size {
				v.find(inflight.SeverityError, CodeStateOffset, k.at, "a key group of %s/%d at %d of %d bytes", name(o), s.Index, offset, size)
			}
		}
	}
	for _, list := range [][]*KeyedState{k.Base, k.Deltas} {
		for _, n := range list {
			if n != nil {
				v.keyed(o, s, n)
			}
		}
	}
}

func (v *verifier) operatorState(o *Operator, s *Subtask, st *OperatorState) {
	size := st.Delegate.Size()
	if st.Merging && st.Empty != (st.Delegate.Kind() == KindEmptySegment) {
		v.find(inflight.SeverityWarning, CodeStateOffset, st.at, "operator state of %s/%d is said to be empty or not, and is not so", name(o), s.Index)
	}
	for _, n := range st.States {
		for offset := range n.Offsets.All() {
			if offset < 0 || size >= 0 && offset > size {
				v.find(inflight.SeverityError, CodeStateOffset, st.at, "a part of state %q of %s/%d at %d of %d bytes", n.Name, name(o), s.Index, offset, size)
			}
		}
	}
}

// index checks the channel handles against each other.
func (v *verifier) index() {
	for _, d := range v.x.Damaged {
		f := d.Err.Finding(v.meta)
		f.Task = &d.Task
		v.findings = append(v.findings, f)
	}
	for i := range v.x.Streams {
		if s := &v.x.Streams[i]; s.Differs {
			code := CodeWrongSize
			if s.Handle.Kind() == KindByteStream {
				code = CodeInlineName
			}
			v.find(inflight.SeverityError, code, s.Handle.at, "handles that Flink takes for one stream differ: %s", s.Handle)
		}
	}
	most := 0
	for i := range v.c.Operators {
		most = max(most, v.c.Operators[i].Parallelism)
	}
	type channel struct {
		subtask int
		address inflight.Address
	}
	seen := map[channel]bool{} // of one subtask: the list is in their order
	for i := range v.x.Channels {
		c := &v.x.Channels[i]
		if i > 0 && (c.Operator != v.x.Channels[i-1].Operator || c.Task != v.x.Channels[i-1].Task) {
			clear(seen)
		}
		k := channel{c.Subtask, c.Address}
		if seen[k] {
			v.channel(c, inflight.SeverityError, CodeDuplicateChannel, "the channel has two handles: Flink fails on it")
		}
		seen[k] = true
		v.oneChannel(c, most)
	}
	for h := range v.c.channelHandles() {
		v.handle(h)
	}
}

func (v *verifier) channel(c *ChannelState, sev inflight.Severity, code, format string, args ...any) {
	f := v.find(sev, code, c.at, format, args...)
	f.Task, f.Address = &c.Task, &c.Address
}

func (v *verifier) oneChannel(c *ChannelState, most int) {
	own, other := c.Address.Input.Gate, c.Address.Input.Channel
	if c.Address.Side == inflight.Output {
		own, other = c.Address.Output.Partition, c.Address.Output.Subpartition
	}
	if own < 0 || own >= maxPorts || other < 0 || other >= most {
		v.channel(c, inflight.SeverityError, CodeChannelIndex, "no such channel: no operator has more than %d subtasks", most)
	}
	if c.Subtask != c.Task.Subtask {
		v.channel(c, inflight.SeverityError, CodeChannelSubtask, "the handle says that subtask %d wrote it: a restore with another parallelism fails", c.Subtask)
	}
	if c.Offsets.Len() == 0 {
		v.channel(c, inflight.SeverityWarning, CodeEmptyHandle, "a channel without chunks")
	}
}

// maxPorts is how many gates or partitions a task may have before it is taken
// for damage.
const maxPorts = 1 << 10

// handle checks a channel handle against its list.
func (v *verifier) handle(h ChannelHandle) {
	var sum int64
	n := 0
	for c, err := range h.Channels() {
		if err != nil {
			return // it is in Index.Damaged
		}
		sum += c.StateSize
		n++
	}
	if n == 0 {
		v.find(inflight.SeverityWarning, CodeEmptyHandle, h.at, "a channel handle without channels")
	}
	if h.Merged && sum != h.StateSize() {
		v.find(inflight.SeverityWarning, CodeStateSize, h.at, "the handle counts %d bytes, its channels %d", h.StateSize(), sum)
	}
	if rest := h.listRest(); rest > 0 {
		v.find(inflight.SeverityWarning, CodeMergedHandle, h.at, "%d bytes behind the last channel of a merged handle, which Flink does not look at", rest)
	}
}

// sizes checks the state sizes against what was read.
func (v *verifier) sizes(s *scan) {
	for i := range v.x.Channels {
		c, ch := &v.x.Channels[i], &s.channels[i]
		if ch.unread || s.streams[c.Stream].broken {
			continue
		}
		want := ch.bytes + lengthSize*ch.chunks
		if v.x.Streams[c.Stream].Handle.Kind() == KindByteStream && c.StateSize == want+headerSize {
			continue // Flink counts the header of inline state
		}
		if c.StateSize != want {
			v.channel(c, inflight.SeverityWarning, CodeStateSize, "the handle says %d bytes, its chunks take %d", c.StateSize, want)
		}
	}
}

// stateFiles checks that the files of all handles are there, and their sizes.
func (v *verifier) stateFiles(ctx context.Context) error {
	seen := map[string]bool{}
	var segments []StreamHandle
	defer func() { v.segments(segments) }()
	check := func(h StreamHandle, channel bool) error {
		for h.Kind() == KindKeyGroups {
			h = h.Inner()
		}
		switch h.Kind() {
		case KindFile, KindRelativeFile, KindSegment:
		default:
			return nil
		}
		if seen[string(h.raw)] {
			return nil
		}
		seen[string(h.raw)] = true
		if h.Kind() == KindSegment {
			segments = append(segments, h)
		}
		f, err := v.c.Locate(ctx, h)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if !channel { // of channel state, the scan says it
				v.findings = append(v.findings, fileFinding(h, err))
			}
			return nil
		}
		v.file(h, f)
		return nil
	}
	for i := range v.c.Operators {
		for j := range v.c.Operators[i].Subtasks {
			s := &v.c.Operators[i].Subtasks[j]
			for h := range s.StateHandles() {
				if err := check(h, false); err != nil {
					return err
				}
			}
			for h := range s.Handles() {
				if err := check(h.Delegate(), true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// segments looks for segments of one file that share bytes.
func (v *verifier) segments(list []StreamHandle) {
	slices.SortStableFunc(list, func(a, b StreamHandle) int {
		return cmp.Or(strings.Compare(a.Path(), b.Path()), cmp.Compare(a.StartPos(), b.StartPos()))
	})
	for i := 1; i < len(list); i++ {
		a, b := list[i-1], list[i]
		if a.Path() == b.Path() && a.StartPos()+a.Size() > b.StartPos() && b.Size() > 0 && (a.StartPos() != b.StartPos() || a.Size() != b.Size()) {
			v.find(inflight.SeverityError, CodeSegmentOverlap, b.at, "segments of %s share bytes: %d from %d on, %d from %d on", b.Path(), a.Size(), a.StartPos(), b.Size(), b.StartPos())
		}
	}
}

func (v *verifier) file(h StreamHandle, f File) {
	if f.Moved {
		v.findings = append(v.findings, inflight.Finding{Severity: inflight.SeverityError, Code: CodeMovedPath, Object: h.String(), Offset: -1,
			Text: "the file is not where its path leads, but at " + f.Name + ": Flink will not find it", Err: inflight.ErrNotExist})
	}
	text := ""
	switch size := h.Size(); {
	case h.Kind() == KindSegment && (h.StartPos() < 0 || size < 0 || h.StartPos() > f.Info.Size-size):
		text = fmt.Sprintf("a segment of %d bytes at %d in a file of %d", size, h.StartPos(), f.Info.Size)
	case h.Kind() != KindSegment && size >= 0 && size != f.Info.Size:
		text = fmt.Sprintf("a file of %d bytes; the handle says %d", f.Info.Size, size)
	}
	if text != "" {
		v.findings = append(v.findings, inflight.Finding{Severity: inflight.SeverityError, Code: CodeWrongSize, Object: h.String(), Offset: -1, Text: text, Err: inflight.ErrCorrupt})
	}
}

// foreign looks for files in the directory that nothing refers to: Flink removes
// the directory of a checkpoint only when it is empty.
func (v *verifier) foreign(ctx context.Context) error {
	mine := map[string]bool{path.Join(v.c.Dir, v.c.Name): true}
	v.c.mu.Lock()
	for _, f := range v.c.found {
		if f.err == nil && f.file.Backend == v.c.places.home {
			mine[f.file.Name] = true
		}
	}
	v.c.mu.Unlock()
	for child, err := range v.c.places.home.Children(ctx, v.c.Dir) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			v.find(inflight.SeverityWarning, CodeUnreadable, -1, "the directory cannot be listed: %v", err)
			return nil
		}
		if full := path.Join(v.c.Dir, child); !mine[full] {
			v.findings = append(v.findings, inflight.Finding{Severity: inflight.SeverityWarning, Code: CodeForeignFile, Object: full, Offset: -1,
				Text: "nothing refers to it: Flink cannot remove the directory as long as it is there", Err: inflight.ErrForeign})
		}
	}
	return nil
}
