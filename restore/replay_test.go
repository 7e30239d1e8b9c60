package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/statetest"
	"github.com/spillway-io/spillway/reader"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errInjected = errors.New("injected")

// recorder is a sink that keeps everything, and checks the order.
type recorder struct {
	t    statetest.T
	task inflight.Task
	// before is called with each buffer before it is kept; it may block or fail.
	before func(k statetest.Key) error

	mu   sync.Mutex
	got  map[statetest.Key][]statetest.Buf
	last inflight.Side // that was called
	done bool
}

var rank = map[inflight.Side]int{0: 0, inflight.State: 1, inflight.Output: 2, inflight.Input: 3}

func (r *recorder) take(pos inflight.Pos, a inflight.Address, b *reader.Buffer) error {
	k := statetest.Key{Task: r.task, Address: a}
	require.Equal(r.t, k, statetest.Key{Task: b.Task, Address: b.Address})
	if r.before != nil {
		if err := r.before(k); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.False(r.t, r.done)
	require.GreaterOrEqual(r.t, rank[a.Side], rank[r.last])
	r.last = a.Side
	if r.got == nil {
		r.got = map[statetest.Key][]statetest.Buf{}
	}
	r.got[k] = append(r.got[k], statetest.Buf{Pos: pos, Data: bytes.Clone(b.Bytes)})
	return nil
}

func (r *recorder) State(_ context.Context, name inflight.StateName, b *reader.Buffer) error {
	return r.take(b.Pos, name.Address(), b)
}

func (r *recorder) Output(_ context.Context, sub inflight.Subpartition, pos inflight.Pos, b *reader.Buffer) error {
	return r.take(pos, sub.Address(), b)
}

func (r *recorder) Input(_ context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error {
	return r.take(pos, ch.Address(), b)
}

func (r *recorder) Done(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	require.False(r.t, r.done)
	r.done = true
	return nil
}

// sinks makes a recorder for each subtask.
type sinks struct {
	t      statetest.T
	before func(k statetest.Key) error
	mu     sync.Mutex
	all    map[inflight.Task]*recorder
}

func (s *sinks) open(task inflight.Task) Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[inflight.Task]*recorder{}
	}
	require.Nil(s.t, s.all[task])
	s.all[task] = &recorder{t: s.t, task: task, before: s.before}
	return s.all[task]
}

func (s *sinks) got() map[statetest.Key][]statetest.Buf {
	all := map[statetest.Key][]statetest.Buf{}
	for _, r := range s.all {
		for k, b := range r.got {
			all[k] = b
		}
	}
	return all
}

// prepare opens a replay of m.
func prepare(t statetest.T, b backends.Backend, m *format.Manifest, o Options, ro reader.Options) (*Replay, func(), error) {
	r := reader.Open(b, "job", ro)
	p, err := NewPlan(m, m.Topology, o)
	require.NoError(t, err)
	replay, err := NewReplay(t.(interface{ Context() context.Context }).Context(), r.At(m, "job/"+format.CheckpointDir(m.ID)), p, ReplayOptions{})
	return replay, func() {
		if replay != nil {
			replay.Close()
		}
		require.NoError(t, r.Close())
	}, err
}

func drawReader(t *rapid.T) reader.Options {
	return reader.Options{
		ReadSize:  rapid.SampledFrom([]int{0, 1, 300, 5000}).Draw(t, "read size"),
		ReadAhead: rapid.SampledFrom([]int64{0, 100, 1 << 20}).Draw(t, "read ahead"),
		Memory:    rapid.SampledFrom([]int64{0, 1, 20000}).Draw(t, "memory"),
	}
}

func TestReplay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &statetest.Backend{Backend: mem.New(mem.Options{})}
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: statetest.Tasks(t)})
		r, done, err := prepare(t, b, c.Manifest(), Options{}, drawReader(t))
		require.NoError(t, err)
		defer done()
		s := &sinks{t: t}
		res, err := r.Run(t.Context(), s.open)
		require.NoError(t, err)
		require.Equal(t, c.Want, s.got())
		<-r.Done()
		checkResult(t, res, c)
		for _, n := range s.all {
			require.True(t, n.done)
		}
		done()
		now, _ := b.Opened()
		require.Zero(t, now)
	})
}

