package writer

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/sharing"
)

// Writer captures for one subtask. Its methods may be called by several
// goroutines at once.
type Writer struct {
	pool  *Pool
	task  inflight.Task
	slot  int
	group *sharing.Group
	held  atomic.Int64 // bytes of the subtask in memory
	usual atomic.Int64 // addresses that the last capture had

	mu      sync.Mutex
	closed  bool
	checked string // an attempt that can be part of a file's name
	seen    int64  // the newest id that was named, plus one
	aborted int64  // the newest id that was aborted, plus one
	live    map[inflight.CheckpointID]*Capture
}

// StartOptions are the options of Start.
type StartOptions struct {
	// Epoch is the coordinator's.
	Epoch inflight.Epoch
	// Attempt is the coordinator's random id, which the names of its files
	// carry. Default: one of the pool's own.
	Attempt string
	// StateOnly refuses channel data, for checkpoints and savepoints that are
	// aligned.
	StateOnly bool
}

// Task returns the subtask.
func (w *Writer) Task() inflight.Task { return w.task }

// Start begins the capture for checkpoint id. The id must be newer than all
// that the writer has been told of: ErrAborted if it was aborted, ErrSubsumed if
// a newer one was named. A capture of an older one that is not finished is given
// up.
func (w *Writer) Start(id inflight.CheckpointID, o StartOptions) (*Capture, error) {
	if o.Attempt == "" {
		o.Attempt = w.pool.attempt
	}
	key := sharing.Key{Checkpoint: id, Epoch: o.Epoch, Attempt: o.Attempt}
	w.mu.Lock()
	if err := w.mayStart(key); err != nil {
		w.mu.Unlock()
		return nil, w.fail("start", id, err)
	}
	older := w.pass(id)
	c := newCapture(w, key, o)
	w.live[id] = c
	c.stream = w.group.Start(w.task, key, &w.held, c.ended)
	w.mu.Unlock()
	giveUp(older, id)
	if why := w.pool.isDeclined(key); why != nil {
		c.stream.Cancel(why)
		return nil, w.fail("start", id, why)
	}
	return c, nil
}

// mayStart refuses what cannot become a file name, and ids out of order.
func (w *Writer) mayStart(key sharing.Key) error {
	if key.Checkpoint > format.MaxCheckpointID || key.Attempt != w.checked && !isAttempt(key.Attempt) {
		return fmt.Errorf("%w: checkpoint %d, attempt %q", inflight.ErrConfig, key.Checkpoint, key.Attempt)
	}
	w.checked = key.Attempt
	id := int64(key.Checkpoint)
	switch {
	case w.closed:
		return inflight.ErrClosed
	case id+1 == w.aborted:
		return inflight.ErrAborted
	case id+1 <= w.seen:
		return inflight.ErrSubsumed
	}
	return nil
}

// isAttempt reports whether s can be part of a file's name.
func isAttempt(s string) bool {
	name := format.StateFileName(0, "g", s)
	got, ok := format.StateFileAttempt(path.Base(name))
	return ok && got == s && !strings.Contains(s, "/") && len(s) <= 128 && backends.CheckName(name) == nil
}

// pass notes that id was named, and returns the captures that are now too old.
func (w *Writer) pass(id inflight.CheckpointID) (older []*Capture) {
	w.seen = max(w.seen, int64(id)+1)
	for k, c := range w.live {
		if k < id {
			older = append(older, c)
		}
	}
	return older
}

// giveUp gives up those of older that are not finished.
func giveUp(older []*Capture, id inflight.CheckpointID) {
	for _, c := range older {
		if !c.isFinished() {
			c.stream.Cancel(fmt.Errorf("%w by checkpoint %d", inflight.ErrSubsumed, id))
		}
	}
}

// Skip says that the subtask does not capture for checkpoint id, so that nobody
// waits for it. It does not concern a capture that was started.
func (w *Writer) Skip(id inflight.CheckpointID) {
	w.mu.Lock()
	older := w.pass(id)
	w.mu.Unlock()
	w.group.Skip(w.task, id)
	giveUp(older, id)
}

// Abort gives checkpoint id up, whether it was started or not; what is queued
// for it is released. It is idempotent, and does nothing to a capture that is
// durable.
func (w *Writer) Abort(id inflight.CheckpointID, cause error) {
	w.mu.Lock()
	w.aborted = max(w.aborted, int64(id)+1)
	older, c := w.pass(id), w.live[id]
	w.mu.Unlock()
	if c != nil {
		err := inflight.ErrAborted
		if cause != nil {
			err = fmt.Errorf("%w: %w", inflight.ErrAborted, cause)
		}
		c.stream.Cancel(err)
	}
	w.group.Skip(w.task, id)
	giveUp(older, id)
}

// declined gives up the capture for key.
func (w *Writer) declined(key sharing.Key, why error) {
	w.mu.Lock()
	c := w.live[key.Checkpoint]
	w.mu.Unlock()
	if c != nil && c.key == key {
		c.stream.Cancel(why)
	}
}

// Close gives up what is not durable, and frees the subtask's place in its
// group. Late calls answer ErrClosed. It is idempotent, and does not wait.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	live := make([]*Capture, 0, len(w.live))
	for _, c := range w.live {
		live = append(live, c)
	}
	w.mu.Unlock()
	for _, c := range live {
		c.stream.Cancel(inflight.ErrClosed)
	}
	w.pool.leave(w)
	return nil
}

// forget drops a capture that is done.
func (w *Writer) forget(c *Capture) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live[c.key.Checkpoint] == c {
		delete(w.live, c.key.Checkpoint)
	}
}

func (w *Writer) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *Writer) fail(op string, id inflight.CheckpointID, err error) error {
	return &inflight.Error{Op: op, Object: fmt.Sprintf("checkpoint %d of %s", id, w.task), Err: err}
}
