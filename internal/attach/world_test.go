package attach

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/writer"
)

// world is the outside of a simulated job: a store, and the processes that use
// it. The runtime's executor is the only clock and the only source of chance.
//
// The toolkit has goroutines of its own. They live in a synctest bubble: whenever
// the simulation has called them, it waits until each of them waits for
// something, and only then goes on. What they do then is held up at three gates,
// and let through from the executor's agenda, in an order that the seed chooses:
// calls to the store, releases of buffers, and answers to the runtime. The
// bubble's clock follows the executor's.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	exec  *dataflow.Seeded
	began time.Time
	disk  *mem.Backend
	opt   Options // of every process
	// slow bounds how long a call to the store takes; of a thousand, flaky calls
	// fail, and lost, late and doubled are fates of creates.
	slow                       time.Duration
	flaky, lost, late, doubled int

	graph    *dataflow.Graph
	topology *format.Topology
	procs    []*process
	at       *process
	zombies  bool // the last incarnation goes on
	alone    bool // none does
	limit    time.Duration
	soon     bool // a settling is on the agenda
	opening  bool
	writers  int // of engines at work
	airborne map[uint64]bool
	aliases  map[string]string
	files    map[string]int

	mu       sync.Mutex
	calls    []*call // at the gate
	ends     []ending
	released []*buffer
	buffers  int

	incarnations map[inflight.Epoch]*incarnation
	newest       *incarnation
	committed    map[inflight.CheckpointID]*evidence
	proven       int
	red          []string
	noted        func(string)
	// plant changes what is captured, refused is told which checkpoints were not
	// committed since they were damaged; nil: nothing, nobody.
	plant   func(c *simCapture, d *data)
	refused map[attempt]bool
}

// evidence is what was proven of a committed checkpoint.
type evidence struct {
	by    *incarnation
	flows []reader.Flow
	red   bool
}

// incarnation is what is known of one: all that was emitted in its line, and what
// was proven of the newest checkpoint in that.
type incarnation struct {
	w       *world
	history map[dataflow.Connection][]byte
	flows   []reader.Flow
	spoilt  bool // it goes on from a checkpoint that was red
}

// process is one process that runs the job, for one incarnation or more.
type process struct {
	w      *world
	n      int
	job    *Job
	faults *wrap.Faults
	dead   bool
}

// call is a call to the store that waits at the gate.
type call struct {
	p    *process
	op   wrap.Op
	name string
	let  chan bool // false: the process has died
	due  bool      // on the agenda
}

// ending is an answer to the runtime that waits to be given.
type ending struct {
	n    int
	key  string
	give func()
}

func (e ending) compare(o ending) int {
	return cmp.Or(cmp.Compare(e.n, o.n), cmp.Compare(e.key, o.key))
}

const job = "job"

// undying is a handle of the store that processes cannot close.
type undying struct{ backends.Backend }

func (undying) Close() error { return nil }

// newWorld makes the world of a seed.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 0x3a17)), began: time.Now(), limit: 30 * time.Second, airborne: map[uint64]bool{}, aliases: map[string]string{}, files: map[string]int{}, refused: map[attempt]bool{}, committed: map[inflight.CheckpointID]*evidence{}, incarnations: map[inflight.Epoch]*incarnation{}}
	r := w.rng
	w.disk = mem.New(mem.Options{ObjectStore: r.IntN(2) == 0, HeldUntilFinish: r.IntN(3) == 0})
	w.slow = time.Duration(1+r.IntN(2000)) * time.Microsecond
	if r.IntN(2) == 0 {
		w.flaky, w.lost, w.late, w.doubled = r.IntN(20), r.IntN(60), r.IntN(40), r.IntN(40)
		w.disk.SetFate(w.fate)
	}
	w.opt.Name = job
	w.opt.Catalog.Retained = 1 + r.IntN(3)
	w.opt.Writer = writer.Options{
		TasksPerFile: []int{1, 2, 5, 100}[r.IntN(4)], SealLinger: []time.Duration{time.Nanosecond, time.Millisecond, 4 * time.Millisecond}[r.IntN(3)],
		TargetFileSize: []int64{0, 0, 4 << 10}[r.IntN(3)], Codec: []format.Codec{format.CodecNone, format.CodecAuto}[r.IntN(2)],
		BlockSize: 16 << 10,
	}
	return w
}

