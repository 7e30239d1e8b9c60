package inspect

import (
	"context"
	"errors"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// account is what the indexes of a checkpoint say, and what follows from it.
type account struct {
	state    map[inflight.Task][]reader.Entry
	findings []inflight.Finding // what could not be read
	records  *recordCounts      // nil: not counted
	flows    []reader.Flow
}

// gone reports whether files were not there when records were counted, which is
// no finding of its own.
func (a *account) gone() bool { return a.records != nil && a.records.gone }

// account reads the index of every subtask, counts records where they can be
// told apart (all, if records is set), and draws up the conservation account.
func (i *Inspector) account(ctx context.Context, c *checkpoint, records bool) (*account, error) {
	a := &account{state: map[inflight.Task][]reader.Entry{}}
	for _, h := range c.Manifest.Handles {
		s, err := c.Subtask(ctx, h.Task)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			f := findingOf(err, c.Dir)
			f.Task = &h.Task
			a.findings = append(a.findings, f)
			continue
		}
		a.state[h.Task] = slices.AppendSeq(make([]reader.Entry, 0, s.Len()), s.Entries())
		s.Close()
	}
	e := reader.Evidence{Topology: c.Manifest.Topology, Finished: c.Manifest.Finished, State: a.state}
	if w := (wiring{c.Manifest.Topology, records}); w.wanted() {
		i.o.Expect(int64(c.Manifest.PersistedBytes()))
		var err error
		if a.records, err = countRecords(ctx, c, w, a.state); err != nil {
			return nil, err
		}
		e.Records, e.Unread = a.records.connections, a.records.unread
	}
	a.flows = e.Prove()
	return a, nil
}

// findingOf returns what stopped somebody as a finding; object is what it is
// about where the error does not say.
func findingOf(err error, object string) inflight.Finding {
	f := inflight.Finding{Severity: inflight.SeverityError, Code: reader.CodeUnreadable, Object: object, Offset: -1, Text: oneLine(err.Error()), Err: err}
	for cause := err; ; { // the innermost one knows best
		var e *inflight.Error
		if !errors.As(cause, &e) {
			break
		}
		if e.Object != "" {
			f.Object = e.Object
		}
		f.Text = oneLine(e.Err.Error())
		cause = e.Err
	}
	if e := (*format.FormatError)(nil); errors.As(err, &e) {
		f.Code, f.Offset, f.Text = e.Code, e.Offset, oneLine(e.Text)
		return f
	}
	switch {
	case errors.Is(err, inflight.ErrNotExist):
		f.Code, f.Text = format.CodeMissingFile, "the file is not there"
	case errors.Is(err, inflight.ErrMismatch):
		f.Code = reader.CodeMismatch
	case errors.Is(err, inflight.ErrForeign):
		f.Code = format.CodeForeign
	}
	return f
}
