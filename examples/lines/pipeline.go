package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// inboxSize is how many records may have been sent to a task that it has not
// processed. With queueSize records emitted and not sent it processes none.
const inboxSize, queueSize = 1024, 256

// task is one subtask: a goroutine that processes records and sends on what it
// emits. Barriers overtake what is pending and what is queued:
//
//	inbox ──┬──▶ pending ──▶ process ──▶ queue ──┬──▶ inbox of a downstream task
//	        └───────────── barriers ─────────────┘
type task struct {
	*pipeline
	id             inflight.Task
	state          counts
	source         *bufio.Reader // of the task that reads, until its end
	out            []*task       // downstream
	inbox          chan message
	slots          chan struct{}                      // taken for each record sent, given back when it is processed
	pending, queue []message                          // received, emitted
	cuts           map[inflight.Address]*inflight.Cut // emitted and consumed so far: positions and proof come from these

	capture *writer.Capture                // of the newest checkpoint
	awaited map[inflight.InputChannel]bool // its barrier has not come from these
}

// message is a record behind its length, or a barrier: what comes before it
// belongs to the checkpoint, what comes after it does not.
type message struct {
	ch      inflight.InputChannel // where it arrives
	sub     inflight.Subpartition // where it leaves
	pos     inflight.Pos
	bytes   []byte
	barrier *spillway.Checkpoint
}

// run works until ctx ends. A task receives at once what comes, and waits for
// room downstream between records only; so barriers wait for nothing but the
// record that is being processed.
func (t *task) run(ctx context.Context) error {
	always := make(chan struct{})
	close(always)
	for {
		var turn, room chan struct{}
		if len(t.inbox) == 0 && len(t.queue) < queueSize && (len(t.pending) > 0 || t.source != nil) {
			turn = always
		}
		if len(t.queue) > 0 {
			room = t.out[t.queue[0].sub.Subpartition].slots
		}
		select {
		case <-ctx.Done():
			return nil
		case m := <-t.inbox:
			t.receive(m)
		case room <- struct{}{}:
			t.out[t.queue[0].sub.Subpartition].inbox <- t.queue[0] // has room for all slots
			t.queue = t.queue[1:]
		case <-turn:
			if err := t.step(); err != nil {
				return err
			}
		}
	}
}

// receive takes a message. The first barrier of a checkpoint captures the task as
// it is now; until the barrier of an input channel comes, what comes there
// instead is captured too. No call of a capture waits, and Commit is told what
// went wrong with them.
func (t *task) receive(m message) {
	if m.barrier == nil {
		t.pending = append(t.pending, m)
		if t.awaited[m.ch] {
			_ = t.capture.Input(m.ch, m.pos, t.buffer(m.bytes))
		}
		return
	}
	if t.capture == nil || t.capture.Checkpoint() < m.barrier.ID() {
		t.begin(m.barrier)
	}
	if t.capture.Checkpoint() > m.barrier.ID() {
		return // that one was given up
	}
	if delete(t.awaited, m.ch); len(t.awaited) == 0 {
		_ = t.capture.FinishInput()
	}
}

func (t *task) begin(c *spillway.Checkpoint) {
	t.capture, t.awaited = c.Captures[t.id], map[inflight.InputChannel]bool{{}: true} // the source awaits the coordinator's
	for _, down := range t.out {
		down.inbox <- message{ch: inflight.InputChannel{Channel: t.id.Subtask}, barrier: c} // there is room for one of each
	}
	for a, cut := range t.cuts {
		if _ = t.capture.Cuts(*cut); a.Side == inflight.Input {
			t.awaited[a.Input] = true
		}
	}
	for word, n := range t.state {
		_ = t.capture.State(stateAddress.State, t.buffer(entry(word, n)))
	}
	for _, m := range t.queue {
		_ = t.capture.Output(m.sub, m.pos, t.buffer(m.bytes))
	}
	_ = t.capture.FinishOutput()
	for _, m := range t.pending {
		_ = t.capture.Input(m.ch, m.pos, t.buffer(m.bytes))
	}
}

// step processes a record. The source reads a line, and emits it to each
// downstream task in turn.
func (t *task) step() error {
	if t.source != nil {
		line, err := t.source.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		if len(line) > 0 {
			t.state["bytes"] += uint64(len(line))
			t.state["lines"]++
			t.emit(int(t.state["lines"])%len(t.out), line)
			return nil
		}
		t.source = nil
	} else {
		m := t.pending[0]
		t.pending = t.pending[1:]
		<-t.slots
		t.cuts[m.ch.Address()].Advance(m.pos.Epoch, len(m.bytes))
		if err := t.process(m.bytes[4:]); err != nil {
			return err
		}
	}
	if t.left.Add(-1) == 0 {
		close(t.done)
	}
	return nil
}

// process does the work of the task's vertex.
func (t *task) process(record []byte) error {
	switch t.id.Vertex {
	case "split":
		t.state["lines"]++
		for word := range bytes.FieldsFuncSeq(record, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) }) {
			t.emit(int(crc32.ChecksumIEEE(word)%uint32(len(t.out))), word)
		}
	case "count":
		time.Sleep(t.sleep)
		t.state[string(record)]++
		t.emit(0, entry(string(record), t.state[string(record)]))
	case "output":
		return t.state.set(record)
	}
	return nil
}

// emit queues a record for a downstream task.
func (t *task) emit(to int, record []byte) {
	m := message{ch: inflight.InputChannel{Channel: t.id.Subtask}, sub: inflight.Subpartition{Subpartition: to}}
	m.bytes = append(binary.BigEndian.AppendUint32(nil, uint32(len(record))), record...)
	m.pos = t.cuts[m.sub.Address()].Advance(t.job.Coordinator.Epoch(), len(m.bytes))
	t.queue = append(t.queue, m)
	t.left.Add(1)
}

// counts are the state of a task. An entry is a word and its count.
type counts map[string]uint64

var stateAddress = inflight.StateName("counts").Address()

func entry(word string, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte(word), n) }

func (c counts) set(entry []byte) error {
	if len(entry) < 8 {
		return fmt.Errorf("%w: %d bytes are no count of a word", inflight.ErrMismatch, len(entry))
	}
	c[string(entry[:len(entry)-8])] = binary.BigEndian.Uint64(entry[len(entry)-8:])
	return nil
}
