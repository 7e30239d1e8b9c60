package dataflow

import (
	"cmp"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// experiment is the job that the published numbers come from, in virtual time:
// sources ×2 at full speed, records of 1,019 bytes on the wire, keys in turn →
// hash → slow keyed count ×2 → sink; a checkpoint every 5 s, 30 s.
type experiment struct {
	keys       int
	recordTime time.Duration
	o          Options
	rounds     int // how many intervals; default 7
}

const experimentRecord = 1019

// run returns the checkpoints but the first.
func (e experiment) run(t *testing.T) (results []CheckpointResult) {
	exec := e.clock()
	log := newMemLog()
	e.o.Interval = cmp.Or(e.o.Interval, 5*time.Second)
	e.deploy(t, exec, log, func(r CheckpointResult) {
		require.True(t, r.Completed, r.Reason)
		results = append(results, r)
	})
	exec.Run(e.o.Interval*time.Duration(cmp.Or(e.rounds, 7)) + time.Second/50)
	require.Empty(t, log.red)
	require.Greater(t, len(results), 2)
	return results[1:]
}

// clock returns an executor on which messages and jobs take about as long as
// in production.
func (e experiment) clock() *Seeded {
	exec := NewSeeded(1)
	exec.JobTime, exec.SendTime = 500*time.Microsecond, 100*time.Microsecond
	exec.Budget = stepBudget
	return exec
}

// deploy starts one incarnation.
func (e experiment) deploy(t *testing.T, exec *Seeded, log *memLog, each func(CheckpointResult)) *Deployment {
	o := e.o
	o.OnCheckpoint = each
	d, err := Deploy(exec, e.graph(), o, log.open(exec), nil)
	require.NoError(t, err)
	log.watch(d)
	d.Start()
	return d
}

func (e experiment) graph() *Graph {
	g := NewGraph()
	g.Source("source", 2, func(int) Source {
		body := make([]byte, experimentRecord-lengthBytes-1)
		return &Generator{Records: -1, Body: func(dst []byte, n int64) []byte {
			binary.BigEndian.PutUint32(body, uint32(n%int64(e.keys)))
			return append(dst, body...)
		}}
	})
	key := func(b []byte) Key { return IntKey(b[:4]) }
	g.Operator("count", 2, Count(key, e.recordTime), From("source", Hash(key)))
	g.Operator("sink", 2, func(int) Operator { return &benchSink{} }, From("count", Forward()))
	return g
}

// size is what a checkpoint captured, at one vertex or at all.
func (r CheckpointResult) size(vertex string) (n uint64) {
	for _, a := range r.Acks {
		if vertex == "" || a.Task.Vertex == vertex {
			n += a.Handle.PersistedBytes()
		}
	}
	return n
}
