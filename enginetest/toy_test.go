package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// toy is an engine of one goroutine, which has the kit's job: sources, each with
// a connection to each counter, and counters, which put out what they took.
// plant names a fault to go wrong with.
type toy struct {
	plant string

	mu    sync.Mutex
	sinks map[string]*sink // by the directory of the job
}

const toyBuffer = 64

// Run implements Engine.
func (e *toy) Run(ctx context.Context, j *Job) (Instance, error) {
	return e.begin(ctx, j, catalog.BaseFresh)
}

// Restore implements Engine.
func (e *toy) Restore(ctx context.Context, j *Job) (Instance, error) {
	switch e.plant {
	case "starts afresh":
		return e.begin(ctx, j, catalog.BaseFresh)
	case "claims nothing":
		return idle{}, nil
	}
	in, err := e.begin(ctx, j, catalog.BaseLatest)
	if e.plant == "starts afresh where it does not fit" && errors.Is(err, inflight.ErrMismatch) {
		return e.begin(ctx, j, catalog.BaseFresh)
	}
	return in, err
}

// Output implements Engine.
func (e *toy) Output(_ context.Context, j *Job) (Output, error) {
	s := e.sink(j)
	s.mu.Lock()
	defer s.mu.Unlock()
	return Output{Order: slices.Clone(s.out)}, nil
}

// sink is what the job puts out, and does so when a checkpoint is complete. It
// outlives the instances.
type sink struct {
	mu      sync.Mutex
	out     []string
	pending map[inflight.Epoch]map[inflight.CheckpointID][]string
}

func (e *toy) sink(j *Job) *sink {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sinks == nil {
		e.sinks = map[string]*sink{}
	}
	if e.sinks[j.Dir] == nil {
		e.sinks[j.Dir] = &sink{pending: map[inflight.Epoch]map[inflight.CheckpointID][]string{}}
	}
	return e.sinks[j.Dir]
}

func (s *sink) prepare(epoch inflight.Epoch, id inflight.CheckpointID, records []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[epoch] == nil {
		s.pending[epoch] = map[inflight.CheckpointID][]string{}
	}
	s.pending[epoch][id] = append(s.pending[epoch][id], records...)
}

// commit puts out what was prepared for a checkpoint and for those before it,
// whose records it has too.
func (s *sink) commit(epoch inflight.Epoch, id inflight.CheckpointID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []inflight.CheckpointID
	for i := range s.pending[epoch] {
		if i <= id {
			ids = append(ids, i)
		}
	}
	slices.Sort(ids)
	for _, i := range ids {
		s.out = append(s.out, s.pending[epoch][i]...)
		delete(s.pending[epoch], i)
	}
}

// rollBack gives up what smaller epochs have prepared.
func (s *sink) rollBack(epoch inflight.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.pending {
		if e < epoch {
			delete(s.pending, e)
		}
	}
}

// conn is a connection: a stream of bytes, of which some wait to be sent, and some
// to be consumed.
type conn struct {
	out, in           []byte
	emitted, consumed inflight.Cut
	barrier           *uint64 // offset of a barrier that was not taken yet
	held              []byte  // of a plant
}

// life is an instance of toy.
type life struct {
	e     *toy
	j     *Job
	sink  *sink
	job   *spillway.Job
	conns [][]*conn // by source, counter
	next  []uint64  // by source: the number of the next record
	taken [][]string

	ctx   context.Context
	stop  context.CancelFunc
	asked chan chan answer
	ended chan struct{}
	err   error
}

type answer struct {
	id  inflight.CheckpointID
	err error
}

func toyTask(vertex string, i int) inflight.Task { return inflight.Task{Vertex: vertex, Subtask: i} }

