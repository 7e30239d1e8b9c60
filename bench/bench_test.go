package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestCells holds the cells against the table of README.md.
func TestCells(t *testing.T) {
	for _, tc := range []struct {
		c              cell
		name           string
		bytes, buffers int
	}{
		{shape("disk", 1, 32768, 1), "S1-32K-max1", 4 << 20, 128},
		{shape("disk", 8, 4096, 5), "S8-4K-max5", 32 << 20, 8192},
		{shape("disk", 64, 32768, 100), "S64-32K-max100", 256 << 20, 8192},
		{shape("disk", 1, 200, 1), "S1-200B-max1", 409600, 2048},
		{shape("disk", 64, 200, 1), "S64-200B-max1", 26214400, 131072},
	} {
		require.Equal(t, tc.name, tc.c.Name)
		require.Equal(t, tc.bytes, tc.c.bytes(), tc.name)
		require.Equal(t, tc.buffers, tc.c.buffers(), tc.name)
	}
	want := []int{3200, 65536, 262144, 589824, 600000, 524288, 524288, 524288}
	for i, c := range latencyCells(level{}, "disk") {
		require.Equal(t, want[i], c.bytes(), c.Name)
	}
	require.Equal(t, 1<<30, memoryCells("disk")[0].bytes())
	require.Len(t, writerCells(level{}, "disk", 8), 10)
	require.Len(t, writerCells(level{}, "disk", 64), 9)
	require.Len(t, writerCells(level{quick: true}, "disk", 64), 1)
	require.Len(t, restoreCells(level{}, "disk"), 11)
}

func small() cell {
	return cell{Name: "small", FS: "disk", Payload: payload.Random, S: 2, I: 2, O: 3, B: 4, Size: 100, Max: 5}
}

func TestLoad(t *testing.T) {
	l, err := newLoad(small())
	require.NoError(t, err)
	defer func() { require.NoError(t, l.free()) }()
	require.Equal(t, payload.Channel(payload.Random, 1, payload.Output, 2, 400), l.stream(1, payload.Output, 2))

	bufs := l.retain(1, payload.Output, 2)
	require.Len(t, bufs, 4)
	require.Equal(t, l.stream(1, payload.Output, 2)[300:], bufs[3].Bytes())
	require.Error(t, l.settled())
	for _, b := range bufs {
		b.Release()
	}
	require.NoError(t, l.settled())
	bufs[0].Release()
	require.Error(t, l.settled())

	other := small()
	other.Max, other.Name = 1, "other"
	require.True(t, l.fits(other))
	other.B++
	require.False(t, l.fits(other))
}

func TestSink(t *testing.T) {
	c := small()
	l, err := newLoad(c)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.free()) }()
	deliver := func(change func(p []byte) []byte) error {
		s := newSink(c, 1)
		s.reset(l)
		var err error
		for _, side := range []payload.Side{payload.Output, payload.Input} {
			for ch := range map[payload.Side]int{payload.Output: c.O, payload.Input: c.I}[side] {
				for b := range c.B {
					p := bytes.Clone(l.stream(1, side, ch)[b*c.Size : (b+1)*c.Size])
					if side == payload.Output && ch == 1 && b == 2 {
						p = change(p)
					}
					err = errors.Join(err, s.take(side, ch, p))
				}
			}
		}
		return errors.Join(err, s.Done(t.Context()), s.complete())
	}
	require.NoError(t, deliver(func(p []byte) []byte { return p }))
	require.Error(t, deliver(func(p []byte) []byte { p[7] ^= 1; return p }), "a flipped bit")
	require.Error(t, deliver(func(p []byte) []byte { return p[:50] }), "bytes missing")
	require.Error(t, deliver(func(p []byte) []byte { return append(p, 0) }), "bytes added")
}

