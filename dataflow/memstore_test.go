package dataflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/inflight"
)

// memLog is the store of the tests: checkpoints in memory, and the proof that
// each of them conserves every byte and every record.
type memLog struct {
	mu   sync.Mutex
	next inflight.CheckpointID
	// committed is the newest checkpoint, all the time that it takes to make the next.
	committed *memCheckpoint
	byID      map[inflight.CheckpointID]*memCheckpoint
	// history is every byte of every connection, as its sender emitted it.
	history map[connection][]byte
	conns   []connection
	red     []string // what the proof did not like
	proven  int
	// plant changes what is captured; nil: nothing.
	// failCapture and failCommit, if not nil, say what goes wrong.
	failCapture func(inflight.Task, inflight.CheckpointID) error
	failCommit  func(inflight.CheckpointID) error
	plant       func(*memCapture, *capturedData) []capturedData
	forged      map[*memCapture]map[inflight.Address]uint64
	claim       inflight.Epoch
}

type connection struct {
	from, to        inflight.Task
	partition, gate int
}

type memCheckpoint struct {
	Completed
	parts map[inflight.Task]*memCapture
}

type capturedData struct {
	addr inflight.Address
	pos  inflight.Pos
	bufs []inflight.Buffer
	data []byte
}

func newMemLog() *memLog {
	return &memLog{byID: map[inflight.CheckpointID]*memCheckpoint{}, history: map[connection][]byte{}}
}

// memStore is one incarnation's view of a memLog.
type memStore struct {
	*memLog
	exec     Executor
	epoch    inflight.Epoch
	base     *memCheckpoint
	replayed int
	retired  int
	captures map[inflight.CheckpointID]map[inflight.Task]*memCapture
}

func (m *memLog) open(exec Executor) *memStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claim = inflight.Epoch(m.next)
	m.next++
	return &memStore{memLog: m, exec: exec, epoch: m.claim, base: m.committed, captures: map[inflight.CheckpointID]map[inflight.Task]*memCapture{}}
}

func (s *memStore) Epoch() inflight.Epoch { return s.epoch }
func (s *memStore) Retire()               { s.retired++ }
func (s *memStore) ReplayDone()           { s.replayed++ }

func (s *memStore) Base() (inflight.CheckpointID, bool) {
	if s.base == nil {
		return 0, false
	}
	return s.base.ID, true
}

func (s *memStore) Begin(string) (Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	return &memSlot{s, id}, nil
}

func (s *memStore) Restore(t inflight.Task) (*Restored, error) {
	i := slices.IndexFunc(s.base.Finished, func(f Finished) bool { return f.Task == t })
	if i >= 0 {
		return &Restored{Finished: true, Cuts: s.base.Finished[i].Cuts}, nil
	}
	part := s.base.parts[t]
	if part == nil {
		return nil, fmt.Errorf("checkpoint %d has no %s: %w", s.base.ID, t, inflight.ErrIncomplete)
	}
	r := &Restored{State: map[inflight.StateName][]byte{}}
	for _, a := range s.base.Acks {
		if a.Task == t {
			r.Cuts = a.Cuts
		}
	}
	if s.plant != nil {
		r.Cuts = s.doctored(t, r.Cuts)
	}
	for _, d := range part.data {
		piece := RestoredData{Address: d.addr, Pos: d.pos, Bytes: d.data}
		switch d.addr.Side {
		case inflight.Input:
			r.Input = append(r.Input, piece)
		case inflight.Output:
			r.Output = append(r.Output, piece)
		default:
			r.State[d.addr.State] = append(r.State[d.addr.State], d.data...)
		}
	}
	return r, nil
}

