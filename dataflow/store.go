package dataflow

import (
	"github.com/spillway-io/spillway/inflight"
)

// Store is what the runtime needs of the place where checkpoints are kept, for
// one incarnation of a job: the coordinator's log, a writer for each subtask,
// and what is to be restored. Its making claims the job, so its Epoch is newer
// than all before.
type Store interface {
	Epoch() inflight.Epoch
	// Begin begins the next checkpoint, which goes as it does for a reason, if
	// there is one to record. It does no I/O.
	Begin(reason string) (Slot, error)
	// Retire lets what is no longer kept be deleted. It does not wait for that:
	// deleting is never on the path of a checkpoint.
	Retire()
	// Writer returns the writer of one subtask.
	Writer(inflight.Task) (CaptureWriter, error)
	// Base is the checkpoint to restore; ok is false where the job starts afresh.
	Base() (id inflight.CheckpointID, ok bool)
	// Restore returns what the base holds of a subtask; nil: nothing.
	Restore(inflight.Task) (*Restored, error)
	// ReplayDone says that nothing of the base is needed any more.
	ReplayDone()
}

// Slot is a checkpoint that has been begun. One of Commit and Abort ends it.
type Slot interface {
	ID() inflight.CheckpointID
	// Commit makes the checkpoint complete, and then calls done on any
	// goroutine. ErrFenced: another coordinator has taken over.
	Commit(c Completed, done func(Committed, error))
	// Abort gives the checkpoint up. It does not wait for I/O.
	Abort(r Reason, cause error)
}

// Completed is a checkpoint all of whose parts are durable.
type Completed struct {
	ID        inflight.CheckpointID
	Savepoint bool
	Acks      []Ack
	// Finished are the subtasks that had ended before; they have nothing but
	// the cuts that they ended with.
	Finished []Finished
}

// Finished is a subtask that has ended for good.
type Finished struct {
	Task inflight.Task
	Cuts []inflight.Cut
}

// Committed is what a checkpoint occupies on the store.
type Committed struct {
	Bytes int64
	Files int
}

// Restored is what a checkpoint holds of one subtask.
type Restored struct {
	Finished bool
	Cuts     []inflight.Cut
	Input    []RestoredData // of each channel in order
	Output   []RestoredData // of each subpartition in order
	State    map[inflight.StateName][]byte
}

// RestoredData is a piece of a connection's byte stream.
type RestoredData struct {
	Address inflight.Address
	Pos     inflight.Pos
	Bytes   []byte
}