func TestTogether(t *testing.T) {
	x, err := together(3, func(sub int) error {
		if sub == 1 {
			return os.ErrInvalid
		}
		return nil
	})
	require.ErrorIs(t, err, os.ErrInvalid)
	require.Positive(t, x.wall)
}

func TestPlain(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	require.NoError(t, writeHot(name, 3<<20+5, true))
	st, err := os.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 3<<20+5, st.Size())
	took, err := plainRead([]string{name}, make([]byte, 1<<20))
	require.NoError(t, err)
	require.Positive(t, took.wall)
	require.NoError(t, os.Remove(name))

	for _, write := range []func(string, int, bool) (cost, error){plainWrite, plainWriteFresh} {
		took, err := write(dir, 1000, true)
		require.NoError(t, err)
		require.Positive(t, took.wall)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestRaw runs the probe on a tiny cell and reads its records back.
func TestRaw(t *testing.T) {
	var out, log bytes.Buffer
	r := &runner{dir: t.TempDir(), fs: "disk", level: level{quick: true}, out: &out, log: &log}
	require.NoError(t, r.rawCell(t.Context(), small(), budget{rounds: 2, minRounds: 2}, false))
	ops := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var rec record
		require.NoError(t, json.Unmarshal([]byte(line), &rec))
		require.Equal(t, "GO", rec.Kind)
		require.Equal(t, small(), rec.cell)
		require.Len(t, rec.Wall, 2)
		ops[rec.Op] = true
	}
	require.Len(t, ops, len(rawOps)+1)
	left, err := os.ReadDir(r.dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestWorkloads runs every workload on a tiny cell, and reads the records back.
func TestWorkloads(t *testing.T) {
	var out, log bytes.Buffer
	r := &runner{dir: t.TempDir(), fs: "disk", level: level{quick: true}, out: &out, log: &log}
	l, err := newLoad(small())
	require.NoError(t, err)
	defer func() { require.NoError(t, l.free()) }()
	ctx, c, b := t.Context(), small(), budget{warmRounds: 1, rounds: 3, minRounds: 3}
	require.NoError(t, r.write(ctx, "W", c, l, b, func(rec *record) error {
		force, err := plainWrite(r.dir, c.framed(), true)
		rec.plain(&rec.PlainForce, force)
		return err
	}))
	require.NoError(t, r.read(ctx, c, l, b, false))
	require.NoError(t, r.read(ctx, c, l, b, true))
	require.NoError(t, r.peak(ctx, c, l))
	require.NoError(t, r.meta(ctx, 100, b))

	var kinds []string
	for line := range strings.Lines(out.String()) {
		var rec record
		require.NoError(t, json.Unmarshal([]byte(line), &rec))
		kinds = append(kinds, rec.Kind)
		if rec.Kind == "M" {
			require.Equal(t, 100, rec.Handles)
			require.Positive(t, rec.Bytes)
			for _, list := range [][]int64{rec.SerMem, rec.ParseMem, rec.StoreFile, rec.LoadFile, rec.PlainForce} {
				require.Len(t, list, 3)
			}
			continue
		}
		require.Equal(t, c, rec.cell)
		require.Equal(t, 1, rec.Files)
		require.Greater(t, rec.FileBytes, int64(rec.Bytes))
		if !strings.HasPrefix(rec.Kind, "MEM") {
			require.Len(t, rec.Wall, 3)
			require.Positive(t, rec.ratio())
		}
	}
	require.Equal(t, []string{"W", "R", "R", "MEM-W", "MEM-R", "M"}, kinds)
	left, err := os.ReadDir(r.dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSections holds the sections that M makes against one that an encoder
// wrote for the same channels.
func TestSections(t *testing.T) {
	c := metaCell(10000)
	require.Equal(t, 625, c.S)
	var file bytes.Buffer
	id := inflight.NewFileID()
	e, err := format.NewEncoder(&file, format.StateFileName(metaID, "g", "a"), format.FileHeader{FileID: id, Checkpoint: metaID}, format.EncoderOptions{})
	require.NoError(t, err)
	member, err := e.Begin(inflight.Task{Vertex: vertex, Subtask: 624}, nil)
	require.NoError(t, err)
	for i, cut := range c.cuts(624) {
		for b := range c.B {
			at := pos(624, i%c.I).Advance(uint64(b*c.Size), b)
			require.NoError(t, e.Append(member, cut.Address, at, make([]byte, c.Size)))
		}
		require.NoError(t, e.SetCut(member, cut))
	}
	require.NoError(t, e.Complete(member))
	_, err = e.Close()
	require.NoError(t, err)
	real := e.Handle(member).Segments[0]
	section, err := format.ReadSection(bytes.NewReader(file.Bytes()), real)
	require.NoError(t, err)

	offset := int64(128)
	made := c.section(624, perSubtask, &offset)
	require.Equal(t, len(section.Entries), len(made.Entries))
	for i := range made.Entries {
		made.Entries[i].Digest = section.Entries[i].Digest
	}
	require.Equal(t, section.Entries, made.Entries)
	require.InDelta(t, real.Length, len(format.AppendSection(nil, made, id, offset)), 8)
}

func TestFramed(t *testing.T) {
	dir, data := t.TempDir(), payload.Channel(payload.Random, 0, payload.Input, 0, 3000*200)
	require.NoError(t, framed(dir, "f", data, 200, false))
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Len(t, got, 4+3000*204)
	require.Equal(t, data[200:400], got[4+204+4:4+2*204])
}

func TestRunMode(t *testing.T) {
	for _, args := range [][]string{
		nil, {"help"}, {"mode=w"}, {"mode=x", "fs=disk", "dir=d", "out=o"}, {"mode=w", "fs=nfs", "dir=d", "out=o"},
		{"mode=w", "cells=(", "fs=disk", "dir=d", "out=o"}, {"mode=w", "S=many", "fs=disk", "dir=d", "out=o"}, {"mode=w", "level=some", "fs=disk", "dir=d", "out=o"}, {"mode=w", "fs"},
		{"report"}, {"report", "/does/not/exist"},
	} {
		require.Error(t, dispatch(t.Context(), args, &bytes.Buffer{}), "%v", args)
	}
	var sums bytes.Buffer
	require.NoError(t, dispatch(t.Context(), []string{"check"}, &sums))
	require.Equal(t, payload.Check(), sums.String())
}

// TestReport reads records of ours and of Flink's driver.
func TestReport(t *testing.T) {
	name := filepath.Join(t.TempDir(), "r.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(`{"kind":"ENV","level":"quick"}
{"impl":"flink","kind":"W","name":"S8-32K-max5","fs":"disk","payload":"random","S":8,"I":8,"O":8,"B":8,"size":32768,"max":5,"bytes":33554432,"buffers":1024,"wall_ns":[40000000,60000000,50000000],"plain_force_ns":[20000000,20000000,20000000],"plain_noforce_ns":[1,1,1],"cpu_ns_total":150000000,"rounds":3,"alloc_bytes":[1,2,3],"gcs":0,"files":2,"file_bytes":33558536,"file_min":1,"file_max":2,"rss_peak_kb":768000}
{"impl":"flink","kind":"M","fs":"disk","handles":10000,"form":"merged","bytes":939411,"ser_mem_ns":[1],"parse_mem_ns":[1],"store_file_ns":[20000000],"load_file_ns":[30000000],"plain_force_ns":[1500000]}
{"impl":"go","kind":"W","name":"S8-32K-max5","fs":"disk","payload":"random","S":8,"I":8,"O":8,"B":8,"size":32768,"max":5,"bytes":33554432,"buffers":1024,"wall_ns":[16000000,15000000,17000000],"plain_force_ns":[20000000,20000000,20000000],"cpu_ns_total":80000000,"plain_cpu_ns_total":40000000,"rounds":3,"alloc_bytes":[1,2,3],"alloc_objects":[100,102,104],"files":2,"rss_peak_kb":60000}
{"impl":"go","kind":"W","name":"S8-200B-max5","fs":"disk","payload":"random","S":8,"I":8,"O":8,"B":128,"size":200,"max":5,"bytes":3276800,"buffers":16384,"wall_ns":[5],"plain_force_ns":[5],"cpu_ns_total":80000000,"rounds":1,"alloc_bytes":[1],"alloc_objects":[102],"files":2,"rss_peak_kb":60000}
{"impl":"go","kind":"M","fs":"disk","handles":10000,"form":"merged","bytes":300000,"ser_mem_ns":[1],"parse_mem_ns":[1],"store_file_ns":[2000000],"load_file_ns":[9000000],"plain_force_ns":[1500000]}
`), 0o600))
	var out bytes.Buffer
	require.NoError(t, dispatch(t.Context(), []string{"report", name}, &out))
	lines := strings.Split(out.String(), "\n")
	fields := func(prefix string) []string {
		for _, l := range lines {
			if strings.HasPrefix(strings.Join(strings.Fields(l), " "), prefix) {
				return strings.Fields(l)
			}
		}
		require.Fail(t, "no line "+prefix, out.String())
		return nil
	}
	require.Equal(t, strings.Fields("disk S8-32K-max5 flink 50.00 671 1678 2.50 1.49 2 750"), fields("disk S8-32K-max5 flink"))
	require.Equal(t, strings.Fields("disk S8-32K-max5 go 16.00 2097 1678 0.80 <= 1 met 0.79 <= 0.6 MISSED 2.00 0.100 2 59"), fields("disk S8-32K-max5 go"))
	require.Equal(t, strings.Fields("disk, 10,000 channels, ours to Flink's: store 0.100 (<= 0.125 met), load 0.300 (<= 0.2 MISSED), bytes 0.319 (<= 0.5 met)"), fields("disk, 10,000"))
	require.Equal(t, strings.Fields("disk, 8 subtasks, 5 a file: heap objects for each further buffer 0.0000 (<= 0.001 met)"), fields("disk, 8 subtasks"))

	out.Reset()
	require.NoError(t, dispatch(t.Context(), []string{"report", "-benchfmt", name}, &out))
	require.Contains(t, out.String(), "BenchmarkW/fs=disk/cell=S8-32K-max5/impl=go 1 16000000 ns/op 2097.15 MB/s 0.800 x-plain\n")
	require.Contains(t, out.String(), "BenchmarkM/fs=disk/cell=10000-merged/impl=flink/op=store 1 20000000 ns/op\n")
}

func TestBars(t *testing.T) {
	for _, tc := range []struct {
		kind, fs, impl string
		c              cell
		want           float64
	}{
		{"W", "disk", "go", shape("disk", 1, 32768, 1), 1.15},
		{"W", "disk", "go", shape("disk", 8, 32768, 5), 1},
		{"W", "disk", "go", shape("disk", 8, 32768, 1), 0},
		{"W", "disk", "go", shape("disk", 64, 4096, 1), 1.1},
		{"W", "disk", "go", shape("disk", 64, 200, 1), 1.8},
		{"W", "disk", "go", shape("disk", 64, 200, 5), 1.5},
		{"W", "shm", "go", shape("shm", 8, 32768, 5), 0},
		{"W", "disk", "flink", shape("disk", 8, 32768, 5), 0},
		{"R", "disk", "go", shape("disk", 8, 200, 5), 3.5},
		{"R", "disk", "go", shape("disk", 1, 200, 1), 6},
		{"R", "disk", "go", shape("disk", 64, 4096, 5), 2},
	} {
		r := &record{Impl: tc.impl, Kind: tc.kind, cell: tc.c, Gate: "stub", Cache: "warm"}
		require.Equal(t, tc.want, ratioBar(r), "%+v", tc)
	}
}
