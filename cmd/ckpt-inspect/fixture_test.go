package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// now is the time of all tests; everything was written an hour before. It is
// long ago, so that what a test itself writes is in the future.
var now = time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)

// fixture writes a store with two jobs into dir, with fixed ids and times:
//
//	words  0 claim, 1 checkpoint (retired), 2 declined, 3 claim from 1,
//	       4 savepoint, 5 checkpoint with two files and a reference to 4's,
//	       6 files of a coordinator that may be alive; leftovers
//	other  0 claim, 1 checkpoint
func fixture(t testing.TB, dir string) {
	job := func(name string) *fixtureJob {
		return &fixtureJob{t: t, dir: filepath.Join(dir, name), name: name}
	}
	w := job("words")
	one := inflight.CheckpointID(1)
	w.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "a0"})
	w.checkpoint(format.Manifest{ID: 1, Attempt: "a0"}, 100, total)
	w.entry(&format.Manifest{Kind: format.KindAborted, ID: 2, Attempt: "a0", Cause: &format.Cause{Kind: format.CauseDeclined, Reason: "over-budget", Text: "300 MiB were in flight, 256 MiB are allowed"}})
	w.entry(&format.Manifest{Kind: format.KindClaim, ID: 3, Attempt: "a3", Epoch: 3, Base: &one, Keep: []inflight.CheckpointID{1}})
	w.savepoint(format.Manifest{ID: 4, Attempt: "a3", Epoch: 3, Base: &one, Keep: []inflight.CheckpointID{1}})
	kept := []inflight.CheckpointID{4}
	referring, referred := w.refer(4, "a3")
	w.checkpoint(format.Manifest{ID: 5, Attempt: "a3", Epoch: 3, Base: &one, Keep: kept, Savepoints: kept}, 200, referring, referred)
	w.put("chk-0000000002/g0-a0.cstate", w.torn(2))
	w.put("chk-0000000005/_stats.json", []byte(fixtureStats))
	w.put("chk-0000000005/notes.txt", []byte("somebody's"))
	w.put("chk-0000000006/g0-a3.cstate", w.torn(6))
	w.put("chk-0000000006/.g1-a3.cstate~00c0ffee.tmp", []byte("unfinished"))

	o := job("other")
	o.entry(&format.Manifest{Kind: format.KindClaim, ID: 0, Attempt: "b0"})
	o.checkpoint(format.Manifest{ID: 1, Attempt: "b0"}, 300, total)
}

const fixtureStats = `{"id":5,"state":"completed","kind":"checkpoint","alignment":"unaligned","duration_ms":16.2,"ack_ms":10.4,"subtasks":[
{"vertex":"source","subtask":0,"start_delay_ms":0.1,"alignment_ms":0,"sync_ms":0.2,"async_ms":9.1,"end_to_end_ms":9.5,"persisted_bytes":301,"unaligned":true},
{"vertex":"count","subtask":0,"start_delay_ms":0.3,"alignment_ms":1.5,"sync_ms":0.2,"async_ms":4.4,"end_to_end_ms":6.4,"persisted_bytes":120,"unaligned":true}]}
`

// fixtureJob writes one job.
type fixtureJob struct {
	t    testing.TB
	dir  string
	name string
}

func (j *fixtureJob) put(name string, p []byte) {
	path := filepath.Join(j.dir, name)
	require.NoError(j.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(j.t, os.WriteFile(path, p, 0o600))
	age(j.t, path)
}

// age makes a file an hour old.
func age(t testing.TB, path string) {
	at := now.Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, at, at))
}

// entry writes an entry.
func (j *fixtureJob) entry(m *format.Manifest) {
	m.Job = j.name
	p, err := format.EncodeManifest(m)
	require.NoError(j.t, err)
	j.put(format.CheckpointDir(m.ID)+"/"+format.ManifestName, p)
}

// topology is two sources, two counts and a sink.
func topology() *format.Topology {
	return &format.Topology{
		Vertices: []format.Vertex{{ID: "source", Parallelism: 2}, {ID: "count", Parallelism: 2, MaxParallelism: 128}, {ID: "sink", Parallelism: 1}},
		Edges: []format.Edge{
			{From: "source", To: "count", Partitioner: "hash", Serializer: "length-prefixed/v1"},
			{From: "count", To: "sink", Partitioner: "rebalance"},
		},
	}
}

