// Package reader reads what a checkpoint captured: from a manifest, from the
// handle of one subtask alone, or from a bare file.
//
// A Reader is shared by all that restores in one process:
//
//	Subtask ─┐            ┌─ block ── decoded once ──┐
//	Subtask ─┼─ wants ──▶ │  block                   ├─▶ buffers, in order
//	Subtask ─┘            └─ block ──────────────────┘
//	                           ▲ spans: neighbouring blocks, one read each
//	                           │
//	                      open sources
//
// What several subtasks want of one file is read and checked once, as long as
// the memory bound allows; ranges that lie close together are read in one
// request. A read that is needed now never waits for memory, so subtasks whose
// consumers are slow cannot stop the others.
//
// Nothing leaves a Reader before its checksum, its place in the file, and its
// place in the index of its subtask have been checked; the digest of a channel
// is compared when its last byte has been read.
package reader
