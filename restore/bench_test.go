package restore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// discard is a sink that counts and releases.
type discard struct{ n, bytes int }

func (d *discard) take(b *reader.Buffer) error {
	d.n++
	d.bytes += len(b.Bytes)
	return nil
}

func (d *discard) State(_ context.Context, _ inflight.StateName, b *reader.Buffer) error {
	return d.take(b)
}

func (d *discard) Output(_ context.Context, _ inflight.Subpartition, _ inflight.Pos, b *reader.Buffer) error {
	return d.take(b)
}

func (d *discard) Input(_ context.Context, _ inflight.InputChannel, _ inflight.Pos, b *reader.Buffer) error {
	return d.take(b)
}

func (d *discard) Done(context.Context) error { return nil }

// writeR writes what workload R restores: s subtasks with 8 input channels and
// 8 subpartitions of n buffers each, share of them in a file.
func writeR(tb testing.TB, dir string, s, share, n, size int) *format.Manifest {
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: 1, Attempt: "a", Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "v", Parallelism: s}}}}
	data := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{1})
	var handles []inflight.Handle
	for first := 0; first < s; first += share {
		name := format.StateFileName(1, fmt.Sprint(first), "a")
		require.NoError(tb, os.MkdirAll(filepath.Join(dir, "job", filepath.Dir(name)), 0o700))
		f, err := os.Create(filepath.Join(dir, "job", name))
		require.NoError(tb, err)
		e, err := format.NewEncoder(f, name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 1}, format.EncoderOptions{})
		require.NoError(tb, err)
		var ms []format.Member
		for i := first; i < min(first+share, s); i++ {
			member, err := e.Begin(inflight.Task{Vertex: "v", Subtask: i}, nil)
			require.NoError(tb, err)
			ms = append(ms, member)
			for ch := range 16 {
				a := inflight.InputChannel{Channel: ch}.Address()
				if ch >= 8 {
					a = inflight.Subpartition{Subpartition: ch - 8}.Address()
				}
				pos := inflight.Pos{}
				for range n {
					rng.Read(data)
					require.NoError(tb, e.Append(member, a, pos, data))
					pos = pos.Advance(uint64(size), 1)
				}
			}
			require.NoError(tb, e.Complete(member))
		}
		_, err = e.Close()
		require.NoError(tb, err)
		require.NoError(tb, f.Close())
		for _, member := range ms {
			handles = append(handles, e.Handle(member))
		}
	}
	m.SetHandles(handles)
	return m
}

// BenchmarkR restores with the page cache warm, beside a plain read of the same
// files: 1 MiB at a time, in order, into one buffer.
func BenchmarkR(b *testing.B) {
	for _, size := range []int{32 << 10, 4 << 10, 200} {
		for _, s := range []int{1, 8, 64} {
			n := map[int]int{32 << 10: 8, 4 << 10: 64, 200: 128}[size]
			share := min(s, 5)
			b.Run(fmt.Sprintf("S%d/%dB", s, size), func(b *testing.B) {
				dir := b.TempDir()
				m := writeR(b, dir, s, share, n, size)
				store := local.New(dir)
				defer store.Close()
				var ratios []float64
				plain := make([]byte, 1<<20)
				var cpu, plainCPU time.Duration
				b.SetBytes(int64(m.PersistedBytes()))
				b.ReportAllocs()
				for b.Loop() {
					begin, used := time.Now(), cpuTime()
					restoreR(b, store, m)
					took, used2 := time.Since(begin), cpuTime()
					cpu += used2 - used
					b.StopTimer()
					used = cpuTime()
					ratios = append(ratios, float64(took)/float64(plainRead(b, filepath.Join(dir, "job"), m, plain)))
					plainCPU += cpuTime() - used
					b.StartTimer()
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "x-plain")
				b.ReportMetric(ratios[len(ratios)/10], "x-plain-p10")
				b.ReportMetric(float64(cpu)/float64(plainCPU), "cpu-x-plain")
			})
		}
	}
}

func restoreR(tb testing.TB, store *local.Backend, m *format.Manifest) {
	r := reader.Open(store, "job", reader.Options{})
	defer r.Close()
	plan, err := NewPlan(m, m.Topology, Options{})
	require.NoError(tb, err)
	replay, err := NewReplay(tb.Context(), r.At(m, "job/chk-0000000001"), plan, ReplayOptions{})
	require.NoError(tb, err)
	defer replay.Close()
	res, err := replay.Run(tb.Context(), func(inflight.Task) Sink { return new(discard) })
	require.NoError(tb, err)
	require.Equal(tb, m.PersistedBytes(), res.Bytes)
}

// cpuTime is the processor time of this process: what others do on the machine
// disturbs it less than the time on the wall.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func plainRead(tb testing.TB, dir string, m *format.Manifest, p []byte) time.Duration {
	begin := time.Now()
	for _, f := range m.Files {
		file, err := os.Open(filepath.Join(dir, f.Name))
		require.NoError(tb, err)
		for {
			if n, _ := file.Read(p); n == 0 {
				break
			}
		}
		file.Close()
	}
	return time.Since(begin)
}
