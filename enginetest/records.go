package enginetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// shape says how long the records of a job are. Nil: short.
type shape func(rng *rand.Rand, buffer int) int

func short(rng *rand.Rand, _ int) int { return 12 + rng.IntN(30) }

func tiny(rng *rand.Rand, _ int) int { return 1 + rng.IntN(3) }

// aroundBuffer makes records that end a little before and behind the end of a
// buffer, with others between them, so that they begin anywhere.
func aroundBuffer(rng *rand.Rand, buffer int) int {
	switch rng.IntN(4) {
	case 0:
		return tiny(rng, buffer)
	case 1:
		return 1 + rng.IntN(2*buffer)
	}
	return max(1, buffer*(1+rng.IntN(3))-8+rng.IntN(16))
}

// long makes records that need several buffers, whatever is in front of them.
func long(rng *rand.Rand, buffer int) int { return 2*buffer + rng.IntN(3*buffer) }

const keys = 7

// sources makes the records of a job; some sources are shorter than others. A
// record that has the room for it begins with key, source and number, "k3-s0-17-";
// the rest is random letters. A shorter one is letters only.
func sources(rng *rand.Rand, o Options, s shape) [][]string {
	if s == nil {
		s = short
	}
	all := make([][]string, o.Sources)
	for i := range all {
		length := o.Records
		if i > 0 && rng.IntN(2) == 0 {
			length = rng.IntN(o.Records)
		}
		for n := range length {
			head := fmt.Sprintf("k%d-s%d-%d-", rng.IntN(keys), i, n)
			size := s(rng, o.BufferSize)
			if size < len(head) {
				head = ""
			}
			b := append(make([]byte, 0, size), head...)
			for len(b) < size {
				b = append(b, 'a'+byte(rng.IntN(26)))
			}
			all[i] = append(all[i], string(b))
		}
	}
	return all
}

// Key returns the key of a record, for an engine that does not take the whole
// record: what stands before its first hyphen.
func Key(record string) string {
	key, _, _ := strings.Cut(record, "-")
	return key
}

// number returns the source, with the key, and the number of a record that has
// them.
func number(record string) (flow string, n int, ok bool) {
	parts := strings.SplitN(record, "-", 4)
	if len(parts) < 4 {
		return "", 0, false
	}
	n, err := strconv.Atoi(parts[2])
	return parts[0] + "-" + parts[1], n, err == nil
}

// Tally is what was counted during a check.
type Tally struct {
	Loss, Dup, Corrupt, Disorder int // records

	Rounds      int // jobs that came to their end
	Instances   int // that were started
	Checkpoints int // that were reported as complete, looked into and found right
	GivenUp     int // checkpoints
	Crashes     int
	Fenced      int // instances

	Captured    uint64 // bytes in flight, in the checkpoints that were looked into
	Proven      int    // connections whose account holds
	NotProvable int    // connections that do not say enough for an account
}

// Exact reports whether every record came out once, in order.
func (t Tally) Exact() bool { return t.Loss+t.Dup+t.Corrupt+t.Disorder == 0 }

// String returns all numbers on one line.
func (t Tally) String() string {
	return fmt.Sprintf("LOSS %d DUP %d CORRUPT %d DISORDER %d: %d rounds, %d instances, %d crashed and %d fenced, %d checkpoints and %d given up, %d bytes in flight, %d accounts proven and %d not provable",
		t.Loss, t.Dup, t.Corrupt, t.Disorder, t.Rounds, t.Instances, t.Crashes, t.Fenced, t.Checkpoints, t.GivenUp, t.Captured, t.Proven, t.NotProvable)
}

func (t *Tally) add(u Tally) {
	t.Loss, t.Dup, t.Corrupt, t.Disorder = t.Loss+u.Loss, t.Dup+u.Dup, t.Corrupt+u.Corrupt, t.Disorder+u.Disorder
	t.Rounds, t.Instances, t.Checkpoints, t.GivenUp = t.Rounds+u.Rounds, t.Instances+u.Instances, t.Checkpoints+u.Checkpoints, t.GivenUp+u.GivenUp
	t.Crashes, t.Fenced = t.Crashes+u.Crashes, t.Fenced+u.Fenced
	t.Captured, t.Proven, t.NotProvable = t.Captured+u.Captured, t.Proven+u.Proven, t.NotProvable+u.NotProvable
}

// judge compares what came out with what was put in, and names the first
// difference.
func judge(in [][]string, out Output) (t Tally, first string) {
	note := func(format string, args ...any) {
		if first == "" {
			first = fmt.Sprintf(format, args...)
		}
	}
	got := out.Counts
	if got == nil {
		got = count(out.Order)
	}
	want := count(in...)
	for _, r := range slices.Sorted(maps.Keys(want)) {
		switch d := got[r] - want[r]; {
		case d < 0:
			t.Loss -= d
			note("%s came out %d times and not %d", brief(r), got[r], want[r])
		case d > 0:
			t.Dup += d
			note("%s came out %d times and not %d", brief(r), got[r], want[r])
		}
	}
	for _, r := range slices.Sorted(maps.Keys(got)) {
		if want[r] == 0 && got[r] > 0 {
			t.Corrupt += got[r]
			note("%s came out and was never put in", brief(r))
		}
	}
	last := map[string]int{}
	for _, r := range out.Order {
		if flow, n, ok := number(r); ok && want[r] > 0 {
			if before, seen := last[flow]; seen && n < before {
				t.Disorder++
				note("%s came out behind number %d", brief(r), before)
			}
			last[flow] = n
		}
	}
	return t, first
}

func count(lists ...[]string) map[string]int {
	n := map[string]int{}
	for _, list := range lists {
		for _, r := range list {
			n[r]++
		}
	}
	return n
}

// brief returns the beginning of a record.
func brief(r string) string {
	if len(r) > 24 {
		return fmt.Sprintf("%q… of %d bytes", r[:24], len(r))
	}
	return strconv.Quote(r)
}
