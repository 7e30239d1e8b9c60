package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// store is one incarnation of a job. It implements dataflow.Store.
type store struct {
	j     *Job
	coord *catalog.Coordinator
	pool  *writer.Pool

	life    context.Context // of what goes on in the background
	stop    context.CancelFunc
	commits *line // fills slots
	tidy    *line // statistics and deletions, which nobody waits for

	check    completion  // of who runs on commits
	replayed atomic.Bool // nothing of the base is in flight any more
	retiring atomic.Bool // is queued
	restored map[inflight.Task]*dataflow.Restored

	mu       sync.Mutex
	writers  []*captureWriter
	byTask   map[inflight.Task]*captureWriter
	over     error                           // the coordinator is
	slots    map[inflight.CheckpointID]*slot // undecided
	finished []dataflow.Finished             // known so far
}

func newStore(j *Job, coord *catalog.Coordinator, pool *writer.Pool) *store {
	s := &store{j: j, coord: coord, pool: pool, check: completion{j: j}, commits: newLine(), tidy: newLine(), byTask: map[inflight.Task]*captureWriter{}, slots: map[inflight.CheckpointID]*slot{}}
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// Epoch implements dataflow.Store.
func (s *store) Epoch() inflight.Epoch { return s.coord.Epoch() }

// Base implements dataflow.Store.
func (s *store) Base() (inflight.CheckpointID, bool) {
	base := s.coord.Base()
	if base == nil {
		return 0, false
	}
	return base.Manifest.ID, true
}

// Restore implements dataflow.Store. It hands out what Open has read; each part
// once, since the runtime keeps it from then on.
func (s *store) Restore(t inflight.Task) (*dataflow.Restored, error) {
	r := s.restored[t]
	delete(s.restored, t)
	return r, nil
}

// ReplayDone implements dataflow.Store.
func (s *store) ReplayDone() {
	s.replayed.Store(true)
	s.coord.ReplayDone()
}

// bound is how many bytes may be in flight; 0: nobody knows. What is replayed
// stands in front of queues that fill up behind it.
func (s *store) bound() int64 {
	if s.j.o.Capacity == nil {
		return 0
	}
	n := s.j.o.Capacity()
	if n == 0 {
		return 0
	}
	if base := s.coord.Base(); base != nil && !s.replayed.Load() {
		n += int64(base.Manifest.PersistedBytes())
	}
	return n
}

// Writer implements dataflow.Store.
func (s *store) Writer(t inflight.Task) (dataflow.CaptureWriter, error) {
	w, err := s.pool.Writer(t)
	if err != nil {
		return nil, err
	}
	c := &captureWriter{s: s, w: w}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers, s.byTask[t] = append(s.writers, c), c
	return c, nil
}

func (s *store) writer(t inflight.Task) *captureWriter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTask[t]
}

// Begin implements dataflow.Store.
func (s *store) Begin(reason string) (dataflow.Slot, error) {
	p, err := s.coord.Begin()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if errors.Is(err, inflight.ErrFenced) {
			// Who has taken over is being asked. So does a restart, before it takes the job.
			err = &inflight.Error{Op: "begin", Object: s.j.o.Name, Mend: "start again",
				Err: fmt.Errorf("%w: it is not known yet whether another coordinator has taken over", inflight.ErrUnavailable)}
		}
		return nil, cmp.Or(s.over, err)
	}
	k := &slot{s: s, pending: p, begun: time.Now(), decision: reason, captures: map[inflight.Task]*capture{}}
	s.mu.Lock()
	s.slots[p.ID()] = k
	finished := s.finished
	s.mu.Unlock()
	for _, f := range finished {
		_, _ = k.captureFinished(f) // the commit tries again, and reports
	}
	return k, nil
}

// slot returns what is undecided of a checkpoint, or nil.
func (s *store) slot(id inflight.CheckpointID) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots[id]
}

// Retire implements dataflow.Store. Retirements that are asked for while one
// waits are one.
func (s *store) Retire() {
	if !s.retiring.CompareAndSwap(false, true) {
		return
	}
	s.tidy.do(func() {
		s.retiring.Store(false)
		_ = s.judge(s.coord.Retire(s.life)) // what it leaves is for the next one
	})
}

// judge returns what err, an answer of the coordinator, means for the job, and
// keeps it if it is the end of the coordinator.
func (s *store) judge(err error) error {
	if !errors.Is(err, inflight.ErrFenced) {
		return err
	}
	err = s.coord.Judge(s.life, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = cmp.Or(s.over, err)
	return s.over
}

// close ends the incarnation. It waits for what is being written, but not long.
func (s *store) close() error {
	late := time.AfterFunc(closeTime, s.stop)
	s.commits.close()
	<-s.commits.ended
	s.tidy.close()
	<-s.tidy.ended
	late.Stop()
	s.stop()
	return s.pool.Close()
}