func checkResult(t statetest.T, res *Result, c *statetest.Checkpoint) {
	require.Len(t, res.Channels, len(c.Want))
	for _, ch := range res.Channels {
		want, digest, bytes := c.Want[statetest.Key{Task: ch.Task, Address: ch.Address}], format.Digest(0), uint64(0)
		for _, b := range want {
			digest, bytes = digest.Add(b.Data), bytes+uint64(len(b.Data))
		}
		last := want[len(want)-1]
		require.Equal(t, Channel{Task: ch.Task, Address: ch.Address, Buffers: uint64(len(want)), Bytes: bytes, Digest: digest, Start: want[0].Pos, End: last.Pos.Advance(uint64(len(last.Data)), 1)}, ch)
	}
}

func TestReplayLocal(t *testing.T) {
	for _, s := range []int{1, 7} {
		dir := t.TempDir()
		m := writeR(t, dir, s, 3, 20, 5000)
		store := local.New(dir)
		defer store.Close()
		restoreR(t, store, m)
	}
}

// TestFewFileDescriptors replays 200 subtasks from as many files at once. Reads
// go on only when as many are under way as may be, so that they do hold their
// files.
func TestFewFileDescriptors(t *testing.T) {
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	dir := t.TempDir()
	m := writeR(t, dir, 200, 1, 2, 1000)
	b := &statetest.Backend{Backend: local.New(dir)}
	defer b.Close()
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: limit.Max}))
	r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 4000})
	require.NoError(t, err)
	defer done()
	var reads atomic.Int64
	full := make(chan struct{})
	b.After = func(statetest.Read, []byte) error {
		if reads.Add(1) == 32 {
			close(full)
		}
		<-full
		return nil
	}
	s := &sinks{t: t}
	res, err := r.Run(t.Context(), s.open)
	require.NoError(t, err)
	require.Equal(t, m.PersistedBytes(), res.Bytes)
	_, most := b.Opened()
	require.Equal(t, 32, most)
}

// TestRest takes checkpoints during recovery, several times in a row: at a
// random moment each subtask has accepted some buffers and used up some of
// them; the next checkpoint has the queued ones, references to the rest, and
// live data behind.
func TestRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := mem.New(mem.Options{})
		tasks := statetest.Tasks(t)
		c := statetest.Draw(t, b, statetest.Options{Job: "job", ID: 3, Tasks: tasks, Tiny: true})
		for id := range inflight.CheckpointID(3) {
			rests := interrupt(t, b, c)
			c = statetest.Draw(t, b, statetest.Options{Job: "job", ID: 4 + id, Tasks: tasks, Tiny: true, Rests: rests})
		}
		r, done, err := prepare(t, b, c.Manifest(), Options{}, drawReader(t))
		require.NoError(t, err)
		defer done()
		s := &sinks{t: t}
		_, err = r.Run(t.Context(), s.open)
		require.NoError(t, err)
		require.Equal(t, c.Want, s.got())
	})
}

