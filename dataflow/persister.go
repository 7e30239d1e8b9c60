package dataflow

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// persister decides what an input channel captures (Flink:
// ChannelStatePersister). Between the start of an unaligned checkpoint and the
// channel's own barrier, data that arrives belongs to the checkpoint.
//
// A credit channel's persister is used under the channel's lock, by the task
// and by the network; a local channel's by the task alone.
type persister struct {
	state   persistState
	last    int64 // id of the last barrier or start; -1: none
	capture Capture
	late    uint64 // bytes captured on arrival since the last start
}

type persistState uint8

const (
	persistCompleted persistState = iota
	persistPending                // started; the barrier is still to come
	persistReceived               // the barrier has come
)

func newPersister() persister { return persister{last: -1} }

// start begins checkpoint id. After an error nothing is captured: a newer
// barrier is here already.
func (p *persister) start(id inflight.CheckpointID, c Capture) error {
	if p.state == persistReceived && p.last > int64(id) {
		return &inflight.Error{Op: "capture", Object: fmt.Sprintf("checkpoint %d", id),
			Err: fmt.Errorf("the barrier of %d is here already: %w", p.last, inflight.ErrSubsumed)}
	}
	if p.last < int64(id) {
		p.state, p.last, p.capture, p.late = persistPending, int64(id), c, 0
	}
	return nil
}

// data hands a buffer that arrives to the capture, if it belongs there.
func (p *persister) data(ch inflight.InputChannel, v view, offset uint64) {
	if p.state != persistPending {
		return
	}
	p.late += uint64(v.len())
	captureRuns([]view{v.retain()}, offset, func(pos inflight.Pos, bufs ...inflight.Buffer) {
		p.capture.Input(ch, pos, bufs...)
	})
}

// barrier notes that the barrier of id has come. It reports whether it counts.
func (p *persister) barrier(id inflight.CheckpointID) bool {
	least := p.last
	if p.state == persistCompleted {
		least++
	}
	if int64(id) < least {
		return false
	}
	p.state, p.last, p.capture = persistReceived, int64(id), nil
	return true
}

// stop ends checkpoint id.
func (p *persister) stop(id inflight.CheckpointID) {
	if int64(id) >= p.last {
		p.state, p.last, p.capture = persistCompleted, int64(id), nil
	}
}
