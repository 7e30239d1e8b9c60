package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// UsageBy says what bytes are counted by.
type UsageBy string

// What bytes are counted by, as used in JSON. Those of files are on the store,
// the others were captured.
const (
	ByFile    UsageBy = "file"
	ByVertex  UsageBy = "vertex"
	ByEdge    UsageBy = "edge"
	ByChannel UsageBy = "channel"
)

// UsageLine says how many bytes one thing takes.
type UsageLine struct {
	Type LineType `json:"type"`
	By   UsageBy  `json:"by"`
	File string   `json:"file,omitempty"`
	From string   `json:"from,omitempty"` // of an edge
	To   string   `json:"to,omitempty"`
	Place
	Bytes       uint64  `json:"bytes"`
	InputBytes  *uint64 `json:"input_bytes,omitempty"` // of a vertex or edge, by side
	OutputBytes *uint64 `json:"output_bytes,omitempty"`
	StateBytes  *uint64 `json:"state_bytes,omitempty"`
	Buffers     *uint64 `json:"buffers,omitempty"` // of an edge or channel
	// Share of all that is counted so, 0 to 1.
	Share float64 `json:"share"`
}

// Usage is what Usage found.
type Usage struct {
	Things   []UsageLine
	Findings []inflight.Finding
	view     *View
	top      int
}

// Usage says what takes room in a checkpoint, largest first.
func (i *Inspector) Usage(ctx context.Context, t *Target, top int) (*Usage, error) {
	v, err := i.Show(ctx, t, ShowOptions{Top: top})
	if err != nil {
		return nil, err
	}
	u := &Usage{Findings: v.Findings, view: v, top: v.top}
	u.files(ctx, t)
	u.vertices()
	for k := range v.Edges {
		l := &v.Edges[k]
		u.add(UsageLine{By: ByEdge, From: l.From, To: l.To, Place: Place{Partition: &l.Partition, Gate: &l.Gate}, Bytes: l.InputBytes + l.OutputBytes,
			InputBytes: &l.InputBytes, OutputBytes: &l.OutputBytes, Buffers: &l.Buffers})
	}
	for k := range v.Channels {
		l := &v.Channels[k]
		u.add(UsageLine{By: ByChannel, Place: l.Place, Bytes: l.Bytes, Buffers: &l.Buffers})
	}
	u.sort()
	return u, nil
}

func (u *Usage) add(l UsageLine) {
	l.Type = TypeUsage
	u.Things = append(u.Things, l)
}

// files counts what lies on the store.
func (u *Usage) files(ctx context.Context, t *Target) {
	for k := range u.view.Files {
		l := &u.view.Files[k]
		n := l.SizeBytes
		if l.UsedBytes != nil {
			n = *l.UsedBytes
		}
		u.add(UsageLine{By: ByFile, File: l.Name, Bytes: uint64(max(n, 0))})
	}
	if c := &u.view.Checkpoint; !c.Flink {
		for _, name := range []string{format.ManifestName, format.ManifestInDir, format.StatsName} {
			if info, err := t.Backend.Stat(ctx, path.Join(c.Dir, name)); err == nil {
				u.add(UsageLine{By: ByFile, File: path.Join(path.Base(c.Dir), name), Bytes: uint64(info.Size)})
			}
		}
	}
}

func (u *Usage) vertices() {
	sums := map[string]*UsageLine{}
	for k := range u.view.Subtasks {
		l := &u.view.Subtasks[k]
		s := sums[l.Vertex]
		if s == nil {
			s = &UsageLine{By: ByVertex, Place: Place{Vertex: &l.Vertex, OperatorID: l.OperatorID}, InputBytes: new(uint64), OutputBytes: new(uint64), StateBytes: new(uint64)}
			sums[l.Vertex] = s
		}
		s.Bytes += l.bytes()
		*s.InputBytes += l.InputBytes
		*s.OutputBytes += l.OutputBytes
		*s.StateBytes += l.StateBytes
	}
	for _, v := range slices.Sorted(maps.Keys(sums)) {
		u.add(*sums[v])
	}
}

// usageOrder is the order of tables.
var usageOrder = []UsageBy{ByFile, ByVertex, ByEdge, ByChannel}

// sort puts the largest first, and works out the shares.
func (u *Usage) sort() {
	sums := map[UsageBy]uint64{}
	for _, l := range u.Things {
		sums[l.By] += l.Bytes
	}
	for k := range u.Things {
		if l := &u.Things[k]; l.Bytes > 0 {
			l.Share = share(l.Bytes, sums[l.By])
		}
	}
	slices.SortStableFunc(u.Things, func(a, b UsageLine) int {
		return cmp.Or(slices.Index(usageOrder, a.By)-slices.Index(usageOrder, b.By), cmp.Compare(b.Bytes, a.Bytes))
	})
}

// Lines returns a UsageLine for each thing, and what is wrong.
func (u *Usage) Lines() []any {
	return appendNotes(appendLines(nil, u.Things), u.Findings, u.view.operators)
}

// Failed reports whether something could not be read.
func (u *Usage) Failed() bool { return failed(u.Findings) }

// Tables returns a table for each kind of thing.
func (u *Usage) Tables() []Table {
	tables := []Table{{Title: u.view.Checkpoint.title(), Note: fmt.Sprintf("%s on the store, channel state %s, other state %s", size(u.view.Checkpoint.SizeBytes), size(u.view.Checkpoint.ChannelStateBytes), size(u.view.Checkpoint.StateBytes))}}
	for _, by := range usageOrder {
		t := Table{Title: "by " + string(by), Columns: columns("#BYTES", "#SHARE", "WHAT")}
		n := 0
		for _, l := range u.Things {
			if l.By != by || l.Bytes == 0 {
				continue
			}
			if n++; n <= u.top {
				t.add(TonePlain, size(l.Bytes), fmt.Sprintf("%.0f%%", 100*l.Share), l.what())
			}
		}
		if n > u.top {
			t.Note = fmt.Sprintf("and %d more", n-u.top)
		}
		if n > 0 {
			tables = append(tables, t)
		}
	}
	if len(u.Findings) > 0 {
		tables = append(tables, findingTable(u.Findings, u.view.operators))
	}
	return tables
}

// what names the thing.
func (l *UsageLine) what() string {
	switch l.By {
	case ByFile:
		return l.File
	case ByVertex:
		return *l.Vertex
	case ByEdge:
		return fmt.Sprintf("%s partition %d → %s gate %d", l.From, *l.Partition, l.To, *l.Gate)
	}
	return l.task() + " " + l.address()
}
