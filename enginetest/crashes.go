package enginetest

import (
	"context"
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

// killOperations has an instance die in some call to the store, and restores, a
// few times.
func killOperations(t *trial) {
	how := t.e.Run
	for range 1 + t.rng.IntN(3) {
		kill, struck := wrap.Kill(), make(chan struct{})
		if t.rng.IntN(2) == 0 {
			kill = wrap.KillAfter()
		}
		in, err := t.begin(how, wrap.Rule{When: wrap.AtOp(t.operation()), Then: func(ctx context.Context, f *wrap.Faults, c *wrap.Call, do func() error) error {
			defer close(struck)
			return kill(ctx, f, c, do)
		}})
		how = t.e.Restore
		if err != nil { // it died while it started
			t.powerCut()
			continue
		}
		ended, wait := t.aside(func() {
			err := t.drive(in, triggers)
			t.require(!errors.Is(err, inflight.ErrFenced), "Trigger: nobody has taken over: %w", err)
		})
		select {
		case <-ended:
		case <-struck: // it may wait for the store for ever
		}
		t.crashDriven(in, wait)
	}
	t.stop(t.restore())
}

// crashDriven crashes an instance that is being driven, and waits for the end of
// that.
func (t *trial) crashDriven(in *instance, wait func()) {
	t.cut(in)
	in.Crash()
	wait()
	t.crash(in)
}

// killMoments crashes the job while it takes one checkpoint after the other.
func killMoments(t *trial) {
	in := t.start()
	for range 1 + t.rng.IntN(3) {
		moment := t.within(t.life() / 3)
		_, wait := t.aside(func() { _ = t.drive(in, math.MaxInt) }) // the crash ends it
		t.wait(moment)
		t.crashDriven(in, wait)
		in = t.restore()
	}
	t.stop(in)
}
