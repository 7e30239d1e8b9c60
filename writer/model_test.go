package writer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TestModel drives random calls of several tasks against a simple model: what
// each call answers, what each capture ends as, and that what it captured is
// read back as it was handed over. Every buffer must be released once.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runModel(t, false) })
}

// TestModelWithFaults does the same on a store that fails. A capture then ends
// well, with all its bytes, or with an injected error.
func TestModelWithFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runModel(t, true) })
}

func runModel(t *rapid.T, faults bool) {
	m := newModel(t, faults)
	t.Repeat(map[string]func(*rapid.T){
		"":        m.invariants,
		"start":   m.start,
		"input":   m.input,
		"input2":  m.input,
		"output":  m.output,
		"output2": m.output,
		"state":   m.state,
		"cuts":    m.cuts,
		"hold":    m.hold,
		"fill":    m.fill,
		"drop":    m.drop,
		"finish":  m.finish,
		"skip":    m.skip,
		"abort":   m.abort,
		"close":   m.close,
	})
	m.end(t)
}

// model is what should be.
type model struct {
	store   *mem.Backend
	backend backends.Backend
	faults  bool
	pool    *Pool
	bufs    *buffers
	tasks   []*modelTask
	all     []*modelCapture
	n       int // buffers made
}

type modelTask struct {
	task    inflight.Task
	w       *Writer // nil: closed
	seen    int     // newest id named
	aborted int
	now     *modelCapture
}

type modelCapture struct {
	c        *Capture
	task     *modelTask
	id       inflight.CheckpointID
	want     captured
	next     map[inflight.Address]inflight.Pos
	holds    map[inflight.Address]*modelHold
	old      []*modelHold // decided
	in, out  bool
	fails    error // it must fail with this
	mayFail  error // it may, since it was finished before
	finished bool
}

// modelHold is a hold with what its barrier overtakes if it times out. Positions
// behind it count on that.
type modelHold struct {
	h     *Hold
	a     inflight.Address
	pos   inflight.Pos
	first bool // nothing came before
	data  []byte
	later []func() // what comes behind it in the model
}

// GoString keeps rapid's log readable.
func (k *modelTask) GoString() string { return k.task.String() }

// GoString keeps rapid's log readable.
func (c *modelCapture) GoString() string {
	return fmt.Sprintf("checkpoint %d of %s", c.id, c.task.task)
}

// GoString keeps rapid's log readable.
func (h *modelHold) GoString() string { return fmt.Sprintf("hold of %s", h.a) }

func newModel(t *rapid.T, faults bool) *model {
	m := &model{faults: faults, bufs: newBuffers()}
	m.store = mem.New(mem.Options{HeldUntilFinish: rapid.Bool().Draw(t, "held"), ObjectStore: rapid.Bool().Draw(t, "remote")})
	m.backend = m.store
	if faults {
		m.backend = drawFaults(t, m.store)
	}
	o := Options{
		Backend: m.backend, Job: rapid.SampledFrom([]string{"", "job"}).Draw(t, "job"),
		TasksPerFile:   rapid.IntRange(1, 4).Draw(t, "per file"),
		SealLinger:     rapid.SampledFrom([]time.Duration{-1, 100 * time.Microsecond, time.Millisecond}).Draw(t, "linger"),
		TargetFileSize: rapid.SampledFrom([]int64{500, 3000, 100_000, 64 << 20}).Draw(t, "target"),
		BlockSize:      rapid.SampledFrom([]int{64, 1000, 0}).Draw(t, "block"),
		Codec:          rapid.SampledFrom([]format.Codec{format.CodecNone, format.CodecAuto}).Draw(t, "codec"),
		Memory:         format.NewPool(1 << 20),
	}
	var err error
	m.pool, err = NewPool(o)
	require.NoError(t, err)
	for i := range rapid.IntRange(1, 5).Draw(t, "tasks") {
		k := &modelTask{task: task(i), seen: -1, aborted: -1}
		m.tasks = append(m.tasks, k)
		m.register(t, k)
	}
	return m
}

