package flink

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
)

// bigMetadata makes the metadata of an operator with parallel subtasks, each with
// channels input channels of one chunk: one merged handle a subtask, or a handle a
// channel.
func bigMetadata(t testing.TB, version, parallel, channels int, merge bool) []byte {
	b := appendI32(appendI32(nil, magic), version)
	b = appendI32(appendI32(appendI64(b, 1), 0), 1)
	var err error
	if version >= 5 {
		b, err = appendUTF(b, "count")
		require.NoError(t, err)
		b, err = appendUTF(b, "count")
		require.NoError(t, err)
	}
	id := OperatorIDOf("count")
	b = append(b, id[:]...)
	b = append(appendI32(appendI32(b, parallel), max(parallel, 128)), 0)
	b = appendI32(b, parallel)
	delegate, err := NewRelativeFile("4a3b2c1d-0000-4000-8000-0123456789ab", 1<<40)
	require.NoError(t, err)
	offset := int64(4)
	for s := range parallel {
		b = appendI32(appendI32(appendI32(b, s), 0), 0)
		b = append(b, 0, 0)
		var handles []ChannelHandle
		list := make([]Channel, channels)
		for c := range channels {
			list[c] = Channel{Subtask: s, Address: inflight.InputChannel{Channel: c}.Address(), StateSize: 32 << 10, Offsets: MakeInt64s(offset)}
			offset += 32 << 10
			if !merge {
				handles = append(handles, NewChannelHandle(delegate, list[c:c+1], false))
			}
		}
		if merge {
			handles = []ChannelHandle{NewChannelHandle(delegate, list, true)}
		}
		b, err = appendHandles(b, version, handles)
		require.NoError(t, err)
		b = appendI32(b, 0)
	}
	if version >= 4 {
		b = append(b, nullProperties...)
	}
	return b
}

func BenchmarkParse(b *testing.B) {
	for _, tc := range []struct {
		name                       string
		version, parallel, channel int
		merge                      bool
	}{
		{"version=4/handles=10k", 4, 100, 100, false},
		{"version=4/handles=1M", 4, 1000, 1000, false},
		{"version=6/channels=10k", 6, 100, 100, true},
		{"version=6/channels=1M", 6, 1000, 1000, true},
		{"version=6/handles=1M", 6, 1000, 1000, false},
	} {
		raw := bigMetadata(b, tc.version, tc.parallel, tc.channel, tc.merge)
		b.Run(tc.name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			var sum int64
			for b.Loop() {
				m, err := Parse(raw)
				if err != nil {
					b.Fatal(err)
				}
				for h := range m.channelHandles() {
					for c, err := range h.Channels() {
						if err != nil {
							b.Fatal(err)
						}
						sum += c.Offsets.At(0)
					}
				}
			}
			b.ReportMetric(float64(len(raw)), "file-bytes")
			b.ReportMetric(heapOf(func() any { m, _ := Parse(raw); return m })/float64(len(raw))+1, "memory/file")
		})
	}
}

// heapOf returns how much what make returns keeps on the heap.
func heapOf(build func() any) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	v := build()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(v)
	return float64(after.HeapAlloc) - float64(before.HeapAlloc)
}

// TestParseMemory holds the parsed form against the file: together at most three
// times the file.
func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		version int
		merge   bool
	}{{4, false}, {6, true}, {6, false}} {
		raw := bigMetadata(t, tc.version, 200, 500, tc.merge)
		kept := heapOf(func() any {
			m, err := Parse(raw)
			require.NoError(t, err)
			return m
		})
		require.LessOrEqual(t, kept, 2*float64(len(raw)), "version %d, merged %t", tc.version, tc.merge)
		runtime.KeepAlive(raw)
	}
}

