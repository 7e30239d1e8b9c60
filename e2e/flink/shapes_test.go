package flink_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/flinktest"
)

// TestFlinkWrites: checkpoints that Flink's own classes wrote in another shape
// are read, compacted, and restored.
func TestFlinkWrites(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	want := payloads(t, open(t, root, dir))
	for _, mode := range []string{"v3", "v4", "v5", "unmerged", "one-file", "file-per-channel", "inline", "absolute", "gaps", "merged-chunks", "split-chunks", "empty-chunks"} {
		place := t.TempDir()
		var made struct{ Version, Channels int }
		server.ask(t, &made, "rewrite", map[string]any{"mode": mode, "from": filepath.Join(root, dir), "to": filepath.Join(place, dir)})
		c := open(t, place, dir)
		require.Equal(t, made.Version, c.Version)
		verified(t, c)
		require.Equal(t, want, payloads(t, c), mode)
		p, err := c.PlanCompact(t.Context(), flink.CompactOptions{})
		require.NoError(t, err)
		require.Equal(t, made.Channels, p.Before.Channels)
		n, path := execute(t, p, c.CheckpointID)
		require.Empty(t, verified(t, n).Findings)
		require.Equal(t, c.Version, n.Version)
		j.requireExact(t, "written by Flink as "+mode+", compacted", path, j.splits)
		if full() {
			j.requireExact(t, "written by Flink as "+mode+", compacted", path, 2)
		}
	}
}

