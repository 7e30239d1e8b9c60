package main

import (
	"sync"
	"sync/atomic"
	"time"
)

// books hold what the counts of the newest incarnation know, for the end.
type books struct {
	sources, counts int

	mu    sync.Mutex
	tasks map[int]*counter

	sleeps, slept atomic.Int64 // of records that came one after the other
}

func (b *books) open(subtask int, o *counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tasks == nil {
		b.tasks = map[int]*counter{}
	}
	b.tasks[subtask] = o
}

// took notes how long after the record before it a record came. Where that is
// much longer than a record takes, there was none to process.
func (b *books) took(d, sleep time.Duration) {
	if d < 4*sleep {
		b.sleeps.Add(1)
		b.slept.Add(int64(d))
	}
}

// recordTime is how long a record takes, measured.
func (b *books) recordTime() time.Duration {
	if n := b.sleeps.Load(); n > 0 {
		return time.Duration(b.slept.Load() / n)
	}
	return 0
}

// balance is the sum over all counts.
type balance struct {
	Emitted, Counted, Lost, Duplicated, Keyless uint64
	// Unknown are counts that had ended before the checkpoint that was restored:
	// nothing is known of them here. Open are accounts that no source has closed.
	Unknown, Open int
}

// balance adds up after the job has ended.
func (b *books) balance() (sum balance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum.Unknown = b.counts - len(b.tasks)
	for _, o := range b.tasks {
		for _, r := range o.from.V {
			sum.Counted += r.Counted
			sum.Lost += r.Lost
			sum.Duplicated += r.Duplicated
			sum.Keyless += r.Keyless
			if r.Total == nil {
				sum.Open++
				sum.Lost++ // its end at least
				sum.Emitted += r.Next
				continue
			}
			sum.Emitted += *r.Total
			if *r.Total > r.Next {
				sum.Lost += *r.Total - r.Next
			}
		}
	}
	return sum
}
