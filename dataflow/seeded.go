package dataflow

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Seeded is the executor of tests: one goroutine, virtual time, a random ready
// actor at each step. The same seed gives the same run, step by step.
type Seeded struct {
	Rand *rand.Rand
	// StepCost bounds the virtual time of a step; default 20 µs.
	StepCost time.Duration
	// JobTime bounds the delay of what Go runs, SendTime that of messages.
	JobTime, SendTime time.Duration
	// Lose and Double are how many of a thousand messages are lost or doubled.
	Lose, Double int
	// Budget is the most that a step does; default 3.
	Budget int
	// Steps counts what was done so far.
	Steps int

	now     time.Duration
	ready   []*seededWorker
	workers []*seededWorker
	agenda  agenda
	seq     int
}

// NewSeeded returns an executor at time 0.
func NewSeeded(seed uint64) *Seeded {
	return &Seeded{Rand: rand.New(rand.NewPCG(seed, 0x5b111)), StepCost: 20 * time.Microsecond, Budget: 3, JobTime: time.Millisecond, SendTime: time.Millisecond}
}

// Now implements Executor.
func (s *Seeded) Now() time.Duration { return s.now }

// Epoch implements Executor.
func (s *Seeded) Epoch() time.Time { return time.Unix(0, 0) }

// Add implements Executor.
func (s *Seeded) Add(name string, a Actor) Worker {
	w := &seededWorker{s: s, name: name, actor: a}
	s.workers = append(s.workers, w)
	return w
}

// At implements Executor.
func (s *Seeded) At(t time.Duration, f func()) (stop func()) {
	e := &appointment{at: t, seq: s.seq, f: f}
	s.seq++
	heap.Push(&s.agenda, e)
	return func() { e.f = nil }
}

// Go implements Executor.
func (s *Seeded) Go(f func()) { s.At(s.now+s.random(s.JobTime), f) }

// Send implements Executor: the message may be late, and come once, twice, or
// never.
func (s *Seeded) Send(f func()) {
	n := 1
	switch dice := s.Rand.IntN(1000); {
	case dice < s.Lose:
		n = 0
	case dice < s.Lose+s.Double:
		n = 2
	}
	for range n {
		s.At(s.now+s.random(s.SendTime), f)
	}
}

func (s *Seeded) random(limit time.Duration) time.Duration {
	return time.Duration(s.Rand.Int64N(int64(max(limit, 1))))
}

// Run lets everything go on until time until, or until nothing is left to do;
// then it returns true.
func (s *Seeded) Run(until time.Duration) (idle bool) {
	for s.now < until {
		for len(s.agenda) > 0 && s.agenda[0].at <= s.now {
			if e := heap.Pop(&s.agenda).(*appointment); e.f != nil {
				e.f()
			}
		}
		switch {
		case len(s.ready) > 0:
			s.step()
		case len(s.agenda) > 0:
			s.now = max(s.now, min(until, s.agenda[0].at))
		default:
			return true
		}
	}
	return false
}

func (s *Seeded) step() {
	i := s.Rand.IntN(len(s.ready))
	w := s.ready[i]
	last := len(s.ready) - 1
	s.ready[i] = s.ready[last]
	s.ready = s.ready[:last]
	w.listed = false
	s.Steps++
	s.now += s.random(s.StepCost)
	w.status = w.actor.Step(1 + s.Rand.IntN(s.Budget))
	switch w.status.Why {
	case Ready:
		w.enlist()
	case Busy:
		w.busy = true
		s.At(w.status.At, func() { w.busy = false; w.enlist() })
	case NoInput, NoOutput:
		if w.status.At > 0 {
			s.At(w.status.At, w.enlist)
		}
	}
}

// Crash makes everything stop where it is, for ever: no actor takes another
// step, nothing that was due happens.
func (s *Seeded) Crash() {
	for _, w := range s.workers {
		w.status.Why = Done
	}
	s.ready, s.workers, s.agenda = nil, nil, nil
}

// Report says what each actor that has not ended waits for.
func (s *Seeded) Report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %v after %d steps:", s.now, s.Steps)
	for _, w := range s.workers {
		if w.status.Why != Done {
			fmt.Fprintf(&b, "\n  %s: %s", w.name, w.status)
		}
	}
	return b.String()
}

type seededWorker struct {
	s       *Seeded
	name    string
	actor   Actor
	status  Status
	started bool
	listed  bool
	busy    bool
}

// Wake implements Waker.
func (w *seededWorker) Wake() { w.enlist() }

// Start implements Worker.
func (w *seededWorker) Start() {
	w.started = true
	w.enlist()
}

func (w *seededWorker) enlist() {
	if w.started && !w.listed && !w.busy && w.status.Why != Done {
		w.listed = true
		w.s.ready = append(w.s.ready, w)
	}
}

// appointment is something to do at a time.
type appointment struct {
	at  time.Duration
	seq int
	f   func()
}

// agenda is a heap of appointments by time, then order.
type agenda []*appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(a[i].at, a[j].at), cmp.Compare(a[i].seq, a[j].seq)) < 0
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(*appointment)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	*a = slices.Delete(old, len(old)-1, len(old))
	return e
}