var errInjected = errors.New("injected by the test")

func drawFaults(t *rapid.T, b backends.Backend) backends.Backend {
	fault := func() wrap.Fault {
		return rapid.SampledFrom([]wrap.Fault{
			wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrUnavailable, errInjected)),
			wrap.Fail(fmt.Errorf("%w: %w", inflight.ErrNoSpace, errInjected)),
			wrap.Fail(errInjected),
			wrap.Partial(5, errInjected),
			wrap.FailAfter(errInjected),
			wrap.FailAfter(fmt.Errorf("%w: %w", inflight.ErrOutcomeUnknown, errInjected)),
		}).Draw(t, "fault")
	}
	var rules []wrap.Rule
	for range rapid.IntRange(1, 4).Draw(t, "faults") {
		rules = append(rules, wrap.Rule{When: wrap.Nth(rapid.IntRange(1, 30).Draw(t, "at"), wrap.On(wrap.OpCreate, wrap.OpWrite, wrap.OpFinish)), Then: fault()})
	}
	return wrap.NewFaults(b, rules...)
}

func (m *model) register(t *rapid.T, k *modelTask) {
	w, err := m.pool.Writer(k.task)
	require.NoError(t, err)
	k.w, k.seen, k.aborted, k.now = w, -1, -1, nil
}

// buffer makes a buffer of up to 3000 bytes, or an empty one.
func (m *model) buffer(t *rapid.T) (*buffer, []byte) {
	m.n++
	n := rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(0, 3000)).Draw(t, "size")
	b := bytesOf(m.n, n)
	return m.bufs.of(b), b
}

func (m *model) task(t *rapid.T) *modelTask {
	return rapid.SampledFrom(m.tasks).Draw(t, "task")
}

// capture returns one that calls make sense on, mostly.
func (m *model) capture(t *rapid.T) *modelCapture {
	var open []*modelCapture
	for _, k := range m.all {
		if k.fails == nil && !k.finished {
			open = append(open, k)
		}
	}
	if len(open) > 0 && rapid.IntRange(0, 9).Draw(t, "which") > 0 {
		return rapid.SampledFrom(open).Draw(t, "capture")
	}
	if len(m.all) == 0 {
		t.Skip("no capture")
	}
	return rapid.SampledFrom(m.all).Draw(t, "capture")
}

func (m *model) start(t *rapid.T) {
	k := m.task(t)
	if k.w == nil {
		m.register(t, k)
	}
	id := max(k.seen+rapid.SampledFrom([]int{1, 1, 1, 0, 2, -1}).Draw(t, "step"), 0)
	c, err := k.w.Start(inflight.CheckpointID(id), StartOptions{Epoch: 3, Attempt: "a1"})
	switch {
	case id == k.aborted:
		require.ErrorIs(t, err, inflight.ErrAborted)
		return
	case id <= k.seen:
		require.ErrorIs(t, err, inflight.ErrSubsumed)
		return
	}
	require.NoError(t, err)
	m.pass(k, id)
	k.now = &modelCapture{c: c, task: k, id: inflight.CheckpointID(id), next: map[inflight.Address]inflight.Pos{}, holds: map[inflight.Address]*modelHold{},
		want: captured{data: map[inflight.Address][][]byte{}, cuts: map[inflight.Address]inflight.Cut{}}}
	m.all = append(m.all, k.now)
}

// pass gives up what is older than id and not finished.
func (m *model) pass(k *modelTask, id int) {
	k.seen = max(k.seen, id)
	if c := k.now; c != nil && int(c.id) < id && !c.finished {
		c.fail(inflight.ErrSubsumed)
	}
}

func (c *modelCapture) fail(err error) {
	if c.fails == nil && !c.finished {
		c.fails = err
	}
}

