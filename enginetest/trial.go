package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

const (
	roundLimit   = 2 * time.Minute  // ends a round that hangs
	patience     = 30 * time.Second // with a Trigger
	triggers     = 4                // checkpoints that the kit asks for in a life
	fullTimeout  = 20 * time.Second
	shortTimeout = 400 * time.Millisecond // where checkpoints are to be given up
)

// trial is one round of a check: one job, whose instances follow on each other.
// Its methods end the round when the engine does not do what is asked.
type trial struct {
	ctx   context.Context
	e     Engine
	o     Options
	rng   *rand.Rand
	seed  uint64
	tally *Tally
	suite *suite

	job      Job
	truth    backends.Backend                        // the store, without faults
	reported inflight.CheckpointID                   // the newest checkpoint that an instance called complete; 0: none
	flows    map[inflight.CheckpointID][]reader.Flow // of the checkpoints that were looked into
	drawn    int                                     // calls to the store that were chosen

	mu        sync.Mutex
	instances []*instance
	asides    []<-chan struct{}
}

// instance is an instance with its own path to the store.
type instance struct {
	Instance
	job    Job
	faults *wrap.Faults // nil: it is in another process
}

// verdict carries the end of a round out of its helpers.
type verdict struct{ error }

func (t *trial) fail(format string, args ...any) { panic(verdict{fmt.Errorf(format, args...)}) }

func (t *trial) require(ok bool, format string, args ...any) {
	if !ok {
		t.fail(format, args...)
	}
}

func (t *trial) must(err error, what string) {
	if err != nil {
		t.fail("%s: %w", what, err)
	}
}

// caught runs f, and returns the verdict that it ends with.
func caught(f func()) (err error) {
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case verdict:
			err = failure.error
		default:
			panic(failure)
		}
	}()
	f()
	return nil
}

// aside runs f on a goroutine of its own; wait ends the round if f would have.
func (t *trial) aside(f func()) (ended <-chan struct{}, wait func()) {
	var err error
	done := make(chan struct{})
	t.asides = append(t.asides, done)
	go func() {
		defer close(done)
		err = caught(f)
	}()
	return done, func() {
		<-done
		if err != nil {
			panic(verdict{err})
		}
	}
}

// open makes the store and the directory of the job.
func (t *trial) open() (err error) {
	t.reported, t.flows = 0, map[inflight.CheckpointID][]reader.Flow{}
	if t.job.Dir, err = os.MkdirTemp("", "enginetest-"); err != nil {
		return err
	}
	if t.o.Processes {
		t.job.Store = filepath.Join(t.job.Dir, "store")
		t.truth = local.New(t.job.Store)
		return nil
	}
	t.truth = mem.New(mem.Options{ObjectStore: t.seed/6%2 == 1})
	return nil
}

// close ends what still runs, and removes what open has made.
func (t *trial) close() {
	for range 2 { // the second time, what was being started
		t.mu.Lock()
		for _, in := range t.instances {
			t.cut(in)
			in.Crash()
		}
		t.mu.Unlock()
		for _, done := range t.asides {
			<-done
		}
	}
	for _, in := range t.instances {
		in.forget()
	}
	t.instances = nil
	_ = t.truth.Close() // nothing is being written
	_ = os.RemoveAll(t.job.Dir)
}

func (in *instance) forget() {
	if in.faults != nil {
		forget(in.job.Store)
	}
}

// begin starts an instance, on a store with faults.
func (t *trial) begin(how func(context.Context, *Job) (Instance, error), rules ...wrap.Rule) (*instance, error) {
	in := &instance{job: t.job}
	if !t.o.Processes {
		in.faults = wrap.NewFaults(t.truth, rules...)
		in.job.Store = newPath(in.faults)
	}
	var err error
	if in.Instance, err = how(t.ctx, &in.job); err != nil {
		in.forget()
		return nil, err
	}
	t.require(in.Instance != nil, "there is no instance, and no error")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tally.Instances++
	t.instances = append(t.instances, in)
	return in, nil
}

// start starts the job afresh.
func (t *trial) start() *instance {
	in, err := t.begin(t.e.Run)
	t.must(err, "Run")
	return in
}

// restore starts the job from its newest checkpoint, and looks whether it did.
func (t *trial) restore() *instance {
	before := t.latest()
	in, err := t.begin(t.e.Restore)
	t.must(err, "Restore")
	t.restored(before)
	return in
}

// restored checks that the newest coordinator is based on the checkpoint that was
// the newest before.
func (t *trial) restored(before *catalog.Checkpoint) {
	m := t.newest()
	for try := 0; m == nil || before != nil && m.ID <= before.Manifest.ID; try++ { // a claim may be retired while it is looked for
		t.require(try < 100, "Restore: nobody has claimed the job on the store")
		t.wait(time.Millisecond)
		m = t.newest()
	}
	switch {
	case before == nil:
		t.require(m.Base == nil, "Restore: there was no checkpoint, and the job is based on one")
	case m.Base == nil:
		t.fail("Restore: the newest checkpoint was %d, and the job began afresh", before.Manifest.ID)
	default:
		t.require(*m.Base >= before.Manifest.ID, "Restore: the newest checkpoint was %d, and %d was restored", before.Manifest.ID, *m.Base)
	}
}

