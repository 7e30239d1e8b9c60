package enginetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// check is a Check as it is written here.
type check struct {
	name, about string
	mode        Mode  // "": the engine's modes in turn
	shape       shape // of the records
	once        bool  // nothing is random in it: one round for each mode
	faults      bool  // of the store are needed
	body        func(t *trial)
}

var checks = slices.Concat(barrierChecks, partialChecks, abortChecks, zombieChecks, killChecks, otherChecks)

// suite is what the rounds of one check share.
type suite struct {
	check
	ops map[Mode]int // calls of the store in an undisturbed life
}

// run runs all rounds.
func (c check) run(ctx context.Context, e Engine, o Options) (tally Tally, err error) {
	modes := o.Modes
	if c.mode != "" {
		modes = []Mode{c.mode}
	}
	switch {
	case !slices.Contains(o.Modes, modes[0]):
		return tally, &Skipped{fmt.Sprintf("the engine has no %s barriers", c.mode)}
	case c.faults && o.Processes:
		return tally, &Skipped{"the store of another process cannot be given faults"}
	}
	rounds := o.Rounds
	if c.once {
		rounds = min(rounds, len(modes))
	}
	s := &suite{check: c, ops: map[Mode]int{}}
	for round := range rounds {
		seed := o.Seed + uint64(round)
		mode := modes[seed%uint64(len(modes))]
		if err := s.runRound(ctx, e, o, mode, seed, &tally); err != nil {
			return tally, fmt.Errorf("seed %d, %s: %w", seed, mode, err)
		}
		if ctx.Err() != nil {
			return tally, ctx.Err()
		}
	}
	return tally, nil
}

func (s *suite) runRound(ctx context.Context, e Engine, o Options, mode Mode, seed uint64, tally *Tally) error {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	t := &trial{ctx: ctx, e: e, o: o, rng: rand.New(rand.NewPCG(seed, 1)), seed: seed, tally: tally, suite: s}
	t.job = Job{Name: o.Name, Parallelism: o.Parallelism, Mode: mode, Timeout: fullTimeout, Sleep: o.Sleep}
	if mode == Timeout {
		t.job.AlignedTimeout = time.Duration(1+t.rng.IntN(10)) * o.Sleep
	}
	t.job.Sources = sources(t.rng, o, s.shape)
	if err := t.open(); err != nil {
		return err
	}
	defer t.close()
	defer cancel() // before close waits for what goes on aside
	return caught(func() { s.body(t) })
}

// operation chooses a call to the store, so that the rounds of a check spread
// over all of a life.
func (t *trial) operation() int {
	n := t.suite.ops[t.job.Mode]
	if n == 0 {
		n = t.undisturbed()
		t.suite.ops[t.job.Mode] = n
	}
	const golden, other = 0.6180339887498949, 0.7548776662466927 // their multiples spread evenly
	_, part := math.Modf(golden*float64(t.seed) + other*float64(t.drawn))
	t.drawn++
	return 1 + int(part*float64(n))
}

// undisturbed lives a whole life on a store of its own, and returns how many
// calls that takes.
func (t *trial) undisturbed() int {
	in := t.start()
	t.checkpoints(in, triggers)
	t.stop(in)
	n := in.faults.Ops()
	t.close()
	t.must(t.open(), "a new store")
	return n
}

// enough ends the round if the job was over before it could show anything.
func (t *trial) enough(checkpoints int) {
	t.require(checkpoints > 0, "the job came to its end before the first checkpoint: more records or a longer sleep are needed")
}

// inFlight ends the round if barriers that overtake did not overtake anything. Of
// processes it is enough that those of one round did: while the kit waits for the
// processor, they may come to their end.
func (t *trial) inFlight(before uint64) {
	if t.o.Processes {
		before = 0
	}
	t.require(t.job.Mode != Unaligned || t.tally.Captured > before, "no checkpoint has data in flight, though its barriers overtake and the slow stage sleeps")
}
