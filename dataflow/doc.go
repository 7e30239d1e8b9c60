// Package dataflow is the reference runtime: a small stream processor in one
// process, as close to Apache Flink's runtime as a reader can follow in an
// afternoon. It exists to show, and to prove, what an engine does around an
// unaligned checkpoint.
//
// Read it in this order:
//
//	executor.go, seeded.go   who runs: actors with a Step, on goroutines or under a seed
//	segment.go, pool.go      buffers, views of them, and who may take one
//	record.go                records in a byte stream that buffers cut anywhere
//	subpartition.go          the sending end of a connection: a queue with a priority section
//	channel.go, credit.go    the receiving end: local, and over the network
//	inputs.go                which channel has something
//	barrier.go               when a task snapshots: aligned, unaligned, or switching
//	persister.go             what an input channel captures
//	task.go, checkpoint.go   the step of a task; the snapshot of a task
//	coordinator.go           when a checkpoint is triggered, complete, or given up
//	decide.go, stats.go      what a coordinator may decide upon, and what is counted
//	operator.go, state.go    what users write; chain.go: several operators in one task
//	timers.go                timers, which are keyed state
//	sources.go, blocking.go  sources; sinks.go: sinks; script.go: their faults
//	graph.go, plan.go        jobs, and which edges may hold channel state
//	deployment.go, job.go    one deployment of a job; restarts
//	simulate.go              random jobs under a seed, with crashes
//
// docs/semantics.md maps the tables of Flink's behaviour to these functions
// and to the tests that show each row.
//
// The barrier follows Chandy and Lamport, "Distributed Snapshots: Determining
// Global States of Distributed Systems", ACM TOCS 3(1), 1985: a snapshot is
// consistent when what is recorded of a channel is what was sent before the
// sender's snapshot and not yet received at the receiver's. An aligned barrier
// makes that set empty by waiting; an unaligned one records it.
package dataflow
