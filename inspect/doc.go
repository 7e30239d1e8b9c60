// Package inspect is the inspector as a library: what lies in checkpoints, what
// is wrong with them, and what a collection would delete, as data. The command
// ckpt-inspect adds flags and printing, and an engine may embed the same.
//
// An Inspector works on what a user names, a Target: a channel-state file, the
// directory of a checkpoint, a job, or a root with jobs. Checkpoints of Apache
// Flink are known by their _metadata; methods dispatch on Target.Flink, and give
// the same reports. What it finds comes as lines (CheckpointLine, FindingLine,
// BufferLine, …), whose JSON is stable and described in docs/json.md, and as a
// Table for people.
//
// Rewrite and Seal write, on stores that Options.Create opens; nothing else does,
// but Collect and CheckStore.
//
// It copes with whatever it is given: damage is a finding, and memory is bounded
// by the index of what is looked at, never by its payload.
package inspect