// record returns the n-th record of a connection, behind its length.
func record(n int) []byte {
	text := fmt.Sprintf("record %d of many", n)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// stream returns the records [from, to) of a connection.
func stream(from, to int) (p []byte) {
	for n := from; n < to; n++ {
		p = append(p, record(n)...)
	}
	return p
}

// capture fills one file.
type capture struct {
	*format.Encoder
	t       testing.TB
	epoch   inflight.Epoch
	members []format.Member
}

// fixtureCheckpoint collects the parts of one checkpoint.
type fixtureCheckpoint struct {
	*fixtureJob
	format.Manifest
	handles []inflight.Handle
	files   []format.FileInfo
	// referred are files of older checkpoints.
	referred []format.FileInfo
}

// file writes one file of the checkpoint.
func (c *fixtureCheckpoint) file(group string, fill func(*capture)) {
	name := format.StateFileName(c.ID, group, c.Attempt)
	var b bytes.Buffer
	h := format.FileHeader{FileID: fixtureID(c.name, c.ID, group), Job: c.name, Checkpoint: c.ID, Epoch: c.Epoch, Group: group}
	e, err := format.NewEncoder(&b, name, h, format.EncoderOptions{BlockSize: 256, LargestBlock: 1024})
	require.NoError(c.t, err)
	to := &capture{Encoder: e, t: c.t, epoch: c.Epoch}
	fill(to)
	info, err := e.Close()
	require.NoError(c.t, err)
	for _, m := range to.members {
		c.handles = append(c.handles, e.Handle(m))
	}
	c.files = append(c.files, info)
	c.put(name, b.Bytes())
}

// fixtureID is the id of a file.
func fixtureID(job string, id inflight.CheckpointID, group string) (f inflight.FileID) {
	copy(f[:], fmt.Sprintf("%s-%d-%s", group, id, job))
	return f
}

// commit writes the manifest.
func (c *fixtureCheckpoint) commit() {
	c.Kind, c.Mode = format.KindCheckpoint, format.ExactlyOnce
	if c.Topology == nil {
		c.Topology = topology()
	}
	order := []string{"source", "count", "sink"}
	slices.SortFunc(c.handles, func(a, b inflight.Handle) int {
		return cmp.Or(slices.Index(order, a.Task.Vertex)-slices.Index(order, b.Task.Vertex), a.Task.Subtask-b.Task.Subtask)
	})
	c.SetHandles(c.handles, append(c.files, c.referred...)...)
	c.SelfContained = len(c.referred) == 0
	c.entry(&c.Manifest)
}

// begin adds a subtask; done completes it.
func (c *capture) begin(vertex string, subtask int) (m format.Member, done func()) {
	m, err := c.Begin(inflight.Task{Vertex: vertex, Subtask: subtask}, nil)
	require.NoError(c.t, err)
	c.members = append(c.members, m)
	return m, func() { require.NoError(c.t, c.Complete(m)) }
}

// data captures p as buffers of 50 bytes, from offset on.
func (c *capture) data(m format.Member, a inflight.Address, offset int, p []byte) {
	seq := uint64(offset / 50)
	for b := range slices.Chunk(p, 50) {
		require.NoError(c.t, c.Append(m, a, inflight.Pos{Epoch: c.epoch, Offset: uint64(offset), Seq: seq}, b))
		offset, seq = offset+len(b), seq+1
	}
}

// cut says where a connection stands: behind n whole records.
func (c *capture) cut(m format.Member, a inflight.Address, n int) {
	require.NoError(c.t, c.SetCut(m, inflight.Cut{Address: a, Epoch: c.epoch, Bytes: uint64(len(stream(0, n))), Records: uint64(n), RecordsKnown: true}))
}

func (c *capture) state(m format.Member, name inflight.StateName, text string) {
	require.NoError(c.t, c.Append(m, name.Address(), inflight.Pos{Epoch: c.epoch}, []byte(text)))
}

func input(gate, channel int) inflight.Address {
	return inflight.InputChannel{Gate: gate, Channel: channel}.Address()
}

func output(partition, sub int) inflight.Address {
	return inflight.Subpartition{Partition: partition, Subpartition: sub}.Address()
}

// flow is what was going on between a source and a count: n records consumed,
// more emitted, and the last 30 bytes of those still upstream.
func flow(source, count, n int) (emitted, split int) {
	emitted = n + 3
	if source == 0 && count == 0 {
		emitted += 10
	}
	return emitted, len(stream(0, emitted)) - 30
}

// source captures a source that has emitted to both counts.
func (c *capture) source(subtask, n int) {
	m, done := c.begin("source", subtask)
	for peer := range 2 {
		emitted, split := flow(subtask, peer, n)
		c.data(m, output(0, peer), split, stream(0, emitted)[split:])
		c.cut(m, output(0, peer), emitted)
	}
	done()
}

// count captures a count that has consumed n records from each source, and
// emitted nothing.
func (c *capture) count(subtask, n int) {
	m, done := c.begin("count", subtask)
	for peer := range 2 {
		emitted, split := flow(peer, subtask, n)
		from := len(stream(0, n))
		c.data(m, input(0, peer), from, stream(0, emitted)[from:split])
		c.cut(m, input(0, peer), n)
	}
	c.cut(m, output(0, 0), 0)
	c.state(m, "counts", "the\t42\n")
	done()
}

// sink captures the sink, which has consumed nothing.
func (c *capture) sink(total func(format.Member)) {
	m, done := c.begin("sink", 0)
	for peer := range 2 {
		c.cut(m, input(0, peer), 0)
	}
	total(m)
	done()
}

// checkpoint writes an unaligned checkpoint after n records of each connection.
func (j *fixtureJob) checkpoint(m format.Manifest, n int, sink func(*capture, format.Member), referred ...format.FileInfo) {
	m.Alignment = format.Unaligned
	c := &fixtureCheckpoint{fixtureJob: j, Manifest: m, referred: referred}
	c.file("g0", func(f *capture) { f.source(0, n); f.source(1, n); f.count(0, n) })
	c.file("g1", func(f *capture) { f.count(1, n); f.sink(func(m format.Member) { sink(f, m) }) })
	c.commit()
}

// total is the sink's state, written anew.
func total(c *capture, m format.Member) { c.state(m, "total", "a total of 84\n") }

// savepoint writes an aligned checkpoint of the sink alone.
func (j *fixtureJob) savepoint(m format.Manifest) {
	m.Alignment, m.Savepoint, m.Partial = format.Aligned, true, true
	c := &fixtureCheckpoint{fixtureJob: j, Manifest: m}
	c.file("g0", func(f *capture) {
		m, done := f.begin("sink", 0)
		total(f, m)
		done()
	})
	c.commit()
}

// refer returns a sink state that refers to the one in a savepoint, and its file.
func (j *fixtureJob) refer(id inflight.CheckpointID, attempt string) (func(*capture, format.Member), format.FileInfo) {
	name := format.StateFileName(id, "g0", attempt)
	p, err := os.ReadFile(filepath.Join(j.dir, name))
	require.NoError(j.t, err)
	var run format.Run
	s, err := format.Scan(context.Background(), bytes.NewReader(p), int64(len(p)), format.ScanOptions{Name: name, Block: func(b *format.Block, t *format.Table) error {
		run = t.Runs[0]
		run.Target = format.Target{BlockOffset: b.Offset, Stored: format.BlockHeaderSize + b.Header.Stored}
		return nil
	}})
	require.NoError(j.t, err)
	return func(c *capture, m format.Member) {
		require.NoError(c.t, c.Reference(m, inflight.StateName("total").Address(), format.FileRef{Name: name, FileID: s.FileID}, run))
	}, format.FileInfo{Name: name, FileID: s.FileID, Size: int64(len(p))}
}

// torn is a file whose writer died.
func (j *fixtureJob) torn(id inflight.CheckpointID) []byte {
	var b bytes.Buffer
	e, err := format.NewEncoder(&b, format.StateFileName(id, "g0", "a0"), format.FileHeader{FileID: inflight.FileID{0xff, byte(id)}, Job: j.name, Checkpoint: id, Group: "g0"}, format.EncoderOptions{BlockSize: 256, LargestBlock: 1024})
	require.NoError(j.t, err)
	c := &capture{Encoder: e, t: j.t}
	m, _ := c.begin("count", 0)
	c.data(m, input(0, 0), 0, stream(0, 20))
	_, err = e.Close()
	require.NoError(j.t, err)
	return b.Bytes()[:700]
}
