// Package enginetest is the conformance kit for stream processors that keep
// their checkpoints with Spillway. An engine implements five hooks, Run, Restore,
// Trigger, Crash and Stop, and a reader of its output. The kit runs jobs with
// them while it aborts checkpoints, cuts records at every place, kills
// coordinators and lets them come back from the dead, and says what became of
// each record:
//
//	LOSS      a record did not come out
//	DUP       a record came out again
//	CORRUPT   something came out that was never put in
//	DISORDER  records of one source and key came out in another order
//
// After each checkpoint that an engine reports as complete, the kit looks into
// the store itself: the checkpoint must be there, every byte of it must be what
// was written, and the conservation account must hold for every connection (see
// reader.Flow), and must not go back.
//
// A test calls Run. A command can do the same with Each:
//
//	LOSS / DUP / CORRUPT of one check    Result.Tally
//	a check that failed                  Result.Err, which names the seed
//	the same round again                 Options{Seed: …, Rounds: 1}
package enginetest

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Engine is an engine under test. Its methods may be called while instances of
// other jobs, and older ones of the same job, are at work.
type Engine interface {
	// Run starts a job afresh, and returns when it has claimed the job on the
	// store and its records flow.
	Run(ctx context.Context, j *Job) (Instance, error)
	// Restore starts a job from the newest checkpoint on the store, or afresh
	// where there is none. A checkpoint that does not fit the job is refused
	// with inflight.ErrMismatch, before anything on the store has changed.
	Restore(ctx context.Context, j *Job) (Instance, error)
	// Output reads what a job has put out so far, whether or not an instance of
	// it is at work. The kit asks once a job has come to its end, and again
	// after an older instance has woken up and ended.
	Output(ctx context.Context, j *Job) (Output, error)
}

// Instance is one run of a job: a coordinator and its tasks. It goes on until
// Crash, until it is fenced, or until it has come to the end of its input and
// has put out everything.
type Instance interface {
	// Trigger takes a checkpoint, and returns when it is complete, and the
	// engine has told everybody who waits for that.
	//
	//	ErrFinished         the input has come to its end: there is nothing to checkpoint
	//	inflight.ErrFenced  another coordinator has taken over; the instance ends
	//	other               the checkpoint was given up; the instance goes on
	Trigger(ctx context.Context) (inflight.CheckpointID, error)
	// Stop waits until the input has come to its end and all is put out, and
	// ends the instance: the drain. An error says why it ended before.
	Stop(ctx context.Context) error
	// Crash ends the instance where it stands, as kill -9 does: nothing is
	// flushed, committed or put out any more. It returns when nothing of it runs;
	// calls in progress then answer any error. It may be called again, and after
	// Stop.
	//
	// An engine in another process kills that. In this process, the kit has cut
	// the instance off from the store before it calls Crash, so that cancelling
	// a context will do.
	Crash()
}

// ErrFinished is the answer of Trigger when a job has come to the end of its
// input.
var ErrFinished = errors.New("the job has finished")

// Mode says how the barriers of a job go.
type Mode string

// The modes.
const (
	Aligned   Mode = "aligned"   // behind the data
	Unaligned Mode = "unaligned" // ahead of it
	Timeout   Mode = "timeout"   // behind the data, and ahead of it after Job.AlignedTimeout
)

// Job is what an engine is to run: every source emits its records in order; each
// record goes, by its key or as a whole, to one of Parallelism subtasks, which
// takes Sleep to count it; what was counted is put out.
type Job struct {
	// Name is the name of the job on the store.
	Name string
	// Store is the URL of the store, for backends.Open or spillway.Open. Every
	// instance has another one, by which the kit tells them apart, and cuts them
	// off; it stays valid as long as the instance.
	Store string
	// Dir is a directory that all instances of the job share. What an engine
	// puts out can be kept there, and outlives crashes.
	Dir string
	// Sources has the records of each source: letters, digits and hyphens. Short
	// ones repeat.
	Sources [][]string
	// Parallelism is that of the slow stage.
	Parallelism int
	Mode        Mode
	// AlignedTimeout is when an aligned barrier begins to overtake, in mode
	// Timeout.
	AlignedTimeout time.Duration
	// Timeout is when a checkpoint that is not complete is given up.
	Timeout time.Duration
	// Sleep is how long the slow stage works on a record, and does nothing else.
	Sleep time.Duration
}

