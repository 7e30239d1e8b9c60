package inspect

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Listing is what List found.
type Listing struct {
	Checkpoints []CheckpointLine
	// Findings are what is wrong with them.
	Findings []inflight.Finding
	title    string
}

// List lists the slots of the jobs that t names.
func (i *Inspector) List(ctx context.Context, t *Target) (*Listing, error) {
	l := &Listing{title: t.Name}
	if t.Kind == TargetFile {
		return nil, fail("list", t.Name, fmt.Errorf("%w: a file has no checkpoints", inflight.ErrConfig), "dump or verify it")
	}
	for _, job := range t.Jobs {
		log, err := t.log(job)
		if err != nil {
			return nil, err
		}
		slots, err := log.List(ctx)
		if err != nil {
			return nil, err
		}
		name := jobName(job, slots)
		for _, s := range slots {
			line := i.slotLine(job, &s)
			line.Job = name
			if t.Kind == TargetCheckpoint && line.Dir != t.Dir {
				continue
			}
			l.Checkpoints = append(l.Checkpoints, line)
			l.Findings = append(l.Findings, s.Findings...)
		}
	}
	for _, job := range t.FlinkJobs {
		if t.Kind == TargetCheckpoint {
			line, findings, err := i.flinkSlot(ctx, t, job, t.Dir)
			if err != nil {
				return nil, err
			}
			l.Checkpoints, l.Findings = append(l.Checkpoints, line), append(l.Findings, findings...)
			return l, nil
		}
		lines, findings, err := i.listFlink(ctx, t, job)
		if err != nil {
			return nil, err
		}
		l.Checkpoints, l.Findings = append(l.Checkpoints, lines...), append(l.Findings, findings...)
	}
	if t.Kind == TargetCheckpoint && len(l.Checkpoints) == 0 { // a copy, which is in no log
		c, err := i.open(ctx, t)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		l.Checkpoints = append(l.Checkpoints, i.line(ctx, c))
	}
	return l, nil
}

// jobName returns the name of the job in a folder; a root says it in its entries
// only.
func jobName(folder string, slots []catalog.Slot) string {
	for _, s := range slots {
		if folder == "" && s.Manifest != nil {
			folder = s.Manifest.Job
		}
	}
	return folder
}

// slotLine describes a slot.
func (i *Inspector) slotLine(job string, s *catalog.Slot) CheckpointLine {
	l := CheckpointLine{Type: TypeCheckpoint, Job: job, Dir: path.Join(job, format.CheckpointDir(s.ID)), ID: s.ID,
		State: s.State, Kind: s.Kind, SizeBytes: s.Size, Kept: &s.Kept}
	l.Modified, l.AgeMS = i.stamp(s.Modified)
	l.describe(s.Manifest)
	if l.State != catalog.StateCompleted {
		l.Files = stateFiles(s.Files)
	}
	if len(s.Findings) > 0 {
		l.Text = Shorten(oneLine(s.Findings[0].Text))
		if s.Findings[0].Code == format.CodeMissingFile {
			l.Text = oneLine(s.Findings[0].Object) + ": " + l.Text
		}
		if n := len(s.Findings) - 1; n > 0 {
			l.Text += fmt.Sprintf(" (and %d more)", n)
		}
	}
	l.leftovers = len(s.Leftovers)
	return l
}

// describe fills in what the manifest says; it may be nil.
func (c *CheckpointLine) describe(m *format.Manifest) {
	if m == nil {
		return
	}
	if c.Job == "" {
		c.Job = m.Job
	}
	c.Epoch, c.Attempt = &m.Epoch, m.Attempt
	c.Alignment, c.Mode, c.SelfContained, c.Partial = m.Alignment, m.Mode, m.SelfContained, m.Partial
	c.ChannelStateBytes, c.StateBytes, c.Files = m.PersistedBytes(), m.StateBytes(), len(m.Files)
	c.Keep, c.PassedOver = m.Keep, m.PassedOver
	if m.Kind == format.KindClaim {
		c.Base = m.Base
	}
	if m.Cause != nil {
		c.Reason, c.Text = m.Cause.Reason, oneLine(m.Cause.Text)
	}
}