// TestFlinkReads: of every fixture, of Flink 1.17 to 2.3, what is rewritten here is
// read by Flink's own classes, to the byte.
func TestFlinkReads(t *testing.T) {
	channels := 0
	for _, name := range flinktest.Names(t) {
		root := flinktest.Unpack(t, name)
		c := open(t, root, flinktest.CheckpointDir(t, root), moveOf(name, root))
		want := map[string]string{}
		for k, data := range payloads(t, c) {
			want[fmt.Sprintf("%s/%d %s", k.op, k.subtask, k.address)] = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		compact, err := c.PlanCompact(t.Context(), flink.CompactOptions{})
		require.NoError(t, err)
		requireRead(t, compact, c, want, name+", compacted")
		small, err := c.PlanCompact(t.Context(), flink.CompactOptions{ChunkSize: 1000, FileSize: 50_000})
		require.NoError(t, err)
		requireRead(t, small, c, want, name+", cut small, in several files")
		relocate, err := c.PlanRelocate(t.Context(), flink.RelocateOptions{})
		require.NoError(t, err)
		requireRead(t, relocate, c, want, name+", relocated")
		to, err := c.PlanToSpillway(t.Context(), flink.ConvertOptions{})
		require.NoError(t, err)
		ours := store(t, t.TempDir())
		require.NoError(t, to.Execute(t.Context(), ours, "x"))
		back, err := flink.PlanFromSpillway(t.Context(), ours, "x")
		require.NoError(t, err)
		requireRead(t, back, c, want, name+", converted and back")
		channels += 4 * len(want)
	}
	say(t, "Flink's classes read %d channels of %d fixtures, rewritten in 4 ways, to the byte", channels, len(flinktest.Names(t)))
}

// requireRead carries p out and holds what Flink reads against want.
func requireRead(t testing.TB, p executor, c *flink.Checkpoint, want map[string]string, what string) {
	t.Helper()
	_, path := execute(t, p, c.CheckpointID)
	var got struct{ Channels map[string]string }
	server.ask(t, &got, "read", map[string]any{"from": path})
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	maps.DeleteFunc(got.Channels, func(_, sum string) bool { return sum == empty })
	require.Equal(t, want, got.Channels, what)
}

// shape is a way to write channel state.
type shape struct {
	name                                 string
	single, inline, absolute, perChannel bool
	gap, chunk                           int
	empty, reverse, sizeless             bool
}

// TestWeWrite: channel state that is written with this package, in every shape
// that Flink takes.
func TestWeWrite(t *testing.T) {
	j, root, dir := fixture(t, "resume")
	c := open(t, root, dir)
	want := payloads(t, c)
	for _, s := range []shape{
		{name: "unmerged", single: true},
		{name: "one file"},
		{name: "a file for each channel", perChannel: true},
		{name: "inline", inline: true, perChannel: true},
		{name: "inline, unmerged", inline: true, perChannel: true, single: true},
		{name: "absolute paths", absolute: true},
		{name: "gaps", gap: 777},
		{name: "one chunk a channel", chunk: 1 << 30},
		{name: "chunks of 1,000 bytes", chunk: 1000},
		{name: "empty chunks", empty: true},
		{name: "offsets backwards", reverse: true},
		{name: "state sizes of zero", sizeless: true},
	} {
		place := t.TempDir()
		path := filepath.Join(place, dir)
		copyDir(t, filepath.Join(root, dir), path)
		n := writeShape(t, c, place, dir, s)
		verified(t, n)
		require.Equal(t, want, payloads(t, n), s.name)
		j.requireExact(t, "written here: "+s.name, path, j.splits)
		if full() {
			j.requireExact(t, "written here: "+s.name, path, 2)
		}
	}
}

func copyDir(t testing.TB, from, to string) {
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

// shapeWriter writes the channels of a checkpoint in the way of a shape.
type shapeWriter struct {
	t     testing.TB
	s     shape
	dir   string
	files map[string]*bytes.Buffer
	last  map[string]*flink.StateWriter
}

// writeShape writes the channel state of c anew into place/dir, where the other
// files of the checkpoint lie already, with its metadata.
func writeShape(t testing.TB, c *flink.Checkpoint, place, dir string, s shape) *flink.Checkpoint {
	w := &shapeWriter{t: t, s: s, dir: filepath.Join(place, dir), files: map[string]*bytes.Buffer{}, last: map[string]*flink.StateWriter{}}
	for _, st := range c.Index().Streams {
		if st.Handle.Kind() == flink.KindRelativeFile {
			require.NoError(t, os.Remove(filepath.Join(w.dir, st.Handle.Path())))
		}
	}
	type placed struct {
		file string
		flink.Channel
	}
	data := payloads(t, c)
	lists := map[*flink.Subtask]map[inflight.Side][]placed{}
	for i := range c.Operators {
		o := &c.Operators[i]
		for k := range o.Subtasks {
			sub := &o.Subtasks[k]
			lists[sub] = map[inflight.Side][]placed{}
			for h := range sub.Handles() {
				for ch, err := range h.Channels() {
					require.NoError(t, err)
					if p := data[channelKey{o.ID, ch.Subtask, ch.Address}]; len(p) > 0 {
						file, n := w.channel(ch, p)
						lists[sub][h.Side] = append(lists[sub][h.Side], placed{file, n})
					}
				}
			}
		}
	}
	handles := func(list []placed) (out []flink.ChannelHandle) {
		if len(list) > 0 && !s.single && !s.perChannel {
			var channels []flink.Channel
			for _, p := range list {
				channels = append(channels, p.Channel)
			}
			return []flink.ChannelHandle{flink.NewChannelHandle(w.delegate(list[0].file), channels, true)}
		}
		for _, p := range list {
			out = append(out, flink.NewChannelHandle(w.delegate(p.file), []flink.Channel{p.Channel}, !s.single))
		}
		return out
	}
	m, err := c.Rewrite(flink.Changes{Channels: func(_ *flink.Operator, sub *flink.Subtask) (input, output []flink.ChannelHandle, changed bool) {
		return handles(lists[sub][inflight.Input]), handles(lists[sub][inflight.Output]), true
	}})
	require.NoError(t, err)
	for file, b := range w.files {
		if !s.inline {
			require.NoError(t, os.WriteFile(filepath.Join(w.dir, file), b.Bytes(), 0o600))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, flink.MetadataName), m, 0o600))
	return open(t, place, dir)
}

func (w *shapeWriter) channel(c flink.Channel, data []byte) (file string, out flink.Channel) {
	file = "channel-state"
	if w.s.perChannel {
		file = fmt.Sprintf("channel-%d", len(w.files))
	}
	if w.files[file] == nil {
		w.files[file] = &bytes.Buffer{}
		w.last[file] = flink.NewStateWriter(w.files[file])
	}
	sw, size := w.last[file], w.s.chunk
	if size == 0 {
		size = 4096
	}
	pieces := slices.Collect(slices.Chunk(data, size))
	if w.s.empty {
		pieces = slices.Concat([][]byte{{}}, pieces, [][]byte{{}})
	}
	var offsets []int64
	c.StateSize = 0
	for _, p := range pieces {
		off, err := sw.Append(p)
		require.NoError(w.t, err)
		_, err = sw.Write(make([]byte, w.s.gap))
		require.NoError(w.t, err)
		offsets = append(offsets, off)
		c.StateSize += 4 + int64(len(p))
	}
	if w.s.reverse {
		slices.Reverse(offsets)
	}
	if w.s.sizeless {
		c.StateSize = 0
	}
	c.Offsets = flink.MakeInt64s(offsets...)
	return file, c
}

func (w *shapeWriter) delegate(file string) (h flink.StreamHandle) {
	var err error
	b := w.files[file].Bytes()
	switch {
	case w.s.inline:
		h, err = flink.NewByteStream("uuid-of-"+file, b)
	case w.s.absolute:
		h, err = flink.NewFile("file:"+filepath.ToSlash(filepath.Join(w.dir, file)), int64(len(b)))
	default:
		h, err = flink.NewRelativeFile(file, int64(len(b)))
	}
	require.NoError(w.t, err)
	return h
}
