package inspect

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Verb says how a checkpoint of Flink is written anew.
type Verb string

// The verbs, as used in JSON.
const (
	VerbCompact      Verb = "compact"       // many files into few
	VerbDrop         Verb = "drop"          // without the in-flight data of some edges
	VerbRelocate     Verb = "relocate"      // with other paths
	VerbSalvage      Verb = "salvage"       // what is whole of a damaged one
	VerbToSpillway   Verb = "to-spillway"   // as one of ours
	VerbFromSpillway Verb = "from-spillway" // and back
)

// RewriteOptions are the options of Rewrite.
type RewriteOptions struct {
	Verb Verb
	// DryRun plans, and writes nothing.
	DryRun bool
	// ChunkSize and FileSize are for VerbCompact; 0 is the default of package flink.
	ChunkSize int32
	FileSize  int64
	// Edges to drop the in-flight data of: "FROM=>TO" or "FROM:PARTITION=>TO:GATE",
	// with names, uids or ids of operators. All drops everything.
	Edges []string
	All   bool
	// Paths are the prefixes of absolute paths that change, for VerbRelocate. None:
	// what they lead to is copied into the new directory.
	Paths []flink.Move
	// Seal is the path or URL of a seal, for VerbSalvage. Default: the one beside.
	Seal string
	// Job and Codec are for VerbToSpillway.
	Job   string
	Codec format.Codec
}

// TotalsLine counts what a checkpoint consists of.
type TotalsLine struct {
	Files         int   `json:"files"` // in its directory
	Handles       int   `json:"handles,omitempty"`
	Channels      int64 `json:"channels"`
	Buffers       int64 `json:"buffers"`
	Bytes         int64 `json:"bytes"` // of channel state
	MetadataBytes int   `json:"metadata_bytes,omitempty"`
	StateBytes    int64 `json:"state_bytes,omitempty"` // of other state that goes along
}

// PlanLine is a rewrite, planned or done.
type PlanLine struct {
	Type       LineType              `json:"type"`
	Verb       Verb                  `json:"verb"`
	Source     string                `json:"source"`
	Target     string                `json:"target"`
	DryRun     bool                  `json:"dry_run"`
	Checkpoint inflight.CheckpointID `json:"checkpoint"`
	Before     TotalsLine            `json:"before"`
	After      TotalsLine            `json:"after"`
	// What is lost by it; of records perhaps not all could be told.
	LostBuffers      int64 `json:"lost_buffers"`
	LostBytes        int64 `json:"lost_bytes"`
	LostRecords      int64 `json:"lost_records"`
	LostRecordsKnown bool  `json:"lost_records_known"`
}

// LossLine is what a rewrite loses of one connection.
type LossLine struct {
	Type         LineType `json:"type"`
	From         *string  `json:"from,omitempty"` // the upstream end; left out where it held nothing
	FromSubtask  *int     `json:"from_subtask,omitempty"`
	Partition    *int     `json:"partition,omitempty"`
	Subpartition *int     `json:"subpartition,omitempty"`
	To           *string  `json:"to,omitempty"` // the downstream end
	ToSubtask    *int     `json:"to_subtask,omitempty"`
	Gate         *int     `json:"gate,omitempty"`
	Channel      *int     `json:"channel,omitempty"`
	Buffers      int64    `json:"buffers"`
	Bytes        int64    `json:"bytes"`
	Records      int64    `json:"records"`
	RecordsKnown bool     `json:"records_known"` // otherwise there are at least so many
	Reason       string   `json:"reason"`
}

// Rewritten is what Rewrite planned or did.
type Rewritten struct {
	Plan     PlanLine
	Files    []FileLine
	Losses   []LossLine
	Findings []inflight.Finding

	lost []flink.Loss
}

// execute writes what was planned into a directory.
type execute func(ctx context.Context, dst backends.Backend, dir string) error

