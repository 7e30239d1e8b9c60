package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// The codes of findings about slots that hold no checkpoint. They are warnings,
// but for the last one.
const (
	CodePending     = "pending"      // files above the newest entry: somebody may be writing them
	CodeOrphaned    = "orphaned"     // files without an entry, of a coordinator that is over
	CodeKeptMissing = "kept-missing" // the newest entry keeps a checkpoint that is not there
	CodeWentBack    = "went-back"    // a connection has consumed or emitted less than in the checkpoint before
)

// VerifyOptions are the options of Verify.
type VerifyOptions struct {
	// All verifies every checkpoint of the jobs, not only the newest one.
	All bool
	// Records counts records on all edges as if they were length-prefixed, not
	// only on those that say so.
	Records bool
	// Seal is the path or URL of a seal to compare a checkpoint of Flink with.
	// Default: the one beside it, if there is one.
	Seal string
}

// Verification is what Verify found out about one checkpoint, file or job.
type Verification struct {
	Name        string // "checkpoint 7 of job words"
	Findings    []inflight.Finding
	Connections []ConnectionLine
	Salvage     []Table           // of a damaged file: what of it is whole
	edges       []string          // of a checkpoint of Flink, as its records tell
	operators   map[string]string // ids of its operators, by vertex
	summary     string
	gone        bool // files were not there while it was looked at
}

// Verify checks every byte that t refers to, and the conservation account. Each
// checkpoint or file is handed to report as soon as it was checked; what report
// answers ends the verification.
func (i *Inspector) Verify(ctx context.Context, t *Target, o VerifyOptions, report func(*Verification) error) error {
	if t.Kind == TargetFile {
		v, err := i.verifyFile(ctx, t)
		if err != nil {
			return err
		}
		return report(v)
	}
	if o.Seal != "" && (!t.Flink || o.All) {
		return fail("verify", t.Name, fmt.Errorf("%w: a seal belongs to one checkpoint of Flink", inflight.ErrConfig), "name that")
	}
	if o.All {
		if t.Kind == TargetCheckpoint {
			return fail("verify", t.Name, fmt.Errorf("%w: all checkpoints of a job are wanted, and this is one", inflight.ErrConfig), "name the job")
		}
		for _, job := range t.Jobs {
			if err := i.verifyJob(ctx, t, job, o, report); err != nil {
				return err
			}
		}
		for _, job := range t.FlinkJobs {
			if err := i.verifyFlinkJob(ctx, t, job, o, report); err != nil {
				return err
			}
		}
		return nil
	}
	var v *Verification
	err := i.settled(ctx, t, func(job, dir string) (_, _ bool, err error) {
		if t.Flink {
			v, err = i.verifyFlink(ctx, t, job, dir, o)
		} else {
			v, _, err = i.verifyDir(ctx, t, job, dir, o)
		}
		if err == nil && !t.Flink && t.Kind != TargetCheckpoint {
			var above []inflight.Finding
			above, err = damagedAbove(ctx, t, job)
			v.Findings = append(v.Findings, above...)
		}
		if err != nil {
			return gone(t, err), false, err
		}
		return v.gone || lacks(v.Findings, nil), false, nil
	})
	if errors.Is(err, inflight.ErrDamaged) {
		f := findingOf(err, t.Name)
		f.Object = onBackend(t.Backend, f.Object)
		return report(&Verification{Name: "job at " + t.Name, Findings: []inflight.Finding{f}})
	}
	if err != nil {
		return err
	}
	return report(v)
}

// verifyDir verifies what lies in one directory.
func (i *Inspector) verifyDir(ctx context.Context, t *Target, job, dir string, o VerifyOptions) (*Verification, *verified, error) {
	c, err := i.openDir(ctx, t, job, dir)
	switch {
	case err == nil:
		defer c.Close()
		return i.verifyCheckpoint(ctx, c, o)
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case errors.Is(err, ErrNotCheckpoint):
		v, err := i.verifySlot(ctx, t, err)
		return v, nil, err
	case ExitCode(err) != ExitFindings:
		return nil, nil, err
	}
	f := findingOf(err, path.Join(dir, format.ManifestName))
	f.Object = onBackend(t.Backend, f.Object)
	if f.Code == reader.CodeUnreadable { // what stands in its place is no file
		f.Code = catalog.CodeSlotDamaged
	}
	return &Verification{Name: "checkpoint in " + dir, Findings: []inflight.Finding{f}}, nil, nil
}

