package dataflow

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// persister decides what an input channel captures (Flink:
// ChannelStatePersister). Between the start of an unaligned checkpoint and the
// channel's own barrier, data that arrives belongs to the checkpoint.
//
// It is used under the lock of the queue that it watches: that of the receiver
// over the network, else that of the sender. There a barrier with priority
// counts as soon as it is inserted, since no data can come before it any more:
// the capture does not wait for a task that is busy with a record.
type persister struct {
	channel inflight.InputChannel
	arrived uint64 // bytes since the job began
	state   persistState
	last    int64 // id of the last barrier or start; -1: none
	snap    *snapshot
}

type persistState uint8

const (
	persistCompleted persistState = iota
	persistPending                // started; the barrier is still to come
	persistReceived               // the barrier has come
)

func newPersister(ch inflight.InputChannel) persister { return persister{channel: ch, last: -1} }

// start begins a checkpoint. It reports whether the barrier is still to come:
// then s is told when it has. After an error nothing is captured: a newer
// barrier is here already.
func (p *persister) start(id inflight.CheckpointID, s *snapshot) (pending bool, err error) {
	if p.state == persistReceived && p.last > int64(id) {
		return false, &inflight.Error{Op: "capture", Object: fmt.Sprintf("checkpoint %d", id),
			Err: fmt.Errorf("the barrier of %d is here already: %w", p.last, inflight.ErrSubsumed)}
	}
	if p.last < int64(id) {
		p.state, p.last, p.snap = persistPending, int64(id), s
		return true, nil
	}
	return false, nil
}

// data hands a buffer that arrives to the capture, if it belongs there.
func (p *persister) data(v view) {
	if p.state == persistPending {
		p.snap.late.Add(uint64(v.len()))
		captureRuns([]view{v.retain()}, p.arrived, func(pos inflight.Pos, bufs ...inflight.Buffer) {
			p.snap.capture.Input(p.channel, pos, bufs...)
		})
	}
	p.arrived += uint64(v.len())
}

// saw books an entry that is taken out of the queue.
func (p *persister) saw(e entry) {
	switch {
	case e.isData():
		p.data(e.view)
	case e.ev.kind == evBarrier:
		p.barrier(e.ev.b.id)
	}
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
	if p.state == persistPending && p.last == int64(id) {
		p.snap.barrierCame()
	}
	p.state, p.last, p.snap = persistReceived, int64(id), nil
	return true
}

// stop ends checkpoint id.
func (p *persister) stop(id inflight.CheckpointID) {
	if int64(id) >= p.last {
		p.state, p.last, p.snap = persistCompleted, int64(id), nil
	}
}