// Rewrite writes the checkpoint that t means anew, into the directory at the path
// or URL dst, which must not exist. When it fails, or ctx ends, what was written
// is removed.
func (i *Inspector) Rewrite(ctx context.Context, t *Target, dst string, o RewriteOptions) (*Rewritten, error) {
	verb := "flink " + string(o.Verb)
	switch {
	case t.Flink && o.Verb == VerbFromSpillway:
		return nil, fail(verb, t.Name, fmt.Errorf("%w: it is a checkpoint of Flink already", inflight.ErrConfig), "name one of Spillway")
	case !t.Flink && o.Verb != VerbFromSpillway:
		return nil, fail(verb, t.Name, fmt.Errorf("%w: it is no checkpoint of Flink", inflight.ErrConfig), "name one of Flink, or use flink convert --from spillway first")
	}
	_, dir, err := i.newest(ctx, t)
	if err != nil {
		return nil, err
	}
	parent, base := splitURL(dst)
	if base == "" {
		return nil, fail(verb, dst, fmt.Errorf("%w: it has no name", inflight.ErrConfig), "name a new directory")
	}
	b, err := i.o.Create(ctx, parent)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if inside(t.Backend, dir, b, base) {
		return nil, fail(verb, dst, fmt.Errorf("%w: it lies in the checkpoint itself", inflight.ErrConfig), "name a directory elsewhere")
	}
	if err := flink.Vacant(ctx, verb, b, base); err != nil {
		return nil, err
	}
	w := &Rewritten{Plan: PlanLine{Type: TypePlan, Verb: o.Verb, Source: t.nameOf(dir), Target: dst, DryRun: o.DryRun}}
	run, done, err := i.plan(ctx, t, dir, base, o, w)
	if err != nil {
		return nil, err
	}
	defer func() { _ = done() }()
	if !o.DryRun {
		err = run(ctx, b, base)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// inside reports whether a new directory would lie in the checkpoint in dir of a.
func inside(a backends.Backend, dir string, b backends.Backend, name string) bool {
	return strings.HasPrefix(urlOf(b, name)+"/", strings.TrimRight(urlOf(a, dir), "/")+"/")
}

// plan makes a plan, and fills w. The caller calls done when the plan was carried
// out.
func (i *Inspector) plan(ctx context.Context, t *Target, dir, base string, o RewriteOptions, w *Rewritten) (run execute, done func() error, err error) {
	if o.Verb == VerbFromSpillway {
		c, err := flink.PlanFromSpillway(ctx, t.Backend, dir)
		if errors.Is(err, inflight.ErrMismatch) {
			err = notCheckpoint(t.nameOf(dir), "it was not converted from one of Flink", "only what convert --to spillway made can go back")
		}
		if err != nil {
			return nil, nil, err
		}
		w.conversion(c)
		return c.Execute, func() error { return nil }, nil
	}
	c, err := i.openFlink(ctx, t, dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	i.expect(ctx, c, 2)
	if o.Verb == VerbToSpillway {
		if id, ok := format.ParseCheckpointDir(base); ok && id != c.CheckpointID {
			return nil, nil, fail("flink convert", base, fmt.Errorf("%w: that is the name of another slot", inflight.ErrConfig), "name it "+format.CheckpointDir(c.CheckpointID)+", or otherwise")
		}
		conversion, err := c.PlanToSpillway(ctx, flink.ConvertOptions{Job: o.Job, Codec: o.Codec})
		if err != nil {
			return nil, nil, err
		}
		w.conversion(conversion)
		return conversion.Execute, c.Close, nil
	}
	p, err := i.flinkPlan(ctx, c, o)
	if err != nil {
		return nil, nil, err
	}
	w.plan(c, p)
	qualifyFlink(c, w.Findings)
	return p.Execute, c.Close, nil
}

func (i *Inspector) flinkPlan(ctx context.Context, c *flink.Checkpoint, o RewriteOptions) (*flink.Plan, error) {
	switch o.Verb {
	case VerbCompact:
		return c.PlanCompact(ctx, flink.CompactOptions{ChunkSize: o.ChunkSize, FileSize: o.FileSize})
	case VerbDrop:
		edges, err := edgesOf(ctx, c, o)
		if err != nil {
			return nil, err
		}
		return c.PlanDrop(ctx, flink.DropOptions{Edges: edges, All: o.All})
	case VerbRelocate:
		return c.PlanRelocate(ctx, flink.RelocateOptions{Paths: o.Paths})
	case VerbSalvage:
		so := flink.SalvageOptions{}
		if o.Seal != "" {
			var err error
			if so.Seal, err = i.readSeal(ctx, o.Seal); err != nil {
				return nil, err
			}
		}
		return c.PlanSalvage(ctx, so)
	}
	return nil, fail("flink", string(o.Verb), fmt.Errorf("%w: no such verb", inflight.ErrConfig), "see the help")
}

// edgesOf finds the edges that a user named.
func edgesOf(ctx context.Context, c *flink.Checkpoint, o RewriteOptions) (edges []flink.Edge, err error) {
	bad := func(name string, err error, mend string) error { return fail("flink drop", "edge "+name, err, mend) }
	switch {
	case o.All && len(o.Edges) > 0:
		return nil, fail("flink drop", c.Dir, fmt.Errorf("%w: --edge and --all exclude each other", inflight.ErrConfig), "give only one of them")
	case !o.All && len(o.Edges) == 0:
		return nil, fail("flink drop", c.Dir, fmt.Errorf("%w: the in-flight data of which edges?", inflight.ErrConfig), "give --edge 'FROM=>TO', or --all")
	}
	if o.All {
		return nil, nil
	}
	r, err := c.Scan(ctx, flink.VerifyOptions{})
	if err != nil {
		return nil, err
	}
	for _, name := range o.Edges {
		from, to, ok := strings.Cut(name, "=>")
		if !ok {
			return nil, bad(name, fmt.Errorf("%w: not of the form FROM=>TO", inflight.ErrConfig), "quote it for the shell")
		}
		up, partition, err := portOf(c, from)
		if err != nil {
			return nil, bad(name, err, "show lists the operators")
		}
		down, gate, err := portOf(c, to)
		if err != nil {
			return nil, bad(name, err, "show lists the operators")
		}
		found := slices.DeleteFunc(slices.Clone(r.Edges), func(e flink.Edge) bool {
			return e.From != up || e.To != down || partition >= 0 && e.Partition != partition || gate >= 0 && e.Gate != gate
		})
		switch {
		case len(found) > 0:
		case partition >= 0 && gate >= 0: // the records do not tell, the user does
			found = []flink.Edge{{From: up, Partition: partition, To: down, Gate: gate, Given: true}}
			given, err := c.Scan(ctx, flink.VerifyOptions{Edges: found})
			if err != nil {
				return nil, err
			}
			if len(given.Findings) > len(r.Findings) {
				return nil, bad(name, fmt.Errorf("%w: it is none: the records of one end do not go on at the other", inflight.ErrConfig), "show lists the edges")
			}
		default:
			var there []string
			for _, e := range r.Edges {
				there = append(there, e.String())
			}
			return nil, bad(name, fmt.Errorf("%w: the records do not tell of such an edge; they do of: %s", inflight.ErrConfig, few(there)), "give the numbers too: FROM:PARTITION=>TO:GATE")
		}
		edges = append(edges, found...)
	}
	return edges, nil
}

// portOf takes "operator" or "operator:number" apart; -1 is no number.
func portOf(c *flink.Checkpoint, s string) (*flink.Operator, int, error) {
	o, err := c.FindOperator(s)
	if err == nil {
		return o, -1, nil
	}
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return nil, 0, asConfig(err)
	}
	n, errNumber := strconv.Atoi(s[at+1:])
	if errNumber != nil || n < 0 {
		return nil, 0, asConfig(err)
	}
	if o, err = c.FindOperator(s[:at]); err != nil {
		return nil, 0, asConfig(err)
	}
	return o, n, nil
}

// asConfig makes an operator that is not there a mistake of the user.
func asConfig(err error) error {
	if errors.Is(err, inflight.ErrConfig) {
		return err
	}
	return fmt.Errorf("%w: %w", inflight.ErrConfig, err)
}

func (w *Rewritten) conversion(c *flink.Conversion) {
	n := TotalsLine{Channels: c.Channels, Buffers: c.Buffers, Bytes: c.Bytes, StateBytes: c.StateBytes, Files: c.FilesBefore}
	w.Plan.Checkpoint, w.Plan.Before, w.Plan.LostRecordsKnown = c.Checkpoint, n, true
	n.Files = c.FilesAfter
	w.Plan.After = n
	w.Findings = c.Notes
}

func (w *Rewritten) plan(c *flink.Checkpoint, p *flink.Plan) {
	totals := func(n flink.Totals) TotalsLine {
		return TotalsLine{Files: n.Files, Handles: n.Handles, Channels: int64(n.Channels), Buffers: n.Buffers, Bytes: n.Bytes, MetadataBytes: n.Metadata}
	}
	l := &w.Plan
	l.Checkpoint, l.Before, l.After, l.LostRecordsKnown = c.CheckpointID, totals(p.Before), totals(p.After), true
	w.Findings, w.lost = p.Notes, p.Lost
	channels := map[string]bool{}
	for _, s := range c.Index().Streams {
		channels[s.Handle.Key()] = true
	}
	for _, f := range p.Files {
		use := UseState
		if f.Copy.IsNull() || channels[f.Copy.Key()] {
			use = UseChannels
		}
		w.Files = append(w.Files, FileLine{Type: TypeFile, Name: f.Name, SizeBytes: f.Size, Use: use})
	}
	w.Files = append(w.Files, FileLine{Type: TypeFile, Name: flink.MetadataName, SizeBytes: int64(len(p.Metadata)), Use: UseMetadata})
	for k := range p.Lost {
		x := &p.Lost[k]
		l.LostBuffers, l.LostBytes, l.LostRecords = l.LostBuffers+x.Buffers, l.LostBytes+x.Bytes, l.LostRecords+x.Records
		l.LostRecordsKnown = l.LostRecordsKnown && x.RecordsKnown
		w.Losses = append(w.Losses, lossLine(x))
	}
}

func lossLine(x *flink.Loss) LossLine {
	l := LossLine{Type: TypeLoss, Buffers: x.Buffers, Bytes: x.Bytes, Records: x.Records, RecordsKnown: x.RecordsKnown, Reason: x.Reason}
	if e := x.Output; e != nil {
		l.From, l.FromSubtask, l.Partition, l.Subpartition = &e.Task.Vertex, &e.Task.Subtask, &e.Address.Output.Partition, &e.Address.Output.Subpartition
	}
	if e := x.Input; e != nil {
		l.To, l.ToSubtask, l.Gate, l.Channel = &e.Task.Vertex, &e.Task.Subtask, &e.Address.Input.Gate, &e.Address.Input.Channel
	}
	return l
}

// Lines returns the plan, its files, what is lost, and what is worth knowing.
func (w *Rewritten) Lines() []any {
	lines := appendLines([]any{&w.Plan}, w.Files)
	return appendNotes(appendLines(lines, w.Losses), w.Findings, nil)
}

// Failed reports false: what was damaged was salvaged, or refused.
func (w *Rewritten) Failed() bool { return false }

// manyLosses is how many losses a table lists.
const manyLosses = 50

// Tables returns what changes, the new files, what is lost, and notes.
func (w *Rewritten) Tables() []Table {
	p := &w.Plan
	head := Table{Title: fmt.Sprintf("flink %s: checkpoint %d", p.Verb, p.Checkpoint), Columns: columns("", "#BEFORE", "#AFTER")}
	for _, row := range []struct {
		name          string
		before, after int64
	}{
		{"files", int64(p.Before.Files), int64(p.After.Files)}, {"channel handles", int64(p.Before.Handles), int64(p.After.Handles)},
		{"channels", p.Before.Channels, p.After.Channels}, {"buffers", p.Before.Buffers, p.After.Buffers}, {"bytes in flight", p.Before.Bytes, p.After.Bytes},
		{"bytes of _metadata", int64(p.Before.MetadataBytes), int64(p.After.MetadataBytes)}, {"bytes of other files", p.Before.StateBytes, p.After.StateBytes},
	} {
		if row.before != 0 || row.after != 0 {
			head.add(TonePlain, row.name, row.before, row.after)
		}
	}
	head.Note = "written to " + p.Target
	if p.DryRun {
		head.Note = "nothing was written; without --dry-run: " + p.Target
	}
	tables := []Table{head}
	if len(w.Files) > 0 {
		t := Table{Title: "files", Columns: columns("NAME", "#SIZE", "USE")}
		for _, f := range w.Files[:min(len(w.Files), manyLosses)] {
			t.add(TonePlain, f.Name, sizeOrDash(uint64(f.SizeBytes)), orDash(string(f.Use)))
		}
		if n := len(w.Files) - len(t.Rows); n > 0 {
			t.Note = fmt.Sprintf("and %d more", n)
		}
		tables = append(tables, t)
	}
	switch {
	case len(w.Losses) > 0:
		tables = append(tables, w.lossTable())
	case p.Verb == VerbSalvage || p.Verb == VerbDrop:
		tables = append(tables, Table{Title: "lost", Note: "nothing"})
	}
	if len(w.Findings) > 0 {
		t := findingTable(w.Findings, nil)
		t.Title = "notes"
		tables = append(tables, t)
	}
	return tables
}

func (w *Rewritten) lossTable() Table {
	t := Table{Title: "lost", Columns: columns("FROM", "TO", "#BUFFERS", "#BYTES", "#RECORDS", "WHY")}
	end := func(e *flink.ChannelEnd) string {
		if e == nil {
			return "-"
		}
		return fmt.Sprintf("%s %s", e.Task, e.Address)
	}
	records := func(n int64, known bool) string {
		if known {
			return fmt.Sprint(n)
		}
		return fmt.Sprintf("≥ %d", n)
	}
	for _, l := range w.lost[:min(len(w.lost), manyLosses)] {
		t.add(ToneWarning, end(l.Output), end(l.Input), l.Buffers, l.Bytes, records(l.Records, l.RecordsKnown), l.Reason)
	}
	p := &w.Plan
	t.Note = fmt.Sprintf("in all %s, %d bytes, %s records, in %s", plural(int(p.LostBuffers), "buffer"), p.LostBytes, records(p.LostRecords, p.LostRecordsKnown), plural(len(w.lost), "connection"))
	if n := len(w.lost) - len(t.Rows); n > 0 {
		t.Note += fmt.Sprintf(" (%d of them not shown)", n)
	}
	return t
}

// SealOptions are the options of Seal.
type SealOptions struct {
	// Out is the path or URL that the seal is written to. Default: beside the
	// directory of the checkpoint, where verify finds it.
	Out string
	// State seals the files of keyed and operator state too.
	State bool
	// DryRun reads, and writes nothing.
	DryRun bool
}

// SealLine is a seal.
type SealLine struct {
	Type          LineType              `json:"type"`
	Object        string                `json:"object"` // where it lies
	Checkpoint    inflight.CheckpointID `json:"checkpoint"`
	DryRun        bool                  `json:"dry_run"`
	MetadataBytes int64                 `json:"metadata_bytes"`
	Streams       int                   `json:"streams"` // files, and parts of files, with channel state
	Chunks        int                   `json:"chunks"`
	Files         int                   `json:"files"` // of other state
	SizeBytes     int64                 `json:"size_bytes"`
}

// Sealed is what Seal did.
type Sealed struct {
	Seal     SealLine
	Findings []inflight.Finding
}

// Seal writes checksums of a checkpoint of Flink, so that later damage is found.
// One that is damaged already is refused, and so is a place where a seal lies.
func (i *Inspector) Seal(ctx context.Context, t *Target, o SealOptions) (*Sealed, error) {
	if !t.Flink {
		return nil, fail("flink seal", t.Name, fmt.Errorf("%w: it is no checkpoint of Flink", inflight.ErrConfig), "those of Spillway have checksums")
	}
	_, dir, err := i.newest(ctx, t)
	if err != nil {
		return nil, err
	}
	c, err := i.openFlink(ctx, t, dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b, name, err := i.sealPlace(ctx, t, c, o)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	at := urlOf(b, name)
	switch _, err := b.Stat(ctx, name); {
	case err == nil:
		return nil, fail("flink seal", at, inflight.ErrExist, "a seal says what was; remove it if this checkpoint is another one")
	case !errors.Is(err, inflight.ErrNotExist):
		return nil, err
	}
	i.expect(ctx, c, 2)
	seal, r, err := c.Seal(ctx, flink.SealOptions{State: o.State})
	if err != nil {
		return nil, err
	}
	p, err := seal.Encode()
	if err != nil {
		return nil, err
	}
	s := &Sealed{Findings: r.Findings, Seal: SealLine{Type: TypeSeal, Object: at, Checkpoint: c.CheckpointID, DryRun: o.DryRun, MetadataBytes: seal.Metadata.Size,
		Streams: len(seal.Streams), Files: len(seal.Files), SizeBytes: int64(len(p))}}
	for _, x := range seal.Streams {
		s.Seal.Chunks += len(x.Chunks)
	}
	if o.DryRun {
		return s, nil
	}
	return s, seal.Write(ctx, b, name)
}

// sealPlace opens the store that a seal goes to, and names it there. It must not
// lie in the checkpoint: Flink could not remove the directory.
func (i *Inspector) sealPlace(ctx context.Context, t *Target, c *flink.Checkpoint, o SealOptions) (backends.Backend, string, error) {
	if o.Out == "" {
		if c.Dir == "" {
			return nil, "", fail("flink seal", t.Name, fmt.Errorf("%w: the checkpoint is the whole store, so nothing can lie beside it", inflight.ErrConfig), "give --out")
		}
		b, err := i.o.Create(ctx, t.Backend.URL())
		return b, flink.SealName(c.Dir), err
	}
	parent, base := splitURL(o.Out)
	if base == "" {
		return nil, "", fail("flink seal", o.Out, fmt.Errorf("%w: it has no name", inflight.ErrConfig), "name a file")
	}
	b, err := i.o.Create(ctx, parent)
	if err != nil {
		return nil, "", err
	}
	if inside(t.Backend, c.Dir, b, base) {
		b.Close()
		return nil, "", fail("flink seal", o.Out, fmt.Errorf("%w: it lies in the checkpoint, which Flink could not remove then", inflight.ErrConfig), "name a file elsewhere; "+path.Base(flink.SealName(c.Dir))+" beside it is found by verify")
	}
	return b, base, nil
}

// Lines returns the seal, and what is worth knowing of the checkpoint.
func (s *Sealed) Lines() []any { return appendNotes([]any{&s.Seal}, s.Findings, nil) }

// Failed reports false: a checkpoint that is damaged is not sealed.
func (s *Sealed) Failed() bool { return false }

// Tables returns the seal.
func (s *Sealed) Tables() []Table {
	l := &s.Seal
	t := Table{Title: fmt.Sprintf("seal of Flink checkpoint %d", l.Checkpoint)}
	t.Note = fmt.Sprintf("_metadata, %s in %s, %s; %s", plural(l.Chunks, "chunk"), plural(l.Streams, "file"), plural(l.Files, "file")+" of other state", size(l.SizeBytes))
	where := "written to "
	if l.DryRun {
		where = "nothing was written; without --dry-run: "
	}
	t.Note += "\n" + where + l.Object
	tables := []Table{t}
	if len(s.Findings) > 0 {
		tables = append(tables, findingTable(s.Findings, nil))
	}
	return tables
}
