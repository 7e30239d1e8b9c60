package dataflow

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Actor is something that runs: a task, the network, a coordinator.
type Actor interface {
	// Step does a bounded piece of work, at most about budget records. It never
	// blocks and never sleeps: what it waits for is in the Status.
	Step(budget int) Status
}

// Status says why a step ended and so what the actor waits for.
type Status struct {
	Why Why
	// At ends the waiting at the latest; 0: only a wake-up does.
	At time.Duration
}

// Why is the reason of a Status. It is what a deadlock report prints.
type Why uint8

// The reasons.
const (
	Ready    Why = iota // there is more to do
	NoInput             // waits for input, mail, or At
	NoOutput            // waits for an output buffer, or mail
	Busy                // at work on a record until At: not even a barrier interrupts that
	Done                // has ended
)

// String returns the reason in lower case.
func (w Why) String() string {
	return [...]string{"ready", "no input", "no output", "busy", "done"}[w]
}

// Waker tells an actor that there may be something to do. Wake never blocks,
// may be called by anybody at any time, and often in vain.
type Waker interface{ Wake() }

// Worker is an actor in the hands of an executor.
type Worker interface {
	Waker
	// Start lets the actor run. All wakers are given out before the first
	// Start, so that nobody meets one that is not there yet.
	Start()
}

// Executor runs actors. Time counts from its beginning; it is real under
// Goroutines and virtual under Seeded.
type Executor interface {
	Now() time.Duration
	// Epoch is when Now was 0.
	Epoch() time.Time
	// Add takes an actor in; it does not run yet.
	Add(name string, a Actor) Worker
	// At calls f at time t, on no particular goroutine: f is short and touches
	// only what is made for that. Stopping after f was called does nothing.
	At(t time.Duration, f func()) (stop func())
	// Go runs f beside the actors; f may block.
	Go(f func())
	// Send delivers a control message: f is called soon. A test's executor may
	// do so late, twice, or never.
	Send(f func())
}

// stepBudget is about one 32 KiB buffer of 100-byte records.
const stepBudget = 327

// Goroutines is the executor of production: each actor on its own goroutine,
// real time.
type Goroutines struct {
	start time.Time
	wg    sync.WaitGroup
}

// NewGoroutines returns an executor whose time begins now.
func NewGoroutines() *Goroutines { return &Goroutines{start: time.Now()} }

// Now implements Executor.
func (g *Goroutines) Now() time.Duration { return time.Since(g.start) }

// Epoch implements Executor.
func (g *Goroutines) Epoch() time.Time { return g.start }

// Go implements Executor.
func (g *Goroutines) Go(f func()) { g.wg.Go(f) }

// Send implements Executor: f is called at once.
func (g *Goroutines) Send(f func()) { f() }

// At implements Executor.
func (g *Goroutines) At(t time.Duration, f func()) (stop func()) {
	timer := time.AfterFunc(t-g.Now(), f)
	return func() { timer.Stop() }
}

// Add implements Executor.
func (g *Goroutines) Add(_ string, a Actor) Worker {
	return &worker{g: g, actor: a, token: make(chan struct{}, 1)}
}

// Wait returns when all actors are done and everything given to Go has ended.
func (g *Goroutines) Wait() { g.wg.Wait() }

// worker is one actor on its goroutine. The token says "look again"; one is
// enough, since a step looks at everything.
type worker struct {
	g     *Goroutines
	actor Actor
	token chan struct{}
}

func (w *worker) Wake() {
	select {
	case w.token <- struct{}{}:
	default:
	}
}

func (w *worker) Start() { w.g.wg.Go(w.run) }

func (w *worker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		st := w.actor.Step(stepBudget)
		switch {
		case st.Why == Done:
			return
		case st.Why == Ready:
		case st.At > 0: // a busy one that is woken says so again, or was stopped
			timer.Reset(st.At - w.g.Now())
			select {
			case <-timer.C:
			case <-w.token:
			}
		default:
			w.park()
		}
	}
}

// yields is how often an actor lets others go first before it is parked. Most
// waits are for one of them, and end by that: to park and be woken costs more
// than a buffer of work.
const yields = 2

// park waits for a wake-up.
func (w *worker) park() {
	for range yields {
		select {
		case <-w.token:
			return
		default:
			runtime.Gosched()
		}
	}
	<-w.token
}

// String returns for example "no input until 1.5s".
func (s Status) String() string {
	if s.At > 0 {
		return fmt.Sprintf("%s until %v", s.Why, s.At)
	}
	return s.Why.String()
}