// damagedAbove returns findings about damaged slots above the newest entry of a
// job, where something else than a file stands in the place of an entry.
func damagedAbove(ctx context.Context, t *Target, job string) (findings []inflight.Finding, err error) {
	log, err := t.log(job)
	if err != nil {
		return nil, err
	}
	slots, err := log.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(slots) {
		switch {
		case s.Manifest != nil:
			return findings, nil
		case s.State == catalog.StateDamaged:
			findings = append(findings, s.Findings...)
		}
	}
	return findings, nil
}

// verifySlot describes a slot that holds no checkpoint, which why says.
func (i *Inspector) verifySlot(ctx context.Context, t *Target, why error) (*Verification, error) {
	if t.Kind != TargetCheckpoint {
		return nil, why
	}
	l, err := i.List(ctx, t)
	if err != nil {
		return nil, why
	}
	v := slotVerification(&l.Checkpoints[0])
	v.Findings = append(v.Findings, l.Findings...)
	return v, nil
}

func slotVerification(c *CheckpointLine) *Verification {
	v := &Verification{Name: c.title(), summary: c.note()}
	f := inflight.Finding{Severity: inflight.SeverityWarning, Object: c.Dir, Offset: -1, Text: c.note()}
	switch c.State {
	case catalog.StatePending:
		f.Code = CodePending
	case catalog.StateOrphaned:
		f.Code = CodeOrphaned
	default:
		return v
	}
	v.Findings = []inflight.Finding{f}
	return v
}

// verified is what is remembered of a checkpoint for the ones after it.
type verified struct {
	manifest *format.Manifest
	flows    []reader.Flow
}

func (i *Inspector) verifyCheckpoint(ctx context.Context, c *checkpoint, o VerifyOptions) (*Verification, *verified, error) {
	i.o.Expect(c.Manifest.FileBytes())
	r, err := c.Verify(ctx, reader.VerifyOptions{})
	if err != nil {
		return nil, nil, err
	}
	line := i.line(ctx, c)
	v := &Verification{Name: line.title(), Findings: r.Findings}
	flows := r.Flows
	if (wiring{c.Manifest.Topology, o.Records}).wanted() {
		a, err := i.account(ctx, c, o.Records)
		if err != nil {
			return nil, nil, err
		}
		flows, v.gone = a.flows, a.gone()
		for k := range flows {
			if f := flows[k].Finding(c.Dir); flows[k].Verdict == reader.Violated && !slices.ContainsFunc(v.Findings, func(n inflight.Finding) bool { return n.Code == f.Code && n.Text == f.Text }) {
				v.Findings = append(v.Findings, f)
			}
		}
	}
	if f, ok := c.checkStats(ctx); !ok {
		v.Findings = append(v.Findings, f)
	}
	v.Findings = append(v.Findings, c.reread...)
	proven := 0
	for k := range flows {
		v.Connections = append(v.Connections, connectionLine(&flows[k]))
		if flows[k].Verdict == reader.Proven {
			proven++
		}
	}
	v.summary = fmt.Sprintf("%s, %s checked; %d of %d connections proven", plural(len(c.Manifest.Files), "file"), size(r.Bytes), proven, len(flows))
	c.qualify(v.Findings)
	return v, &verified{c.Manifest, flows}, nil
}

// checkStats checks the statistics; they are not needed to restore.
func (c *checkpoint) checkStats(ctx context.Context) (f inflight.Finding, ok bool) {
	_, err := c.stats(ctx)
	if err == nil {
		return f, true
	}
	f = findingOf(err, path.Join(c.Dir, format.StatsName))
	f.Severity = inflight.SeverityWarning
	return f, false
}

// qualify makes the objects of findings names on the backend.
func (c *checkpoint) qualify(findings []inflight.Finding) {
	for k := range findings {
		f := &findings[k]
		f.Object = onBackend(c.target.Backend, f.Object)
		dir, _, _ := strings.Cut(f.Object, "/")
		_, isSlot := format.ParseCheckpointDir(dir)
		switch {
		case strings.HasPrefix(f.Object, c.Dir), c.job != "" && strings.HasPrefix(f.Object, c.job+"/"):
		case isSlot:
			f.Object = path.Join(c.job, f.Object)
		default: // a subtask, which is said elsewhere
			f.Object = c.Dir
		}
	}
}