// newest returns the newest checkpoint or claim, or nil.
func (t *trial) newest() *format.Manifest {
	slots, err := t.log().List(t.ctx)
	t.must(err, "list the store")
	for _, s := range slices.Backward(slots) {
		if s.Manifest != nil && s.Manifest.Kind != format.KindAborted {
			return s.Manifest
		}
	}
	return nil
}

// log returns the log of the job on the store without faults.
func (t *trial) log() *catalog.Log {
	l, err := catalog.Open(t.truth, t.job.Name, catalog.Options{})
	t.must(err, "look into the store")
	return l
}

// latest returns the newest checkpoint on the store, or nil. It must be as new as
// what was reported.
func (t *trial) latest() *catalog.Checkpoint {
	c, err := t.log().Latest(t.ctx)
	if errors.Is(err, inflight.ErrNotExist) {
		t.require(t.reported == 0, "checkpoint %d was reported as complete, and there is none on the store", t.reported)
		return nil
	}
	t.must(err, "look for the newest checkpoint")
	t.require(c.Manifest.ID >= t.reported, "checkpoint %d was reported as complete, and the newest on the store is %d", t.reported, c.Manifest.ID)
	return c
}

// life is how long the job takes at least, if the keys are spread evenly.
func (t *trial) life() time.Duration {
	return time.Duration(t.o.Records*t.o.Sources) * t.job.Sleep / time.Duration(t.o.Parallelism)
}

// pause waits for a random part of the life of a job.
func (t *trial) pause() { t.wait(t.within(t.life() / (2 * triggers))) }

// within returns a random time.
func (t *trial) within(d time.Duration) time.Duration {
	return time.Duration(t.rng.Int64N(int64(d) + 1))
}

func (t *trial) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
		t.fail("the round did not end in %v", roundLimit)
	}
}

// trigger takes a checkpoint. One that is complete must be right.
func (t *trial) trigger(in *instance) error {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	id, err := in.Trigger(ctx)
	t.require(ctx.Err() == nil, "Trigger did not return in %v (%v)", patience, err)
	if err != nil {
		if !errors.Is(err, ErrFinished) {
			t.tally.GivenUp++
		}
		return err
	}
	t.reported = max(t.reported, id)
	t.inspect()
	t.tally.Checkpoints++
	return nil
}

// checkpoints takes n checkpoints, which must succeed, and returns how many it
// took until the job came to the end of its input.
func (t *trial) checkpoints(in *instance, n int) int {
	for i := range n {
		t.pause()
		err := t.trigger(in)
		if errors.Is(err, ErrFinished) {
			return i
		}
		t.must(err, "Trigger")
	}
	return n
}

// drive takes checkpoints until one fails.
func (t *trial) drive(in *instance, n int) (err error) {
	for i := 0; i < n && err == nil; i++ {
		t.pause()
		err = t.trigger(in)
	}
	return err
}

// cut keeps an instance away from the store.
func (t *trial) cut(in *instance) {
	if in.faults != nil {
		in.faults.Set(wrap.Rule{When: wrap.Always(), Then: wrap.Kill()})
	}
}

// crash ends an instance, and leaves of the store what a power cut does.
func (t *trial) crash(in *instance) {
	t.cut(in)
	in.Crash()
	t.tally.Crashes++
	t.powerCut()
}

func (t *trial) powerCut() {
	if m, ok := t.truth.(*mem.Backend); ok {
		t.truth = m.CrashClone(t.rng, mem.CrashConfig{Names: 0.5 * float64(t.rng.IntN(3)), Leftovers: 0.5})
	}
}

// stop waits for the end of the job, and looks at what came out.
func (t *trial) stop(in *instance) {
	t.must(in.Stop(t.ctx), "Stop")
	t.inspect()
	t.exact()
	t.tally.Rounds++
}

// finish is stop where the last checkpoint may meet with a fault: another
// instance brings the job to its end then.
func (t *trial) finish(in *instance) {
	err := in.Stop(t.ctx)
	t.require(!errors.Is(err, inflight.ErrFenced), "Stop: nobody has taken over: %w", err)
	if err != nil {
		t.crash(in)
		in = t.restore()
	}
	t.stop(in)
}

// exact ends the round unless what came out is what was put in.
func (t *trial) exact() {
	found, first := t.judge()
	t.tally.add(found)
	t.require(found.Exact(), "LOSS %d DUP %d CORRUPT %d DISORDER %d: %s", found.Loss, found.Dup, found.Corrupt, found.Disorder, first)
}

func (t *trial) judge() (Tally, string) {
	out, err := t.e.Output(t.ctx, &t.job)
	t.must(err, "Output")
	return judge(t.job.Sources, out)
}
