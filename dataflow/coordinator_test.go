package dataflow

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

func TestBarrierOptions(t *testing.T) {
	for _, tc := range []struct {
		o         Options
		savepoint bool
		choice    Choice
		want      string
	}{
		{Options{AtLeastOnce: true}, false, ChooseConfigured, "at-least-once never"},
		{Options{}, false, ChooseConfigured, "aligned never"},
		{Options{}, false, ChooseUnaligned, "aligned never"},
		{Options{Unaligned: true}, false, ChooseConfigured, "unaligned never"},
		{Options{Unaligned: true, AlignedTimeout: time.Second}, false, ChooseConfigured, "aligned 1s"},
		{Options{Unaligned: true, AlignedTimeout: time.Second}, false, ChooseUnaligned, "unaligned never"},
		{Options{Unaligned: true}, true, ChooseConfigured, "aligned never"},
		{Options{Unaligned: true}, true, ChooseUnaligned, "aligned never"},
		{Options{Unaligned: true, AlignedTimeout: time.Second}, true, ChooseAligned, "aligned never"},
		{Options{Unaligned: true}, false, ChooseAligned, "aligned never"},
	} {
		b := tc.o.barrier(7, time.Minute, tc.savepoint, tc.choice)
		timeout := b.timeout.String()
		if b.timeout == never {
			timeout = "never"
		}
		require.Equal(t, tc.want, b.alignment.String()+" "+timeout)
		require.Equal(t, tc.savepoint, b.savepoint)
		require.Equal(t, tc.o.Unaligned && !tc.savepoint && tc.choice != ChooseAligned, b.needsChannelState())
	}
}

// scene is a small job under a seed whose checkpoints are watched.
type scene struct {
	exec    *Seeded
	log     *memLog
	d       *Deployment
	results []string // of the checkpoints
	all     []CheckpointResult
	trigger []time.Duration
	how     []string // how each was triggered
	ended   bool
	err     error
}

// newScene deploys source → count, without end.
func newScene(t *testing.T, o Options, log *memLog, faults ...Fault) *scene {
	s := &scene{exec: NewSeeded(1), log: log}
	g := NewGraph()
	g.Source("source", 2, func(int) Source {
		g := &Generator{Records: -1, Pause: 100 * time.Microsecond, Body: func(dst []byte, n int64) []byte { return fmt.Appendf(dst, "%d", n%9) }}
		return ScriptedSource(g, faults)
	})
	g.Operator("count", 2, Count(LineKey, 0), From("source", Hash(LineKey)))
	o.Interval = max(o.Interval, 10*time.Millisecond)
	o.BufferSize = 64
	o.OnCheckpoint = func(r CheckpointResult) {
		line := fmt.Sprintf("%d %s", r.ID, r.Alignment())
		if !r.Completed {
			line = fmt.Sprintf("%d %s", r.ID, r.Reason)
		}
		s.results = append(s.results, line)
		s.all = append(s.all, r)
	}
	o.Trace = func(e TraceEvent) {
		if e.Point == PointTriggered {
			s.trigger = append(s.trigger, e.At)
			how, _, _ := strings.Cut(e.Text, ",")
			s.how = append(s.how, how)
		}
	}
	var err error
	s.d, err = Deploy(s.exec, g, o, log.open(s.exec), func(err error) { s.ended, s.err = true, err })
	require.NoError(t, err)
	log.watch(s.d)
	s.d.Start()
	return s
}

func (s *scene) run(d time.Duration) { s.exec.Run(s.exec.Now() + d) }