func (e *toy) begin(ctx context.Context, j *Job, base catalog.BaseWish) (Instance, error) {
	t := &format.Topology{
		Vertices: []format.Vertex{{ID: "source", Parallelism: len(j.Sources)}, {ID: "count", Parallelism: j.Parallelism}},
		Edges:    []format.Edge{{From: "source", To: "count", Partitioner: "hash", Serializer: "length-prefixed"}},
	}
	o := spillway.Options{Start: catalog.StartOptions{Base: base}, Timeout: j.Timeout}
	if e.plant == "waits for a store that hangs" {
		o.Timeout = time.Hour
	}
	job, err := spillway.Open(ctx, j.Store, j.Name, t, o)
	if err != nil {
		return nil, err
	}
	r := &life{e: e, j: j, sink: e.sink(j), job: job, next: make([]uint64, len(j.Sources)), taken: make([][]string, j.Parallelism), asked: make(chan chan answer), ended: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(ctx)
	for s := range j.Sources {
		r.conns = append(r.conns, make([]*conn, j.Parallelism))
		for k := range r.conns[s] {
			r.conns[s][k] = &conn{emitted: inflight.Cut{Address: inflight.Subpartition{Subpartition: k}.Address(), RecordsKnown: true}, consumed: inflight.Cut{Address: inflight.InputChannel{Channel: s}.Address(), RecordsKnown: true}}
		}
	}
	if _, err := job.Restore(ctx, r.restore); err != nil {
		r.stop()
		return nil, errors.Join(err, job.Close())
	}
	if b := job.Coordinator.Base(); b != nil {
		r.sink.commit(b.Manifest.Epoch, b.Manifest.ID)
	}
	r.sink.rollBack(job.Coordinator.Epoch())
	go func() {
		defer close(r.ended)
		defer r.stop()
		r.err = errors.Join(r.work(), job.Close())
	}()
	return r, nil
}

// restore puts back what a subtask had.
func (r *life) restore(t inflight.Task, entries []reader.Entry) func(*reader.Buffer) error {
	at := func(a inflight.Address) *conn {
		if a.Side == inflight.Output {
			return r.conns[t.Subtask][a.Output.Subpartition]
		}
		return r.conns[a.Input.Channel][t.Subtask]
	}
	for _, e := range entries {
		switch {
		case e.Address.Side == inflight.State || r.e.plant == "positions begin again":
		case e.Address.Side == inflight.Output:
			at(e.Address).emitted = e.Cut
		default:
			at(e.Address).consumed = e.Cut
		}
	}
	return func(b *reader.Buffer) error {
		bytes := b.Bytes
		if r.e.plant == "replays twice" {
			bytes = append(slices.Clone(bytes), bytes...)
		}
		switch b.Address.Side {
		case inflight.State:
			r.next[t.Subtask] = binary.BigEndian.Uint64(b.Bytes)
		case inflight.Input:
			at(b.Address).in = append(at(b.Address).in, bytes...)
		case inflight.Output:
			c := at(b.Address)
			if r.e.plant == "new data overtakes" {
				c.held = append(c.held, bytes...)
				return nil
			}
			c.out = append(c.out, bytes...)
		}
		return nil
	}
}

// work goes on until the end of the input, and of a last checkpoint.
func (r *life) work() error {
	for progress := true; progress; {
		select {
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		case ask := <-r.asked:
			id, err := r.checkpoint()
			ask <- answer{id, err}
			if errors.Is(err, inflight.ErrFenced) || err != nil && r.e.plant == "dies of a failed checkpoint" {
				return err
			}
		default:
			progress = r.step()
		}
	}
	if r.e.plant == "ends without a checkpoint" {
		r.sink.mu.Lock()
		defer r.sink.mu.Unlock()
		r.sink.out = append(r.sink.out, slices.Concat(r.taken...)...)
		return nil
	}
	var err error
	for range 3 {
		if _, err = r.checkpoint(); err == nil || errors.Is(err, inflight.ErrFenced) {
			break
		}
	}
	return err
}

// step moves everything on a little, and reports whether anything moved.
func (r *life) step() (progress bool) {
	for s, records := range r.j.Sources {
		for r.next[s] < uint64(len(records)) && r.emit(s, records[r.next[s]]) {
			r.next[s]++
			progress = true
		}
	}
	for _, c := range slices.Concat(r.conns...) {
		if len(c.out) > 0 && (len(c.in) < 2*toyBuffer || record(c.in) == nil) {
			n := min(len(c.out), toyBuffer)
			c.in, c.out = append(c.in, c.out[:n]...), c.out[n:]
			progress = true
		}
	}
	for k := range r.taken {
		for s := range r.conns {
			if c := r.conns[s][k]; record(c.in) != nil && !c.blocked() {
				r.take(c, k)
				progress = true
				break
			}
		}
	}
	return progress
}

// emit queues a record, if there is room.
func (r *life) emit(s int, text string) bool {
	c := r.conns[s][crc32.ChecksumIEEE([]byte(Key(text)))%uint32(r.j.Parallelism)]
	if len(c.out) >= 4*toyBuffer {
		return false
	}
	c.out = append(binary.BigEndian.AppendUint32(c.out, uint32(len(text))), text...)
	c.out, c.held = append(c.out, c.held...), nil
	c.emitted.Epoch, c.emitted.Bytes, c.emitted.Records = r.job.Coordinator.Epoch(), c.emitted.Bytes+uint64(4+len(text)), c.emitted.Records+1
	return true
}

// record returns the first whole record behind its length, or nil.
func record(in []byte) []byte {
	if len(in) < 4 || len(in)-4 < int(binary.BigEndian.Uint32(in)) {
		return nil
	}
	return in[:4+binary.BigEndian.Uint32(in)]
}

// blocked reports whether the next record is behind a barrier.
func (c *conn) blocked() bool { return c.barrier != nil && c.consumed.Bytes >= *c.barrier }

// take has counter k work on a record.
func (r *life) take(c *conn, k int) {
	b := record(c.in)
	//lint:sleep that is how long a record takes
	time.Sleep(r.j.Sleep)
	text := string(b[4:])
	if r.e.plant == "mixes up bytes" && c.consumed.Records%50 == 49 {
		text = text[:len(text)-1] + "A"
	}
	r.taken[k] = append(r.taken[k], text)
	c.in = c.in[len(b):]
	c.consumed.Bytes, c.consumed.Records = c.consumed.Bytes+uint64(len(b)), c.consumed.Records+1
}

// checkpoint takes a checkpoint: the sources' part at once, each counter's when
// the barrier has come on all of its connections, or overtakes.
func (r *life) checkpoint() (inflight.CheckpointID, error) {
	c, err := r.job.Begin(r.ctx)
	if err != nil {
		if r.e.plant == "ignores fencing" {
			r.sink.prepare(r.job.Coordinator.Epoch(), 1000, slices.Concat(r.taken...))
			r.sink.commit(r.job.Coordinator.Epoch(), 1000)
			return 1000, nil
		}
		return 0, err
	}
	for s, conns := range r.conns {
		capture := c.Captures[toyTask("source", s)]
		_ = capture.State("next", inflight.Bytes(binary.BigEndian.AppendUint64(nil, r.next[s]))) // Commit tells of errors
		for _, conn := range conns {
			_ = capture.Cuts(conn.emitted)
			if conn.barrier == nil || r.e.plant != "barriers of old checkpoints count" {
				conn.barrier = new(conn.emitted.Bytes)
			}
		}
		_ = capture.FinishInput()
	}
	begun, alignment := time.Now(), format.Aligned
	for k := 0; k < r.j.Parallelism; {
		overtakes := r.j.Mode == Unaligned || r.j.Mode == Timeout && time.Since(begun) >= r.j.AlignedTimeout || r.e.plant == "never aligns"
		aligned := !slices.ContainsFunc(r.conns, func(conns []*conn) bool { return !conns[k].blocked() })
		if overtakes || aligned {
			if overtakes && r.e.plant != "calls it aligned" && (!aligned || r.j.Mode == Unaligned) {
				alignment = format.Unaligned
			}
			r.snapshot(c, k)
			k++
			continue
		}
		if r.step(); r.ctx.Err() != nil {
			return 0, r.ctx.Err()
		}
		if time.Since(begun) >= r.j.Timeout {
			r.giveUp(c)
			return 0, inflight.ErrTimeout
		}
	}
	for s := range r.conns {
		_ = c.Captures[toyTask("source", s)].FinishOutput()
	}
	return r.commit(c, alignment)
}

// giveUp gives up a checkpoint whose barriers are still on their way.
func (r *life) giveUp(c *spillway.Checkpoint) {
	c.Abort(r.ctx, inflight.ErrTimeout)
	if r.e.plant == "barriers of old checkpoints count" {
		return
	}
	for _, conn := range slices.Concat(r.conns...) {
		conn.barrier = nil
	}
}

// snapshot captures counter k, and what its barriers overtake.
func (r *life) snapshot(c *spillway.Checkpoint, k int) {
	capture := c.Captures[toyTask("count", k)]
	for s, conns := range r.conns {
		conn := conns[k]
		_ = capture.Cuts(conn.consumed)
		left := max(0, int(*conn.barrier)-int(conn.consumed.Bytes)) // below 0, or more than there is: by a plant
		in := conn.in[:min(len(conn.in), left)]
		out := conn.out[:min(len(conn.out), left-len(in))]
		conn.barrier = nil
		r.captureInput(capture, s, conn, in)
		if r.e.plant == "drops overtaken output" {
			continue
		}
		pos := inflight.Pos{Epoch: r.job.Coordinator.Epoch(), Offset: conn.consumed.Bytes + uint64(len(in))}
		_ = c.Captures[toyTask("source", s)].Output(inflight.Subpartition{Subpartition: k}, pos, pieces(out)...)
	}
	_ = capture.FinishInput()
	_ = capture.FinishOutput()
	if conn := r.conns[0][k]; r.e.plant == "takes one more record" && record(conn.in) != nil {
		r.take(conn, k)
	}
	r.sink.prepare(r.job.Coordinator.Epoch(), c.ID(), r.taken[k])
	r.taken[k] = nil
}

func (r *life) captureInput(capture interface {
	Input(inflight.InputChannel, inflight.Pos, ...inflight.Buffer) error
}, s int, conn *conn, in []byte) {
	bufs := pieces(in)
	switch r.e.plant {
	case "drops arriving input":
		return
	case "forgets the partial record":
		n := 0
		for b := record(in); b != nil; b = record(in[n:]) {
			n += len(b)
		}
		bufs = pieces(in[:n])
	case "wrong channel":
		s = (s + 1) % len(r.conns)
	case "swaps two buffers":
		if len(bufs) > 2 {
			bufs[0], bufs[1] = bufs[1], bufs[0]
		}
	}
	_ = capture.Input(inflight.InputChannel{Channel: s}, inflight.Pos{Epoch: r.job.Coordinator.Epoch(), Offset: conn.consumed.Bytes}, bufs...)
}

// pieces copies a stream into buffers.
func pieces(p []byte) (bufs []inflight.Buffer) {
	for piece := range slices.Chunk(slices.Clone(p), toyBuffer) {
		bufs = append(bufs, inflight.Bytes(piece))
	}
	return bufs
}

// commit makes the checkpoint complete, and what was prepared for it is put out.
func (r *life) commit(c *spillway.Checkpoint, alignment format.Alignment) (inflight.CheckpointID, error) {
	epoch := r.job.Coordinator.Epoch()
	if r.e.plant == "notifies before the commit" {
		r.sink.commit(epoch, c.ID())
	}
	_, err := c.Commit(r.ctx, alignment)
	switch {
	case err == nil, r.e.plant == "ignores fencing" && errors.Is(err, inflight.ErrFenced):
		r.sink.commit(epoch, c.ID())
	case r.e.plant == "says it is complete" && !errors.Is(err, inflight.ErrFenced):
	case r.e.plant == "forgets what a failed checkpoint had":
		r.sink.rollBack(epoch + 1)
		return 0, err
	default:
		return 0, err
	}
	return c.ID(), nil
}

// Trigger implements Instance.
func (r *life) Trigger(ctx context.Context) (inflight.CheckpointID, error) {
	ask := make(chan answer, 1)
	select {
	case r.asked <- ask:
		select {
		case a := <-ask:
			return a.id, a.err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	case <-r.ended:
		if r.err != nil {
			return 0, fmt.Errorf("the job has ended: %w", r.err)
		}
		return 0, ErrFinished
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Stop implements Instance.
func (r *life) Stop(ctx context.Context) error {
	select {
	case <-r.ended:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Crash implements Instance.
func (r *life) Crash() {
	r.stop()
	<-r.ended
}

// idle is an instance that does nothing.
type idle struct{}

func (idle) Trigger(context.Context) (inflight.CheckpointID, error) { return 0, ErrFinished }

func (idle) Stop(context.Context) error { return nil }

func (idle) Crash() {}
