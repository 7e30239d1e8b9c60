package reader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// The codes of findings about a checkpoint as a whole.
const (
	CodeUnreadable   = "unreadable"
	CodeUnlistedFile = "unlisted-file"
	CodeMismatch     = "mismatch"
)

// VerifyOptions are the options of Checkpoint.Verify.
type VerifyOptions struct {
	// Records also counts records that stand behind their big-endian int32
	// length, so that the account is proven in records too. Channel state is
	// read a second time for it.
	Records bool
	// Progress is told how many bytes of files have been read of how many. It
	// may be nil.
	Progress func(done, total int64)
}

// Report is what verification found.
type Report struct {
	Findings []inflight.Finding
	Flows    []Flow // the conservation account, of a checkpoint
	Bytes    int64  // of files that were read
}

// Failed reports whether a finding is an error.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f inflight.Finding) bool { return f.Severity == inflight.SeverityError })
}

// verifier collects findings.
type verifier struct {
	Report
	r    *Reader
	seen map[place]bool // damage of blocks that was reported with the file
}

type place struct {
	object string
	offset int64
}

func (v *verifier) report(f inflight.Finding) { v.Findings = append(v.Findings, f) }

// fault reports err about object, and task if it concerns one.
func (v *verifier) fault(object string, t *inflight.Task, err error) {
	f := inflight.Finding{Severity: inflight.SeverityError, Code: CodeUnreadable, Object: object, Offset: -1, Task: t, Text: err.Error(), Err: err}
	if fe := (*format.FormatError)(nil); errors.As(err, &fe) {
		f.Code, f.Offset, f.Text = fe.Code, fe.Offset, fe.Text
	} else if errors.Is(err, inflight.ErrNotExist) {
		f.Code, f.Text = format.CodeMissingFile, "the file is not there"
	} else if errors.Is(err, inflight.ErrMismatch) {
		f.Code = CodeMismatch
	}
	v.report(f)
}

// Verify checks everything there is to check about c: each byte of each file,
// each handle and reference, that no subtask is missing, and the conservation
// account. It never stops at the first finding, and takes memory for the index
// of one file and the totals of all channels. An error means that ctx has ended.
func (c *Checkpoint) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	v := &verifier{r: c.r, seen: map[place]bool{}}
	if err := v.files(ctx, c, o.Progress); err != nil {
		return nil, err
	}
	e := Evidence{Topology: c.Manifest.Topology, Finished: c.Manifest.Finished, State: map[inflight.Task][]Entry{}}
	for _, h := range c.Manifest.Handles {
		entries, err := v.handle(ctx, c, h)
		if err != nil {
			return nil, err
		}
		if entries != nil {
			e.State[h.Task] = entries
		}
	}
	for _, t := range c.Manifest.Missing() {
		severity := inflight.SeverityError
		if c.Manifest.Partial {
			severity = inflight.SeverityInfo
		}
		v.report(inflight.Finding{Severity: severity, Code: format.CodeMissingSubtask, Object: c.Dir, Offset: -1, Task: &t, Text: "the checkpoint has no state of this subtask", Err: inflight.ErrIncomplete})
	}
	if o.Records {
		var err error
		if err = v.records(ctx, c, &e); err != nil {
			return nil, err
		}
	}
	v.Flows = e.Prove()
	for i := range v.Flows {
		if f := &v.Flows[i]; f.Verdict == Violated {
			v.report(f.Finding(c.Dir))
		}
	}
	return &v.Report, nil
}

// files scans the files that the manifest lists.
func (v *verifier) files(ctx context.Context, c *Checkpoint, progress func(done, total int64)) error {
	for i := range c.Manifest.Files {
		m := &c.Manifest.Files[i]
		f, err := v.r.scan(ctx, c.resolve(m.Name), format.FileRef{Name: m.Name, FileID: m.FileID})
		if ctx.Err() != nil {
			return fail("verify", m.Name, ctx.Err())
		}
		if err != nil {
			v.fault(m.Name, nil, err)
			continue
		}
		if m.Size > 0 && f.Size != m.Size {
			v.report(inflight.Finding{Severity: inflight.SeverityError, Code: format.CodeWrongSize, Object: m.Name, Offset: -1, Err: inflight.ErrCorrupt,
				Text: fmt.Sprintf("the file has %d bytes, the manifest says %d", f.Size, m.Size)})
		}
		for _, n := range f.Findings {
			v.report(n)
			v.seen[place{n.Object, n.Offset}] = true
		}
		if v.Bytes += f.Size; progress != nil {
			progress(v.Bytes, max(v.Bytes, c.Manifest.FileBytes()))
		}
	}
	return nil
}

