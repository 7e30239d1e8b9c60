package restore_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
	"github.com/spillway-io/spillway/writer"
)

// TestCheckpointsDuringRecovery goes from a full checkpoint A over B and C, which
// are taken while the one before is being replayed, to a full one D. B and C refer
// to what was not read yet. Each is proven, is restored byte by byte, and keeps
// the files that it needs and no others.
func TestCheckpointsDuringRecovery(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPipeline(t, func(label string, low, high int) int { return rapid.IntRange(low, high).Draw(t, label) })
		job := p.open()
		a := p.full(job)
		p.crash(job)
		job, b := p.recover(a)
		p.crash(job)
		job, c := p.recover(b)
		p.crash(job)
		job = p.open()
		p.replayAll(job, c)
		d := p.full(job)
		require.True(t, d.Manifest.SelfContained)
		p.kept(job, d)
		p.crash(job)
	})
}

// TestFilesOfAnOlderCheckpointStay is one course of it: what nobody has read of A
// is referred to by B, and by C where it lies in A. The file of a subtask that
// was replayed goes with A.
func TestFilesOfAnOlderCheckpointStay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := newPipeline(t, func(label string, low, high int) int {
		switch label {
		case "per file":
			return 1
		case "stop count/0": // has accepted no buffer of it
			return 0
		case "stop count/1": // all of it
			return 1 << 20
		}
		return low + rng.IntN(high-low+1)
	})
	job := p.open()
	a := p.full(job)
	unread, read := a.Manifest.Handle(subtask("count", 0)).Segments[0], a.Manifest.Handle(subtask("count", 1)).Segments[0]
	p.crash(job)

	job, b := p.recover(a)
	require.False(t, b.Manifest.SelfContained)
	require.Equal(t, []inflight.FileRef{{Name: unread.File, FileID: unread.FileID}}, b.Manifest.Handle(subtask("count", 0)).References)
	require.Equal(t, a.Manifest.File(unread.File), b.Manifest.File(unread.File), "the catalog knows the rest of it")
	require.Nil(t, b.Manifest.File(read.File))
	require.Subset(t, p.names(job), []string{a.Dir + "/" + format.ManifestName, "job/" + unread.File, "job/" + read.File}, "A is the base: it is kept until it has been replayed")
	p.crash(job)

	job, c := p.recover(b) // it keeps B, and A no longer
	require.NotContains(t, p.names(job), a.Dir+"/"+format.ManifestName)
	require.NotContains(t, p.names(job), "job/"+read.File)
	require.Contains(t, p.names(job), "job/"+unread.File)
	require.Equal(t, b.Manifest.Handle(subtask("count", 0)).References, c.Manifest.Handle(subtask("count", 0)).References)
	require.Equal(t, a.Manifest.File(unread.File), c.Manifest.File(unread.File))
	p.crash(job)

	job = p.open()
	p.replayAll(job, c)
	d := p.full(job)
	log, err := catalog.Open(job.Backend, "job", catalog.Options{})
	require.NoError(t, err)
	plan, err := log.GC(t.Context(), catalog.GCOptions{DryRun: true})
	require.NoError(t, err)
	n, _ := plan.Garbage()
	require.Zero(t, n, "all has been retired")
	require.NotContains(t, p.names(job), "job/"+unread.File)
	p.kept(job, d)
	p.crash(job)
}

// pipeline is a job of two readers and two counts. The bytes of each connection
// are known, so that it is enough to know how far each end has got.
type pipeline struct {
	t interface {
		require.TestingT
		Context() context.Context
	}
	store   string
	pick    func(label string, low, high int) int
	perFile int

	consumed, sent, emitted map[link]uint64
	version                 map[inflight.Task]byte // of its state
}

// link is a connection.
type link struct{ up, down int }

func (l link) out() inflight.Subpartition { return inflight.Subpartition{Subpartition: l.down} }
func (l link) in() inflight.InputChannel  { return inflight.InputChannel{Channel: l.up} }

