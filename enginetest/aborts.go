package enginetest

import (
	"errors"

	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

var abortChecks = []check{
	{name: "abort/failed-call", faults: true, body: aborted(func() wrap.Fault { return wrap.Fail(inflight.ErrUnavailable) }),
		about: "A call to the store fails: no checkpoint is lost but that one, and the job goes on."},
	{name: "abort/partial-write", faults: true, body: aborted(func() wrap.Fault { return wrap.Partial(3, inflight.ErrNoSpace) }),
		about: "A write stops in the middle: no checkpoint is lost but that one, and the job goes on."},
	{name: "abort/lost-answer", faults: true, body: aborted(wrap.LoseAnswer),
		about: "The answer of a call to the store is lost: what it did counts, once."},
	{name: "abort/full-store", faults: true, once: true, body: fullStore,
		about: "The store is full for some time: checkpoints fail, and the job goes on without."},
	{name: "abort/hanging-store", faults: true, body: hangingStore,
		about: "A call to the store hangs: the checkpoint is given up after its timeout, and the job goes on."},
	{name: "abort/impatient", body: impatient,
		about: "Checkpoints that are given up while their barriers are on the way, one right after the other: each barrier counts for its own."},
}

// aborted has one call to the store suffer a fault.
func aborted(fault func() wrap.Fault) func(*trial) {
	return func(t *trial) {
		in, err := t.begin(t.e.Run, wrap.Rule{When: wrap.AtOp(t.operation()), Then: fault()})
		if err != nil { // it could not start
			in = t.restore()
		}
		t.survives(in, triggers, 1)
		t.finish(in)
	}
}

// survives takes n checkpoints, some of which may be given up. Those before them
// must stay.
func (t *trial) survives(in *instance, n, mayFail int) {
	for range n {
		t.pause()
		err := t.trigger(in)
		if errors.Is(err, ErrFinished) {
			return
		}
		t.require(!errors.Is(err, inflight.ErrFenced), "Trigger: nobody has taken over: %w", err)
		if err != nil {
			mayFail--
			t.require(mayFail >= 0, "Trigger: a fault of the store cost more than one checkpoint: %w", err)
			t.inspect()
		}
	}
}

func fullStore(t *trial) {
	in := t.start()
	t.enough(t.checkpoints(in, 1))
	in.faults.Set(wrap.Rule{When: wrap.On(wrap.OpCreate, wrap.OpWrite), Then: wrap.Fail(inflight.ErrNoSpace)})
	for range 2 {
		t.pause()
		err := t.trigger(in)
		t.require(err != nil, "Trigger: the store takes nothing, and a checkpoint was reported as complete")
		t.require(!errors.Is(err, inflight.ErrFenced), "Trigger: nobody has taken over: %w", err)
		t.inspect()
	}
	in.faults.Set()
	t.checkpoints(in, 1)
	t.stop(in)
}

// hangingStore has a call hang that belongs to a checkpoint.
func hangingStore(t *trial) {
	t.job.Timeout = shortTimeout
	in := t.start()
	t.enough(t.checkpoints(in, 1))
	in.faults.Set(wrap.Rule{When: wrap.AtOp(1 + t.rng.IntN(10)), Then: wrap.Hang()})
	t.survives(in, triggers, 1)
	t.finish(in)
}

// impatient takes checkpoints whose timeout is about as long as barriers need.
func impatient(t *trial) {
	t.job.Sleep *= 2
	t.job.Timeout = t.job.Sleep/4 + t.within(3*t.job.Sleep)
	in := t.start()
	for range 4 * triggers {
		err := t.trigger(in)
		if errors.Is(err, ErrFinished) {
			break
		}
		t.require(!errors.Is(err, inflight.ErrFenced), "Trigger: nobody has taken over: %w", err)
	}
	t.crash(in)
	t.job.Timeout = fullTimeout
	in = t.restore()
	t.checkpoints(in, 1)
	t.stop(in)
}