// stateFiles counts channel-state files.
func stateFiles(files []backends.Info) (n int) {
	for _, f := range files {
		if strings.HasSuffix(f.Name, format.StateSuffix) {
			n++
		}
	}
	return n
}

// Lines returns a CheckpointLine for each slot, and what is wrong.
func (l *Listing) Lines() (lines []any) {
	for i := range l.Checkpoints {
		lines = append(lines, &l.Checkpoints[i])
	}
	return appendNotes(lines, l.Findings, nil)
}

// Failed reports whether a slot is damaged or lacks files.
func (l *Listing) Failed() bool { return failed(l.Findings) }

func failed(findings []inflight.Finding) bool {
	return slices.ContainsFunc(findings, func(f inflight.Finding) bool { return f.Severity == inflight.SeverityError })
}

// Tables returns a table for each job.
func (l *Listing) Tables() (tables []Table) {
	var t *Table
	for i := range l.Checkpoints {
		c := &l.Checkpoints[i]
		if i == 0 || c.Job != l.Checkpoints[i-1].Job || c.Flink != l.Checkpoints[i-1].Flink {
			title := "job " + c.Job
			if c.Flink {
				title = "Flink " + title
			}
			if c.Job == "" {
				title = l.title // no entry tells its name
			}
			tables = append(tables, Table{Title: oneLine(title), Columns: columns("#ID", "KIND", "STATE", "#AGE", "#SIZE", "#CHANNEL STATE", "#FILES", "ALIGNMENT", "#EPOCH", "KEPT", "NOTE")})
			t = &tables[len(tables)-1]
		}
		t.Rows = append(t.Rows, c.row())
	}
	if len(tables) == 0 {
		tables = []Table{{Title: l.title, Note: "no checkpoints"}}
	}
	return tables
}

// row is the slot in a table.
func (c *CheckpointLine) row() Row {
	kept := ""
	if c.Kept != nil && *c.Kept {
		kept = "kept"
	}
	return newRow(c.tone(), c.ID, orDash(c.Kind), orDash(string(c.State)), c.age(), size(c.SizeBytes), sizeOrDash(c.ChannelStateBytes),
		c.Files, orDash(string(c.Alignment)), dash(c.Epoch), kept, c.note())
}

func (c *CheckpointLine) tone() Tone {
	switch c.State {
	case catalog.StateCompleted:
		if c.Text != "" {
			return ToneError
		}
		return ToneGood
	case catalog.StateDamaged:
		return ToneError
	case catalog.StatePending, catalog.StateOrphaned:
		return ToneWarning
	}
	return ToneQuiet
}

func (c *CheckpointLine) age() string {
	if c.AgeMS == nil {
		return "-"
	}
	return age(time.Duration(*c.AgeMS) * time.Millisecond).String()
}

// note is what there is to say about a slot.
func (c *CheckpointLine) note() string {
	if c.leftovers == 0 {
		return c.meaning()
	}
	left := plural(c.leftovers, "leftover") + " of unfinished writers"
	if m := c.meaning(); m != "" {
		return m + "; " + left
	}
	return left
}

func (c *CheckpointLine) meaning() string {
	switch {
	case c.Reason != "" && c.Text != "":
		return c.Reason + ": " + c.Text
	case c.Reason != "" || c.Text != "":
		return c.Reason + c.Text
	case c.Kind == catalog.SlotClaim && c.Base == nil:
		return "a coordinator started afresh"
	case c.Kind == catalog.SlotClaim && len(c.PassedOver) > 0:
		return fmt.Sprintf("a coordinator went back to %d, over %s", *c.Base, ids(c.PassedOver))
	case c.Kind == catalog.SlotClaim:
		return fmt.Sprintf("a coordinator started from %d", *c.Base)
	case c.State == catalog.StatePending && c.Files > 0:
		return "no manifest: somebody may be writing it, or it was never completed, or its manifest is gone"
	case c.State == catalog.StatePending:
		return "not committed: somebody may be writing it"
	case c.State == catalog.StateOrphaned:
		return "files of a coordinator that is over: gc deletes them"
	case c.Partial:
		return "a source subtask was gone"
	}
	return ""
}

func ids(list []inflight.CheckpointID) string {
	return strings.Trim(fmt.Sprint(list), "[]")
}