func TestCoordinator(t *testing.T) {
	tolerant := Options{Unaligned: true, TolerableFailures: -1}
	t.Run("rhythm", func(t *testing.T) {
		s := newScene(t, tolerant, newMemLog())
		s.run(45 * time.Millisecond)
		require.Equal(t, []string{"1 unaligned", "2 unaligned", "3 unaligned", "4 unaligned"}, s.results)
		for i, at := range s.trigger {
			require.InDelta(t, 10*(i+1), at.Milliseconds(), 1)
		}
		require.Empty(t, s.log.red)
		require.Equal(t, 4, s.d.store.(*memStore).retired)
	})
	t.Run("who has acknowledged and ends before the commit is finished", func(t *testing.T) {
		// Seed 29218 of the simulation: restored as a task that runs, it waited for
		// those further down, which had ended.
		s := newScene(t, tolerant, newMemLog())
		c := s.d.coord
		for c.pending == nil || len(c.pending.waiting) < len(s.d.tasks) {
			s.run(100 * time.Microsecond)
		}
		p, source := c.pending, s.d.tasks[0].id
		c.ack(Ack{Task: source, ID: p.b.id})
		c.taskEnded(Finished{Task: source})
		require.Equal(t, []Finished{{Task: source}}, p.finished)
		require.Len(t, p.waiting, len(s.d.tasks)-1)
	})
	t.Run("minimum pause", func(t *testing.T) {
		o := tolerant
		o.MinPause = 30 * time.Millisecond
		s := newScene(t, o, newMemLog())
		s.run(100 * time.Millisecond)
		for i := 1; i < len(s.trigger); i++ {
			require.Greater(t, s.trigger[i]-s.trigger[i-1], 30*time.Millisecond)
		}
	})
	t.Run("timeout, and everything goes on", func(t *testing.T) {
		o := tolerant
		o.Timeout = 20 * time.Millisecond
		log := newMemLog()
		s := newScene(t, o, log)
		s.exec.Lose = 1000
		s.run(75 * time.Millisecond)
		require.Equal(t, []string{"1 timeout", "2 timeout"}, s.results[:2])
		s.exec.Lose = 0
		s.run(75 * time.Millisecond)
		require.Contains(t, s.results[len(s.results)-1], "unaligned")
		require.Empty(t, log.red)
	})
	t.Run("a capture that fails is a failure, and tolerated so often", func(t *testing.T) {
		o := tolerant
		o.TolerableFailures = 2
		log := newMemLog()
		log.failCapture = func(task inflight.Task, id inflight.CheckpointID) error {
			if task.Vertex == "count" && id != 2 {
				return errors.New("the disk is gone")
			}
			return nil
		}
		s := newScene(t, o, log)
		s.run(time.Second)
		require.Equal(t, []string{"1 write-failed", "2 unaligned", "3 write-failed", "4 write-failed", "5 write-failed"}, s.results)
		require.True(t, s.ended)
		require.ErrorContains(t, s.err, "3 checkpoints in a row have failed")
		require.ErrorContains(t, s.err, "the disk is gone")
	})
	t.Run("over the memory bound: not a failure; the next at once, and aligned", func(t *testing.T) {
		o := tolerant
		o.TolerableFailures = 0
		log := newMemLog()
		log.failCapture = func(task inflight.Task, id inflight.CheckpointID) error {
			if id == 1 {
				return inflight.ErrOverBudget
			}
			return nil
		}
		s := newScene(t, o, log)
		s.run(35 * time.Millisecond)
		require.Equal(t, []string{"1 over-budget", "2 aligned", "3 unaligned"}, s.results[:3])
		require.Equal(t, []string{"unaligned", "aligned", "unaligned"}, s.how[:3])
		require.Less(t, s.trigger[1]-s.trigger[0], 5*time.Millisecond)
	})
	t.Run("a commit that fails", func(t *testing.T) {
		log := newMemLog()
		log.failCommit = func(id inflight.CheckpointID) error {
			if id == 1 {
				return inflight.ErrNoSpace
			}
			return nil
		}
		s := newScene(t, tolerant, log)
		s.run(29 * time.Millisecond)
		require.Equal(t, []string{"1 commit-failed", "2 unaligned"}, s.results)
	})
	t.Run("fenced: it ends, and notifies nothing", func(t *testing.T) {
		log := newMemLog()
		s := newScene(t, tolerant, log)
		s.run(15 * time.Millisecond)
		log.open(s.exec) // another coordinator
		s.run(time.Second)
		require.True(t, s.ended)
		require.ErrorIs(t, s.err, inflight.ErrFenced)
		require.Equal(t, []string{"1 unaligned", "3 fenced"}, s.results)
		require.Equal(t, 1, s.d.store.(*memStore).retired)
	})
	t.Run("savepoints wait for their turn", func(t *testing.T) {
		s := newScene(t, tolerant, newMemLog())
		var got []string
		s.exec.At(11*time.Millisecond, func() {
			for range 2 {
				s.d.Savepoint(func(r CheckpointResult) {
					got = append(got, fmt.Sprintf("%d %s %v", r.ID, r.Alignment(), r.Savepoint))
				})
			}
		})
		s.run(35 * time.Millisecond)
		require.Equal(t, []string{"2 aligned true", "3 aligned true"}, got)
		require.Contains(t, s.results, "4 unaligned")
	})
	t.Run("stopping gives up what is pending", func(t *testing.T) {
		s := newScene(t, tolerant, newMemLog())
		s.run(10*time.Millisecond + 100*time.Microsecond)
		var answer Reason
		s.d.Savepoint(func(r CheckpointResult) { answer = r.Reason })
		s.run(100 * time.Microsecond)
		s.d.Stop(errors.New("enough"))
		defer func() { require.Equal(t, ReasonTaskStopped, answer) }()
		s.run(time.Second)
		require.True(t, s.ended)
		require.EqualError(t, s.err, "enough")
		require.Equal(t, []string{"1 task-failed"}, s.results)
	})
}