// doctored makes a damaged checkpoint look as if its parts fitted together, so
// that a restore does not refuse it at once.
func (s *memStore) doctored(t inflight.Task, cuts []inflight.Cut) []inflight.Cut {
	cuts = slices.Clone(cuts)
	for i, c := range cuts {
		for conn := range s.history {
			if conn.to != t || c.Address != (inflight.InputChannel{Gate: conn.gate, Channel: conn.from.Subtask}).Address() {
				continue
			}
			out := inflight.Subpartition{Partition: conn.partition, Subpartition: t.Subtask}.Address()
			captured := len(s.base.parts[t].of(c.Address)) + len(s.base.parts[conn.from].of(out))
			for _, a := range s.base.Acks {
				for _, up := range a.Cuts {
					if a.Task == conn.from && up.Address == out {
						cuts[i].Bytes = up.Bytes - uint64(captured)
					}
				}
			}
		}
	}
	return cuts
}

func (s *memStore) Writer(t inflight.Task) (CaptureWriter, error) {
	return &memWriter{s: s, task: t, last: -1, aborted: map[inflight.CheckpointID]error{}}, nil
}

type memSlot struct {
	s  *memStore
	id inflight.CheckpointID
}

func (l *memSlot) ID() inflight.CheckpointID { return l.id }
func (l *memSlot) Abort(Reason, error)       {}

// Commit applies after a while, unless another incarnation has come.
func (l *memSlot) Commit(c Completed, done func(Committed, error)) {
	l.s.exec.Go(func() {
		s := l.s
		s.mu.Lock()
		var err error
		if s.failCommit != nil {
			err = s.failCommit(c.ID)
		}
		if s.claim != s.epoch {
			err = inflight.ErrFenced
		}
		if err != nil {
			s.mu.Unlock()
			done(Committed{}, err)
			return
		}
		cp := &memCheckpoint{Completed: c, parts: s.captures[c.ID]}
		s.forge(cp)
		s.prove(cp)
		s.committed = cp
		s.byID[c.ID] = cp
		s.mu.Unlock()
		s.exec.Go(func() { done(Committed{Files: 1}, nil) })
	})
}

// forge makes the cuts say what a planted fault wants them to say.
func (m *memLog) forge(cp *memCheckpoint) {
	for _, a := range cp.Acks {
		for addr, n := range m.forged[cp.parts[a.Task]] {
			for i := range a.Cuts {
				if a.Cuts[i].Address == addr {
					a.Cuts[i].Bytes -= n
				}
			}
		}
	}
}

type memWriter struct {
	s       *memStore
	task    inflight.Task
	mu      sync.Mutex
	last    int64
	at      *memCapture
	aborted map[inflight.CheckpointID]error
	closed  bool
}

func (w *memWriter) Start(id inflight.CheckpointID, o StartOptions) (Capture, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.aborted[id]; err != nil {
		return nil, inflight.ErrAborted
	}
	if int64(id) <= w.last {
		return nil, inflight.ErrSubsumed
	}
	w.last = int64(id)
	w.at = &memCapture{w: w, id: id, o: o, sums: map[inflight.Address]uint64{}}
	if w.s.failCapture != nil {
		w.at.err = w.s.failCapture(w.task, id)
	}
	return w.at, nil
}

func (w *memWriter) Abort(id inflight.CheckpointID, cause error) {
	w.mu.Lock()
	at := w.at
	if at == nil || at.id != id {
		w.aborted[id] = cause
		at = nil
	}
	w.mu.Unlock()
	if at != nil {
		at.fail(inflight.ErrAborted)
	}
}

func (w *memWriter) Close() error {
	w.mu.Lock()
	at := w.at
	w.closed = true
	w.mu.Unlock()
	if at != nil {
		at.fail(inflight.ErrClosed)
	}
	return nil
}

type memCapture struct {
	w             *memWriter
	id            inflight.CheckpointID
	o             StartOptions
	mu            sync.Mutex
	data          []capturedData
	sums          map[inflight.Address]uint64 // where the next piece has to begin
	held, copying int
	in            bool
	out           bool
	over          bool
	err           error
	done          []func(inflight.Handle, error)
}

