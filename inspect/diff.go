package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/flink"
)

// Change says how something differs.
type Change string

// The changes, as used in JSON.
const (
	ChangeAdded   Change = "added"
	ChangeGone    Change = "gone"
	ChangeChanged Change = "changed"
)

// DifferenceLine is something that differs between two checkpoints.
type DifferenceLine struct {
	Type   LineType `json:"type"`
	Change Change   `json:"change"`
	Of     LineType `json:"of"`   // the type of the lines
	What   string   `json:"what"` // for people
	// Fields are those that changed.
	Fields []string `json:"fields,omitempty"`
	// Before and After are the lines of show.
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after,omitempty"`
}

// Difference is what Diff found.
type Difference struct {
	Differences []DifferenceLine
	a, b        string
}

// compared says how the lines of a type are told apart, and what of them is not
// compared. Where a checkpoint lies and when it was written is no difference, nor
// is how channel state is laid out in files: only what it is.
var compared = []struct {
	of   LineType
	key  []string
	skip []string
}{
	{TypeCheckpoint, nil, []string{"job", "dir", "modified", "age_ms", "kept", "attempt", "flink", "text"}},
	{TypeMetadata, nil, []string{"properties_offset"}},
	{TypeMaster, []string{"name"}, nil},
	{TypeOperator, []string{"operator_id"}, []string{"vertex", "metadata_bytes", "metadata_channels_bytes", "metadata_keyed_bytes", "metadata_operator_bytes", "metadata_inline_bytes"}},
	{TypeSubtask, []string{"vertex", "subtask"}, []string{"files", "start_delay_ms", "alignment_ms", "sync_ms", "async_ms", "end_to_end_ms", "operator_id"}},
	{TypeState, []string{"operator_id", "subtask", "state"}, []string{"vertex"}},
	{TypeEdge, []string{"from", "partition", "to", "gate"}, []string{"evidence", "skew", "partitioner"}},
	{TypeChannel, []string{"vertex", "subtask", "side", "gate", "channel", "partition", "subpartition", "name"}, []string{"operator_id", "state_size", "handle", "offsets", "ranges"}},
	{TypeFile, []string{"name"}, nil},
}

// line is a line of a report, as JSON.
type line = map[string]any

// Diff compares two checkpoints, which may be of different kinds: one of Flink and
// what it was converted to.
func (i *Inspector) Diff(ctx context.Context, a, b *Target) (*Difference, error) {
	va, err := i.Show(ctx, a, ShowOptions{})
	if err != nil {
		return nil, err
	}
	vb, err := i.Show(ctx, b, ShowOptions{})
	if err != nil {
		return nil, err
	}
	d := &Difference{a: a.Name, b: b.Name}
	la, err := linesOf(va)
	if err != nil {
		return nil, err
	}
	lb, err := linesOf(vb)
	if err != nil {
		return nil, err
	}
	mixed := va.Checkpoint.Flink != vb.Checkpoint.Flink
	for _, c := range compared {
		if mixed && (len(la[c.of]) == 0 || len(lb[c.of]) == 0) {
			continue // only one of the two kinds has such lines
		}
		d.compare(c.of, c.key, c.skip, la[c.of], lb[c.of], mixed)
	}
	return d, nil
}

// encoded is a line as JSON. It is decoded for its identity, and again if it
// differs: decoded lines take much memory.
type encoded struct {
	id  string
	raw []byte
	dir string // of its checkpoint
}

// linesOf returns the lines of a view that are compared, by type.
func linesOf(v *View) (map[LineType][]encoded, error) {
	keys := map[LineType][]string{}
	for _, c := range compared {
		keys[c.of] = append([]string{}, c.key...)
	}
	lines := map[LineType][]encoded{}
	for _, l := range v.Lines() {
		raw, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		e := encoded{raw: raw, dir: v.Checkpoint.Dir}
		m := e.decode()
		of := LineType(m["type"].(string))
		key, is := keys[of]
		if !is {
			continue
		}
		e.id = identity(m, key)
		lines[of] = append(lines[of], e)
	}
	return lines, nil
}