// Output is what a job has put out.
type Output struct {
	// Counts says how often each record came out. Nil: as often as it is in Order.
	Counts map[string]int
	// Order has the same records in the order in which the slow stage took them,
	// as far as they have the same source and key. Nil: nobody knows.
	Order []string
}

// Options are the options of Run and Each. The zero value will do for an engine
// in this process that has all modes.
type Options struct {
	// Name is the name of the jobs, for an engine that cannot choose it. Default:
	// enginetest.
	Name string
	// Modes are those that the engine has. Default: all. The checks of the
	// others are skipped.
	Modes []Mode
	// Sources and Parallelism are those of the jobs. Default: 2.
	Sources, Parallelism int
	// Records is how many records each source has. Default: 100.
	Records int
	// BufferSize is that of the engine: records are made a little shorter and
	// longer, and some times as long. Default: 32 KiB.
	BufferSize int
	// Sleep is how long the slow stage works on a record. Default: 2ms.
	Sleep time.Duration
	// Rounds is how often a check is repeated that something random is in.
	// Default: 12.
	Rounds int
	// Seed is that of the first round; the next round has the next one. Default: 1.
	Seed uint64
	// Processes says that instances run in other processes: their store is a
	// directory, and checks that need faults of the store are skipped.
	Processes bool
	// VirtualTime has Run run each check in a synctest bubble, so that nobody
	// really waits. The engine must work in one: all in this process, and no
	// goroutine left.
	VirtualTime bool
	// Skip has the reasons why checks, by name, are left out.
	Skip map[string]string
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "enginetest"
	}
	if o.Modes == nil {
		o.Modes = []Mode{Aligned, Unaligned, Timeout}
	}
	for p, v := range map[*int]int{&o.Sources: 2, &o.Parallelism: 2, &o.Records: 100, &o.BufferSize: 32 << 10, &o.Rounds: 12} {
		if *p == 0 {
			*p = v
		}
	}
	if o.Sleep == 0 {
		o.Sleep = 2 * time.Millisecond
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	return o
}

// Check is one thing that is expected of an engine.
type Check struct {
	Name  string
	About string // what is expected, in one sentence

	check check
}

// Checks returns all checks.
func Checks() []Check {
	all := make([]Check, len(checks))
	for i, c := range checks {
		all[i] = Check{Name: c.name, About: c.about, check: c}
	}
	return all
}

// Run runs the check on an engine. The error says what is wrong, and with which
// seed; it is a *Skipped where the check does not concern the engine.
func (c Check) Run(ctx context.Context, e Engine, o Options) (Tally, error) {
	return c.check.run(ctx, e, o.withDefaults())
}

// Skipped is the error of a check that does not concern the engine.
type Skipped struct{ Reason string }

// Error returns the reason.
func (s *Skipped) Error() string { return "skipped: " + s.Reason }

// Run runs all checks, each as a subtest.
func Run(t *testing.T, e Engine, o Options) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if reason, ok := o.Skip[c.Name]; ok {
				t.Skip(reason)
			}
			body := func(t *testing.T) {
				tally, err := c.Run(t.Context(), e, o)
				if skipped, ok := errors.AsType[*Skipped](err); ok {
					t.Log(skipped.Reason) // the engine does not have it: nothing is left out
					return
				}
				t.Log(tally)
				if err != nil {
					t.Errorf("%s %v", c.About, err)
				}
			}
			if o.VirtualTime {
				synctest.Test(t, body)
			} else {
				body(t)
			}
		})
	}
}

// Result is the outcome of one check.
type Result struct {
	Check
	Tally    Tally
	Err      error // nil: all was as expected, or it does not concern the engine
	Skipped  string
	Duration time.Duration
}

// Each runs all checks, and yields the outcomes as they come. It ends with ctx.
func Each(ctx context.Context, e Engine, o Options) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		for _, c := range Checks() {
			start, r := time.Now(), Result{Check: c, Skipped: o.Skip[c.Name]}
			if r.Skipped == "" {
				r.Tally, r.Err = c.Run(ctx, e, o)
			}
			if skipped, ok := errors.AsType[*Skipped](r.Err); ok {
				r.Skipped, r.Err = skipped.Reason, nil
			}
			r.Duration = time.Since(start)
			if !yield(r) || ctx.Err() != nil {
				return
			}
		}
	}
}
