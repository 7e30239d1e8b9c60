package dataflow

import (
	"iter"
	"sync"

	"github.com/spillway-io/spillway/inflight"
)

// Blocking is a source of the old kind: a function that emits from within its
// own loop (Flink: SourceFunction). It obeys the rules of the others: it goes
// on only while an output buffer is free, and a barrier comes between two
// records, never between a record and the position behind it.
//
// It runs as a coroutine of the task. One that waits elsewhere than in yield,
// for its input say, would make a barrier wait, too: it needs Waits.
type Blocking struct {
	// Run emits records from a position on, each with the position behind it.
	// It returns at the end of the data, or when yield returns false.
	Run func(position int64, yield func(Record, int64) bool)
	// Waits gives Run a goroutine of its own. Such a run cannot be repeated
	// under a seed.
	Waits bool
	// Interrupt makes a Run that waits return, when the source is closed.
	Interrupt func()

	at   *Value[int64]
	next func() (Record, int64, bool)
	stop func()
	lane *lane
}

// Open implements Source.
func (s *Blocking) Open(c *Context) (err error) {
	if s.at, err = NewValue(c, "position", Int64, 0); err != nil {
		return err
	}
	if s.Waits {
		s.lane = newLane(c.t.worker)
		go s.lane.run(s.Run, s.at.V)
		return nil
	}
	s.next, s.stop = iter.Pull2(func(yield func(Record, int64) bool) { s.Run(s.at.V, yield) })
	return nil
}

// Next implements Source.
func (s *Blocking) Next(c *Context) (Status, error) {
	if s.lane != nil {
		return s.lane.next(c, s.at), nil
	}
	r, at, ok := s.next()
	if !ok {
		return Status{Why: Done}, nil
	}
	s.at.V = at
	c.Emit(r)
	return Status{}, nil
}

// Complete implements Source.
func (s *Blocking) Complete(*Context, inflight.CheckpointID) error { return nil }

// Close implements Source.
func (s *Blocking) Close() error {
	switch {
	case s.lane != nil:
		s.lane.close(s.Interrupt)
	case s.stop != nil:
		s.stop()
	}
	return nil
}

// laneSize is how many records a Run may be ahead of its task. They are not in
// flight: the position is that behind the last one which the task has emitted.
const laneSize = 64

// lane hands records from the goroutine of a Run to its task. Its lock is what
// Flink calls the checkpoint lock: under it, a record is emitted and the
// position moves.
type lane struct {
	task  Waker
	ended chan struct{}

	mu      sync.Mutex
	room    sync.Cond
	ring    [laneSize]laneRecord
	head, n int
	over    bool // Run has returned
	stopped bool
}

type laneRecord struct {
	Record
	at int64
}

func newLane(task Waker) *lane {
	l := &lane{task: task, ended: make(chan struct{})}
	l.room.L = &l.mu
	return l
}

func (l *lane) run(f func(int64, func(Record, int64) bool), from int64) {
	defer close(l.ended)
	f(from, l.put)
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.task.Wake()
}

// put is the yield of a Run. It waits for room.
func (l *lane) put(r Record, at int64) bool {
	l.mu.Lock()
	for l.n == laneSize && !l.stopped {
		l.room.Wait()
	}
	slot := &l.ring[(l.head+l.n)%laneSize]
	r.Body = append(slot.Body[:0], r.Body...)
	*slot = laneRecord{r, at}
	l.n++
	first, stopped := l.n == 1, l.stopped
	l.mu.Unlock()
	if first {
		l.task.Wake()
	}
	return !stopped
}

// next emits the next record.
func (l *lane) next(c *Context, at *Value[int64]) Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.n == 0 && l.over:
		return Status{Why: Done}
	case l.n == 0:
		return Status{Why: NoInput}
	}
	r := &l.ring[l.head]
	c.Emit(r.Record)
	at.V = r.at
	l.head = (l.head + 1) % laneSize
	l.n--
	l.room.Signal()
	return Status{}
}

// close ends the Run and waits for it.
func (l *lane) close(interrupt func()) {
	l.mu.Lock()
	l.stopped = true
	l.room.Signal()
	l.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
	<-l.ended
}