// random returns a time up to limit.
func (w *world) random(limit time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(max(limit, 1))))
}

// fate decides what becomes of a create.
func (w *world) fate(mem.Request) mem.Fate {
	switch dice := w.rng.IntN(1000); {
	case dice < w.lost:
		return mem.LoseAnswer
	case dice < w.lost+w.late:
		return mem.Delay
	case dice < w.lost+w.late+w.doubled:
		return mem.Double
	}
	return mem.Apply
}

// gate holds up the calls that change the store or list it.
func (p *process) gate(ctx context.Context, f *wrap.Faults, c *wrap.Call, do func() error) error {
	switch c.Op {
	case wrap.OpCreate, wrap.OpWrite, wrap.OpAbort, wrap.OpOpen, wrap.OpReadAt, wrap.OpStream, wrap.OpStreamRead, wrap.OpStat:
		p.w.mu.Lock()
		dead := p.dead
		if c.Op == wrap.OpCreate {
			p.w.alias(c.Name)
		}
		p.w.mu.Unlock()
		if dead {
			return wrap.Kill()(ctx, f, c, do)
		}
		return do()
	}
	k := &call{p: p, op: c.Op, let: make(chan bool, 1)}
	p.w.mu.Lock()
	k.name = p.w.alias(c.Name)
	if p.dead {
		k.let <- false
	} else {
		p.w.calls = append(p.w.calls, k)
	}
	p.w.mu.Unlock()
	select {
	case ok := <-k.let:
		if !ok {
			return wrap.Kill()(ctx, f, c, do)
		}
	case <-ctx.Done():
		p.w.drop(k)
		return ctx.Err()
	}
	if p.w.rng.IntN(1000) < p.w.flaky {
		if c.Op == wrap.OpFinish && p.w.rng.IntN(2) == 0 {
			return wrap.LoseAnswer()(ctx, f, c, do)
		}
		return wrap.Fail(inflight.ErrUnavailable)(ctx, f, c, do)
	}
	return do()
}

// alias returns a name without what is random of it: it orders calls.
func (w *world) alias(name string) string {
	if a, ok := w.aliases[name]; ok || !strings.HasSuffix(name, ".cstate") {
		return cmp.Or(a, name)
	}
	group, _, _ := strings.Cut(name, ".")
	w.files[group]++
	w.aliases[name] = fmt.Sprintf("%s %d", group, w.files[group])
	return w.aliases[name]
}

func (w *world) drop(k *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = slices.DeleteFunc(w.calls, func(c *call) bool { return c == k })
}

// quiet waits until all goroutines of the toolkit wait.
func (w *world) quiet() { synctest.Wait() }

// touched is called when the toolkit may have something to do.
func (w *world) touched() {
	w.quiet()
	if !w.soon {
		w.soon = true
		w.exec.At(w.exec.Now()+w.random(300*time.Microsecond), func() {
			w.soon = false
			w.settle()
		})
	}
}