// bigState writes a checkpoint of two operators with a file of channel state for
// each subtask, size bytes in all, fan channels a subtask, records of record
// bytes, chunks of 32 KiB.
func bigState(t testing.TB, dir string, parallel, fan int, size int64, record int) {
	b := appendI32(appendI32(nil, magic), 6)
	b = appendI32(appendI32(appendI64(b, 1), 0), 2)
	per := size / int64(2*parallel)
	ops := []string{"source", "count"}
	for _, op := range ops {
		var err error
		for range 2 {
			b, err = appendUTF(b, op)
			require.NoError(t, err)
		}
		id := OperatorIDOf(op)
		b = append(append(appendI32(appendI32(append(b, id[:]...), parallel), max(parallel, 128)), 0), binary.BigEndian.AppendUint32(nil, uint32(parallel))...)
		for s := range parallel {
			b = append(appendI32(appendI32(appendI32(b, s), 0), 0), 0, 0)
			handle := writeState(t, filepath.Join(dir, fmt.Sprintf("%s-%d", op, s)), op == "count", s, parallel, fan, per, record)
			lists := [][]ChannelHandle{nil, {handle}}
			if op == "count" {
				slices.Reverse(lists)
			}
			for _, l := range lists {
				b, err = appendHandles(b, 6, l)
				require.NoError(t, err)
			}
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, MetadataName), append(b, nullProperties...), 0o600))
}

func writeState(t testing.TB, name string, input bool, subtask, parallel, fan int, size int64, record int) ChannelHandle {
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	w := NewStateWriter(f)
	var channels []Channel
	one := binary.BigEndian.AppendUint32(nil, uint32(record))
	one = append(one, make([]byte, record)...)
	for i := range fan {
		c := (subtask + i) % parallel
		var data []byte
		for int64(len(data)) < size/int64(fan) {
			data = append(data, one...)
		}
		ch := Channel{Subtask: subtask, Address: inflight.Subpartition{Subpartition: c}.Address(), StateSize: int64(len(data))}
		if input {
			ch.Address = inflight.InputChannel{Channel: c}.Address()
		}
		for n := 0; len(data) > 0; data = data[n:] {
			n = min(32<<10, len(data))
			off, err := w.Append(data[:n])
			require.NoError(t, err)
			ch.Offsets = append(ch.Offsets, MakeInt64s(off)...)
			ch.StateSize += 4
		}
		channels = append(channels, ch)
	}
	delegate, err := NewRelativeFile(filepath.Base(name), w.Size())
	require.NoError(t, err)
	return NewChannelHandle(delegate, channels, true)
}

// BenchmarkVerify compares verification with a plain read of the same files, in
// turns: plain-x is how much of its speed verification has.
func BenchmarkVerify(b *testing.B) {
	for _, tc := range []struct {
		name     string
		parallel int
		size     int64
		record   int
	}{{"small", 4, 16 << 20, 629}, {"large", 2, 256 << 20, 629}, {"large/records=60", 2, 256 << 20, 60}} {
		b.Run(tc.name, func(b *testing.B) {
			root := b.TempDir()
			dir := filepath.Join(root, "chk-1")
			require.NoError(b, os.Mkdir(dir, 0o700))
			bigState(b, dir, tc.parallel, tc.parallel, tc.size, tc.record)
			names, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(b, err)
			back := local.New(root)
			defer back.Close()
			b.SetBytes(tc.size)
			var ratios []float64
			buf := make([]byte, 512<<10)
			for b.Loop() {
				start := time.Now()
				r, err := Verify(b.Context(), back, "chk-1", VerifyOptions{})
				if err != nil || len(r.Findings) > 0 {
					b.Fatal(err, r.Findings)
				}
				took := time.Since(start)
				b.StopTimer()
				start = time.Now()
				for _, n := range names {
					plainRead(b, n, buf)
				}
				ratios = append(ratios, float64(time.Since(start))/float64(took))
				b.StartTimer()
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "plain-x")
		})
	}
}

func plainRead(b *testing.B, name string, buf []byte) {
	f, err := os.Open(name)
	require.NoError(b, err)
	defer f.Close()
	for {
		if n, err := f.Read(buf); n == 0 || err != nil {
			return
		}
	}
}