func (c *memCapture) add(d capturedData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := uint64(0)
	for _, b := range d.bufs {
		n += uint64(len(b.Bytes()))
	}
	if next, ok := c.sums[d.addr]; ok && next != d.pos.Offset && d.addr.Side != inflight.State && c.err == nil {
		c.err = fmt.Errorf("%s at %d, not %d: %w", d.addr, d.pos.Offset, next, inflight.ErrOrder)
	}
	if !c.o.ChannelState && d.addr.Side != inflight.State && n > 0 && c.err == nil {
		c.err = fmt.Errorf("channel state of %s where none belongs: %w", d.addr, inflight.ErrOrder)
	}
	c.sums[d.addr] = d.pos.Offset + n
	if c.over {
		c.drop(d)
		return
	}
	pieces := []capturedData{d}
	if c.w.s.plant != nil && d.addr.Side != inflight.State {
		pieces = c.w.s.plant(c, &d)
	}
	for _, p := range pieces {
		c.copying++
		i := len(c.data)
		c.data = append(c.data, p)
		c.w.s.exec.Go(func() { c.copy(i) })
	}
}

// copy takes the bytes of a piece, some time after it was given, and releases
// its buffers: not later, since the sender may need them to send its barrier.
func (c *memCapture) copy(i int) {
	c.mu.Lock()
	d := &c.data[i]
	for _, b := range d.bufs {
		d.data = append(d.data, b.Bytes()...)
	}
	c.copying--
	bufs := d.bufs
	d.bufs = nil
	c.mu.Unlock()
	c.drop(capturedData{bufs: bufs})
	c.check()
}

func (c *memCapture) drop(d capturedData) {
	for _, b := range d.bufs {
		b.Release()
	}
}

func (c *memCapture) Input(ch inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.add(capturedData{addr: ch.Address(), pos: pos, bufs: bufs})
}

func (c *memCapture) Output(sub inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.add(capturedData{addr: sub.Address(), pos: pos, bufs: bufs})
}

func (c *memCapture) State(name inflight.StateName, bufs ...inflight.Buffer) {
	c.add(capturedData{addr: name.Address(), bufs: bufs})
}

func (c *memCapture) HoldOutput(sub inflight.Subpartition) Hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held++
	return &memHold{c, sub}
}

type memHold struct {
	c   *memCapture
	sub inflight.Subpartition
}

func (h *memHold) Fill(pos inflight.Pos, bufs ...inflight.Buffer) {
	if len(bufs) > 0 {
		h.c.Output(h.sub, pos, bufs...)
	}
	h.c.mu.Lock()
	h.c.held--
	h.c.mu.Unlock()
	h.c.check()
}

func (h *memHold) Drop(cause error) { h.c.fail(cause) }

// Cuts are taken from the acknowledgement.
func (c *memCapture) Cuts(...inflight.Cut) {}

func (c *memCapture) FinishInput() {
	c.mu.Lock()
	c.in = true
	c.mu.Unlock()
	c.check()
}

func (c *memCapture) FinishOutput() {
	c.mu.Lock()
	c.out = true
	c.mu.Unlock()
	c.check()
}

func (c *memCapture) Done(f func(inflight.Handle, error)) {
	c.mu.Lock()
	c.done = append(c.done, f)
	c.mu.Unlock()
	c.check()
}

func (c *memCapture) fail(err error) {
	c.mu.Lock()
	if c.err == nil && !c.over {
		c.err = err
	}
	c.mu.Unlock()
	c.check()
}

// check ends the capture once all has come and is copied.
func (c *memCapture) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || len(c.done) == 0 || c.copying > 0 || c.err == nil && !(c.in && c.out && c.held == 0) {
		return
	}
	c.over = true
	done, err := c.done, c.err
	c.w.s.exec.Go(func() {
		h := inflight.Handle{Task: c.w.task, Checkpoint: c.id}
		if err == nil {
			for _, d := range c.data {
				switch d.addr.Side {
				case inflight.Input:
					h.InputBytes += uint64(len(d.data))
				case inflight.Output:
					h.OutputBytes += uint64(len(d.data))
				}
			}
			s := c.w.s
			s.mu.Lock()
			if s.captures[c.id] == nil {
				s.captures[c.id] = map[inflight.Task]*memCapture{}
			}
			s.captures[c.id][c.w.task] = c
			s.mu.Unlock()
		}
		for _, f := range done {
			f(h, err)
		}
	})
}

