package dataflow

import (
	"fmt"
	"math/rand/v2"
)

// PartitionerKind says how an edge distributes records.
type PartitionerKind string

// The kinds, as used in manifests and JSON.
const (
	KindHash      PartitionerKind = "hash"
	KindRebalance PartitionerKind = "rebalance"
	KindShuffle   PartitionerKind = "shuffle"
	KindGlobal    PartitionerKind = "global"
	KindBroadcast PartitionerKind = "broadcast"
	KindForward   PartitionerKind = "forward"
	KindRescale   PartitionerKind = "rescale"
	KindCustom    PartitionerKind = "custom"
)

// Pointwise reports whether an edge of this kind connects only some pairs of
// subtasks, which depend on both parallelisms.
func (k PartitionerKind) Pointwise() bool { return k == KindForward || k == KindRescale }

// HoldsChannelState reports whether what is in flight on an edge of this kind
// may be captured. On pointwise and broadcast edges no function of a record
// says where it belongs after a change of parallelism; of a custom one nothing
// is known.
func (k PartitionerKind) HoldsChannelState() bool {
	switch k {
	case KindHash, KindRebalance, KindShuffle, KindGlobal:
		return true
	}
	return false
}

// Partitioner is how an edge distributes records.
type Partitioner struct {
	Kind   PartitionerKind
	Key    KeyFunc                      // hash
	Custom func(body []byte, n int) int // custom: which of n
}

// Hash sends a record to the owner of its key.
func Hash(key KeyFunc) Partitioner { return Partitioner{Kind: KindHash, Key: key} }

// Rebalance sends records to all in turn.
func Rebalance() Partitioner { return Partitioner{Kind: KindRebalance} }

// Shuffle sends each record to any.
func Shuffle() Partitioner { return Partitioner{Kind: KindShuffle} }

// Global sends all records to subtask 0.
func Global() Partitioner { return Partitioner{Kind: KindGlobal} }

// Broadcast sends each record to all.
func Broadcast() Partitioner { return Partitioner{Kind: KindBroadcast} }

// Forward sends all records to the subtask of the same number.
func Forward() Partitioner { return Partitioner{Kind: KindForward} }

// Rescale sends records in turn to the few subtasks that are nearest.
func Rescale() Partitioner { return Partitioner{Kind: KindRescale} }

// Custom sends a record where choose says.
func Custom(choose func(body []byte, n int) int) Partitioner {
	return Partitioner{Kind: KindCustom, Custom: choose}
}

// selector returns which of the connected subpartitions a record goes to; -1:
// to all.
type selector func(body []byte) int

// selector makes the selector of one upstream subtask with n connections.
func (p Partitioner) selector(n, maxParallelism int, r *rand.Rand) selector {
	switch p.Kind {
	case KindHash:
		owners := make([]int, maxParallelism)
		for group := range owners {
			owners[group] = KeyGroupOwner(group, n, maxParallelism)
		}
		return func(body []byte) int { return owners[KeyGroup(p.Key(body).Hash, maxParallelism)] }
	case KindRebalance, KindRescale:
		next := r.IntN(n)
		return func([]byte) int {
			if next++; next >= n {
				next = 0
			}
			return next
		}
	case KindShuffle:
		return func([]byte) int { return r.IntN(n) }
	case KindBroadcast:
		return func([]byte) int { return -1 }
	case KindCustom:
		return func(body []byte) int { return p.Custom(body, n) }
	}
	return func([]byte) int { return 0 }
}

// targets returns the downstream subtasks that an upstream one is connected
// with, for up → down subtasks in all.
func (p Partitioner) targets(subtask, up, down int) (to []int) {
	switch {
	case p.Kind == KindForward:
		return []int{subtask}
	case p.Kind == KindRescale:
		for d := range down {
			// Down subtask d is served by those upstream whose share it meets.
			first, last := d*up/down, ((d+1)*up-1)/down
			if up <= down {
				first, last = d*up/down, d*up/down
			}
			if subtask >= first && subtask <= last {
				to = append(to, d)
			}
		}
		return to
	}
	for d := range down {
		to = append(to, d)
	}
	return to
}

func (p Partitioner) check(up, down int) error {
	switch {
	case p.Kind == KindForward && up != down:
		return fmt.Errorf("a forward edge needs equal parallelisms, these are %d and %d", up, down)
	case p.Kind == KindHash && p.Key == nil:
		return fmt.Errorf("a hash edge needs a key function")
	case p.Kind == KindCustom && p.Custom == nil:
		return fmt.Errorf("a custom edge needs a function")
	}
	return nil
}