// onBackend takes off object where the root of b lies: stores name what they
// have in errors in full.
func onBackend(b backends.Backend, object string) string {
	u, err := url.Parse(b.URL())
	if err != nil {
		return object
	}
	for _, root := range []string{b.URL(), u.Path} {
		if rest, ok := strings.CutPrefix(object, strings.TrimSuffix(root, "/")+"/"); ok && root != "" {
			return rest
		}
	}
	return object
}

// verifyJob verifies every slot of a job, and what only shows between them.
func (i *Inspector) verifyJob(ctx context.Context, t *Target, job string, o VerifyOptions, report func(*Verification) error) error {
	log, err := t.log(job)
	if err != nil {
		return err
	}
	slots, err := log.List(ctx)
	if err != nil {
		return err
	}
	seen := map[inflight.CheckpointID]*verified{}
	for k := range slots {
		s := &slots[k]
		line := i.slotLine(job, s)
		v := slotVerification(&line)
		if s.State == catalog.StateCompleted || s.State == catalog.StateDamaged {
			var now *verified
			v, now, err = i.verifyDir(ctx, t, job, line.Dir, o)
			if (gone(t, err) || err == nil && (v.gone || lacks(v.Findings, nil))) && i.retired(ctx, t, job, line.Dir) {
				continue
			}
			if s.State == catalog.StateDamaged && (errors.Is(err, inflight.ErrConfig) || errors.Is(err, ErrNotCheckpoint)) {
				// What stands in the place of its entry is no file.
				v, err = &Verification{Name: line.title(), Findings: s.Findings}, nil
			}
			if err != nil {
				return err
			}
			if now != nil {
				v.Findings = append(v.Findings, wentBack(seen[ancestor(slots[:k], now.manifest)], now, line.Dir)...)
				seen[s.ID] = now
			}
		} else if len(v.Findings) == 0 {
			continue // a claim, or an id that was given up
		}
		if err := report(v); err != nil {
			return err
		}
	}
	missing := keptMissing(slots, job)
	for range retiredTries {
		if len(missing) == 0 {
			break
		}
		// The job may have gone on between the listing and the reading of entries.
		if slots, err = log.List(ctx); err != nil {
			return err
		}
		again := keptMissing(slots, job)
		if slices.EqualFunc(missing, again, func(a, b inflight.Finding) bool { return a.Object == b.Object && a.Text == b.Text }) {
			break
		}
		missing = again
	}
	if len(missing) > 0 {
		return report(&Verification{Name: "log of job " + job, Findings: missing})
	}
	return nil
}

// ancestor returns the checkpoint that m descends from: the one before it of
// the same coordinator, or what that one restored.
func ancestor(before []catalog.Slot, m *format.Manifest) inflight.CheckpointID {
	for _, s := range slices.Backward(before) {
		if s.State == catalog.StateCompleted && s.Manifest.Epoch == m.Epoch {
			return s.ID
		}
	}
	if m.Base != nil {
		return *m.Base
	}
	return m.ID
}

// wentBack compares what flowed with the checkpoint before; that may be nil.
func wentBack(before, now *verified, dir string) (findings []inflight.Finding) {
	if before == nil {
		return nil
	}
	for _, f := range reader.Regressed(before.flows, now.flows) {
		n := f.Finding(dir)
		n.Code = CodeWentBack
		findings = append(findings, n)
	}
	return findings
}

// keptMissing returns findings about what the newest checkpoint or claim keeps
// and is not there.
func keptMissing(slots []catalog.Slot, job string) (findings []inflight.Finding) {
	there := map[inflight.CheckpointID]bool{}
	var tip *format.Manifest
	for k := range slots {
		switch s := &slots[k]; {
		case s.Manifest != nil && s.Manifest.Kind != format.KindAborted:
			tip = s.Manifest
			there[s.ID] = true
		case s.State == catalog.StateDamaged:
			there[s.ID] = true
		}
	}
	if tip == nil {
		return nil
	}
	for _, id := range tip.Keep {
		if !there[id] {
			findings = append(findings, inflight.Finding{Severity: inflight.SeverityError, Code: CodeKeptMissing, Object: path.Join(job, format.CheckpointDir(id)), Offset: -1,
				Text: fmt.Sprintf("%s keeps it, and its manifest is gone", tip), Err: inflight.ErrNotExist})
		}
	}
	return findings
}

