package enginetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

var zombieChecks = []check{
	{name: "zombie/running", body: zombieRunning,
		about: "Two instances at once: the older one is fenced, and what the newer one put out stays."},
	{name: "zombie/paused", faults: true, body: zombiePaused,
		about: "An instance that is paused in any call to the store wakes up after another one has taken over: it is fenced."},
}

// slower is how much longer than their heirs zombies work on a record: they do not
// come to their end before, and what they put out is seen to be incomplete.
const slower = 4

// zombieRunning restores the job while an instance of it is at work.
func zombieRunning(t *trial) {
	t.job.Sleep *= slower
	zombie := t.start()
	t.enough(t.checkpoints(zombie, 1))
	t.job.Sleep /= slower
	heir := t.restore()
	whole := t.wholeNow()
	if t.rng.IntN(2) == 0 {
		heir = t.beside(heir, func(in *instance) { t.checkpoints(in, 1) })
	}
	first := t.rng.IntN(2) == 0 // the heir is
	if first {
		t.beside(heir, t.stop)
	}
	if !whole { // it had come to its end before
		t.refused(zombie)
	}
	if !first {
		t.beside(heir, t.stop)
	}
	t.exact()
}

// heirs is how many instances may have to start anew beside one older one.
const heirs = 3

// beside does something with an instance while an older one is at work, or with
// the next one: a file that the older one begins late may end an instance, but not
// as if another one had taken over (catalog.Coordinator.Judge).
func (t *trial) beside(heir *instance, do func(*instance)) *instance {
	for n := 1; ; n++ {
		err := caught(func() { do(heir) })
		if err == nil {
			return heir
		}
		if end := heir.Stop(t.ctx); !inflight.Retryable(end) || n == heirs {
			t.fail("beside an older instance: %w", err)
		}
		t.crash(heir)
		heir = t.restore()
	}
}

// wholeNow reports whether the instance before the one that has just been restored
// had come to the end of the job, so that this one has nothing to do but to put
// out what was complete.
func (t *trial) wholeNow() bool {
	t.wait(t.job.Sleep / 2)
	found, _ := t.judge()
	return found.Exact()
}

// refused has an instance learn that another one has taken over.
func (t *trial) refused(zombie *instance) {
	id, err := zombie.Trigger(t.ctx)
	t.require(err != nil, "Trigger: another instance had taken over, and checkpoint %d was reported as complete", id)
	t.wantFenced("Stop", zombie.Stop(t.ctx))
}

func (t *trial) wantFenced(what string, err error) {
	t.require(err != nil, "%s: another instance had taken over, and there is no error", what)
	t.require(errors.Is(err, inflight.ErrFenced), "%s: another instance had taken over, and the error is not ErrFenced: %w", what, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tally.Fenced++
}

// grace is how long an instance that is paused in a call is given to come to its
// end without it: the call may be one that nobody waits for.
const grace = 500 * time.Millisecond

// zombiePaused stops an instance in a call to the store, has another one bring
// the job to its end, and lets the first one go on.
func zombiePaused(t *trial) {
	paused, awake := make(chan struct{}), make(chan struct{})
	wake := sync.OnceFunc(func() { close(awake) })
	defer wake()
	z := zombie{trial: t, judged: make(chan struct{}), pause: wrap.Rule{When: wrap.AtOp(t.operation()), Then: wrap.Before(func(wrap.Call) {
		close(paused)
		<-awake
	})}}
	t.job.Sleep *= slower
	ended, wait := t.aside(z.live)
	select {
	case <-ended: // before it came to the call
	case <-paused:
		select {
		case <-ended:
		case <-time.After(grace):
		}
	}
	z.now.Store(contested)
	t.job.Sleep /= slower
	heir := t.restore()
	z.whole = t.wholeNow()
	close(z.judged)
	z.now.Store(superseded)
	t.checkpoints(heir, 1)
	t.stop(heir)
	wake()
	wait()
	t.exact()
}

// zombie is an instance that is paused somewhere.
type zombie struct {
	*trial
	pause wrap.Rule
	now   atomic.Int32

	judged chan struct{} // closed when it is known:
	whole  bool          // it had put out everything before it was superseded
}

// Who is in charge of the job of a zombie.
const (
	alone      = iota
	contested  // another instance is claiming it
	superseded // another instance has claimed it
)

// live lives a life. What it begins once it is superseded must be refused; what
// it had begun before may have been in time.
func (z *zombie) live() {
	in, err := z.begin(z.e.Restore, z.pause)
	if err != nil {
		z.wantFenced("Restore", err)
		return
	}
	if z.now.Load() == superseded { // it may have claimed the job after the other one
		_ = in.Stop(z.ctx)
		return
	}
	for range triggers {
		late := z.now.Load() == superseded
		id, err := in.Trigger(z.ctx)
		switch {
		case errors.Is(err, ErrFinished):
		case errors.Is(err, inflight.ErrFenced):
			z.require(z.now.Load() != alone, "Trigger: nobody has taken over: %w", err)
			z.ends(in)
			return
		case err != nil:
			z.require(z.now.Load() != alone, "Trigger: %w", err)
		case late:
			z.fail("Trigger: another instance had taken over, and checkpoint %d was reported as complete", id)
		}
	}
	if z.now.Load() == superseded {
		z.ends(in)
	} else if err := in.Stop(z.ctx); err != nil {
		z.wantFenced("Stop", err)
	}
}

// ends has an instance that was superseded end. It may have come to its end before.
func (z *zombie) ends(in *instance) {
	err := in.Stop(z.ctx)
	if err == nil {
		<-z.judged
	}
	if err != nil || !z.whole {
		z.wantFenced("Stop", err)
	}
}
