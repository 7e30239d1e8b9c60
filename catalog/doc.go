// Package catalog keeps the checkpoints of a job as one log of slots on a
// backend, so that two coordinators cannot harm each other, whatever crashes,
// pauses or lost answers there are.
//
// A slot is the file chk-<id>/_manifest.json; ids count from 0 without gaps. It
// is filled once, in order, by an exclusive create, with one of three kinds: a
// checkpoint, an aborted id, or the claim of a coordinator that starts. The top
// is the highest slot filled; the tip is the newest checkpoint or claim.
//
//	read       list, read the tip and what it keeps, list again: the top must be the same
//	start      read, fill the next slot with a claim, check, restore
//	commit     lower ids first (aborted), names durable, fill the slot, check, notify
//	abort      fill the slot; what was never sent is deleted before, the rest after the check
//	check      list the chk-* names once: one above the slot that is not our own
//	           pending one means that another coordinator has taken over
//	retire, gc read, delete what follows from the tip alone: names first, then data
//
// After every fill the check comes before anything is notified, restored or
// deleted. An answer that was lost is resolved by reading the slot and sending
// again. No step depends on time: there is no lease, clock or heartbeat.
//
// What is decided stands in decide.go and garbage.go as functions without I/O.
// A model check in the tests runs this code, not a model of it, under all
// interleavings of coordinators, a collector and a faulty store.
package catalog