var (
	links = []link{{0, 0}, {0, 1}, {1, 0}, {1, 1}}
	graph = &format.Topology{
		Vertices: []format.Vertex{{ID: "read", Parallelism: 2}, {ID: "count", Parallelism: 2}},
		Edges:    []format.Edge{{From: "read", To: "count", Partitioner: "hash"}},
	}
	subtasks = []inflight.Task{subtask("read", 0), subtask("read", 1), subtask("count", 0), subtask("count", 1)}
	stores   atomic.Int64
)

const stateName = inflight.StateName("s")

func subtask(vertex string, n int) inflight.Task { return inflight.Task{Vertex: vertex, Subtask: n} }

func newPipeline(t interface {
	require.TestingT
	Context() context.Context
}, pick func(string, int, int) int) *pipeline {
	return &pipeline{t: t, store: fmt.Sprintf("mem://recovery-%d", stores.Add(1)), pick: pick, perFile: pick("per file", 1, 4),
		consumed: map[link]uint64{}, sent: map[link]uint64{}, emitted: map[link]uint64{}, version: map[inflight.Task]byte{}}
}

// stream returns the bytes [from, to) of l.
func stream(l link, from, to uint64) (p []byte) {
	for ; from < to; from++ {
		p = append(p, byte(from*7)^byte(from>>6)^byte(l.up<<7|l.down<<6))
	}
	return p
}

// state returns the state of a subtask.
func (p *pipeline) state(t inflight.Task) []byte {
	s := make([]byte, 300)
	for i := range s {
		s[i] = byte(i) ^ p.version[t]*37 ^ byte(t.Subtask)
	}
	return s
}

// split cuts data into buffers.
func (p *pipeline) split(data []byte) (bufs []inflight.Buffer) {
	for len(data) > 0 {
		n := min(p.pick("buffer", 1, 150), len(data))
		bufs = append(bufs, inflight.Bytes(data[:n]))
		data = data[n:]
	}
	return bufs
}

func (p *pipeline) open() *spillway.Job {
	job, err := spillway.Open(p.t.Context(), p.store, "job", graph, spillway.Options{Writer: writer.Options{TasksPerFile: p.perFile, BlockSize: 256}})
	require.NoError(p.t, err)
	return job
}

func (p *pipeline) crash(job *spillway.Job) { require.NoError(p.t, job.Close()) }

// full takes a checkpoint while all goes its usual way.
func (p *pipeline) full(job *spillway.Job) *catalog.Checkpoint {
	c, err := job.Begin(p.t.Context())
	require.NoError(p.t, err)
	epoch := job.Coordinator.Epoch()
	for _, l := range links {
		p.emitted[l] += uint64(p.pick("emitted", 0, 400))
		p.sent[l] += uint64(p.pick("sent", 0, int(p.emitted[l]-p.sent[l])))
		p.consumed[l] += uint64(p.pick("consumed", 0, int(p.sent[l]-p.consumed[l])))
		require.NoError(p.t, c.Captures[subtask("count", l.down)].Input(l.in(), inflight.Pos{Epoch: epoch, Offset: p.consumed[l]}, p.split(stream(l, p.consumed[l], p.sent[l]))...))
		require.NoError(p.t, c.Captures[subtask("read", l.up)].Output(l.out(), inflight.Pos{Epoch: epoch, Offset: p.sent[l]}, p.split(stream(l, p.sent[l], p.emitted[l]))...))
	}
	for _, t := range subtasks {
		p.version[t]++
		require.NoError(p.t, c.Captures[t].State(stateName, p.split(p.state(t))...))
	}
	return p.commit(job, c)
}

// commit ends the captures, and looks at everything.
func (p *pipeline) commit(job *spillway.Job, c *spillway.Checkpoint) *catalog.Checkpoint {
	for _, l := range links {
		require.NoError(p.t, c.Captures[subtask("count", l.down)].Cuts(inflight.Cut{Address: l.in().Address(), Bytes: p.consumed[l]}))
		require.NoError(p.t, c.Captures[subtask("read", l.up)].Cuts(inflight.Cut{Address: l.out().Address(), Bytes: p.emitted[l]}))
	}
	for _, capture := range c.Captures {
		require.NoError(p.t, capture.FinishInput())
		require.NoError(p.t, capture.FinishOutput())
	}
	done, err := c.Commit(p.t.Context(), format.Unaligned)
	require.NoError(p.t, err)
	require.NoError(p.t, job.Coordinator.Retire(p.t.Context()))
	p.check(job, done)
	return done
}

