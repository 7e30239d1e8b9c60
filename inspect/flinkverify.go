package inspect

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// verifyFlink verifies the checkpoint of Flink in dir.
func (i *Inspector) verifyFlink(ctx context.Context, t *Target, job, dir string, o VerifyOptions) (*Verification, error) {
	vo := flink.VerifyOptions{OpenOptions: flink.OpenOptions{Moves: i.o.Moves, OpenURL: i.o.Open}}
	if o.Seal != "" {
		var err error
		if vo.Seal, err = i.readSeal(ctx, o.Seal); err != nil {
			return nil, err
		}
	}
	c, err := i.openFlink(ctx, t, dir)
	if err != nil {
		return i.verifyFlinkDamaged(ctx, t, dir, err, vo)
	}
	defer c.Close()
	line, err := i.flinkLine(ctx, job, c)
	if err != nil {
		return nil, err
	}
	i.o.Expect(int64(line.ChannelStateBytes))
	r, err := c.Verify(ctx, vo)
	if err != nil {
		return nil, err
	}
	qualifyFlink(c, r.Findings)
	v := &Verification{Name: line.title(), Findings: r.Findings, operators: operatorIDs(c)}
	for k := range r.Edges {
		e := &r.Edges[k]
		v.edges = append(v.edges, fmt.Sprintf("%s partition %d → %s gate %d", c.Label(e.From), e.Partition, c.Label(e.To), e.Gate))
	}
	sealed := "sealed"
	switch {
	case !r.Sealed:
		sealed = "not sealed"
		v.Findings = append(v.Findings, unsealed(dir, "no seal: Flink writes no checksums, so a changed byte in the value of a record, or in other state, cannot be found"))
	case !r.StateSealed && hasStateFiles(c):
		sealed = "sealed but for other state"
		v.Findings = append(v.Findings, unsealed(dir, "the seal is without the files of keyed and operator state: a changed byte in them cannot be found"))
	}
	v.summary = fmt.Sprintf("%s in %s and %s checked, %s; %s", size(r.Bytes), plural(int(r.Channels), "channel"), plural(int(r.Buffers), "buffer"), plural(len(r.Edges), "edge"), sealed)
	return v, nil
}

// qualifyFlink makes the objects of findings about files in the directory of c
// names on the store: there, they are named as the metadata does.
func qualifyFlink(c *flink.Checkpoint, findings []inflight.Finding) {
	relative := map[string]bool{}
	add := func(h flink.StreamHandle) {
		for h.Kind() == flink.KindKeyGroups {
			h = h.Inner()
		}
		relative[h.Path()] = h.Kind() == flink.KindRelativeFile
	}
	for k := range c.Operators {
		for j := range c.Operators[k].Subtasks {
			s := &c.Operators[k].Subtasks[j]
			for h := range s.StateHandles() {
				add(h)
			}
			for h := range s.Handles() {
				add(h.Delegate())
			}
		}
	}
	for k := range findings {
		if f := &findings[k]; relative[f.Object] {
			f.Object = path.Join(c.Dir, f.Object)
		}
	}
}

// unsealed says what verification cannot find.
func unsealed(dir, text string) inflight.Finding {
	return inflight.Finding{Severity: inflight.SeverityInfo, Code: CodeUnsealed, Object: dir, Offset: -1, Text: text}
}

// hasStateFiles reports whether keyed or operator state lies in files: what is
// inline is part of _metadata.
func hasStateFiles(c *flink.Checkpoint) bool {
	for k := range c.Operators {
		for j := range c.Operators[k].Subtasks {
			for h := range c.Operators[k].Subtasks[j].StateHandles() {
				for h.Kind() == flink.KindKeyGroups {
					h = h.Inner()
				}
				if h.Path() != "" {
					return true
				}
			}
		}
	}
	return false
}

// verifyFlinkDamaged says what is wrong with metadata that cannot be read.
func (i *Inspector) verifyFlinkDamaged(ctx context.Context, t *Target, dir string, why error, o flink.VerifyOptions) (*Verification, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	v := &Verification{Name: "Flink checkpoint in " + dir}
	if errors.Is(why, ErrNotCheckpoint) {
		if t.Kind != TargetCheckpoint {
			return nil, why
		}
		line, _, err := i.flinkSlot(ctx, t, "", dir)
		if err != nil || line.State != catalog.StatePending {
			return nil, why
		}
		return slotVerification(&line), nil
	}
	if ExitCode(why) != ExitFindings {
		return nil, why
	}
	v.Findings = []inflight.Finding{i.flinkFinding(t, why, dir)}
	if r, err := flink.Verify(ctx, t.Backend, dir, o); err == nil { // it knows whether there is a seal
		v.Findings = r.Findings
	} else if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return v, nil
}

// verifyFlinkJob verifies all checkpoints of a job of Flink.
func (i *Inspector) verifyFlinkJob(ctx context.Context, t *Target, job string, o VerifyOptions, report func(*Verification) error) error {
	lines, _, err := i.listFlink(ctx, t, job)
	if err != nil {
		return err
	}
	for k := range lines {
		l := &lines[k]
		v := slotVerification(l)
		if l.State != catalog.StatePending {
			one := *t
			one.Flink = true
			v, err = i.verifyFlink(ctx, t, job, l.Dir, o)
			if (gone(t, err) || err == nil && lacks(v.Findings, nil)) && i.retired(ctx, &one, job, l.Dir) {
				continue
			}
			if err != nil {
				return err
			}
		}
		if err := report(v); err != nil {
			return err
		}
	}
	return nil
}

// readSeal reads the seal at a path or URL.
func (i *Inspector) readSeal(ctx context.Context, name string) (*flink.Seal, error) {
	parent, base := splitURL(name)
	if base == "" {
		return nil, fail("open", name, fmt.Errorf("%w: it has no name", inflight.ErrConfig), "name the file of a seal")
	}
	b, err := i.o.Open(ctx, parent)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	s, err := flink.ReadSeal(ctx, b, base)
	if errors.Is(err, inflight.ErrMismatch) {
		err = fail("open", name, fmt.Errorf("%w: it is no seal", inflight.ErrConfig), "name what flink seal has written")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}