// interrupt replays c up to a random place in each subtask, and takes a
// checkpoint of what there is then.
func interrupt(t *rapid.T, b backends.Backend, c *statetest.Checkpoint) map[statetest.Key]statetest.Rest {
	r, done, err := prepare(t, b, c.Manifest(), Options{}, drawReader(t))
	require.NoError(t, err)
	defer done()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := map[inflight.Task]int{}
	for _, h := range c.Handles {
		stop[h.Task] = rapid.IntRange(0, 30).Draw(t, "stop")
	}
	var stopped, all sync.WaitGroup
	s := &sinks{t: t}
	stopped.Add(len(c.Handles))
	seen := map[inflight.Task]int{}
	var mu sync.Mutex
	s.before = func(k statetest.Key) error {
		mu.Lock()
		n := seen[k.Task]
		seen[k.Task]++
		mu.Unlock()
		if n == stop[k.Task] {
			stopped.Done()
			<-ctx.Done() // stands in the call while the checkpoint is taken
			return ctx.Err()
		}
		return nil
	}
	all.Go(func() {
		_, err := r.Run(ctx, func(task inflight.Task) Sink {
			return &ending{s.open(task).(*recorder), func() {
				mu.Lock()
				defer mu.Unlock()
				if seen[task] <= stop[task] {
					stopped.Done()
				}
			}}
		})
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	})
	stopped.Wait()
	rests := map[statetest.Key]statetest.Rest{}
	got := s.got()
	for _, k := range c.Keys() {
		want, accepted := c.Want[k], got[k]
		require.Equal(t, append([]statetest.Buf(nil), want[:len(accepted)]...), accepted)
		after := uint64(0)
		for _, b := range accepted {
			after += uint64(len(b.Data))
		}
		refs, err := r.Rest(t.Context(), k.Task, k.Address, after)
		require.NoError(t, err)
		rest := statetest.Rest{Queued: accepted[rapid.IntRange(0, len(accepted)).Draw(t, "used"):], Want: want[len(accepted):]}
		for _, ref := range refs {
			rest.References = append(rest.References, statetest.Reference(ref))
		}
		require.Equal(t, len(rest.Want) == 0, len(rest.References) == 0)
		rests[k] = rest
	}
	cancel()
	all.Wait()
	return rests
}

// TestRestWhileRunning asks again and again while the replay goes on.
func TestRestWhileRunning(t *testing.T) {
	b := mem.New(mem.Options{})
	m := writeMem(t, b, 4, 3000)
	r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 10000})
	require.NoError(t, err)
	defer done()
	var mu sync.Mutex // of the engine: nothing is accepted while a capture has it
	accepted := map[statetest.Key]uint64{}
	s := &sinks{t: t, before: func(k statetest.Key) error {
		mu.Lock()
		defer mu.Unlock()
		accepted[k] += 3000
		return nil
	}}
	var capture sync.WaitGroup
	capture.Go(func() {
		for {
			for _, h := range m.Handles {
				for e := range r.Entries(h.Task) {
					mu.Lock()
					after := accepted[statetest.Key{Task: h.Task, Address: e.Address}]
					refs, err := r.Rest(t.Context(), h.Task, e.Address, after)
					mu.Unlock()
					require.NoError(t, err)
					rest := uint64(0)
					for _, ref := range refs {
						rest += ref.Run.Length
					}
					require.Equal(t, e.Bytes, after+rest)
				}
			}
			select {
			case <-r.Done():
				return
			default:
			}
		}
	})
	_, err = r.Run(t.Context(), s.open)
	require.NoError(t, err)
	capture.Wait()
}

// ending tells when a subtask is done.
type ending struct {
	*recorder
	done func()
}

func (e *ending) Done(ctx context.Context) error {
	e.done()
	return e.recorder.Done(ctx)
}

// TestSlowSinks: a sink that stands still stops nobody else, whatever memory
// there is: each subtask waits for the next one to be done.
func TestSlowSinks(t *testing.T) {
	b := mem.New(mem.Options{})
	m := writeMem(t, b, 12, 3000)
	for _, memory := range []int64{1, 0} {
		for _, ahead := range []int64{-1, 1 << 20} {
			r, done, err := prepare(t, b, m, Options{}, reader.Options{Memory: memory, ReadSize: 10000, ReadAhead: ahead})
			require.NoError(t, err)
			finished := make([]chan struct{}, 12)
			for i := range finished {
				finished[i] = make(chan struct{})
			}
			s := &sinks{t: t, before: func(k statetest.Key) error {
				if k.Task.Subtask+1 < len(finished) {
					<-finished[k.Task.Subtask+1]
				}
				return nil
			}}
			res, err := r.Run(t.Context(), func(task inflight.Task) Sink {
				return &ending{s.open(task).(*recorder), func() { close(finished[task.Subtask]) }}
			})
			require.NoError(t, err)
			require.Equal(t, m.PersistedBytes(), res.Bytes)
			done()
		}
	}
}

