package flink

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/spillway-io/spillway/inflight"
)

// RelocateOptions are the options of PlanRelocate.
type RelocateOptions struct {
	// Paths: absolute paths below From get the prefix To instead, and what they
	// lead to stays where it is: for trees that were moved, or will be. None: the
	// files that absolute paths lead to are copied into the new directory and named
	// relative to it, so that it can be moved anywhere.
	Paths  []Move
	Verify VerifyOptions
}

// PlanRelocate plans to give a checkpoint other paths. Names of inline handles
// look like paths, and stay: they lead nowhere.
//
// State of file merging becomes plain state when it is copied, since its handles
// know absolute paths only.
//
// It reads nothing, but what a seal covers: that must be as it was sealed.
func (c *Checkpoint) PlanRelocate(ctx context.Context, o RelocateOptions) (*Plan, error) {
	notes, err := c.surveySealed(ctx, "relocate", o.Verify, true)
	if err != nil {
		return nil, err
	}
	p := c.bare("relocate", c.Index())
	p.Notes = notes
	r := &relocation{p: p, o: o, names: map[string]string{}, copied: map[string]bool{}, unfit: map[string]bool{}}
	for _, relative := range []bool{true, false} { // those have their names already
		for i := range c.Operators {
			for j := range c.Operators[i].Subtasks {
				s := &c.Operators[i].Subtasks[j]
				for h := range s.StateHandles() {
					r.handle(ctx, h, relative)
				}
				for h := range s.Handles() {
					r.handle(ctx, h.Delegate(), relative)
				}
			}
		}
	}
	p.Before.Files = len(p.Files)
	for i := range p.x.Channels { // what the handles say: without a seal nothing is read
		ch := &p.x.Channels[i]
		n := int64(ch.Offsets.Len())
		p.Before.Buffers += n
		p.Before.Bytes += ch.payload(p.x.Streams[ch.Stream].Handle)
	}
	p.After = p.Before
	if r.err != nil {
		return nil, r.err
	}
	err = p.rewrite(Changes{Handle: r.renamed, Operator: r.operator})
	if r.err != nil {
		err = r.err
	}
	return p, err
}

type relocation struct {
	p      *Plan
	o      RelocateOptions
	names  map[string]string // of what is copied into the directory, by the bytes of its handle
	copied map[string]bool
	unfit  map[string]bool // absolute paths that no prefix fits
	err    error
}

// handle plans to copy what h leads to, if it is to lie in the directory.
func (r *relocation) handle(ctx context.Context, h StreamHandle, relative bool) {
	for h.Kind() == KindKeyGroups {
		h = h.Inner()
	}
	name := ""
	if relative != (h.Kind() == KindRelativeFile) {
		return
	}
	switch h.Kind() {
	case KindRelativeFile:
		name = h.Path()
	case KindFile, KindSegment:
		if len(r.o.Paths) > 0 || r.names[h.Key()] != "" {
			return
		}
		name = r.free(h)
		r.names[h.Key()] = name
	default:
		return
	}
	if err := r.p.copyFile(ctx, h, name, r.copied); err != nil && r.err == nil {
		r.err = err
	}
}

// free returns a name for the copy of h: that of its file, if it is free.
func (r *relocation) free(h StreamHandle) string {
	base := path.Base(h.Path())
	if h.Kind() == KindSegment {
		base = fmt.Sprintf("%s-%d", base, h.StartPos())
	}
	for n, name := 1, base; ; n++ {
		if !r.copied[name] && name != MetadataName {
			return name
		}
		name = fmt.Sprintf("%s.%d", base, n)
	}
}

// renamed returns the handle that takes the place of h.
func (r *relocation) renamed(h StreamHandle) (StreamHandle, bool) {
	var n StreamHandle
	var err error
	switch h.Kind() {
	case KindFile, KindSegment:
	case KindKeyGroups:
		inner, changed := r.renamed(h.Inner())
		outer := h.raw[:len(h.raw)-len(h.Inner().raw)]
		return StreamHandle{raw: append(append([]byte{}, outer...), inner.raw...)}, changed
	default:
		return h, false
	}
	switch to, ok := r.moved(h.Path()); {
	case r.names[h.Key()] != "":
		n, err = NewRelativeFile(r.names[h.Key()], h.Size())
	case !ok:
		if !r.unfit[h.Path()] {
			r.unfit[h.Path()] = true
			r.p.note(inflight.SeverityWarning, CodeMovedPath, "no prefix fits %s: it stays", h.Path())
		}
		return h, false
	case h.Kind() == KindFile:
		n, err = NewFile(to, h.Size())
	default:
		n, err = NewSegment(to, h.StartPos(), h.Size(), h.Scope(), h.LogicalID())
	}
	if err != nil && r.err == nil {
		r.err = err
	}
	return n, err == nil
}

// moved returns the path that takes the place of p.
func (r *relocation) moved(p string) (string, bool) {
	for _, m := range r.o.Paths {
		from := strings.TrimRight(m.From, "/")
		if rest, ok := strings.CutPrefix(p, from); ok && (rest == "" || rest[0] == '/') {
			return strings.TrimRight(m.To, "/") + rest, true
		}
	}
	return p, false
}

// operator rewrites operator state of file merging: its directories are absolute
// too.
func (r *relocation) operator(s *OperatorState) (*OperatorState, bool) {
	if !s.Merging {
		return nil, false
	}
	n := *s
	if len(r.o.Paths) == 0 {
		if s.Empty {
			return nil, true // it only keeps directories alive
		}
		n.Merging = false
		n.Delegate, _ = r.renamed(s.Delegate)
		return &n, true
	}
	n.TaskOwnedDir, _ = r.moved(s.TaskOwnedDir)
	n.SharedDir, _ = r.moved(s.SharedDir)
	n.Delegate, _ = r.renamed(s.Delegate)
	return &n, true
}
