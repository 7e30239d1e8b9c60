package inspect

import (
	"context"
	"fmt"
	"strings"

	"github.com/spillway-io/spillway/flink"
)

// ChannelList is what Channels found.
type ChannelList struct{ *View }

// Channels lists the channels that a checkpoint captured anything of: buffers,
// bytes, and where in files they lie.
func (i *Inspector) Channels(ctx context.Context, t *Target) (*ChannelList, error) {
	v, err := i.Show(ctx, t, ShowOptions{Ranges: true})
	if err != nil {
		return nil, err
	}
	return &ChannelList{v}, nil
}

// Lines returns a ChannelLine for each channel, and what is wrong.
func (c *ChannelList) Lines() []any {
	return appendNotes(appendLines(nil, c.Channels), c.Findings, c.operators)
}

// Tables returns a table of channels.
func (c *ChannelList) Tables() []Table {
	t := Table{Title: c.Checkpoint.title(), Columns: columns("SUBTASK", "ADDRESS", "#BUFFERS", "#BYTES", "#RECORDS", "WHERE")}
	if c.Checkpoint.State != "" && len(c.Channels) == 0 {
		t.Note = "nothing was captured"
	}
	for _, l := range c.Channels {
		t.add(TonePlain, l.task(), l.address(), l.Buffers, l.Bytes, dash(l.Records), orDash(whereText(l.Ranges)))
	}
	tables := []Table{t}
	if len(c.Findings) > 0 {
		tables = append(tables, findingTable(c.Findings, c.operators))
	}
	return tables
}

// manyRanges is how many ranges of one channel a table lists.
const manyRanges = 4

// whereText is a list of ranges: "chk-2/4a3b 4–1050, 2098–3144".
func whereText(ranges []RangeLine) string {
	var b strings.Builder
	file := ""
	for k, r := range ranges {
		if k == manyRanges {
			fmt.Fprintf(&b, " and %d more", len(ranges)-k)
			break
		}
		switch {
		case r.File != file:
			if file = r.File; k > 0 {
				b.WriteString("; ")
			}
			b.WriteString(file + " ")
		case k > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d–%d", r.Offset, r.Offset+r.Length-1)
	}
	return b.String()
}

// addRange adds a range to a list, to the last one if it goes on there.
func addRange(ranges []RangeLine, r RangeLine) []RangeLine {
	if n := len(ranges); n > 0 {
		if last := &ranges[n-1]; last.File == r.File && r.Offset >= last.Offset && r.Offset <= last.Offset+last.Length {
			last.Length = max(last.Length, r.Offset+r.Length-last.Offset)
			return ranges
		}
	}
	return append(ranges, r)
}

// ranges adds to the channels the ranges of the blocks that they lie in. What
// cannot be read is in the findings already.
func (v *View) ranges(ctx context.Context, c *checkpoint) error {
	next := 0
	for _, h := range c.Manifest.Handles {
		s, err := c.Subtask(ctx, h.Task)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue
		}
		for e := range s.Entries() {
			if next == len(v.Channels) {
				break
			}
			l := &v.Channels[next]
			next++
			refs, err := s.Rest(ctx, e.Address, 0)
			if err != nil {
				continue
			}
			for _, r := range refs {
				l.Ranges = addRange(l.Ranges, RangeLine{File: r.File.Name, Offset: r.Run.Target.BlockOffset, Length: int64(r.Run.Target.Stored)})
			}
		}
		s.Close()
	}
	return nil
}

// ranges are the chunks of a channel of Flink, with their lengths. They count from
// the beginning of the file.
func (f *flinkView) rangesOf(k int) (ranges []RangeLine) {
	stream := f.r.Index.Streams[f.r.Index.Channels[k].Stream].Handle
	file, _ := f.fileOf(stream)
	start := stream.StartPos()
	if stream.Kind() == flink.KindByteStream {
		start = stream.DataOffset()
	}
	for _, c := range f.chunks[k] {
		if c.Length >= 0 {
			ranges = addRange(ranges, RangeLine{File: file, Offset: start + c.Offset, Length: 4 + int64(c.Length)})
		}
	}
	return ranges
}

// sortChunks puts the chunks of all streams to their channels.
func (f *flinkView) sortChunks() {
	f.chunks = make([][]flink.Chunk, len(f.r.Index.Channels))
	for _, s := range f.r.Index.Streams {
		for _, c := range s.Chunks {
			f.chunks[c.Channel] = append(f.chunks[c.Channel], c)
		}
	}
}