// writeMem writes n subtasks of one vertex into one file, their blocks mixed.
func writeMem(t *testing.T, b backends.Backend, n, size int) *format.Manifest {
	var file bytes.Buffer
	name := format.StateFileName(7, "g0", "a")
	e, err := format.NewEncoder(&file, name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, format.EncoderOptions{BlockSize: 4096})
	require.NoError(t, err)
	var ms []format.Member
	for i := range n {
		member, err := e.Begin(inflight.Task{Vertex: "v", Subtask: i}, nil)
		require.NoError(t, err)
		ms = append(ms, member)
	}
	for round := range 6 {
		for i, member := range ms {
			a := inflight.InputChannel{Channel: round % 3}.Address()
			require.NoError(t, e.Append(member, a, inflight.Pos{Offset: uint64(round / 3 * size)}, bytes.Repeat([]byte{byte(i)}, size)))
		}
	}
	var hs []inflight.Handle
	for _, member := range ms {
		require.NoError(t, e.Complete(member))
	}
	_, err = e.Close()
	require.NoError(t, err)
	for _, member := range ms {
		hs = append(hs, e.Handle(member))
	}
	statetest.Put(t, b, "job/"+name, file.Bytes())
	c := &statetest.Checkpoint{ID: 7, Handles: hs}
	return c.Manifest()
}

// poolSink copies into buffers of a pool of two, which a consumer gives back;
// with three channels, of which it wants the last first.
type poolSink struct {
	recorder
	pool  chan []byte
	queue chan []byte
}

func (p *poolSink) Input(ctx context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error {
	select {
	case mine := <-p.pool:
		p.queue <- append(mine[:0], b.Bytes...)
		return p.recorder.Input(ctx, ch, pos, b)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestPoolOfTwo(t *testing.T) {
	b := mem.New(mem.Options{})
	m := writeMem(t, b, 3, 1000)
	r, done, err := prepare(t, b, m, Options{}, reader.Options{Memory: 1})
	require.NoError(t, err)
	defer done()
	pool, queue := make(chan []byte, 2), make(chan []byte, 2)
	pool <- make([]byte, 1000)
	pool <- make([]byte, 1000)
	var consumer sync.WaitGroup
	n := 0
	consumer.Go(func() {
		for buf := range queue {
			n += len(buf)
			pool <- buf
		}
	})
	_, err = r.Run(t.Context(), func(task inflight.Task) Sink {
		return &poolSink{recorder: recorder{t: t, task: task}, pool: pool, queue: queue}
	})
	require.NoError(t, err)
	close(queue)
	consumer.Wait()
	require.EqualValues(t, m.PersistedBytes(), n)
}

// keeper takes buffers over without copying.
type keeper struct {
	recorder
	kept []inflight.Buffer
}

func (k *keeper) Input(ctx context.Context, ch inflight.InputChannel, pos inflight.Pos, b *reader.Buffer) error {
	k.kept = append(k.kept, b.Retain())
	return k.recorder.Input(ctx, ch, pos, b)
}

// TestRetain: what a sink retains is still right when everything else has been
// closed.
func TestRetain(t *testing.T) {
	b := mem.New(mem.Options{})
	m := writeMem(t, b, 3, 1000)
	r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 5000})
	require.NoError(t, err)
	keepers := make([]*keeper, 3)
	_, err = r.Run(t.Context(), func(task inflight.Task) Sink {
		keepers[task.Subtask] = &keeper{recorder: recorder{t: t, task: task}}
		return keepers[task.Subtask]
	})
	require.NoError(t, err)
	done()
	for i, k := range keepers {
		require.Len(t, k.kept, 6)
		for _, buf := range k.kept {
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, 1000), buf.Bytes())
			buf.Release()
		}
	}
}

