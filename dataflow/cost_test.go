package dataflow

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// nullStore keeps nothing: what is captured is released beside the task.
type nullStore struct {
	exec Executor
	mu   sync.Mutex
	id   inflight.CheckpointID
}

func (s *nullStore) Epoch() inflight.Epoch                       { return 0 }
func (s *nullStore) Retire()                                     {}
func (s *nullStore) ReplayDone()                                 {}
func (s *nullStore) Base() (inflight.CheckpointID, bool)         { return 0, false }
func (s *nullStore) Restore(inflight.Task) (*Restored, error)    { return nil, nil }
func (s *nullStore) Writer(inflight.Task) (CaptureWriter, error) { return s, nil }
func (s *nullStore) Abort(inflight.CheckpointID, error)          {}
func (s *nullStore) Close() error                                { return nil }
func (s *nullStore) Start(inflight.CheckpointID, StartOptions) (Capture, error) {
	return &nullCapture{exec: s.exec, left: 2}, nil
}

func (s *nullStore) Begin(string) (Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id++
	return nullSlot(s.id), nil
}

type nullSlot inflight.CheckpointID

func (s nullSlot) ID() inflight.CheckpointID                    { return inflight.CheckpointID(s) }
func (s nullSlot) Abort(Reason, error)                          {}
func (s nullSlot) Commit(_ Completed, f func(Committed, error)) { go f(Committed{}, nil) }

type nullCapture struct {
	exec Executor
	mu   sync.Mutex
	left int // finishes and holds to come
	done func(inflight.Handle, error)
}

func (c *nullCapture) release(bufs []inflight.Buffer) {
	c.exec.Go(func() {
		for _, b := range bufs {
			b.Release()
		}
	})
}

func (c *nullCapture) Input(_ inflight.InputChannel, _ inflight.Pos, bufs ...inflight.Buffer) {
	c.release(bufs)
}

func (c *nullCapture) Output(_ inflight.Subpartition, _ inflight.Pos, bufs ...inflight.Buffer) {
	c.release(bufs)
}
func (c *nullCapture) State(inflight.StateName, ...inflight.Buffer) {}
func (c *nullCapture) Cuts(...inflight.Cut)                         {}

func (c *nullCapture) HoldOutput(inflight.Subpartition) Hold {
	c.step(1, nil)
	return nullHold{c}
}
func (c *nullCapture) FinishInput()                        { c.step(-1, nil) }
func (c *nullCapture) FinishOutput()                       { c.step(-1, nil) }
func (c *nullCapture) Done(f func(inflight.Handle, error)) { c.step(0, f) }

func (c *nullCapture) step(n int, f func(inflight.Handle, error)) {
	c.mu.Lock()
	c.left += n
	if f != nil {
		c.done = f
	}
	if f = c.done; c.left > 0 {
		f = nil
	}
	c.mu.Unlock()
	if f != nil {
		go f(inflight.Handle{}, nil)
	}
}

type nullHold struct{ c *nullCapture }

func (h nullHold) Fill(_ inflight.Pos, bufs ...inflight.Buffer) {
	h.c.release(bufs)
	h.c.step(-1, nil)
}
func (h nullHold) Drop(error) {}

// BenchmarkQueueDepth takes unaligned checkpoints with so many buffers of 4 KiB
// in flight, without a writer's copy: the time must not depend on the depth.
func BenchmarkQueueDepth(b *testing.B) {
	for _, buffers := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(buffers), func(b *testing.B) {
			var took []time.Duration
			exec := NewGoroutines()
			end := make(chan error, 1)
			o := Options{Unaligned: true, BufferSize: 4 << 10, Memory: 1 << 30, OutputBuffers: buffers/2 + 2, PerSubpartition: buffers/4 + 1}
			d, err := Deploy(exec, experiment{keys: 100, recordTime: 5 * time.Millisecond}.graph(), o, &nullStore{exec: exec}, func(err error) { end <- err })
			require.NoError(b, err)
			d.Start()
			for full := 0; full < 2; {
				//lint:sleep the queues fill in real time
				time.Sleep(time.Millisecond)
				full = 0
				for _, s := range d.Stats().Tasks {
					if s.Task.Vertex == "source" && s.Backpressured > 30*time.Millisecond {
						full++
					}
				}
			}
			done := make(chan CheckpointResult)
			var bytes uint64
			for b.Loop() {
				d.Trigger(Request{Unaligned: true}, func(r CheckpointResult) { done <- r })
				r := <-done
				require.True(b, r.Completed)
				took = append(took, r.AckTime)
				for _, a := range r.Acks {
					bytes += a.InFront
				}
				//lint:sleep a benchmark: not in step with the records
				time.Sleep(11 * time.Millisecond)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*9/10].Microseconds())/1000, "p90-ms")
			b.ReportMetric(float64(bytes)/float64(len(took))/4096, "buffers")
			b.ReportMetric(0, "ns/op")
			d.Stop(inflight.ErrClosed)
			require.ErrorIs(b, <-end, inflight.ErrClosed)
			exec.Wait()
		})
	}
}

// BenchmarkCheckpointCost compares the CPU time of a record with and without an
// unaligned checkpoint each second, in pairs of two windows of 2 s, in turn.
// -benchtime 60x measures 60 pairs.
func BenchmarkCheckpointCost(b *testing.B) {
	exec := NewGoroutines()
	end := make(chan error, 1)
	d, err := Deploy(exec, countGraph(1<<40, 100), Options{Unaligned: true}, &nullStore{exec: exec}, func(err error) { end <- err })
	require.NoError(b, err)
	d.Start()
	sinks := func() (n uint64) {
		for task, k := range d.Records() {
			if task.Vertex == "count" {
				n += k
			}
		}
		return n
	}
	window := func(checkpoints bool) float64 {
		n, cpu := sinks(), cpuTime()
		for range 2 {
			if checkpoints {
				d.Trigger(Request{}, func(CheckpointResult) {})
			}
			//lint:sleep the cost of real time is what is measured
			time.Sleep(time.Second)
		}
		return float64(cpuTime()-cpu) / float64(sinks()-n)
	}
	window(true)
	var more, base []float64
	for b.Loop() {
		var with, without float64
		if len(more)%2 == 0 {
			with, without = window(true), window(false)
		} else {
			without, with = window(false), window(true)
		}
		more, base = append(more, 100*(with/without-1)), append(base, without)
	}
	slices.Sort(more)
	slices.Sort(base)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(base[len(base)/2], "cpu-ns/record")
	for i, name := range []string{"more-%-q1", "more-%-p50", "more-%-q3"} {
		b.ReportMetric(more[len(more)*(i+1)/4], name)
	}
	// The median lies between these two with 95 %.
	n := float64(len(more))
	b.ReportMetric(more[int(max(n/2-math.Sqrt(n), 0))], "more-%-p50-low")
	b.ReportMetric(more[int(min(n/2+math.Sqrt(n), n-1))], "more-%-p50-high")
	d.Stop(inflight.ErrClosed)
	require.ErrorIs(b, <-end, inflight.ErrClosed)
	exec.Wait()
}
