// Package writer captures channel state: the in-flight buffers that a checkpoint
// barrier overtakes.
//
// A Pool belongs to a process, a Writer to a subtask, a Capture to one checkpoint
// of that subtask:
//
//	w, err := pool.Writer(inflight.Task{Vertex: "count", Subtask: 0})
//	c, err := w.Start(id, writer.StartOptions{Epoch: epoch, Attempt: attempt})
//	c.Input(channel, pos, buffers...)
//	c.Output(subpartition, pos, buffers...)
//	c.FinishInput()
//	c.FinishOutput()
//	<-c.Done()
//	handle, err := c.Handle()
//
// # Promises
//
// No call waits for the store. Done is closed when the bytes are durable, or
// when it is certain that they will not be; it is always closed in the end, once
// the capture is finished or given up.
//
// A buffer that is passed in belongs to the writer, whatever the call answers,
// and is released exactly once: when its bytes are copied into a block, which
// waits for the CPU and never for the store. Release must not wait: other
// buffers wait behind it. The slice of a call stays the caller's. Buffers without a byte are released, counted nowhere, and never
// open a file.
//
// Calls for one channel are ordered by the caller; different channels may be fed
// by different goroutines.
//
// Ids grow: whoever names a newer one gives up what is unfinished of the older.
// A call on a capture that was given up releases its buffers and answers why.
// One subtask's failure is never another's, except where a file cannot be
// written that has bytes of both.
//
// What is held in memory is bounded. Over the bound the checkpoint is declined
// in the whole process, with ErrOverBudget; a caller that can pace asks WaitRoom.
package writer
