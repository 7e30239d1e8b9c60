package inflight

import (
	"cmp"
	"fmt"
	"strings"
)

// CheckpointID numbers the slots of a job's log, from 0 without gaps. A
// checkpoint, an aborted checkpoint and a coordinator's claim each take one.
type CheckpointID uint64

// Epoch is the checkpoint id of a coordinator's claim: it tells the
// incarnations of a job apart.
type Epoch uint32

// Task is one parallel instance (Subtask, from 0) of a vertex of the job graph.
type Task struct {
	Vertex  string `json:"vertex"`
	Subtask int    `json:"subtask"`
}

// String returns "vertex/subtask".
func (t Task) String() string { return fmt.Sprintf("%s/%d", t.Vertex, t.Subtask) }

// Compare orders tasks by vertex, then subtask.
func (t Task) Compare(u Task) int {
	return cmp.Or(strings.Compare(t.Vertex, u.Vertex), cmp.Compare(t.Subtask, u.Subtask))
}

// InputChannel addresses one receiving end of a connection: Channel is the
// index of the upstream subtask (Flink: InputChannelInfo).
type InputChannel struct {
	Gate    int `json:"gate"`
	Channel int `json:"channel"`
}

// Address returns c as an Address.
func (c InputChannel) Address() Address { return Address{Side: Input, Input: c} }

// Subpartition addresses one sending end of a connection: Subpartition is the
// index of the downstream subtask (Flink: ResultSubpartitionInfo).
type Subpartition struct {
	Partition    int `json:"partition"`
	Subpartition int `json:"subpartition"`
}

// Address returns s as an Address.
func (s Subpartition) Address() Address { return Address{Side: Output, Output: s} }

// StateName addresses a piece of operator state of a subtask.
type StateName string

// Address returns n as an Address.
func (n StateName) Address() Address { return Address{Side: State, State: n} }

// Side says what an Address addresses. The numbers are part of the file
// format: they must not be changed.
type Side uint8

// The sides. Zero is invalid by design.
const (
	Input  Side = 1 // an input channel
	Output Side = 2 // a result subpartition
	State  Side = 3 // operator state
)

// String returns "input", "output" or "state", as used in JSON.
func (s Side) String() string {
	switch s {
	case Input:
		return "input"
	case Output:
		return "output"
	case State:
		return "state"
	}
	return fmt.Sprintf("side(%d)", uint8(s))
}

// Address is one of InputChannel, Subpartition and StateName; Side says which,
// and the other two are zero. Addresses are comparable.
type Address struct {
	Side   Side
	Input  InputChannel
	Output Subpartition
	State  StateName
}

// String returns for example "gate 0 channel 2", "partition 1 subpartition 0"
// or `state "counts"`.
func (a Address) String() string {
	switch a.Side {
	case Input:
		return fmt.Sprintf("gate %d channel %d", a.Input.Gate, a.Input.Channel)
	case Output:
		return fmt.Sprintf("partition %d subpartition %d", a.Output.Partition, a.Output.Subpartition)
	case State:
		return fmt.Sprintf("state %q", string(a.State))
	}
	return "no address"
}

// Compare orders addresses by side, then number or name.
func (a Address) Compare(b Address) int {
	return cmp.Or(
		cmp.Compare(a.Side, b.Side),
		cmp.Compare(a.Input.Gate, b.Input.Gate), cmp.Compare(a.Input.Channel, b.Input.Channel),
		cmp.Compare(a.Output.Partition, b.Output.Partition), cmp.Compare(a.Output.Subpartition, b.Output.Subpartition),
		cmp.Compare(a.State, b.State))
}