func TestStops(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	m := writeMem(t, b, 5, 3000)
	run := func(ctx context.Context, before func(statetest.Key) error) error {
		r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 5000, ReadAhead: 10000})
		require.NoError(t, err)
		defer done()
		s := &sinks{t: t, before: before}
		res, err := r.Run(ctx, s.open)
		require.NotNil(t, res)
		select {
		case <-r.Done():
			require.NoError(t, err)
		default:
			require.Error(t, err)
		}
		return err
	}
	t.Run("a sink fails", func(t *testing.T) {
		err := run(t.Context(), func(k statetest.Key) error {
			if k.Task.Subtask == 3 && k.Address.Input.Channel == 2 {
				return errInjected
			}
			return nil
		})
		require.ErrorIs(t, err, errInjected)
		require.ErrorContains(t, err, "restore into v/3")
	})
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := run(ctx, func(statetest.Key) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("a context that has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, run(ctx, nil), context.Canceled)
	})
	t.Run("a file is damaged", func(t *testing.T) {
		p := statetest.Get(t, b, "job/"+m.Files[0].Name)
		p[5000] ^= 1
		statetest.Put(t, b, "job/"+m.Files[0].Name, p)
		require.ErrorIs(t, run(t.Context(), nil), inflight.ErrCorrupt)
	})
	require.NoError(t, b.Remove(t.Context(), "job/"+m.Files[0].Name))
	_, done, err := prepare(t, b, m, Options{}, reader.Options{})
	require.ErrorIs(t, err, inflight.ErrNotExist)
	done()
	now, _ := b.Opened()
	require.Zero(t, now)
}

// TestEveryReadFails makes each read fail in turn.
func TestEveryReadFails(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	m := writeMem(t, b, 5, 3000)
	for k, more := 1, true; more; k++ {
		var mu sync.Mutex
		n := 0
		b.After = func(statetest.Read, []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if n++; n == k {
				return errInjected
			}
			return nil
		}
		r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 5000, ReadAhead: 10000})
		if err == nil {
			_, err = r.Run(t.Context(), (&sinks{t: t}).open)
		}
		if err != nil {
			require.ErrorIs(t, err, errInjected)
		}
		done()
		more = n >= k
		require.Less(t, k, 200)
	}
	now, _ := b.Opened()
	require.Zero(t, now)
}

// TestDropped restores around damage: a channel that is given up is not even
// read.
func TestDropped(t *testing.T) {
	b := &statetest.Backend{Backend: mem.New(mem.Options{})}
	m := writeMem(t, b, 2, 5000) // each buffer has a block of its own
	name := "job/" + m.Files[0].Name
	whole := statetest.Get(t, b, name)
	task, a := inflight.Task{Vertex: "v", Subtask: 1}, inflight.InputChannel{Channel: 2}.Address()
	for _, tc := range []struct {
		drop            Scope
		skipped, bytes  int
		damagedChannels []int
	}{
		{Scope{Task: &task, Address: &a}, 1, 50000, []int{2}},
		{Scope{Task: &task}, 0, 30000, []int{0, 1, 2}},
	} {
		bad := bytes.Clone(whole)
		for at := bytes.Index(bad, bytes.Repeat([]byte{1}, 5000)); at >= 0; {
			block := at / (len(whole) / 12) // twelve blocks of nearly one size
			for _, ch := range tc.damagedChannels {
				if block/2%3 == ch {
					bad[at+100] ^= 1
				}
			}
			next := bytes.Index(bad[at+5000:], bytes.Repeat([]byte{1}, 5000))
			if next < 0 {
				break
			}
			at += 5000 + next
		}
		statetest.Put(t, b, name, bad)
		r, done, err := prepare(t, b, m, Options{}, reader.Options{ReadSize: 1})
		require.NoError(t, err)
		_, err = r.Run(t.Context(), (&sinks{t: t}).open)
		require.ErrorIs(t, err, inflight.ErrCorrupt)
		done()

		r, done, err = prepare(t, b, m, Options{AllowDropped: []Scope{tc.drop}}, reader.Options{ReadSize: 1})
		require.NoError(t, err)
		res, err := r.Run(t.Context(), (&sinks{t: t}).open)
		require.NoError(t, err)
		require.Len(t, res.Skipped, tc.skipped)
		require.EqualValues(t, tc.bytes, res.Bytes)
		require.Equal(t, []Dropped{{tc.drop, "as wished"}}, res.Dropped)
		if tc.skipped > 0 {
			require.EqualValues(t, 10000, res.Skipped[0].Bytes)
			require.Len(t, slices.Collect(r.Entries(task)), 2)
			refs, err := r.Rest(t.Context(), task, a, 0)
			require.NoError(t, err)
			require.Empty(t, refs)
		}
		done()
	}
}