// TestAtLeastOnce has barriers that block nothing: records behind the first
// barrier are in the state when the last one comes, so a restore repeats some,
// and loses none.
func TestAtLeastOnce(t *testing.T) {
	lost, doubled := 0, 0
	for seed := uint64(1); seed <= max(8, 40/scarce); seed++ {
		res := Simulation{Seed: seed, Open: newUnproven(), Adjust: func(p *SimulationPlan) {
			p.Options.Unaligned, p.Options.AtLeastOnce = false, true
			p.Crashes = []time.Duration{20 * time.Millisecond, 30 * time.Millisecond}
		}}.Run()
		require.NoError(t, res.Err)
		require.Empty(t, res.Hang)
		lost += res.Lost
		doubled += res.Doubled
	}
	require.Zero(t, lost)
	require.Positive(t, doubled, "it would be exactly once")
}

// newUnproven opens a log whose checkpoints are not proven.
func newUnproven() func(*Seeded) (Store, error) {
	log := newMemLog()
	return func(s *Seeded) (Store, error) { return log.open(s), nil }
}

// TestRestoreOrder restores a connection whose input part ends within a record
// that the output part goes on with, and has the operator open with a live
// record: recovered input, recovered output, then live data.
func TestRestoreOrder(t *testing.T) {
	for _, credit := range []bool{false, true} {
		stream := []byte{}
		for i := range 6 {
			stream = append(appendElement(stream, tagPlain, 0, 1), byte('a'+i))
		}
		const each, consumed = lengthBytes + 2, 2
		cut := 3*each + 3 // within the length of the fourth record
		log := newMemLog()
		up, down := inflight.Task{Vertex: "up"}, inflight.Task{Vertex: "down"}
		in, out := inflight.InputChannel{}.Address(), inflight.Subpartition{}.Address()
		log.committed = &memCheckpoint{Completed: Completed{ID: 0, Acks: []Ack{
			{Task: up, Cuts: []inflight.Cut{{Address: out, Bytes: uint64(len(stream)), Records: 6}}},
			{Task: down, Cuts: []inflight.Cut{{Address: in, Bytes: consumed * each, Records: consumed}}},
		}}, parts: map[inflight.Task]*memCapture{
			up:   {data: []capturedData{{addr: out, pos: inflight.Pos{Offset: uint64(cut)}, data: stream[cut:]}}},
			down: {data: []capturedData{{addr: in, pos: inflight.Pos{Offset: consumed * each}, data: stream[consumed*each : cut]}}},
		}}
		log.next = 1
		exec := NewSeeded(3)
		var seen []string
		g := NewGraph()
		g.Source("up", 1, func(int) Source { return &openingSource{} })
		g.Operator("down", 1, FlatMap(func(_ *Context, r Record) error {
			seen = append(seen, string(r.Body))
			return nil
		}), From("up", Hash(LineKey)))
		ended := false
		store := log.open(exec)
		d, err := Deploy(exec, g, Options{Unaligned: true, BufferSize: 16, Interval: 10 * time.Millisecond, Credit: credit}, store, func(err error) { ended = err == nil })
		require.NoError(t, err)
		log.tap(d)
		d.Start()
		exec.Run(time.Minute)
		require.True(t, ended)
		require.Equal(t, []string{"c", "d", "e", "f", "live at open", "live"}, seen)
		require.Equal(t, 1, store.replayed)

		// Parts that do not fit together are refused.
		log.committed.parts = map[inflight.Task]*memCapture{up: {}, down: {}}
		log.committed.Acks = []Ack{{Task: up, Cuts: []inflight.Cut{{Address: out, Bytes: 60}}}, {Task: down, Cuts: []inflight.Cut{{Address: in, Bytes: 50}}}}
		_, err = Deploy(exec, g, Options{}, log.open(exec), nil)
		require.ErrorContains(t, err, "the input part ends at byte 50, the output part begins at 60")
		log.committed.Acks[0].Cuts[0].Address = inflight.Subpartition{Subpartition: 4}.Address()
		_, err = Deploy(exec, g, Options{}, log.open(exec), nil)
		require.ErrorIs(t, err, inflight.ErrMismatch)
	}
}

// openingSource emits as soon as it is opened.
type openingSource struct{ timerSource }

func (s *openingSource) Open(c *Context) error {
	if err := s.timerSource.Open(c); err != nil {
		return err
	}
	c.Emit(Record{Body: []byte("live at open")})
	return nil
}

func (s *openingSource) Next(c *Context) (Status, error) {
	if s.at.V > 0 {
		return Status{Why: Done}, nil
	}
	s.at.V++
	c.Emit(Record{Body: []byte("live")})
	return Status{}, nil
}