// decode returns the line, with names relative to the directory of its checkpoint.
func (e *encoded) decode() line {
	m := line{}
	dec := json.NewDecoder(bytes.NewReader(e.raw))
	dec.UseNumber()
	_ = dec.Decode(&m) // it was encoded just now
	unplace(m, e.dir)
	if name, ok := m["name"].(string); ok && m["type"] == string(TypeFile) {
		m["name"] = within(e.dir, name)
	}
	return m
}

// within is the name of a file relative to the directory of its checkpoint, where
// it lies there.
func within(dir, name string) string {
	for _, d := range []string{dir, path.Base(dir)} {
		if rest, ok := strings.CutPrefix(name, d+"/"); ok {
			return rest
		}
	}
	return name
}

// unplace takes from what is said of streams of Flink where the checkpoint lies,
// and where in its metadata they stand.
func unplace(v any, dir string) {
	switch v := v.(type) {
	case map[string]any:
		if v["class"] == flink.KindByteStream.String() {
			delete(v, "start_pos")
		}
		if name, ok := v["file"].(string); ok {
			v["file"] = within(dir, name)
		}
		for _, x := range v {
			unplace(x, dir)
		}
	case []any:
		for _, x := range v {
			unplace(x, dir)
		}
	}
}

// identity is what tells a line from others of its type. The id of an operator
// counts before its name, which may be given to others.
func identity(l line, key []string) string {
	var b strings.Builder
	for _, k := range key {
		v := l[k]
		if id, ok := l["operator_id"]; ok && k == "vertex" {
			v = id
		}
		fmt.Fprintf(&b, "%v\x00", v)
	}
	return b.String()
}

func (d *Difference) compare(of LineType, key, skip []string, a, b []encoded, mixed bool) {
	after := map[string]*encoded{}
	for k := range b {
		after[b[k].id] = &b[k]
	}
	for k := range a {
		e := after[a[k].id]
		delete(after, a[k].id)
		switch {
		case e == nil:
			d.add(ChangeGone, of, a[k].decode(), nil, nil)
		case !bytes.Equal(a[k].raw, e.raw):
			l, m := a[k].decode(), e.decode()
			if fields := differ(l, m, append(slices.Clone(key), skip...), mixed); len(fields) > 0 {
				d.add(ChangeChanged, of, l, m, fields)
			}
		}
	}
	for k := range b {
		if after[b[k].id] != nil {
			d.add(ChangeAdded, of, nil, b[k].decode(), nil)
		}
	}
}

// differ returns the fields that differ, but for those to skip; of checkpoints of
// different kinds, those that both know.
func differ(l, m line, skip []string, mixed bool) (fields []string) {
	for f := range union(l, m) {
		x, inL := l[f]
		y, inM := m[f]
		if !slices.Contains(skip, f) && (!mixed || inL && inM) && !reflect.DeepEqual(x, y) {
			fields = append(fields, f)
		}
	}
	slices.Sort(fields)
	return fields
}

func union(a, b line) map[string]bool {
	names := map[string]bool{}
	for _, m := range []line{a, b} {
		for k := range m {
			names[k] = true
		}
	}
	return names
}

func (d *Difference) add(c Change, of LineType, before, after line, fields []string) {
	l := after
	if l == nil {
		l = before
	}
	d.Differences = append(d.Differences, DifferenceLine{Type: TypeDifference, Change: c, Of: of, What: whatIs(of, l), Fields: fields, Before: before, After: after})
}