// TestViolations refuses a connection whose parts do not join.
func TestViolations(t *testing.T) {
	b := mem.New(mem.Options{})
	var file bytes.Buffer
	name := format.StateFileName(7, "g0", "a")
	e, err := format.NewEncoder(&file, name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, format.EncoderOptions{})
	require.NoError(t, err)
	tasks := []inflight.Task{{Vertex: "src"}, {Vertex: "count"}}
	var ms []format.Member
	for _, task := range tasks {
		m, err := e.Begin(task, nil)
		require.NoError(t, err)
		ms = append(ms, m)
	}
	require.NoError(t, e.Append(ms[0], inflight.Subpartition{}.Address(), inflight.Pos{Offset: 200}, []byte("output")))
	require.NoError(t, e.Append(ms[1], inflight.InputChannel{}.Address(), inflight.Pos{Offset: 100}, []byte("input")))
	c := &statetest.Checkpoint{ID: 7}
	for _, m := range ms {
		require.NoError(t, e.Complete(m))
	}
	_, err = e.Close()
	require.NoError(t, err)
	for _, m := range ms {
		c.Handles = append(c.Handles, e.Handle(m))
	}
	statetest.Put(t, b, "job/"+name, file.Bytes())
	m := c.Manifest()
	m.Topology.Edges = []format.Edge{{From: "src", To: "count", Partitioner: "hash"}}

	_, done, err := prepare(t, b, m, Options{}, reader.Options{})
	require.ErrorIs(t, err, inflight.ErrCorrupt)
	require.ErrorContains(t, err, "src/0 → count/0: corrupt: captured input ends at 105, captured output begins at 200")
	done()
	r, done, err := prepare(t, b, m, Options{AllowViolations: true}, reader.Options{})
	require.NoError(t, err)
	defer done()
	res, err := r.Run(t.Context(), (&sinks{t: t}).open)
	require.NoError(t, err)
	require.Len(t, res.Violations, 1)
	require.EqualValues(t, 11, res.Bytes)
}

// TestProgress looks at what an observer hears of a slow sink.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(mem.Options{})
		dir := inflight.Task{Vertex: "v"}
		var file bytes.Buffer
		name := format.StateFileName(7, "g0", "a")
		e, err := format.NewEncoder(&file, name, format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, format.EncoderOptions{})
		require.NoError(t, err)
		m, err := e.Begin(dir, nil)
		require.NoError(t, err)
		for i := range 1000 {
			require.NoError(t, e.Append(m, inflight.InputChannel{}.Address(), inflight.Pos{Offset: uint64(10 * i)}, make([]byte, 10)))
		}
		require.NoError(t, e.Complete(m))
		_, err = e.Close()
		require.NoError(t, err)
		statetest.Put(t, b, "job/"+name, file.Bytes())
		c := &statetest.Checkpoint{ID: 7, Handles: []inflight.Handle{e.Handle(m)}}
		manifest := c.Manifest()

		r := reader.Open(b, "job", reader.Options{})
		defer r.Close()
		p, err := NewPlan(manifest, manifest.Topology, Options{})
		require.NoError(t, err)
		var events []inflight.Event
		replay, err := NewReplay(t.Context(), r.At(manifest, "job/chk-0000000007"), p, ReplayOptions{Observer: inflight.ObserverFunc(func(e inflight.Event) { events = append(events, e) })})
		require.NoError(t, err)
		defer replay.Close()
		s := &sinks{t: t, before: func(statetest.Key) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}}
		_, err = replay.Run(t.Context(), s.open)
		require.NoError(t, err)
		require.Len(t, events, 16)
		for i, e := range events[:15] {
			require.Equal(t, inflight.Event{Name: inflight.EventReplayProgress, Checkpoint: 7, Task: dir, Count: int64(64 * (i + 1)), Bytes: int64(640 * (i + 1)), Total: 10000, Duration: time.Duration(i+1) * 320 * time.Millisecond}, e)
		}
		require.Equal(t, inflight.Event{Name: inflight.EventReplayDone, Checkpoint: 7, Task: dir, Count: 1000, Bytes: 10000, Total: 10000, Duration: 5 * time.Second}, events[15])
	})
}

