package dataflow

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-io/spillway/inflight"
	"github.com/stretchr/testify/require"
)

// BenchmarkThroughput is sources ×2 → hash → keyed count ×2 → sink, which is
// chained as in Flink, without checkpoints. An op is a record that reached it.
func BenchmarkThroughput(b *testing.B) {
	for _, bc := range []struct {
		name   string
		body   int
		credit bool
	}{{"100B/local", 100, false}, {"100B/credit", 100, true}, {"1000B/local", 1000, false}, {"1000B/credit", 1000, true}} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(bc.body))
			end := make(chan error, 1)
			exec := NewGoroutines()
			d, err := Deploy(exec, countGraph(b.N, bc.body), Options{Credit: bc.credit}, nil, func(err error) { end <- err })
			require.NoError(b, err)
			b.ResetTimer()
			before := cpuTime()
			d.Start()
			require.NoError(b, <-end)
			b.StopTimer()
			b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
			exec.Wait()
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countGraph counts n records of 1,000 keys by key.
func countGraph(n, body int) *Graph {
	key := func(b []byte) Key { return IntKey(b[:4]) }
	g := NewGraph()
	g.Source("source", 2, func(sub int) Source {
		return &benchSource{left: (n + sub) / 2, body: make([]byte, body)}
	})
	g.Operator("count", 2, Chain(
		func(int) Operator { return &benchCount{key: key} },
		func(int) Operator { return &benchSink{} },
	), From("source", Hash(key)))
	return g
}

type benchSource struct {
	left int
	body []byte
}

func (s *benchSource) Open(*Context) error                            { return nil }
func (s *benchSource) Complete(*Context, inflight.CheckpointID) error { return nil }
func (s *benchSource) Close() error                                   { return nil }

func (s *benchSource) Next(c *Context) (Status, error) {
	if s.left == 0 {
		return Status{Why: Done}, nil
	}
	s.left--
	binary.BigEndian.PutUint32(s.body, uint32(s.left%1000))
	c.Emit(Record{Body: s.body})
	return Status{}, nil
}

type benchCount struct {
	Base
	key    KeyFunc
	counts *Keyed[int64]
}

func (o *benchCount) Open(c *Context) (err error) {
	o.counts, err = NewKeyed(c, "counts", Int64)
	return err
}

func (o *benchCount) Process(c *Context, r Record) error {
	*o.counts.Put(o.key(r.Body))++
	c.Emit(r)
	return nil
}

type benchSink struct {
	Base
	n int
}

func (o *benchSink) Process(*Context, Record) error { o.n++; return nil }