// recover restarts the job, and takes a checkpoint while base is being replayed.
func (p *pipeline) recover(base *catalog.Checkpoint) (*spillway.Job, *catalog.Checkpoint) {
	job := p.open()
	require.Equal(p.t, base.Manifest.ID, job.Coordinator.Base().Manifest.ID)
	require.NoError(p.t, job.Coordinator.Retire(p.t.Context()))
	p.check(job, base)
	replay := p.replay(job)
	defer replay.Close()
	ctx, cancel := context.WithCancel(p.t.Context())
	sinks := map[inflight.Task]*standing{}
	var stand, stopped sync.WaitGroup
	for _, t := range subtasks {
		stand.Add(1)
		sinks[t] = &standing{left: p.pick("stop "+t.String(), 0, 20), stands: sync.OnceFunc(stand.Done), accepted: map[inflight.Address][]accepted{}}
	}
	stopped.Go(func() {
		if _, err := replay.Run(ctx, func(t inflight.Task) restore.Sink { return sinks[t] }); err != nil {
			require.ErrorIs(p.t, err, context.Canceled)
		}
	})
	stand.Wait()
	c, err := job.Begin(p.t.Context())
	require.NoError(p.t, err)
	for _, t := range subtasks {
		p.capture(replay, c.Captures[t], t, sinks[t])
	}
	for _, l := range links { // live data behind the rest of what is restored
		pos := inflight.Pos{Epoch: job.Coordinator.Epoch(), Offset: p.emitted[l]}
		p.emitted[l] += uint64(p.pick("live", 0, 100))
		require.NoError(p.t, c.Captures[subtask("read", l.up)].Output(l.out(), pos, p.split(stream(l, pos.Offset, p.emitted[l]))...))
	}
	done := p.commit(job, c)
	p.kept(job, done, base) // the replay is not over
	cancel()
	stopped.Wait()
	return job, done
}

// capture captures what a subtask has accepted of its restored state and not
// used up, and refers to the rest.
func (p *pipeline) capture(replay *restore.Replay, c *writer.Capture, t inflight.Task, s *standing) {
	for e := range replay.Entries(t) {
		bufs := s.accepted[e.Address]
		after := uint64(0)
		for _, b := range bufs {
			after += uint64(len(b.data))
		}
		if e.Address.Side == inflight.Input {
			l := link{e.Address.Input.Channel, t.Subtask}
			for range p.pick("used", 0, len(bufs)) {
				p.consumed[l] += uint64(len(bufs[0].data))
				bufs = bufs[1:]
			}
		}
		for _, b := range bufs {
			switch e.Address.Side {
			case inflight.Input:
				require.NoError(p.t, c.Input(e.Address.Input, b.pos, inflight.Bytes(b.data)))
			case inflight.Output:
				require.NoError(p.t, c.Output(e.Address.Output, b.pos, inflight.Bytes(b.data)))
			case inflight.State:
				require.NoError(p.t, c.State(e.Address.State, inflight.Bytes(b.data)))
			}
		}
		rest, err := replay.Rest(p.t.Context(), t, e.Address, after)
		require.NoError(p.t, err)
		for _, ref := range rest {
			require.NoError(p.t, c.Reference(e.Address, ref.File, ref.Run))
		}
	}
}

// standing is a sink that stands still after some buffers.
type standing struct {
	left     int
	stands   func()
	accepted map[inflight.Address][]accepted
}

type accepted struct {
	pos  inflight.Pos
	data []byte
}

func (s *standing) take(ctx context.Context, b *reader.Buffer) error {
	if s.left == 0 {
		s.stands()
		<-ctx.Done()
		return ctx.Err()
	}
	s.left--
	s.accepted[b.Address] = append(s.accepted[b.Address], accepted{b.Pos, slices.Clone(b.Bytes)})
	return nil
}

