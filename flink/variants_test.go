package flink

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

// variant is a way to write channel state that real Flink was seen to restore
// from.
type variant struct {
	name                                 string
	single, inline, absolute, perChannel bool
	gap, chunk                           int
	empty, reverse, sizeless             bool
	findings                             string
}

var variants = []variant{
	{name: "unmerged", single: true},
	{name: "one file"},
	{name: "a file for each channel", perChannel: true},
	{name: "inline", inline: true, perChannel: true},
	{name: "inline, unmerged", inline: true, perChannel: true, single: true},
	{name: "absolute paths", absolute: true},
	{name: "gaps", gap: 777, findings: "warning dead-bytes"},
	{name: "chunks of 7 bytes", chunk: 7},
	{name: "one chunk", chunk: 1 << 30},
	{name: "empty chunks", empty: true},
	{name: "offsets backwards", reverse: true},
	{name: "state sizes of zero", sizeless: true, findings: "warning state-size"},
}

// writer writes the channels of a checkpoint in the way of a variant.
type variantWriter struct {
	t     *testing.T
	v     variant
	files map[string]*bytes.Buffer
	last  map[string]*StateWriter
	n     int
}

func (w *variantWriter) channel(c Channel, data []byte) (file string, out Channel) {
	file = "channel-state"
	if w.v.perChannel {
		w.n++
		file = fmt.Sprintf("channel-%d", w.n)
	}
	if w.files[file] == nil {
		w.files[file] = &bytes.Buffer{}
		w.last[file] = NewStateWriter(w.files[file])
	}
	sw := w.last[file]
	size := w.v.chunk
	if size == 0 {
		size = 4096
	}
	pieces := slices.Collect(slices.Chunk(data, size))
	if w.v.empty {
		pieces = slices.Concat([][]byte{{}}, pieces, [][]byte{{}})
	}
	var offsets []int64
	c.StateSize = 0
	for _, p := range pieces {
		off, err := sw.Append(p)
		require.NoError(w.t, err)
		if w.v.gap > 0 {
			_, err := sw.Write(make([]byte, w.v.gap))
			require.NoError(w.t, err)
		}
		offsets = append(offsets, off)
		c.StateSize += lengthSize + int64(len(p))
	}
	if w.v.reverse {
		slices.Reverse(offsets)
	}
	if w.v.sizeless {
		c.StateSize = 0
	}
	c.Offsets = MakeInt64s(offsets...)
	return file, c
}

func (w *variantWriter) delegate(file string) (h StreamHandle) {
	var err error
	b := w.files[file].Bytes()
	switch {
	case w.v.inline:
		h, err = NewByteStream("uuid-of-"+file, b)
	case w.v.absolute:
		h, err = NewFile("mem:/chk-3/"+file, int64(len(b)))
	default:
		h, err = NewRelativeFile(file, int64(len(b)))
	}
	require.NoError(w.t, err)
	return h
}

// TestVariants writes the channel state of fixtures anew in each way, for each
// version of the metadata, and reads it.
func TestVariants(t *testing.T) {
	for _, name := range []string{"resume", "flink-1.18.1-keyed-2x2", "flink-2.0.1-keyed-2x2"} {
		for _, v := range variants {
			t.Run(name+"/"+v.name, func(t *testing.T) { testVariant(t, name, v) })
		}
	}
}

func testVariant(t *testing.T, name string, v variant) {
	c, _ := openFixture(t, name)
	data := payloads(t, c)
	w := &variantWriter{t: t, v: v, files: map[string]*bytes.Buffer{}, last: map[string]*StateWriter{}}
	type placed struct {
		file string
		Channel
	}
	lists := map[*Subtask]map[inflight.Side][]placed{}
	for _, first := range []bool{true, false} { // the files have to be whole before a handle says how long they are
		m, err := c.Rewrite(Changes{Channels: func(o *Operator, s *Subtask) (input, output []ChannelHandle, changed bool) {
			if first {
				lists[s] = map[inflight.Side][]placed{}
				for h := range s.Handles() {
					for ch, err := range h.Channels() {
						require.NoError(t, err)
						file, n := w.channel(ch, data[where{o.ID, ch.Subtask, ch.Address}])
						lists[s][h.Side] = append(lists[s][h.Side], placed{file, n})
					}
				}
				return nil, nil, false
			}
			handles := func(list []placed) (out []ChannelHandle) {
				if len(list) > 0 && !v.single && !v.perChannel {
					var channels []Channel
					for _, p := range list {
						channels = append(channels, p.Channel)
					}
					return []ChannelHandle{NewChannelHandle(w.delegate(list[0].file), channels, true)}
				}
				for _, p := range list {
					out = append(out, NewChannelHandle(w.delegate(p.file), []Channel{p.Channel}, !v.single))
				}
				return out
			}
			return handles(lists[s][inflight.Input]), handles(lists[s][inflight.Output]), true
		}})
		require.NoError(t, err)
		if first {
			continue
		}
		b := mem.New(mem.Options{})
		defer b.Close()
		dir := chk(c)
		require.NoError(t, writeFile(t.Context(), b, dir+"/_metadata", m))
		for file, p := range w.files {
			if !v.inline {
				require.NoError(t, writeFile(t.Context(), b, dir+"/"+file, p.Bytes()))
			}
		}
		n, err := Open(t.Context(), b, dir, OpenOptions{Moves: []Move{{From: "mem:/chk-3", To: "/" + dir}}, OpenURL: nowhere})
		require.NoError(t, err)
		require.Equal(t, data, payloads(t, n))
		r, err := n.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, err)
		for _, f := range r.Findings {
			require.Equal(t, v.findings, string(f.Severity)+" "+f.Code, f)
		}
		require.Equal(t, v.findings != "", len(r.Findings) > 0)
		p, err := n.PlanCompact(t.Context(), CompactOptions{})
		require.NoError(t, err)
		require.Equal(t, data, payloads(t, execute(t, p)))
	}
}