// check compares the answer of a call that must fail with wrong, if not nil. It
// reports whether the call did what it should.
func (m *model) check(t *rapid.T, c *modelCapture, err, wrong error) bool {
	switch {
	case m.faults && errors.Is(err, errInjected):
		return false
	case c.fails != nil:
		require.ErrorIs(t, err, c.fails)
	case c.finished && c.task.w == nil:
		require.Error(t, err)
	case c.finished:
		require.Error(t, err)
		if c.mayFail == nil {
			c.mayFail = inflight.ErrOrder // if it was not durable yet
		}
	case wrong != nil:
		require.ErrorIs(t, err, wrong)
		c.fail(wrong)
	default:
		require.NoError(t, err)
		return true
	}
	return false
}

func (m *model) input(t *rapid.T) {
	a := inflight.InputChannel{Gate: rapid.IntRange(0, 1).Draw(t, "gate"), Channel: rapid.IntRange(0, 2).Draw(t, "channel")}
	m.data(t, a.Address(), func(c *modelCapture) bool { return c.in }, func(c *Capture, pos inflight.Pos, bufs ...inflight.Buffer) error { return c.Input(a, pos, bufs...) })
}

func (m *model) output(t *rapid.T) {
	a := output(rapid.IntRange(0, 2).Draw(t, "subpartition"))
	m.data(t, a.Address(), func(c *modelCapture) bool { return c.out }, func(c *Capture, pos inflight.Pos, bufs ...inflight.Buffer) error { return c.Output(a, pos, bufs...) })
}

func (m *model) data(t *rapid.T, a inflight.Address, over func(*modelCapture) bool, call func(*Capture, inflight.Pos, ...inflight.Buffer) error) {
	c := m.capture(t)
	var bufs []inflight.Buffer
	var bytes [][]byte
	for range rapid.IntRange(0, 4).Draw(t, "buffers") {
		b, p := m.buffer(t)
		bufs = append(bufs, b)
		if len(p) > 0 {
			bytes = append(bytes, p)
		}
	}
	next, known := c.next[a]
	if !known {
		next = inflight.Pos{Epoch: 3, Offset: uint64(rapid.IntRange(0, 100).Draw(t, "offset"))}
	}
	pos, wrong := next, error(nil)
	if known && rapid.IntRange(0, 30).Draw(t, "break") == 0 {
		pos.Offset++
		if len(bytes) > 0 {
			wrong = inflight.ErrOrder
		}
	}
	held := c.holds[a]
	if held != nil {
		pos, wrong = next, nil // what is wrong would show later
	}
	if over(c) {
		wrong = inflight.ErrOrder
	}
	spare := slices.Clone(bufs)
	err := call(c.c, pos, bufs...)
	require.Equal(t, spare, bufs, "the caller keeps its slice")
	if !m.check(t, c, err, wrong) || len(bytes) == 0 {
		return
	}
	add := func() { c.want.data[a] = append(c.want.data[a], bytes...) }
	for _, p := range bytes {
		next = next.Advance(uint64(len(p)), 1)
	}
	c.next[a] = next
	if held != nil {
		held.later = append(held.later, add)
	} else {
		add()
	}
}

func (m *model) state(t *rapid.T) {
	c := m.capture(t)
	name := rapid.SampledFrom([]inflight.StateName{"counts", "offsets"}).Draw(t, "name")
	b, p := m.buffer(t)
	var wrong error
	if c.in && c.out {
		wrong = inflight.ErrOrder
	}
	if m.check(t, c, c.c.State(name, b), wrong) && len(p) > 0 {
		c.want.data[name.Address()] = append(c.want.data[name.Address()], p)
	}
}

func (m *model) cuts(t *rapid.T) {
	c := m.capture(t)
	cut := inflight.Cut{Address: input(rapid.IntRange(0, 5).Draw(t, "channel")).Address(), Epoch: 3, Bytes: uint64(rapid.IntRange(0, 1000).Draw(t, "bytes"))}
	var wrong error
	if c.in && c.out {
		wrong = inflight.ErrOrder
	}
	if m.check(t, c, c.c.Cuts(cut), wrong) {
		c.want.cuts[cut.Address] = cut
	}
}