// whatIs names what a line is about.
func whatIs(of LineType, l line) string {
	text := func(format string, fields ...string) string {
		var args []any
		for _, f := range fields {
			args = append(args, l[f])
		}
		return oneLine(fmt.Sprintf(format, args...))
	}
	switch of {
	case TypeFile, TypeMaster:
		return text("%v", "name")
	case TypeOperator:
		return text("%v", "vertex")
	case TypeSubtask:
		return text("%v/%v", "vertex", "subtask")
	case TypeState:
		return text("%v/%v %v", "vertex", "subtask", "state")
	case TypeEdge:
		return text("%v partition %v → %v gate %v", "from", "partition", "to", "gate")
	case TypeChannel:
		switch l["side"] {
		case "input":
			return text("%v/%v gate %v channel %v", "vertex", "subtask", "gate", "channel")
		case "output":
			return text("%v/%v partition %v subpartition %v", "vertex", "subtask", "partition", "subpartition")
		}
		return text("%v/%v state %q", "vertex", "subtask", "name")
	}
	return text("%v", "type")
}

// Lines returns a DifferenceLine for each difference.
func (d *Difference) Lines() []any { return appendLines(nil, d.Differences) }

// Failed reports false: a difference is no fault.
func (d *Difference) Failed() bool { return false }

// manyDifferences is how many differences of one kind a table lists.
const manyDifferences = 50

// Tables returns a table for each kind of thing that differs.
func (d *Difference) Tables() []Table {
	head := Table{Title: fmt.Sprintf("%s → %s", d.a, d.b), Note: "no difference"}
	if len(d.Differences) > 0 {
		head.Note = d.counts()
	}
	tables := []Table{head}
	for _, c := range compared {
		t := Table{Title: plurals[c.of], Columns: columns("CHANGE", "WHAT", "HOW")}
		more := 0
		for _, l := range d.Differences {
			switch {
			case l.Of != c.of:
			case len(t.Rows) == manyDifferences:
				more++
			default:
				t.add(changeTones[l.Change], l.Change, l.What, orDash(l.how()))
			}
		}
		if more > 0 {
			t.Note = fmt.Sprintf("and %d more", more)
		}
		if len(t.Rows) > 0 {
			tables = append(tables, t)
		}
	}
	return tables
}

var changeTones = map[Change]Tone{ChangeAdded: ToneGood, ChangeGone: ToneWarning, ChangeChanged: TonePlain}

var plurals = map[LineType]string{TypeCheckpoint: "checkpoint", TypeMetadata: "_metadata", TypeMaster: "master states", TypeOperator: "operators", TypeSubtask: "subtasks",
	TypeState: "state", TypeEdge: "edges", TypeChannel: "channels", TypeFile: "files"}

// counts says for each kind of thing how many differ.
func (d *Difference) counts() string {
	var lines []string
	for _, c := range compared {
		n := map[Change]int{}
		for _, l := range d.Differences {
			if l.Of == c.of {
				n[l.Change]++
			}
		}
		var parts []string
		for _, change := range []Change{ChangeAdded, ChangeGone, ChangeChanged} {
			if n[change] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n[change], change))
			}
		}
		if len(parts) > 0 {
			lines = append(lines, plurals[c.of]+": "+strings.Join(parts, ", "))
		}
	}
	return strings.Join(lines, "\n")
}

// how says what of it changed: "bytes 300 → 256".
func (l *DifferenceLine) how() string {
	if l.Change != ChangeChanged {
		of := l.After
		if of == nil {
			of = l.Before
		}
		for _, f := range []string{"bytes", "size_bytes"} {
			if n, ok := of[f]; ok {
				return fmt.Sprintf("%s %v", f, n)
			}
		}
		return ""
	}
	var parts []string
	for _, f := range l.Fields {
		parts = append(parts, fmt.Sprintf("%s %s → %s", f, short(l.Before[f]), short(l.After[f])))
	}
	return strings.Join(parts, ", ")
}

// short is a value of JSON for a table.
func short(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case map[string]any:
		return "{" + strings.Join(slices.Sorted(maps.Keys(v)), ", ") + "}"
	case []any:
		return fmt.Sprintf("[%d]", len(v))
	case string:
		if len(v) > 40 {
			return v[:16] + "…"
		}
		return orDash(v)
	}
	return fmt.Sprint(v)
}
