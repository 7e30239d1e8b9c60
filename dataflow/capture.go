package dataflow

import (
	"github.com/spillway-io/spillway/inflight"
)

// CaptureWriter takes in what the checkpoints of one subtask capture. Its
// methods enqueue and never wait for I/O.
type CaptureWriter interface {
	// Start begins the capture of a checkpoint. Ids grow: an older one is
	// ErrSubsumed, one that was aborted ErrAborted.
	Start(id inflight.CheckpointID, o StartOptions) (Capture, error)
	// Abort gives a checkpoint up. It is idempotent and allowed before Start. It
	// does nothing to a capture that is durable: a task may still learn of the
	// last barrier of a checkpoint that is complete.
	Abort(id inflight.CheckpointID, cause error)
	Close() error
}

// StartOptions says what is captured.
type StartOptions struct {
	Savepoint bool
	// ChannelState is false where no channel will be captured.
	ChannelState bool
}

// Capture takes in one checkpoint of one subtask. Buffers are taken over and
// released exactly once, soon: not only at the end of the capture, since that
// may need a barrier whose sender waits for just these buffers. Calls for one channel or subpartition are ordered by
// the caller; different ones may come from different goroutines.
type Capture interface {
	Input(ch inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer)
	Output(sub inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer)
	State(name inflight.StateName, bufs ...inflight.Buffer)
	// HoldOutput announces output data that comes later, or never.
	HoldOutput(sub inflight.Subpartition) Hold
	// Cuts says where all connections of the subtask stood. It is called once.
	Cuts(cuts ...inflight.Cut)
	// FinishInput says that no input follows; FinishOutput, that no output
	// follows but what is held, and no state.
	FinishInput()
	FinishOutput()
	// Done calls f once, on any goroutine, when everything is durable or the
	// capture has failed.
	Done(f func(inflight.Handle, error))
}

// Hold is a place kept for the data in front of a barrier that may still time
// out. Exactly one of its methods is called, once.
type Hold interface {
	// Fill gives what the barrier has overtaken; nothing: it left in time.
	Fill(pos inflight.Pos, bufs ...inflight.Buffer)
	// Drop fails the capture.
	Drop(cause error)
}

// buffers returns vs as what a capture takes.
func buffers(vs []view) []inflight.Buffer {
	bufs := make([]inflight.Buffer, len(vs))
	for i, v := range vs {
		bufs[i] = v
	}
	return bufs
}

func size(vs []view) (bytes uint64) {
	for _, v := range vs {
		bytes += uint64(v.len())
	}
	return bytes
}

// captureRuns hands over vs, which begin at offset, one call for each epoch.
func captureRuns(vs []view, offset uint64, put func(inflight.Pos, ...inflight.Buffer)) {
	for len(vs) > 0 {
		n := 1
		for n < len(vs) && vs[n].seg.epoch == vs[0].seg.epoch {
			n++
		}
		put(inflight.Pos{Epoch: vs[0].seg.epoch, Offset: offset}, buffers(vs[:n])...)
		offset += size(vs[:n])
		vs = vs[n:]
	}
}
