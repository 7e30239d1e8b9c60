// Package spillway keeps the channel state of stream processors: the in-flight
// buffers that an unaligned checkpoint's barrier overtakes, and what else a task
// must not lose.
//
// Open joins the packages that do the work, for a job whose subtasks all run in
// this process:
//
//	Job.Coordinator  catalog   who is in charge, which checkpoints are complete
//	Job.Begin        writer    captures buffers, without ever waiting for the store
//	Job.Restore      restore   gives a checkpoint back
//	Job.Reader       reader    reads, verifies and proves what was captured
//	Job.Backend      backends  the store itself
//
// An engine that is spread over processes uses these packages itself. The
// vocabulary is package inflight. The example below is a whole life: claim,
// capture, commit. A small engine that does all of it is in examples/lines.
package spillway