// handle checks one handle, and returns what its subtask had captured; nil if
// that cannot be told.
func (v *verifier) handle(ctx context.Context, c *Checkpoint, h inflight.Handle) ([]Entry, error) {
	s, err := v.r.subtask(ctx, h, c.resolve)
	if ctx.Err() != nil {
		return nil, fail("verify", h.Task.String(), ctx.Err())
	}
	if err != nil {
		v.fault(objectOf(err, c.Dir), &h.Task, err)
		return nil, nil
	}
	defer s.Close()
	own := map[string]bool{}
	for _, seg := range h.Segments {
		own[seg.File] = true
	}
	foreign := false
	for _, f := range s.files[len(h.Segments):] {
		foreign = true
		if c.Manifest.File(f.ref.Name) == nil {
			v.report(inflight.Finding{Severity: inflight.SeverityError, Code: CodeUnlistedFile, Object: f.ref.Name, Offset: -1, Task: &h.Task, Err: inflight.ErrCorrupt,
				Text: "the subtask refers to bytes of this file, and the manifest does not list it: garbage collection may delete it"})
		}
	}
	// The scan of a file has checked the bytes of all that lies in it alone.
	if foreign || len(own) > 1 {
		if err := v.read(ctx, s); err != nil {
			return nil, err
		}
	}
	return slices.AppendSeq(make([]Entry, 0, s.Len()), s.Entries()), nil
}

// objectOf returns the file that err is about.
func objectOf(err error, otherwise string) string {
	if e := (*inflight.Error)(nil); errors.As(err, &e) && e.Object != "" {
		return e.Object
	}
	return otherwise
}

// read reads all that s has, and reports what cannot be read.
func (v *verifier) read(ctx context.Context, s *Subtask) error {
	c := s.cursor(nil, nil)
	c.full = true
	c.skip = func(b *block, extents []int, err error) {
		if v.seen[place{b.f.ref.Name, b.ref.Offset}] {
			return
		}
		told := map[int32]bool{}
		for _, i := range extents {
			x := &s.extents[i]
			if told[x.entry] {
				continue
			}
			told[x.entry] = true
			n := len(v.Findings)
			v.fault(b.f.ref.Name, &s.Task, err)
			v.Findings[n].Address = &s.entries[x.entry].Address
			v.Findings[n].Text += ": " + format.MissingText(x.Extent, s.entries[x.entry].Address)
		}
	}
	s.begin(c)
	var failed error
	c.run(ctx, func(_ *Batch, err error) bool {
		failed = err
		return err == nil
	})
	return failed
}

// VerifyHandle checks what h names: its sections, and every byte that was
// captured. An error means that ctx has ended.
func (r *Reader) VerifyHandle(ctx context.Context, h inflight.Handle) (*Report, error) {
	v := &verifier{r: r}
	s, err := r.Subtask(ctx, h)
	if ctx.Err() != nil {
		return nil, fail("verify", h.Task.String(), ctx.Err())
	}
	if err != nil {
		v.fault(objectOf(err, h.Task.String()), &h.Task, err)
		return &v.Report, nil
	}
	defer s.Close()
	for i := range s.entries {
		v.Bytes += int64(s.entries[i].Bytes)
	}
	return &v.Report, v.read(ctx, s)
}

// VerifyFile checks every byte of a bare file. An error means that ctx has
// ended, or that there is no such file.
func (r *Reader) VerifyFile(ctx context.Context, name string) (*Report, error) {
	f, err := r.File(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Report{Findings: f.Findings, Bytes: f.Size}, nil
}

// records counts the records in flight on every connection: the input part of
// all first, the output part then, since a record may begin in the one and end
// in the other.
func (v *verifier) records(ctx context.Context, c *Checkpoint, e *Evidence) error {
	counters := map[Connection]*RecordCounter{}
	p := prover{Evidence: *e, ends: map[Connection]*ends{}}
	e.Unread = map[Connection]bool{}
	for _, side := range []inflight.Side{inflight.Input, inflight.Output} {
		for _, h := range c.Manifest.Handles {
			if e.State[h.Task] == nil || side == inflight.Input && h.InputBytes == 0 || side == inflight.Output && h.OutputBytes == 0 {
				continue
			}
			whole, err := v.countRecords(ctx, c, h, side, p.connection, counters)
			if err != nil {
				return err
			}
			for i := range e.State[h.Task] {
				x := &e.State[h.Task][i]
				if k, why := p.connection(h.Task, x.Address); !whole && why == "" && x.Address.Side == side && x.Bytes > 0 {
					e.Unread[k] = true
				}
			}
		}
	}
	e.Records = make(map[Connection]RecordCount, len(counters))
	for k, n := range counters {
		e.Records[k] = n.Count()
	}
	return nil
}

// countRecords counts one side of one subtask, and reports whether all of it
// could be read. What could not has been reported before.
func (v *verifier) countRecords(ctx context.Context, c *Checkpoint, h inflight.Handle, side inflight.Side, of func(inflight.Task, inflight.Address) (Connection, string), counters map[Connection]*RecordCounter) (whole bool, err error) {
	s, err := v.r.subtask(ctx, h, c.resolve)
	if err != nil {
		return false, ctx.Err()
	}
	defer s.Close()
	var last inflight.Address
	var n *RecordCounter
	for b, err := range s.Buffers(ctx, side) {
		if err != nil {
			return false, ctx.Err()
		}
		if n == nil || b.Address != last {
			k, why := of(h.Task, b.Address)
			if why != "" {
				continue
			}
			if n = counters[k]; n == nil {
				n = new(RecordCounter)
				counters[k] = n
			}
			last = b.Address
		}
		n.Add(b.Bytes)
	}
	return true, nil
}