func (m *model) hold(t *rapid.T) {
	c := m.capture(t)
	sub := output(rapid.IntRange(0, 2).Draw(t, "subpartition"))
	a := sub.Address()
	var wrong error
	if c.out || c.holds[a] != nil {
		wrong = inflight.ErrOrder
	}
	h, err := c.c.HoldOutput(sub)
	if m.check(t, c, err, wrong) {
		m.n++
		k := &modelHold{h: h, a: a, pos: inflight.Pos{Epoch: 3}, data: bytesOf(m.n, rapid.IntRange(0, 500).Draw(t, "held"))}
		next, known := c.next[a]
		if k.first = !known; known {
			k.pos = next
		}
		if len(k.data) > 0 {
			c.next[a] = k.pos.Advance(uint64(len(k.data)), 1)
		}
		c.holds[a] = k
	}
}

// anyHold returns a hold, mostly one that is undecided.
func (m *model) anyHold(t *rapid.T) (*modelCapture, *modelHold) {
	c := m.capture(t)
	var holds []*modelHold
	for _, sub := range []int{0, 1, 2} {
		if h := c.holds[output(sub).Address()]; h != nil {
			holds = append(holds, h)
		}
	}
	if len(holds) == 0 {
		holds = c.old
	}
	if len(holds) == 0 {
		t.Skip("no hold")
	}
	return c, rapid.SampledFrom(holds).Draw(t, "hold")
}

func (m *model) fill(t *rapid.T) {
	c, h := m.anyHold(t)
	var wrong error
	if c.holds[h.a] != h {
		wrong = inflight.ErrOrder
	}
	if m.check(t, c, h.h.Fill(h.pos, m.bufs.of(h.data), m.bufs.of(nil)), wrong) {
		if len(h.data) > 0 {
			c.want.data[h.a] = append(c.want.data[h.a], h.data)
		}
		c.decide(h)
	}
}

func (m *model) drop(t *rapid.T) {
	c, h := m.anyHold(t)
	var cause error
	if rapid.IntRange(0, 3).Draw(t, "failed") == 0 {
		cause = errors.New("the barrier was lost")
	}
	m.dropHold(c, h, cause)
}

func (m *model) dropHold(c *modelCapture, h *modelHold, cause error) {
	undecided := c.holds[h.a] == h
	h.h.Drop(cause)
	switch {
	case !undecided || c.fails != nil:
	case cause != nil:
		c.fail(cause)
	case len(h.data) > 0 && len(h.later) > 0 && !h.first:
		c.fail(inflight.ErrOrder) // what is behind it counts on what was dropped
	default:
		if len(h.later) == 0 && len(h.data) > 0 {
			c.next[h.a] = h.pos
			if h.first {
				delete(c.next, h.a)
			}
		}
		c.decide(h)
	}
}

func (c *modelCapture) decide(h *modelHold) {
	delete(c.holds, h.a)
	c.old = append(c.old, h)
	for _, f := range h.later {
		f()
	}
	c.settle()
}

func (c *modelCapture) settle() { c.finished = c.finished || c.in && c.out && len(c.holds) == 0 }

func (m *model) finish(t *rapid.T) {
	c := m.capture(t)
	in := rapid.Bool().Draw(t, "input")
	call, side := c.c.FinishOutput, &c.out
	if in {
		call, side = c.c.FinishInput, &c.in
	}
	err := call()
	switch {
	case m.faults && errors.Is(err, errInjected):
	case c.fails != nil:
		require.ErrorIs(t, err, c.fails)
	case c.finished: // idempotent; an error where it failed since
	default:
		require.NoError(t, err)
		*side = true
		c.settle()
	}
}

func (m *model) skip(t *rapid.T) {
	k := m.task(t)
	if k.w == nil {
		t.Skip("closed")
	}
	id := max(k.seen+rapid.IntRange(-1, 1).Draw(t, "step"), 0)
	k.w.Skip(inflight.CheckpointID(id))
	m.pass(k, id)
}