// settle lets the bubble's clock follow, and puts what has come to the gates on
// the agenda.
func (w *world) settle() {
	if late := w.exec.Now() - time.Since(w.began); late > 0 {
		time.Sleep(late) //lint:sleep in a bubble
	}
	w.quiet()
	w.mu.Lock()
	released, ends := w.released, w.ends
	w.released, w.ends = nil, nil
	var due []*call
	for _, k := range w.calls {
		if !k.due {
			k.due = true
			due = append(due, k)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(released, func(a, b *buffer) int { return a.n - b.n })
	for _, b := range released {
		b.Buffer.Release()
	}
	slices.SortFunc(due, func(a, b *call) int {
		return cmp.Or(a.p.n-b.p.n, cmp.Compare(a.op, b.op), cmp.Compare(a.name, b.name))
	})
	if len(released) > 0 {
		w.note("%d buffers are released", len(released))
	}
	for _, k := range due {
		w.note("process %d asks: %s %s", k.p.n, k.op, k.name)
		w.exec.At(w.exec.Now()+w.random(w.slow), func() { w.pass(k) })
	}
	slices.SortFunc(ends, ending.compare)
	for _, e := range ends {
		w.note("process %d answers: %s", e.n, e.key)
		w.exec.At(w.exec.Now()+w.random(time.Millisecond), e.give)
	}
	w.land()
}

// note tells what happens at the gates.
func (w *world) note(format string, args ...any) {
	if w.noted != nil {
		w.noted(fmt.Sprintf("%12.3f ms  store         ", float64(w.exec.Now().Microseconds())/1000) + fmt.Sprintf(format, args...))
	}
}

// pass lets a call through.
func (w *world) pass(k *call) {
	w.drop(k)
	w.note("process %d does: %s %s", k.p.n, k.op, k.name)
	k.let <- true
	w.settle()
}

// land puts creates that are in flight on the agenda: to be applied, or lost.
func (w *world) land() {
	if w.late+w.doubled == 0 {
		return
	}
	for _, r := range w.disk.InFlight() {
		if w.airborne[r.ID] {
			continue
		}
		w.airborne[r.ID] = true
		disk, applies := w.disk, w.rng.IntN(4) > 0
		w.exec.At(w.exec.Now()+w.random(30*time.Millisecond), func() {
			if applies {
				disk.Release(r.ID)
			} else {
				disk.Drop(r.ID)
			}
		})
	}
}

// beat settles again and again, as long as there is an engine: time may have come
// for what the toolkit waits for.
func (w *world) beat() {
	w.settle()
	if w.opening || w.writers > 0 {
		w.exec.At(w.exec.Now()+time.Millisecond, w.beat)
	}
}

// end queues an answer to the runtime.
func (w *world) end(p *process, key string, give func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, ending{p.n, key, give})
}

// zombie decides that an incarnation goes on beside the next one. If it does not,
// everything stops; open decides what is left.
func (w *world) zombie() bool {
	w.zombies = !w.alone && w.rng.IntN(4) == 0
	return w.zombies
}

// open starts the next incarnation: of a new process, or of the one that is at
// work. It may die, and be replaced, on the way.
func (w *world) open(exec *dataflow.Seeded) (dataflow.Store, error) {
	w.opening = true
	defer func() { w.opening = false }()
	switch {
	case w.exec == nil:
		w.exec = exec
		w.beat()
	case !w.zombies:
		w.crash()
	case w.writers == 0: // they have come to their end, and the beat with them
		w.beat()
	}
	if w.zombies {
		w.zombies, w.at = false, nil
	}
	for {
		s, p, err := w.incarnate()
		switch {
		case err == nil:
			w.newest = w.begins(s)
			return &simStore{s, p, w.newest}, nil
		case !errors.Is(err, wrap.ErrKilled) && !inflight.Retryable(err) && !errors.Is(err, inflight.ErrOutcomeUnknown) && !errors.Is(err, inflight.ErrFenced):
			return nil, err
		}
	}
}

// begins notes a new incarnation, which goes on from its base.
func (w *world) begins(s dataflow.Store) *incarnation {
	n := &incarnation{w: w, history: map[dataflow.Connection][]byte{}}
	w.incarnations[s.Epoch()] = n
	base, ok := s.Base()
	if !ok {
		return n
	}
	if w.committed[base] == nil {
		w.prove(base) // who committed it has not lived to hear of it
	}
	if e := w.committed[base]; e != nil {
		n.flows, n.spoilt = e.flows, e.red
		for c, h := range e.by.history {
			n.history[c] = h[:len(h):len(h)]
		}
	}
	return n
}

// crash ends processes: all of them, with the power or without, or all but the
// newest one, which has lost its engine only. The agenda is empty now.
func (w *world) crash() {
	w.soon, w.writers = false, 0
	clear(w.airborne)
	defer w.beat()
	kind := w.rng.IntN(4)
	for _, p := range w.procs {
		if p != w.at || kind > 0 {
			p.kill()
		}
	}
	w.mu.Lock()
	for _, k := range w.calls {
		k.due = false
	}
	w.mu.Unlock()
	if kind == 0 {
		return
	}
	w.at = nil
	if kind == 3 {
		w.quiet()
		w.disk = w.disk.CrashClone(w.rng, mem.CrashConfig{Names: w.rng.Float64(), Leftovers: w.rng.Float64()})
		if w.late+w.doubled+w.lost > 0 {
			w.disk.SetFate(w.fate)
		}
	}
}

// kill ends a process: its calls to the store are not made any more.
func (p *process) kill() {
	w := p.w
	if p.dead {
		return
	}
	w.mu.Lock()
	p.dead = true
	for _, k := range w.calls {
		if k.p == p {
			k.let <- false
		}
	}
	w.calls = slices.DeleteFunc(w.calls, func(k *call) bool { return k.p == p })
	w.mu.Unlock()
	w.quiet()
	go func() { _ = p.job.Close() }() // memory and goroutines
	w.quiet()
}

// incarnate opens the job in the process at work, or in a new one.
func (w *world) incarnate() (dataflow.Store, *process, error) {
	p := w.at
	if p == nil || p.dead {
		p = &process{w: w, n: len(w.procs)}
		p.faults = wrap.NewFaults(undying{w.disk}, wrap.Rule{When: wrap.Always(), Then: p.gate})
		o := w.opt
		o.Backend, o.Graph = p.faults, w.graph
		var err error
		if p.job, err = New(o); err != nil {
			return nil, nil, err
		}
		w.procs = append(w.procs, p)
		w.at = p
	}
	var s dataflow.Store
	err := errors.New("not open yet")
	open := false
	go func() {
		s2, err2 := p.job.Open(context.Background())
		w.end(p, "open", func() { s, err, open = s2, err2, true })
	}()
	dies := -1
	if w.rng.IntN(8) == 0 {
		dies = w.rng.IntN(40)
	}
	for i := 0; !open; i++ {
		w.touched()
		if i == dies {
			p.kill()
		}
		w.exec.Run(w.exec.Now() + 200*time.Microsecond)
		if w.exec.Now() > time.Hour {
			return nil, nil, fmt.Errorf("it does not open: %w", inflight.ErrTimeout)
		}
	}
	if p.dead {
		err = wrap.ErrKilled // whatever it had come to
	}
	return s, p, err
}

// finish ends all processes, and waits until their goroutines have.
func (w *world) finish() {
	for _, p := range w.procs {
		p.kill()
	}
	time.Sleep(time.Minute) //lint:sleep in a bubble
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.released {
		b.Buffer.Release()
	}
}

// emitted remembers what senders publish.
func (n *incarnation) emitted(c dataflow.Connection, offset uint64, data []byte) {
	h := n.history[c]
	if offset > uint64(len(h)) {
		n.w.red = append(n.w.red, fmt.Sprintf("%v: %d bytes were emitted, and more from %d on", c, len(h), offset))
		return
	}
	if offset < uint64(len(h)) {
		h = slices.Clone(h[:offset])
	}
	n.history[c] = append(h, data...)
}

// prove checks a committed checkpoint as ckpt-inspect verify does, that nothing
// went back since the one before, and each captured byte.
func (w *world) prove(id inflight.CheckpointID) {
	fail := func(format string, args ...any) {
		w.red = append(w.red, fmt.Sprintf("checkpoint %d: ", id)+fmt.Sprintf(format, args...))
	}
	red := len(w.red)
	r := reader.Open(undying{w.disk}, job, reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(context.Background(), format.CheckpointDir(id))
	if err != nil {
		fail("%v", err)
		return
	}
	n := w.incarnations[c.Manifest.Epoch]
	report, err := c.Verify(context.Background(), reader.VerifyOptions{Records: true})
	if err != nil {
		fail("%v", err)
		return
	}
	for _, f := range report.Findings {
		fail("%s", f.Text)
	}
	for i := range report.Flows {
		if f := report.Flows[i]; f.Verdict != reader.Proven || !f.RecordsProven {
			fail("%s", reader.Table(report.Flows[i:i+1]))
		}
	}
	for _, f := range reader.Regressed(n.flows, report.Flows) {
		fail("%s", f.Reason)
	}
	n.flows = report.Flows
	n.digest(c, fail)
	w.proven++
	w.committed[id] = &evidence{n, report.Flows, len(w.red) > red}
}

// digest compares what was captured with what was emitted.
func (n *incarnation) digest(c *reader.Checkpoint, fail func(string, ...any)) {
	for _, h := range c.Manifest.Handles {
		if h.PersistedBytes() == 0 {
			continue
		}
		s, err := c.Open(context.Background(), h)
		if err != nil {
			fail("%v", err)
			return
		}
		for b, err := range s.Buffers(context.Background(), inflight.Input, inflight.Output) {
			if err != nil {
				fail("%v", err)
				break
			}
			all, at := n.history[n.w.connection(h.Task, b.Address)], b.Pos.Offset
			if at > uint64(len(all)) || uint64(len(b.Bytes)) > uint64(len(all))-at || !bytes.Equal(b.Bytes, all[at:][:len(b.Bytes)]) {
				fail("digest: %s %s holds others than the %d bytes that were emitted at %d", h.Task, b.Address, len(b.Bytes), at)
				break
			}
		}
		s.Close()
	}
}

// connection returns what an address of a subtask is an end of.
func (w *world) connection(t inflight.Task, a inflight.Address) (c dataflow.Connection) {
	for _, e := range w.topology.Edges {
		switch {
		case a.Side == inflight.Input && e.To == t.Vertex && e.Gate == a.Input.Gate:
			c = dataflow.Connection{From: inflight.Task{Vertex: e.From, Subtask: a.Input.Channel}, To: t}
		case a.Side == inflight.Output && e.From == t.Vertex && e.Partition == a.Output.Partition:
			c = dataflow.Connection{From: t, To: inflight.Task{Vertex: e.To, Subtask: a.Output.Subpartition}}
		default:
			continue
		}
		c.Partition, c.Gate = e.Partition, e.Gate
	}
	return c
}

// simStore is a store whose answers wait at the gate.
type simStore struct {
	dataflow.Store
	p *process
	n *incarnation
}

func (s *simStore) Begin(reason string) (dataflow.Slot, error) {
	k, err := s.Store.Begin(reason)
	if err != nil {
		return nil, err
	}
	s.p.w.touched()
	return &simSlot{k, s.p, s.n}, nil
}

func (s *simStore) Retire() {
	s.Store.Retire()
	s.p.w.touched()
}

func (s *simStore) Writer(t inflight.Task) (dataflow.CaptureWriter, error) {
	c, err := s.Store.Writer(t)
	s.p.w.writers++
	return &simWriter{c, s.p, t}, err
}

type simSlot struct {
	dataflow.Slot
	p *process
	n *incarnation
}

// attempt is a checkpoint of one incarnation. Where it was not decided, another one
// may use its id again.
type attempt struct {
	by *incarnation
	id inflight.CheckpointID
}

func (k *simSlot) Commit(c dataflow.Completed, done func(dataflow.Committed, error)) {
	k.Slot.Commit(c, func(d dataflow.Committed, err error) {
		switch {
		case err == nil:
			k.p.w.prove(k.ID())
		case errors.Is(err, dataflow.ErrCheckFailed):
			k.p.w.refused[attempt{k.n, k.ID()}] = true
		}
		k.p.w.end(k.p, fmt.Sprint("commit ", k.ID()), func() { done(d, err) })
	})
	k.p.w.touched()
}

func (k *simSlot) Abort(r dataflow.Reason, cause error) {
	k.Slot.Abort(r, cause)
	k.p.w.touched()
}

type simWriter struct {
	dataflow.CaptureWriter
	p *process
	t inflight.Task
}

func (c *simWriter) Start(id inflight.CheckpointID, o dataflow.StartOptions) (dataflow.Capture, error) {
	k, err := c.CaptureWriter.Start(id, o)
	c.p.w.touched()
	if err != nil {
		return nil, err
	}
	return &simCapture{Capture: k, p: c.p, t: c.t, id: id}, nil
}

func (c *simWriter) Abort(id inflight.CheckpointID, cause error) {
	c.CaptureWriter.Abort(id, cause)
	c.p.w.touched()
}

func (c *simWriter) Close() error {
	c.p.w.writers--
	return c.CaptureWriter.Close()
}

// simCapture is a capture whose buffers are released late, and whose end waits at
// the gate.
type simCapture struct {
	dataflow.Capture
	p    *process
	t    inflight.Task
	id   inflight.CheckpointID
	cuts func([]inflight.Cut) []inflight.Cut // of a planted fault; nil: as they are
	told bool                                // the cuts
}

// buffer is released when the world settles.
type buffer struct {
	inflight.Buffer
	w *world
	n int
}

func (b *buffer) Release() {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.released = append(b.w.released, b)
}

// data is what is captured by one call.
type data struct {
	addr inflight.Address
	pos  inflight.Pos
	bufs []inflight.Buffer
}

// take hands data over.
func (c *simCapture) take(d data) {
	w := c.p.w
	if w.plant != nil {
		w.plant(c, &d)
	}
	bufs := w.lend(d.bufs)
	switch d.addr.Side {
	case inflight.Input:
		c.Capture.Input(d.addr.Input, d.pos, bufs...)
	case inflight.Output:
		c.Capture.Output(d.addr.Output, d.pos, bufs...)
	}
	w.touched()
}

func (w *world) lend(bufs []inflight.Buffer) []inflight.Buffer {
	bufs = slices.Clone(bufs)
	for i := range bufs {
		w.buffers++
		bufs[i] = &buffer{bufs[i], w, w.buffers}
	}
	return bufs
}

func (c *simCapture) Input(ch inflight.InputChannel, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.take(data{ch.Address(), pos, bufs})
}

func (c *simCapture) Output(sub inflight.Subpartition, pos inflight.Pos, bufs ...inflight.Buffer) {
	c.take(data{sub.Address(), pos, bufs})
}

func (c *simCapture) State(name inflight.StateName, bufs ...inflight.Buffer) {
	c.Capture.State(name, bufs...)
	c.p.w.touched()
}

func (c *simCapture) Cuts(cuts ...inflight.Cut) {
	c.told = true
	if c.cuts != nil {
		cuts = c.cuts(slices.Clone(cuts))
	}
	c.Capture.Cuts(cuts...)
}

func (c *simCapture) HoldOutput(sub inflight.Subpartition) dataflow.Hold {
	return &simHold{c.Capture.HoldOutput(sub), c.p.w}
}

func (c *simCapture) FinishInput() {
	c.Capture.FinishInput()
	c.p.w.touched()
}

func (c *simCapture) FinishOutput() {
	c.Capture.FinishOutput()
	c.p.w.touched()
}

func (c *simCapture) Done(f func(inflight.Handle, error)) {
	c.Capture.Done(func(h inflight.Handle, err error) {
		c.p.w.end(c.p, fmt.Sprintf("capture %d %s", c.id, c.t), func() { f(h, err) })
	})
	c.p.w.touched()
}

type simHold struct {
	dataflow.Hold
	w *world
}

func (h *simHold) Fill(pos inflight.Pos, bufs ...inflight.Buffer) {
	h.Hold.Fill(pos, h.w.lend(bufs)...)
	h.w.touched()
}

func (h *simHold) Drop(cause error) {
	h.Hold.Drop(cause)
	h.w.touched()
}
