//go:build unix

package writer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

// BenchmarkCapture captures what the workload W does: S subtasks of eight input
// channels and eight subpartitions each. x/plain is the median of the ratios to
// a plain sequential write and fsync of the same bytes just after.
func BenchmarkCapture(b *testing.B) {
	for _, size := range []struct {
		name      string
		bytes, of int
	}{{"32K", 32768, 8}, {"4K", 4096, 64}, {"200B", 200, 128}} {
		for _, subtasks := range []int{1, 8, 64} {
			for _, share := range []int{1, 5, 100} {
				if subtasks == 1 && share > 1 {
					continue
				}
				b.Run(fmt.Sprintf("size=%s/S=%d/share=%d", size.name, subtasks, share), func(b *testing.B) {
					benchCapture(b, size.bytes, size.of, subtasks, share)
				})
			}
		}
	}
}

// BenchmarkSmall captures what the workload LAT does. Its plain write goes to a
// fresh directory.
func BenchmarkSmall(b *testing.B) {
	for _, c := range []struct {
		name            string
		channels, of, n int
	}{{"3.2KB", 8, 1, 200}, {"64KiB", 1, 1, 32768}, {"576KiB", 9, 1, 32768}, {"600KB-200B", 10, 150, 200}} {
		b.Run(c.name, func(b *testing.B) {
			benchRounds(b, round{subtasks: 1, share: 5, channels: c.channels, buffers: c.of, size: c.n, fresh: true})
		})
	}
}

func benchCapture(b *testing.B, size, of, subtasks, share int) {
	benchRounds(b, round{subtasks: subtasks, share: share, channels: 8, buffers: of, size: size})
}

// round is one checkpoint of a benchmark.
type round struct {
	subtasks, share, channels, buffers, size int
	fresh                                    bool // a fresh directory for the plain write
}

func benchRounds(b *testing.B, r round) {
	dir := b.TempDir()
	p, err := NewPool(Options{Backend: local.New(dir), TasksPerFile: r.share, MaxBuffered: 1 << 30})
	require.NoError(b, err)
	defer p.Close()
	writers, all := makeBuffers(b, p, r)
	total := r.total()
	hot := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(hot)
	b.SetBytes(total)
	var ratios []float64
	var cpu time.Duration
	rounds := 0
	id := inflight.CheckpointID(0)
	for b.Loop() {
		b.StopTimer()
		id++
		require.NoError(b, os.MkdirAll(filepath.Join(dir, fmt.Sprintf("chk-%010d", id)), 0o700))
		b.StartTimer()
		before, begun := cpuTime(), time.Now()
		captureRound(b, writers, all, r, id)
		wall := time.Since(begun)
		cpu += cpuTime() - before
		b.StopTimer()
		ratios = append(ratios, float64(wall)/float64(plainWrite(b, dir, hot, total, r.fresh)))
		require.NoError(b, p.o.Backend.RemoveAll(context.Background(), fmt.Sprintf("chk-%010d", id)))
		rounds++
		b.StartTimer()
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "x/plain")
	b.ReportMetric(cpu.Seconds()/float64(rounds)/float64(total)*1e9, "cpu-s/GB")
}

func (r round) total() int64 { return int64(r.subtasks * 2 * r.channels * r.buffers * r.size) }

// makeBuffers registers the subtasks, and makes their buffers by subtask and
// channel.
func makeBuffers(b *testing.B, p *Pool, r round) ([]*Writer, [][][]inflight.Buffer) {
	writers := make([]*Writer, r.subtasks)
	all := make([][][]inflight.Buffer, r.subtasks)
	rng := rand.NewChaCha8([32]byte{})
	for i := range writers {
		var err error
		writers[i], err = p.Writer(task(i))
		require.NoError(b, err)
		for range 2 * r.channels {
			stream := make([]byte, r.buffers*r.size)
			rng.Read(stream)
			var bufs []inflight.Buffer
			for ; len(stream) > 0; stream = stream[r.size:] {
				bufs = append(bufs, &resident{stream[:r.size]})
			}
			all[i] = append(all[i], bufs)
		}
	}
	return writers, all
}

func captureRound(b *testing.B, writers []*Writer, all [][][]inflight.Buffer, r round, id inflight.CheckpointID) {
	var wg sync.WaitGroup
	for i, w := range writers {
		wg.Go(func() {
			c, err := w.Start(id, StartOptions{Attempt: "a"})
			require.NoError(b, err)
			for ch, bufs := range all[i] {
				pos := inflight.Pos{Epoch: 1, Offset: 1 << 20, Seq: 77}
				if ch < r.channels {
					err = c.Input(input(ch), pos, bufs...)
				} else {
					err = c.Output(output(ch-r.channels), pos, bufs...)
				}
				require.NoError(b, err)
			}
			require.NoError(b, c.FinishOutput())
			require.NoError(b, c.FinishInput())
			<-c.Done()
			_, err = c.Handle()
			require.NoError(b, err)
		})
	}
	wg.Wait()
}

// plainWrite is what everything is compared with.
func plainWrite(b *testing.B, dir string, hot []byte, total int64, fresh bool) time.Duration {
	if fresh {
		dir = filepath.Join(dir, "plain")
		require.NoError(b, os.Mkdir(dir, 0o700))
		defer func() { require.NoError(b, os.Remove(dir)) }()
	}
	begun := time.Now()
	f, err := os.Create(filepath.Join(dir, "plain.bin"))
	require.NoError(b, err)
	for left := total; left > 0; left -= int64(len(hot)) {
		_, err = f.Write(hot[:min(left, int64(len(hot)))])
		require.NoError(b, err)
	}
	require.NoError(b, f.Sync())
	require.NoError(b, f.Close())
	wall := time.Since(begun)
	require.NoError(b, os.Remove(f.Name()))
	return wall
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// null is a store that drops what it is given.
type null struct{ backends.Backend }

type nullObject struct {
	backends.Object
	size int64
}

func (n null) Create(context.Context, string, backends.CreateOptions) (backends.Object, error) {
	return &nullObject{}, nil
}

func (o *nullObject) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	return len(p), nil
}

func (o *nullObject) Finish(context.Context) (backends.Info, error) {
	return backends.Info{Size: o.size}, nil
}

func (o *nullObject) Abort(context.Context) error { return nil }

// BenchmarkCPU is what capturing costs apart from the store: queueing, packing,
// checksums.
func BenchmarkCPU(b *testing.B) {
	for _, size := range []struct {
		name      string
		bytes, of int
	}{{"32K", 32768, 8}, {"4K", 4096, 64}, {"200B", 200, 1280}} {
		for _, share := range []int{1, 5} {
			b.Run(fmt.Sprintf("size=%s/share=%d", size.name, share), func(b *testing.B) {
				r := round{subtasks: 8, share: share, channels: 8, buffers: size.of, size: size.bytes}
				p, err := NewPool(Options{Backend: null{mem.New(mem.Options{})}, TasksPerFile: share, MaxBuffered: 1 << 30})
				require.NoError(b, err)
				defer p.Close()
				writers, all := makeBuffers(b, p, r)
				total := r.total()
				b.SetBytes(total)
				id := inflight.CheckpointID(0)
				before := cpuTime()
				for b.Loop() {
					id++
					captureRound(b, writers, all, r, id)
				}
				b.ReportMetric((cpuTime()-before).Seconds()/float64(id)/float64(total)*1e9, "cpu-s/GB")
			})
		}
	}
}
