package enginetest

import (
	"errors"

	"github.com/spillway-io/spillway/inflight"
)

var otherChecks = []check{
	{name: "topology/refused", once: true, body: anotherTopology,
		about: "A checkpoint that does not fit the job is refused before anything changes; or it is redistributed, and nothing is lost."},
}

// anotherTopology restores with another parallelism.
func anotherTopology(t *trial) {
	in := t.start()
	t.enough(t.checkpoints(in, 2))
	t.crash(in)
	before := t.names()
	t.job.Parallelism++
	in, err := t.begin(t.e.Restore)
	if err == nil {
		t.stop(in) // it can do that
		return
	}
	t.require(errors.Is(err, inflight.ErrMismatch), "Restore with another parallelism: the error is not ErrMismatch: %w", err)
	t.require(t.names() == before, "Restore with another parallelism was refused, and changed the store")
	t.job.Parallelism--
	t.stop(t.restore())
}

// names returns all names on the store.
func (t *trial) names() (all string) {
	for info, err := range t.truth.List(t.ctx, "") {
		t.must(err, "list the store")
		all += info.Name + "\n"
	}
	return all
}