// of returns what was captured of an address, and where it begins.
func (c *memCapture) of(a inflight.Address) (data []byte) {
	if c == nil {
		return nil
	}
	for _, d := range c.data {
		if d.addr == a {
			data = append(data, d.data...)
		}
	}
	return data
}

// tap records what a sender publishes; a restore cuts off what is emitted again.
func (m *memLog) tap(d *Deployment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchLocked(d)
	for c, s := range d.connections() {
		m.history[c] = m.history[c][:min(int(s.published), len(m.history[c]))]
		s.tap = func(p []byte) { m.history[c] = append(m.history[c], p...) }
	}
}

// watch has the proof made for d, in bytes and records only.
func (m *memLog) watch(d *Deployment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchLocked(d)
}

func (m *memLog) watchLocked(d *Deployment) {
	m.conns = nil
	for c := range d.connections() {
		m.conns = append(m.conns, c)
	}
}

// connections are all pairs of subtasks that an edge connects.
func (d *Deployment) connections() map[connection]*subpartition {
	all := map[connection]*subpartition{}
	for _, t := range d.tasks {
		for _, c := range t.in.channels {
			up := c.up.part
			from := inflight.Task{Subtask: c.address.Channel}
			for _, e := range d.edges {
				if e.To == t.id.Vertex && e.Gate == c.address.Gate {
					from.Vertex = e.From
				}
			}
			all[connection{from, t.id, up.index, c.address.Gate}] = c.up
		}
	}
	return all
}

// prove checks a checkpoint: on every connection what was consumed, captured at
// the receiver and captured at the sender is what was emitted, byte by byte and
// record by record.
func (s *memStore) prove(cp *memCheckpoint) {
	cuts := map[inflight.Task]map[inflight.Address]inflight.Cut{}
	put := func(t inflight.Task, cs []inflight.Cut) {
		cuts[t] = map[inflight.Address]inflight.Cut{}
		for _, c := range cs {
			cuts[t][c.Address] = c
		}
	}
	for _, a := range cp.Acks {
		put(a.Task, a.Cuts)
	}
	for _, f := range cp.Finished {
		put(f.Task, f.Cuts)
	}
	s.proven++
	for _, c := range s.conns {
		emitted, tapped := s.history[c]
		in := inflight.InputChannel{Gate: c.gate, Channel: c.from.Subtask}.Address()
		out := inflight.Subpartition{Partition: c.partition, Subpartition: c.to.Subtask}.Address()
		got, want := cuts[c.to][in], cuts[c.from][out]
		captured := append(cp.parts[c.to].of(in), cp.parts[c.from].of(out)...)
		records, left := wholeRecords(captured)
		switch {
		case got.Bytes+uint64(len(captured)) != want.Bytes:
			s.redf(cp, c, "%d consumed + %d captured is not %d emitted bytes", got.Bytes, len(captured), want.Bytes)
		case left > 0 || got.Records+records != want.Records:
			s.redf(cp, c, "%d consumed + %d captured (%d bytes left) is not %d emitted records", got.Records, records, left, want.Records)
		case tapped && int(want.Bytes) > len(emitted), tapped && !bytes.Equal(captured, emitted[got.Bytes:want.Bytes]):
			s.redf(cp, c, "digest: the %d captured bytes are others than were emitted", len(captured))
		}
	}
}

func (s *memStore) redf(cp *memCheckpoint, c connection, format string, args ...any) {
	s.red = append(s.red, fmt.Sprintf("checkpoint %d, %s partition %d → %s gate %d: ", cp.ID, c.from, c.partition, c.to, c.gate)+fmt.Sprintf(format, args...))
}

func wholeRecords(p []byte) (n uint64, left int) {
	for len(p) >= lengthBytes {
		size := lengthBytes + int(binary.BigEndian.Uint32(p))
		if size > len(p) {
			break
		}
		n++
		p = p[size:]
	}
	return n, len(p)
}