// verifyFile verifies a bare file.
func (i *Inspector) verifyFile(ctx context.Context, t *Target) (*Verification, error) {
	f, r, err := i.scanFile(ctx, t)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v := &Verification{Name: t.File, Findings: f.Findings}
	if f.Header != nil {
		v.Name = oneLine(fmt.Sprintf("%s of checkpoint %d of job %s", t.File, f.Header.Checkpoint, f.Header.Job))
	}
	v.summary = fmt.Sprintf("%s, %s checked", size(f.Size), plural(len(f.Members), "subtask"))
	if failed(v.Findings) {
		v.Salvage = salvageTables(reader.PlanSalvage(t.File, f.Scanned))
	}
	return v, nil
}

// scanFile scans the file of t. A file that is called as ours are is damaged if
// it is not one of ours; another is no checkpoint.
func (i *Inspector) scanFile(ctx context.Context, t *Target) (*reader.File, *reader.Reader, error) {
	r := reader.Open(t.Backend, "", reader.Options{})
	info, err := t.Backend.Stat(ctx, t.File)
	if err == nil {
		i.o.Expect(info.Size)
	}
	f, err := r.File(ctx, t.File)
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	parent, _ := splitURL(t.Name)
	_, dir := splitURL(parent)
	id, inSlot := format.ParseCheckpointDir(dir)
	for _, n := range f.Findings {
		if (n.Code == format.CodeForeign || n.Code == format.CodeEmpty) && !strings.HasSuffix(t.File, format.StateSuffix) {
			r.Close()
			return nil, nil, notCheckpoint(t.Name, oneLine(n.Text), "name a channel-state file or a checkpoint")
		}
	}
	if f.Header != nil && inSlot && f.Header.Checkpoint != id {
		f.Findings = append(f.Findings, inflight.Finding{Severity: inflight.SeverityError, Code: format.CodeWrongCheckpoint, Object: t.File, Offset: 0, Err: inflight.ErrForeign,
			Text: fmt.Sprintf("it is a file of checkpoint %d in the directory of checkpoint %d", f.Header.Checkpoint, id)})
	}
	return f, r, nil
}

// salvageTables says what of a damaged file is whole.
func salvageTables(s reader.Salvage) []Table {
	t := Table{Title: "what can be salvaged of " + s.Object, Columns: columns("SUBTASK", "MARK", "ADDRESS", "#KEPT", "#LOST", "MISSING")}
	for i := range s.Subtasks {
		sub := &s.Subtasks[i]
		mark := sub.Status.String()
		if sub.Status == 0 {
			mark = "none"
		}
		for _, c := range sub.Channels {
			kept, lost := uint64(0), uint64(0)
			var missing []string
			for _, r := range c.Kept {
				kept += r.Bytes
			}
			for _, r := range c.Lost {
				lost += r.Bytes
				if r.Pos.Known() {
					missing = append(missing, fmt.Sprintf("%d–%d", r.Pos.Offset, r.Pos.Offset+r.Bytes-1))
				}
			}
			tone := TonePlain
			if lost > 0 {
				tone = ToneError
			}
			t.add(tone, sub.Task, mark, c.Address, size(kept), size(lost), orDash(strings.Join(missing, ", ")))
		}
	}
	if len(t.Rows) == 0 {
		t.Note = "nothing"
	}
	return []Table{t}
}

// Lines returns a FindingLine for each finding.
func (v *Verification) Lines() (lines []any) {
	for _, f := range v.Findings {
		l := findingLine(f, v.operators)
		lines = append(lines, &l)
	}
	return lines
}

// Failed reports whether a finding is an error.
func (v *Verification) Failed() bool { return failed(v.Findings) }

// Tables returns the verdict, the findings, the conservation account, and what
// can be salvaged.
func (v *Verification) Tables() (tables []Table) {
	var count = map[inflight.Severity]int{}
	for _, f := range v.Findings {
		count[f.Severity]++
	}
	verdict := Table{Title: v.Name}
	if v.summary != "" {
		verdict.Note = oneLine(v.summary) + "; "
	}
	verdict.Note += fmt.Sprintf("%s, %s", plural(count[inflight.SeverityError], "error"), plural(count[inflight.SeverityWarning], "warning"))
	tables = append(tables, verdict)
	if len(v.Findings) > 0 {
		tables = append(tables, findingTable(v.Findings, v.operators))
	}
	if len(v.edges) > 0 {
		tables = append(tables, Table{Title: "edges that the records tell", Note: strings.Join(v.edges, "\n")})
	}
	if len(v.Connections) > 0 {
		tables = append(tables, connectionTable(v.Connections))
	}
	return append(tables, v.Salvage...)
}
