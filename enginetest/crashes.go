package enginetest

import (
	"errors"
	"math"

	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

var partialChecks = []check{
	{name: "partial-records/around-a-buffer", shape: aroundBuffer, body: partial,
		about: "Records that end a little before or behind the end of a buffer, wherever a barrier cuts them."},
	{name: "partial-records/many-buffers", shape: long, body: partial,
		about: "Records that need several buffers, wherever a barrier cuts them."},
	{name: "partial-records/tiny", shape: tiny, body: partial,
		about: "Records of one to three bytes."},
}

var killChecks = []check{
	{name: "kill/operations", faults: true, body: killOperations,
		about: "An instance dies before or after any call to the store, and again while it is restored."},
	{name: "kill/moments", shape: aroundBuffer, body: killMoments,
		about: "An instance dies at any moment."},
}

// partial crashes the job after checkpoints at random moments, again and again.
func partial(t *trial) {
	before := t.tally.Captured
	in := t.start()
	done := 0
	for range 3 {
		done += t.checkpoints(in, 1+t.rng.IntN(2))
		t.crash(in)
		in = t.restore()
	}
	t.enough(done)
	t.inFlight(before)
	t.stop(in)
}

// killOperations cuts the store off at some call, and restores, a few times.
func killOperations(t *trial) {
	how := t.e.Run
	for range 1 + t.rng.IntN(3) {
		kill := wrap.Kill()
		if t.rng.IntN(2) == 0 {
			kill = wrap.KillAfter()
		}
		in, err := t.begin(how, wrap.Rule{When: wrap.AtOp(t.operation()), Then: kill})
		how = t.e.Restore
		if err != nil { // it died while it started
			t.powerCut()
			continue
		}
		err = t.drive(in, triggers)
		t.require(!errors.Is(err, inflight.ErrFenced), "Trigger: nobody has taken over: %w", err)
		t.crash(in)
	}
	t.stop(t.restore())
}

// killMoments crashes the job while it takes one checkpoint after the other.
func killMoments(t *trial) {
	in := t.start()
	for range 1 + t.rng.IntN(3) {
		moment := t.within(t.life() / 3)
		_, wait := t.aside(func() { _ = t.drive(in, math.MaxInt) }) // the crash ends it
		t.wait(moment)
		t.cut(in)
		in.Crash()
		wait()
		t.crash(in)
		in = t.restore()
	}
	t.stop(in)
}