func (m *model) abort(t *rapid.T) {
	k := m.task(t)
	if k.w == nil {
		t.Skip("closed")
	}
	id := max(k.seen+rapid.IntRange(-1, 1).Draw(t, "step"), 0)
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		k.w.Abort(inflight.CheckpointID(id), nil)
	}
	for _, c := range m.all {
		if c.task == k && int(c.id) == id && c.task.w == k.w {
			c.fail(inflight.ErrAborted)
			if c.mayFail == nil {
				c.mayFail = inflight.ErrAborted
			}
		}
	}
	k.aborted = max(k.aborted, id)
	m.pass(k, id)
}

func (m *model) close(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		t.Skip("not now")
	}
	m.closeWriter(t, m.task(t))
}

func (m *model) closeWriter(t *rapid.T, k *modelTask) {
	if k.w == nil {
		return
	}
	require.NoError(t, k.w.Close())
	require.NoError(t, k.w.Close())
	_, err := k.w.Start(1000, StartOptions{})
	require.ErrorIs(t, err, inflight.ErrClosed)
	k.w = nil
	for _, c := range m.all {
		if c.task == k {
			c.fail(inflight.ErrClosed)
			if c.mayFail == nil {
				c.mayFail = inflight.ErrClosed
			}
		}
	}
}

func (m *model) invariants(t *rapid.T) {
	require.GreaterOrEqual(t, m.pool.Buffered(), int64(0))
	for _, c := range m.all {
		select {
		case <-c.c.Done():
		default:
			if c.fails != nil { // a fault may just be giving it up too
				require.True(t, m.faults, "a capture that has failed is done")
				<-c.c.Done()
				continue
			}
			_, err := c.c.Handle()
			if !m.faults && !c.finished {
				require.ErrorIs(t, err, inflight.ErrIncomplete)
			}
		}
	}
}

// end finishes what is open, and looks at everything.
func (m *model) end(t *rapid.T) {
	for _, c := range m.all {
		for _, h := range c.holds {
			m.dropHold(c, h, nil)
		}
		if c.fails == nil && rapid.IntRange(0, 4).Draw(t, "finish") > 0 {
			c.in, c.out = true, true
			_, _ = c.c.FinishInput(), c.c.FinishOutput() // with faults it may have failed
			c.settle()
		}
	}
	for _, c := range m.all {
		if c.finished || c.fails != nil {
			<-c.c.Done()
			m.verify(t, c)
		}
	}
	for _, k := range m.tasks {
		m.closeWriter(t, k)
	}
	require.NoError(t, m.pool.Close())
	for _, c := range m.all {
		<-c.c.Done()
		m.verify(t, c)
	}
	require.Zero(t, m.pool.Buffered())
	require.Zero(t, m.pool.hub.Encoder.Pool.InUse(), "the encoders' memory")
	m.bufs.check(t)
	require.Zero(t, leftovers(t, m.store))
}

func (m *model) verify(t *rapid.T, c *modelCapture) {
	h, err := c.c.Handle()
	again, errAgain := c.c.Handle()
	require.Equal(t, h, again)
	require.Equal(t, err, errAgain)
	switch {
	case err != nil && m.faults && errors.Is(err, errInjected):
		return
	case err != nil && c.fails != nil:
		require.ErrorIs(t, err, c.fails)
		return
	case err != nil:
		require.NotNil(t, c.mayFail, "it failed: %v", err)
		return
	}
	require.True(t, c.finished, "it ended well and was not finished")
	require.Nil(t, c.fails)
	got := read(t, m.store, m.pool.o.Job, h)
	require.Equal(t, len(c.want.data), len(got.data))
	for a, bufs := range c.want.data {
		require.True(t, slices.EqualFunc(bufs, got.data[a], bytes.Equal), "%s of %s, checkpoint %d", a, h.Task, h.Checkpoint)
	}
	require.Equal(t, c.want.cuts, got.cuts)
	require.Equal(t, len(c.want.data)+len(c.want.cuts) > 0, len(h.Segments) > 0)
	var total uint64
	for _, bufs := range c.want.data {
		for _, p := range bufs {
			total += uint64(len(p))
		}
	}
	require.Equal(t, total, h.InputBytes+h.OutputBytes+h.StateBytes)
	require.Equal(t, len(h.Segments), len(c.c.Files()))
}
