package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// LengthPrefixed begins the serializer of edges whose records can be told apart:
// each stands behind its big-endian int32 length (reader.RecordCounter). Anything
// may follow it: "length-prefixed/v2".
const LengthPrefixed = "length-prefixed"

// lengthPrefixed reports whether the records of an edge can be told apart.
func lengthPrefixed(e *format.Edge) bool { return strings.HasPrefix(e.Serializer, LengthPrefixed) }

// end is one address of one subtask: one end of a connection.
type end struct {
	task    inflight.Task
	address inflight.Address
}

// wiring says which edge an address belongs to.
type wiring struct {
	topology *format.Topology
	records  bool // take all records for length-prefixed
}

// edge returns the edge that an address of a vertex belongs to; -1: none.
func (w wiring) edge(vertex string, a inflight.Address) int {
	return slices.IndexFunc(w.topology.Edges, func(e format.Edge) bool {
		return a.Side == inflight.Input && e.To == vertex && e.Gate == a.Input.Gate ||
			a.Side == inflight.Output && e.From == vertex && e.Partition == a.Output.Partition
	})
}

// connection returns the connection that e is an end of.
func (w wiring) connection(e end) (c reader.Connection, ok bool) {
	c = reader.Connection{Edge: w.edge(e.task.Vertex, e.address), Up: e.task.Subtask, Down: e.address.Output.Subpartition}
	if e.address.Side == inflight.Input {
		c.Up, c.Down = e.address.Input.Channel, e.task.Subtask
	}
	return c, c.Edge >= 0
}

// up and down return the subtasks at the ends of a connection.
func (w wiring) up(c reader.Connection) inflight.Task {
	return inflight.Task{Vertex: w.topology.Edges[c.Edge].From, Subtask: c.Up}
}

func (w wiring) down(c reader.Connection) inflight.Task {
	return inflight.Task{Vertex: w.topology.Edges[c.Edge].To, Subtask: c.Down}
}

// countable reports whether the records of e can be told apart.
func (w wiring) countable(e end) (c reader.Connection, ok bool) {
	c, ok = w.connection(e)
	return c, ok && (w.records || lengthPrefixed(&w.topology.Edges[c.Edge]))
}

// wanted reports whether there is anything to count.
func (w wiring) wanted() bool {
	return w.records || slices.ContainsFunc(w.topology.Edges, func(e format.Edge) bool { return lengthPrefixed(&e) })
}

// recordCounts are the records of a checkpoint.
type recordCounts struct {
	connections map[reader.Connection]reader.RecordCount
	unread      map[reader.Connection]bool // bytes of them could not be read
	gone        bool                       // files were not there
	ends        map[end]uint64             // that end there
}

// countRecords counts the records in flight: the input part of all connections
// first, since a record may begin there and end in the output part. What cannot
// be read is left out, with all of its connection.
func countRecords(ctx context.Context, c *checkpoint, w wiring, state map[inflight.Task][]reader.Entry) (*recordCounts, error) {
	counters := map[reader.Connection]*reader.RecordCounter{}
	n := &recordCounts{connections: map[reader.Connection]reader.RecordCount{}, unread: map[reader.Connection]bool{}, ends: map[end]uint64{}}
	for _, side := range []inflight.Side{inflight.Input, inflight.Output} {
		for i := range c.Manifest.Handles {
			h := &c.Manifest.Handles[i]
			if side == inflight.Input && h.InputBytes == 0 || side == inflight.Output && h.OutputBytes == 0 {
				continue
			}
			whole, err := n.count(ctx, c, h.Task, side, w, counters)
			if err != nil {
				return nil, err
			}
			if !whole {
				n.drop(h.Task, side, w, state[h.Task])
			}
		}
	}
	for k, counter := range counters {
		if !n.unread[k] {
			n.connections[k] = counter.Count()
		}
	}
	return n, nil
}

// drop forgets what was counted of the connections of one side of a subtask that
// could not be read.
func (n *recordCounts) drop(t inflight.Task, side inflight.Side, w wiring, entries []reader.Entry) {
	for _, e := range entries {
		at := end{t, e.Address}
		if k, ok := w.countable(at); ok && e.Address.Side == side && e.Bytes > 0 {
			n.unread[k] = true
			delete(n.ends, at)
		}
	}
}

// count counts one side of one subtask, and reports whether all of it could be
// read.
func (n *recordCounts) count(ctx context.Context, c *checkpoint, t inflight.Task, side inflight.Side, w wiring, counters map[reader.Connection]*reader.RecordCounter) (whole bool, err error) {
	s, err := c.Subtask(ctx, t)
	if err != nil {
		n.gone = n.gone || errors.Is(err, fs.ErrNotExist)
		return false, ctx.Err() // verify reports it
	}
	defer s.Close()
	for b, err := range s.Buffers(ctx, side) {
		if err != nil {
			n.gone = n.gone || errors.Is(err, fs.ErrNotExist)
			return false, ctx.Err()
		}
		at := end{t, b.Address}
		k, ok := w.countable(at)
		if !ok || n.unread[k] {
			continue
		}
		counter := counters[k]
		if counter == nil {
			counter = new(reader.RecordCounter)
			counters[k] = counter
		}
		before := counter.Count().Whole
		counter.Add(b.Bytes)
		n.ends[at] += counter.Count().Whole - before
	}
	return true, nil
}

// recordPreview is how many bytes of a record are kept to be shown.
const recordPreview = 256

// Record is a record that ends in a buffer.
type Record struct {
	Length  int
	Preview []byte // its first bytes
	// Element is what it is to Flink; nil: a record of ours.
	Element *ElementLine
}

// String returns the record's length and beginning.
func (r Record) String() string {
	switch {
	case r.Element == nil:
	case r.Element.Kind == flink.ElementRecord.String():
		return r.value()
	default:
		return r.Element.String()
	}
	if len(r.Preview) < r.Length {
		return fmt.Sprintf("record of %s: %q…", plural(r.Length, "byte"), r.Preview)
	}
	return fmt.Sprintf("record of %s: %q", plural(r.Length, "byte"), r.Preview)
}

// recordSplitter tells records apart for people: it keeps the beginning of each.
type recordSplitter struct {
	keep    bool   // beginnings
	partner int    // the channel of Flink that goes on
	head    []byte // of the record that is open
	need    int    // bytes of it still to come
	open    Record
	bad     bool // a length made no sense
}

// add takes the bytes that follow and returns how many records end in them, and
// which.
func (s *recordSplitter) add(p []byte) (n uint64, ended []Record) {
	for len(p) > 0 && !s.bad {
		if len(s.head) < 4 {
			k := min(4-len(s.head), len(p))
			s.head, p = append(s.head, p[:k]...), p[k:]
			if len(s.head) < 4 {
				break
			}
			s.need = int(int32(binary.BigEndian.Uint32(s.head)))
			if s.open, s.bad = (Record{Length: s.need}), s.need < 0; s.bad {
				break
			}
		}
		k := min(s.need, len(p))
		if s.keep {
			s.open.Preview = append(s.open.Preview, p[:min(k, recordPreview-len(s.open.Preview))]...)
		}
		s.need, p = s.need-k, p[k:]
		if s.need > 0 {
			continue
		}
		if n, s.head = n+1, s.head[:0]; s.keep {
			ended = append(ended, s.open)
		}
	}
	return n, ended
}