func (s *standing) State(ctx context.Context, _ inflight.StateName, b *reader.Buffer) error {
	return s.take(ctx, b)
}

func (s *standing) Output(ctx context.Context, _ inflight.Subpartition, _ inflight.Pos, b *reader.Buffer) error {
	return s.take(ctx, b)
}

func (s *standing) Input(ctx context.Context, _ inflight.InputChannel, _ inflight.Pos, b *reader.Buffer) error {
	return s.take(ctx, b)
}

func (s *standing) Done(context.Context) error {
	s.stands()
	return nil
}

func (p *pipeline) replay(job *spillway.Job) *restore.Replay {
	base := job.Coordinator.Base()
	plan, err := restore.NewPlan(base.Manifest, graph, restore.Options{})
	require.NoError(p.t, err)
	replay, err := restore.NewReplay(p.t.Context(), job.Reader.At(base.Manifest, base.Dir), plan, restore.ReplayOptions{})
	require.NoError(p.t, err)
	return replay
}

// replayAll restores base to its end, and compares.
func (p *pipeline) replayAll(job *spillway.Job, base *catalog.Checkpoint) {
	require.Equal(p.t, base.Manifest.ID, job.Coordinator.Base().Manifest.ID)
	replay := p.replay(job)
	defer replay.Close()
	sinks := map[inflight.Task]*standing{}
	for _, t := range subtasks {
		sinks[t] = &standing{left: -1, stands: func() {}, accepted: map[inflight.Address][]accepted{}}
	}
	_, err := replay.Run(p.t.Context(), func(t inflight.Task) restore.Sink { return sinks[t] })
	require.NoError(p.t, err)
	joined := func(t inflight.Task, a inflight.Address) (all []byte) {
		for _, b := range sinks[t].accepted[a] {
			all = append(all, b.data...)
		}
		return all
	}
	for _, l := range links {
		in, out := joined(subtask("count", l.down), l.in().Address()), joined(subtask("read", l.up), l.out().Address())
		require.Equal(p.t, stream(l, p.consumed[l], p.emitted[l]), append(in, out...), "%v", l)
		p.sent[l] = p.consumed[l] + uint64(len(in))
	}
	for _, t := range subtasks {
		require.Equal(p.t, p.state(t), joined(t, stateName.Address()))
	}
	job.Coordinator.ReplayDone()
}

// check verifies a checkpoint and reads all of it.
func (p *pipeline) check(job *spillway.Job, c *catalog.Checkpoint) {
	own := true
	for _, f := range c.Manifest.Files {
		own = own && path.Dir(f.Name) == format.CheckpointDir(c.Manifest.ID)
		require.Positive(p.t, f.Size)
		require.Positive(p.t, f.DirLength)
	}
	require.Equal(p.t, own, c.Manifest.SelfContained)
	report, err := job.Reader.At(c.Manifest, c.Dir).Verify(p.t.Context(), reader.VerifyOptions{})
	require.NoError(p.t, err)
	require.Empty(p.t, report.Findings)
	require.Len(p.t, report.Flows, len(links))
	for _, f := range report.Flows {
		require.Equal(p.t, reader.Proven, f.Verdict)
	}
}

// kept demands that the files of these checkpoints lie on the store, and no
// others; and their manifests.
func (p *pipeline) kept(job *spillway.Job, checkpoints ...*catalog.Checkpoint) {
	want := map[string]bool{}
	for _, c := range checkpoints {
		require.Contains(p.t, p.names(job), c.Dir+"/"+format.ManifestName)
		for _, f := range c.Manifest.Files {
			want["job/"+f.Name] = true
		}
	}
	var files []string
	for _, name := range p.names(job) {
		if path.Ext(name) == ".cstate" {
			files = append(files, name)
		}
	}
	require.Equal(p.t, slices.Sorted(maps.Keys(want)), files)
}

func (p *pipeline) names(job *spillway.Job) (names []string) {
	for info, err := range job.Backend.List(p.t.Context(), "") {
		require.NoError(p.t, err)
		names = append(names, info.Name)
	}
	return names
}
