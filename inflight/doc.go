// Package inflight is the vocabulary of Spillway: who captured (Task), which
// connection (InputChannel, Subpartition, Address), where in its byte stream
// (Pos), what (Buffer), where it lies (Handle, Segment), what was observed
// (Finding, Event) and what can go wrong (Error and the sentinels).
//
// Every other package imports it; it imports nothing of ours.
package inflight
