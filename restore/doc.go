// Package restore brings captured channel state back: a Plan says which state
// goes where, and a Replay moves it.
//
//	manifest + new topology ──▶ Plan (pure, printable) ──▶ Replay ──▶ Sink of each subtask
//
// A Replay hands over the operator state of a subtask first, all of its
// captured output then, all of its captured input last. On a connection the
// order is:
//
//	captured input (downstream) │ captured output (upstream) │ end of recovery │ live data
//
// The engine keeps it by two rules: a subtask emits nothing before its first
// Input or its Done, and a consumer takes nothing from upstream before its own
// captured input is used up. The input part may end inside a record, and the
// output part goes on there.
//
// A checkpoint may be taken while a Replay runs: what has not been handed over
// is referred to where it lies, see Replay.Rest. The checkpoint that is being
// restored must be kept until Replay.Done.
package restore
