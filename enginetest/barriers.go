package enginetest

import (
	"errors"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

var barrierChecks = []check{
	{name: "barriers/aligned", mode: Aligned, once: true, body: barriers,
		about: "Barriers behind the data: checkpoints hold no data in flight, and a restore goes on from each."},
	{name: "barriers/unaligned", mode: Unaligned, once: true, body: barriers,
		about: "Barriers ahead of the data: checkpoints hold what they overtook, and a restore replays it once."},
	{name: "barriers/timeout", mode: Timeout, body: barriers,
		about: "Barriers that overtake after a timeout: whoever switched and whoever did not, a restore is exact."},
	{name: "barriers/long-timeout", mode: Timeout, once: true, body: longTimeout,
		about: "Barriers that come in time: nothing is captured."},
	{name: "barriers/in-a-row", body: inARow,
		about: "A checkpoint right after the other: a barrier may meet the one before it."},
	{name: "barriers/after-restore", shape: aroundBuffer, body: afterRestore,
		about: "A checkpoint right after a restore, while what was restored is still in flight: it is captured again, or declined as ErrRecovering."},
	{name: "barriers/empty", once: true, body: empty,
		about: "A job without a record has checkpoints, an end and a restore like any other."},
	{name: "barriers/finished", once: true, body: finished,
		about: "A job that has come to its end is restored, puts out nothing again, and ends."},
}

// barriers takes checkpoints, restores the last one, and takes some more.
func barriers(t *trial) {
	before := t.tally.Captured
	in := t.start()
	t.enough(t.checkpoints(in, triggers))
	t.crash(in)
	in = t.restore()
	t.checkpoints(in, triggers)
	t.inFlight(before)
	t.stop(in)
}

func longTimeout(t *trial) {
	before := t.tally.Captured
	t.job.AlignedTimeout = time.Hour
	in := t.start()
	t.enough(t.checkpoints(in, 2))
	t.require(t.tally.Captured == before, "the timeout is an hour, and %d bytes in flight were captured", t.tally.Captured-before)
	t.stop(in)
}

func inARow(t *trial) {
	in := t.start()
	for range 2 {
		t.pause()
		for range 5 {
			if t.trigger(in) != nil {
				break
			}
		}
		t.crash(in)
		in = t.restore()
	}
	t.stop(in)
}

func afterRestore(t *trial) {
	in := t.start()
	t.enough(t.checkpoints(in, 1))
	for range 3 {
		t.crash(in)
		in = t.restore()
		if err := t.trigger(in); !errors.Is(err, ErrFinished) && !errors.Is(err, inflight.ErrRecovering) {
			t.must(err, "Trigger")
		}
	}
	t.stop(in)
}

func empty(t *trial) {
	for i := range t.job.Sources {
		t.job.Sources[i] = nil
	}
	in := t.start()
	t.checkpoints(in, 2)
	t.stop(in)
	in = t.restore()
	t.checkpoints(in, 1)
	t.stop(in)
}

func finished(t *trial) {
	in := t.start()
	t.checkpoints(in, 1)
	t.stop(in)
	for range 2 {
		t.powerCut()
		in = t.restore()
		t.stop(in)
	}
}
