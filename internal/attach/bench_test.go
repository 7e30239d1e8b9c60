//go:build unix

package attach

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

// BenchmarkCheckpoint takes checkpoints of 600 KB in 19 buffers, as those of the
// experiment are: sources ×2, counts ×2, a sink. It reports CPU time for each, the
// time from the first barrier until everything was durable, and until it was
// committed.
func BenchmarkCheckpoint(b *testing.B) {
	b.Run("local", func(b *testing.B) { benchmarkCheckpoint(b, local.New(b.TempDir())) })
	b.Run("mem", func(b *testing.B) { benchmarkCheckpoint(b, mem.New(mem.Options{})) })
}

func benchmarkCheckpoint(b *testing.B, store backends.Backend) {
	g := small(newMemFiles())
	o := dataflow.Options{Unaligned: true}
	j, err := New(Options{Backend: store, Name: job, Graph: g, Dataflow: o})
	require.NoError(b, err)
	defer j.Close()
	s, err := j.Open(b.Context())
	require.NoError(b, err)
	p := newBenchPipeline(b, s)
	for range 3 {
		p.checkpoint()
	}
	var durable, committed []time.Duration
	before := cpu()
	for b.Loop() {
		d, c := p.checkpoint()
		durable, committed = append(durable, d), append(committed, c)
	}
	used := cpu() - before
	b.ReportMetric(float64(used.Microseconds())/1000/float64(len(durable)), "cpu-ms/op")
	for name, list := range map[string][]time.Duration{"durable": durable, "committed": committed} {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(list[len(list)*9/10].Microseconds())/1000, name+"-p90-ms")
	}
}

// cpu is what this process has used so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchPipeline does what the runtime does at a barrier.
type benchPipeline struct {
	b       *testing.B
	s       dataflow.Store
	tasks   []inflight.Task
	writers map[inflight.Task]dataflow.CaptureWriter
	buffer  []byte
	offset  uint64
}

func newBenchPipeline(b *testing.B, s dataflow.Store) *benchPipeline {
	p := &benchPipeline{b: b, s: s, writers: map[inflight.Task]dataflow.CaptureWriter{}, buffer: make([]byte, 32<<10)}
	for i := range p.buffer {
		p.buffer[i] = byte(i * i >> 5)
	}
	// Records of 1 KiB, as the proof counts them.
	for i := 0; i < len(p.buffer); i += 1 << 10 {
		copy(p.buffer[i:], "\x00\x00\x03\xfc\x01")
	}
	for _, v := range []struct {
		name string
		n    int
	}{{"source", 2}, {"count", 2}, {"sink", 1}} {
		for i := range v.n {
			t := inflight.Task{Vertex: v.name, Subtask: i}
			w, err := s.Writer(t)
			require.NoError(b, err)
			p.tasks, p.writers[t] = append(p.tasks, t), w
		}
	}
	return p
}

func (p *benchPipeline) checkpoint() (durable, committed time.Duration) {
	begin := time.Now()
	slot, err := p.s.Begin("")
	require.NoError(p.b, err)
	var acks sync.WaitGroup
	acks.Add(len(p.tasks))
	var mu sync.Mutex
	c := dataflow.Completed{ID: slot.ID()}
	start := p.offset
	p.offset += 16 * uint64(len(p.buffer))
	for _, t := range p.tasks {
		k, err := p.writers[t].Start(slot.ID(), dataflow.StartOptions{ChannelState: true})
		require.NoError(p.b, err)
		cuts := p.capture(k, t, start)
		k.Done(func(h inflight.Handle, err error) {
			require.NoError(p.b, err)
			mu.Lock()
			defer mu.Unlock()
			c.Acks = append(c.Acks, dataflow.Ack{Task: t, ID: slot.ID(), Handle: h, Cuts: cuts, Unaligned: true})
			acks.Done()
		})
		k.State("counts", inflight.Bytes(p.buffer[:200]))
		k.FinishInput()
		k.FinishOutput()
	}
	acks.Wait()
	durable = time.Since(begin)
	done := make(chan error)
	slot.Commit(c, func(_ dataflow.Committed, err error) { done <- err })
	require.NoError(p.b, <-done)
	committed = time.Since(begin)
	p.s.Retire()
	tidied := make(chan struct{})
	require.True(p.b, p.s.(*store).tidy.do(func() { close(tidied) }))
	<-tidied // in a job there are seconds between checkpoints
	return durable, committed
}

// capture captures 9 buffers at each source, and cuts that add up.
func (p *benchPipeline) capture(k dataflow.Capture, t inflight.Task, start uint64) []inflight.Cut {
	const half = 5
	size := uint64(len(p.buffer))
	cut := func(a inflight.Address, bytes uint64) inflight.Cut {
		return inflight.Cut{Address: a, Epoch: p.s.Epoch(), Bytes: bytes, Records: bytes >> 10, RecordsKnown: true}
	}
	var cuts []inflight.Cut
	switch t.Vertex {
	case "source":
		for i := range 2 {
			sub := inflight.Subpartition{Subpartition: i}
			n := half - i
			bufs := make([]inflight.Buffer, n)
			for i := range bufs {
				bufs[i] = inflight.Bytes(p.buffer)
			}
			k.Output(sub, inflight.Pos{Epoch: p.s.Epoch(), Offset: start}, bufs...)
			cuts = append(cuts, cut(sub.Address(), start+uint64(n)*size))
		}
	case "count":
		for i := range 2 {
			cuts = append(cuts, cut(inflight.InputChannel{Channel: i}.Address(), start))
		}
		cuts = append(cuts, cut(inflight.Subpartition{}.Address(), start))
	case "sink":
		for i := range 2 {
			cuts = append(cuts, cut(inflight.InputChannel{Channel: i}.Address(), start))
		}
	}
	k.Cuts(cuts...)
	return cuts
}