func TestNewReplay(t *testing.T) {
	b := mem.New(mem.Options{})
	m := writeMem(t, b, 3, 1000)
	r := reader.Open(b, "job", reader.Options{})
	defer r.Close()
	p, err := NewPlan(m, m.Topology, Options{})
	require.NoError(t, err)
	c := r.At(m, "job/chk-0000000007")
	open := func(tasks ...inflight.Task) (*Replay, error) {
		return NewReplay(t.Context(), c, p, ReplayOptions{Tasks: tasks})
	}
	_, err = open(inflight.Task{Vertex: "w"})
	require.ErrorIs(t, err, inflight.ErrConfig)
	_, err = open(inflight.Task{Vertex: "v"}, inflight.Task{Vertex: "v"})
	require.ErrorIs(t, err, inflight.ErrConfig)
	replay, err := open(inflight.Task{Vertex: "v", Subtask: 2})
	require.NoError(t, err)
	defer replay.Close()
	_, err = replay.Rest(t.Context(), inflight.Task{Vertex: "v"}, inflight.InputChannel{}.Address(), 0)
	require.ErrorIs(t, err, inflight.ErrRecovering)
	_, err = replay.Rest(t.Context(), inflight.Task{Vertex: "v", Subtask: 2}, inflight.InputChannel{}.Address(), 1000)
	require.ErrorIs(t, err, inflight.ErrRecovering) // not read yet
	_, err = replay.Rest(t.Context(), inflight.Task{Vertex: "v", Subtask: 2}, inflight.InputChannel{}.Address(), 1)
	require.ErrorIs(t, err, inflight.ErrOrder)
	s := &sinks{t: t}
	res, err := replay.Run(t.Context(), s.open)
	require.NoError(t, err)
	require.EqualValues(t, 6000, res.Bytes)
	require.Len(t, s.all, 1)
	require.Empty(t, slices.Collect(replay.Entries(inflight.Task{Vertex: "v"})))

	none, err := NewReplay(t.Context(), c, p, ReplayOptions{Tasks: []inflight.Task{}})
	require.NoError(t, err)
	<-none.Done()
	_, err = none.Run(t.Context(), nil)
	require.NoError(t, err)
}

func Example() {
	ctx := context.Background()
	store := mem.New(mem.Options{})
	defer store.Close()
	job := &format.Topology{Vertices: []format.Vertex{{ID: "count", Parallelism: 1}}}

	// What a checkpoint has captured of count/0 …
	file, _ := store.Create(ctx, "job/chk-0000000007/g0-a.cstate", backends.CreateOptions{})
	e, _ := format.NewEncoder(file, "chk-0000000007/g0-a.cstate", format.FileHeader{FileID: inflight.NewFileID(), Job: "job", Checkpoint: 7}, format.EncoderOptions{})
	member, _ := e.Begin(inflight.Task{Vertex: "count"}, nil)
	_ = e.Append(member, inflight.InputChannel{Gate: 0, Channel: 2}.Address(), inflight.Pos{Offset: 4096}, []byte("in flight"))
	_ = e.Complete(member)
	_, _ = e.Close()
	_, _ = file.Finish(ctx)
	m := &format.Manifest{Kind: format.KindCheckpoint, ID: 7, Topology: job}
	m.SetHandles([]inflight.Handle{e.Handle(member)})

	// … is planned, and handed over.
	r := reader.Open(store, "job", reader.Options{})
	defer r.Close()
	plan, err := NewPlan(m, job, Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	replay, err := NewReplay(ctx, r.At(m, "job/chk-0000000007"), plan, ReplayOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer replay.Close()
	res, err := replay.Run(ctx, func(inflight.Task) Sink { return new(discard) })
	fmt.Println(res.Buffers, res.Bytes, err)
	for _, ch := range res.Channels {
		fmt.Println(ch.Task, ch.Address, ch.Start, ch.End)
	}
	// Output:
	// 1 9 <nil>
	// count/0 gate 0 channel 2 0/4096#0 0/4105#1
}
