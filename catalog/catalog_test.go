package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick does not sleep in pauses, and does not repeat for ever.
func quick(l *Log) *Log {
	l.hooks.pause = func(ctx context.Context, try int) error {
		if try > 100 {
			return errors.New("gave up in a test")
		}
		return ctx.Err()
	}
	return l
}

func openLog(t testing.TB, b backends.Backend, o Options) *Log {
	l, err := Open(b, "job", o)
	require.NoError(t, err)
	return quick(l)
}

// content returns a manifest of one subtask with one file of the checkpoint,
// which it writes, and one section in each of the older files given.
func content(t testing.TB, m *memory, p *Pending, older ...format.FileInfo) *format.Manifest {
	own := format.FileInfo{Name: format.StateFileName(p.ID(), "g0", p.Attempt()), FileID: inflight.FileID{byte(p.ID())}, Size: 5}
	require.NoError(t, writeFile(m, own.Name, "state"))
	return manifestOf(p.ID(), "", append(older, own)...)
}

func writeFile(m *memory, name, data string) error {
	return m.call(context.Background(), op{kind: opCreate, name: "job/" + name, data: []byte(data)}).err
}

func manifestOf(id inflight.CheckpointID, lineage string, files ...format.FileInfo) *format.Manifest {
	m := &format.Manifest{Mode: format.ExactlyOnce, Alignment: format.Aligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: "v", Parallelism: 1}}}}
	if lineage != "" {
		m.Topology.Vertices[0].Attributes = map[string]string{"lineage": lineage}
	}
	h := inflight.Handle{Task: inflight.Task{Vertex: "v"}, Checkpoint: id}
	for _, f := range files {
		h.Segments = append(h.Segments, inflight.Segment{File: f.Name, FileID: f.FileID, Offset: 0, Length: 1})
	}
	m.SetHandles([]inflight.Handle{h}, files...)
	return m
}

// commit takes a whole checkpoint.
func commit(t testing.TB, m *memory, c *Coordinator, change ...func(*format.Manifest)) inflight.CheckpointID {
	p, err := c.Begin()
	require.NoError(t, err)
	f := content(t, m, p)
	for _, change := range change {
		change(f)
	}
	require.NoError(t, p.Commit(t.Context(), f))
	return p.ID()
}

func start(t testing.TB, l *Log, o StartOptions) *Coordinator {
	c, err := l.Start(t.Context(), o)
	require.NoError(t, err)
	return c
}

// whole makes sure that the job is as a dead job must be: after a gc that
// claims, what is there is what is referred to.
func whole(t testing.TB, m *memory) {
	t.Helper()
	m.hook = nil
	m.deliver()
	l := openLog(t, m, Options{})
	_, err := l.GC(context.Background(), GCOptions{Fence: true})
	require.NoError(t, err)
	want := map[string]bool{}
	slots, err := l.List(context.Background())
	require.NoError(t, err)
	for _, s := range slots {
		require.True(t, s.Kept, "slot %d is left", s.ID)
		require.Empty(t, s.Findings)
		want[l.dir(s.ID)+"/"+format.ManifestName] = true
		for _, f := range s.Manifest.Files {
			want[l.path(f.Name)] = true
		}
	}
	for _, n := range m.names() {
		require.True(t, want[n] || strings.HasSuffix(n, format.StatsName), "%s is left", n)
		delete(want, n)
	}
	require.Empty(t, want, "missing")
}

func kinds(slots []Slot) (s []string) {
	for _, l := range slots {
		s = append(s, fmt.Sprintf("%d %s %s", l.ID, l.Kind, l.State))
	}
	return s
}

func TestLifeOfAJob(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	_, err := l.Latest(t.Context())
	require.ErrorIs(t, err, inflight.ErrNotExist)

	c := start(t, l, StartOptions{})
	require.Nil(t, c.Base())
	require.EqualValues(t, 0, c.Epoch())
	require.EqualValues(t, 1, commit(t, m, c))
	require.EqualValues(t, 2, commit(t, m, c))
	require.NoError(t, c.Retire(t.Context()))
	require.Equal(t, []string{"job/chk-0000000002/_manifest.json", "job/chk-0000000002/g0-" + c.Attempt() + ".cstate"}, m.names())

	d := start(t, l, StartOptions{})
	require.EqualValues(t, 3, d.Epoch())
	require.EqualValues(t, 2, d.Base().Manifest.ID)
	_, err = c.Begin()
	require.NoError(t, err) // it does not know yet
	require.ErrorIs(t, c.Retire(t.Context()), inflight.ErrFenced)
	_, err = c.Begin()
	require.ErrorIs(t, err, inflight.ErrFenced)

	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, latest.Manifest.ID)
	require.Equal(t, "job/chk-0000000002", latest.Dir)
}

func TestRetained(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{Retained: 3})
	c := start(t, l, StartOptions{})
	for range 6 {
		commit(t, m, c)
		require.NoError(t, c.Retire(t.Context()))
	}
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"4 checkpoint completed", "5 checkpoint completed", "6 checkpoint completed"}, kinds(slots))

	// Going back to 5 passes 6 over; what is older than 5 stays on the chain.
	d := start(t, l, StartOptions{Base: BaseID, ID: 5})
	require.EqualValues(t, 5, d.Base().Manifest.ID)
	require.Equal(t, []inflight.CheckpointID{6}, d.claim.PassedOver)
	require.Equal(t, []inflight.CheckpointID{4, 5}, d.claim.Keep)
	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, latest.Manifest.ID)
	d.ReplayDone()
	require.EqualValues(t, 8, commit(t, m, d))
	require.Equal(t, []inflight.CheckpointID{4, 5}, d.tip.Keep)
	require.NoError(t, d.Retire(t.Context()))
	_, err = l.Load(t.Context(), 6)
	require.ErrorIs(t, err, inflight.ErrRetired)
	_, err = l.Start(t.Context(), StartOptions{Base: BaseID, ID: 6})
	require.ErrorIs(t, err, inflight.ErrRetired)
	require.ErrorContains(t, err, "go back to is 8")
	whole(t, m)
}

func TestBaseIsPinnedUntilReplayDone(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	base := commit(t, m, start(t, l, StartOptions{}))
	c := start(t, l, StartOptions{})
	for range 3 {
		id := commit(t, m, c)
		require.NoError(t, c.Retire(t.Context()))
		require.Contains(t, c.tip.Keep, base, "commit %d", id)
	}
	require.NoError(t, c.Retire(t.Context()))
	_, err := l.Load(t.Context(), base)
	require.NoError(t, err)
	c.ReplayDone()
	commit(t, m, c)
	require.NoError(t, c.Retire(t.Context()))
	_, err = l.Load(t.Context(), base)
	require.ErrorIs(t, err, inflight.ErrRetired)
	require.Len(t, m.names(), 2)
	whole(t, m)
}

func TestCheckpointDuringRecoveryRefersToItsBase(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	commit(t, m, start(t, l, StartOptions{}))
	c := start(t, l, StartOptions{})
	old := c.Base().Manifest.Files
	p, err := c.Begin()
	require.NoError(t, err)
	f := content(t, m, p, old...)
	c.ReplayDone() // before the commit: the name of the base goes, its file stays
	require.NoError(t, p.Commit(t.Context(), f))
	require.NoError(t, c.Retire(t.Context()))
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"3 checkpoint completed"}, kinds(slots))
	require.False(t, slots[0].Manifest.SelfContained)
	require.Contains(t, m.names(), "job/"+old[0].Name)
	require.EqualValues(t, 5+5, slots[0].Manifest.FileBytes())
	// The next one does not refer to it any more.
	commit(t, m, c)
	require.True(t, c.tip.SelfContained)
	require.NoError(t, c.Retire(t.Context()))
	require.NotContains(t, m.names(), "job/"+old[0].Name)
	whole(t, m)
}

func TestSavepointsStay(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	c := start(t, l, StartOptions{})
	commit(t, m, c)
	savepoint := commit(t, m, c, func(f *format.Manifest) { f.Savepoint = true })
	for range 3 {
		commit(t, m, c)
		require.NoError(t, c.Retire(t.Context()))
	}
	d := start(t, l, StartOptions{Base: BaseFresh}) // also across starts
	commit(t, m, d)
	require.NoError(t, d.Retire(t.Context()))
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"2 savepoint completed", "7 checkpoint completed"}, kinds(slots))

	_, err = l.GC(t.Context(), GCOptions{Release: []inflight.CheckpointID{savepoint}})
	require.ErrorIs(t, err, inflight.ErrConfig)
	_, err = l.GC(t.Context(), GCOptions{Fence: true, Release: []inflight.CheckpointID{savepoint}})
	require.NoError(t, err)
	_, err = l.Load(t.Context(), savepoint)
	require.ErrorIs(t, err, inflight.ErrRetired)
	whole(t, m)
}

func TestReleaseAndPins(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	c := start(t, l, StartOptions{})
	savepoint := commit(t, m, c, func(f *format.Manifest) { f.Savepoint = true })
	pinned := commit(t, m, c)
	require.NoError(t, c.Pin(pinned))
	require.NoError(t, c.Pin(pinned))
	require.ErrorIs(t, c.Pin(0), inflight.ErrRetired)
	commit(t, m, c)
	require.Equal(t, []inflight.CheckpointID{savepoint, pinned}, c.tip.Keep)
	c.Unpin(pinned)
	c.Release(savepoint)
	commit(t, m, c)
	require.Equal(t, []inflight.CheckpointID{pinned}, c.tip.Keep)
	c.Unpin(pinned)
	commit(t, m, c)
	require.Empty(t, c.tip.Keep)
	require.ErrorIs(t, c.Pin(pinned), inflight.ErrRetired)
	require.NoError(t, c.Retire(t.Context()))
	whole(t, m)
}

func TestFreshStartKeepsTheOldUntilItsFirstCommit(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	old := commit(t, m, start(t, l, StartOptions{}))
	c := start(t, l, StartOptions{Base: BaseFresh})
	require.Nil(t, c.Base())
	require.EqualValues(t, 2, c.Epoch())
	_, err := l.Latest(t.Context())
	require.ErrorIs(t, err, inflight.ErrNotExist)
	require.NoError(t, c.Retire(t.Context()))
	d := start(t, l, StartOptions{Base: BaseID, ID: old}) // back to it by an explicit wish
	require.Equal(t, old, d.Base().Manifest.ID)
	e := start(t, l, StartOptions{Base: BaseFresh})
	commit(t, m, e)
	require.NoError(t, e.Retire(t.Context()))
	_, err = l.Load(t.Context(), old)
	require.ErrorIs(t, err, inflight.ErrRetired)
	whole(t, m)
}

func TestCommitRefusesWhatIsNotThere(t *testing.T) {
	for name, change := range map[string]func(*memory, *format.Manifest){
		"file missing":       func(m *memory, f *format.Manifest) { delete(m.objects, "job/"+f.Files[0].Name) },
		"file of other size": func(m *memory, f *format.Manifest) { m.objects["job/"+f.Files[0].Name] = []byte("short")[:4] },
		"subtask missing":    func(m *memory, f *format.Manifest) { f.Topology.Vertices[0].Parallelism = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			l := openLog(t, m, Options{})
			c := start(t, l, StartOptions{})
			p, err := c.Begin()
			require.NoError(t, err)
			f := content(t, m, p)
			change(m, f)
			err = p.Commit(t.Context(), f)
			require.ErrorIs(t, err, inflight.ErrIncomplete)
			var incomplete *IncompleteError
			require.ErrorAs(t, err, &incomplete)
			require.Len(t, incomplete.Findings, 1)
			committed, err := p.Abort(t.Context(), format.Cause{Kind: format.CauseFailed, Reason: "incomplete", Text: err.Error()})
			require.NoError(t, err)
			require.False(t, committed)
			require.ErrorIs(t, p.Commit(t.Context(), f), inflight.ErrAborted)
			slots, err := l.List(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"0 claim ", "1 checkpoint failed"}, kinds(slots))
			whole(t, m)
		})
	}
	t.Run("partial", func(t *testing.T) {
		m := newMemory()
		c := start(t, openLog(t, m, Options{}), StartOptions{})
		commit(t, m, c, func(f *format.Manifest) { f.Topology.Vertices[0].Parallelism, f.Partial = 2, true })
	})
	t.Run("size not known", func(t *testing.T) {
		m := newMemory()
		c := start(t, openLog(t, m, Options{}), StartOptions{})
		commit(t, m, c, func(f *format.Manifest) { f.Files[0].Size = 0 })
		require.EqualValues(t, 5, c.tip.Files[0].Size)
	})
	t.Run("not valid", func(t *testing.T) {
		m := newMemory()
		c := start(t, openLog(t, m, Options{}), StartOptions{})
		p, err := c.Begin()
		require.NoError(t, err)
		f := content(t, m, p)
		f.Mode = "sometimes"
		require.ErrorIs(t, p.Commit(t.Context(), f), inflight.ErrCorrupt)
		f.Mode = format.ExactlyOnce
		require.Nil(t, p.Checkpoint())
		require.NoError(t, p.Commit(t.Context(), f), "repeatable")
		require.NoError(t, p.Commit(t.Context(), f), "repeatable")
		require.EqualValues(t, 5+len(m.objects[entryName(1)]), p.Checkpoint().SizeBytes())
	})
}

func TestConcurrentCheckpoints(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{MaxConcurrent: 2})
	var events []string
	l.o.Observer = inflight.ObserverFunc(func(e inflight.Event) { events = append(events, fmt.Sprint(e.Name, " ", e.Checkpoint)) })
	c := start(t, l, StartOptions{})
	one, err := c.Begin()
	require.NoError(t, err)
	two, err := c.Begin()
	require.NoError(t, err)
	_, err = c.Begin()
	require.ErrorIs(t, err, inflight.ErrOrder)
	require.EqualValues(t, []inflight.CheckpointID{1, 2}, []inflight.CheckpointID{one.ID(), two.ID()})
	require.NoError(t, two.Commit(t.Context(), content(t, m, two)))
	require.ErrorIs(t, one.Commit(t.Context(), content(t, m, one)), inflight.ErrSubsumed)
	committed, err := one.Abort(t.Context(), format.Cause{Reason: "late"})
	require.NoError(t, err)
	require.False(t, committed)
	three, err := c.Begin()
	require.NoError(t, err)
	four, err := c.Begin()
	require.NoError(t, err)
	_, err = four.Abort(t.Context(), format.Cause{Kind: format.CauseDeclined, Reason: "over-budget"})
	require.NoError(t, err)
	require.NoError(t, three.Commit(t.Context(), content(t, m, three)))
	five, err := c.Begin()
	require.NoError(t, err)
	require.NoError(t, five.Commit(t.Context(), content(t, m, five)))
	slots, err := l.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"0 claim ", "1 checkpoint aborted", "2 checkpoint completed", "3 checkpoint completed", "4 checkpoint declined", "5 checkpoint completed"}, kinds(slots))
	require.Equal(t, "subsumed", slots[1].Manifest.Cause.Reason)
	require.NoError(t, c.Retire(t.Context()))
	require.Equal(t, []string{"claimed 0", "aborted 1", "committed 2", "committed 3", "aborted 4", "committed 5", "retired 5"}, events)
	whole(t, m)
}

func TestStats(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	c := start(t, l, StartOptions{})
	id := commit(t, m, c)
	require.NoError(t, c.WriteStats(t.Context(), &format.CheckpointStats{ID: id, State: string(StateCompleted), DurationMS: 1.5}))
	require.NoError(t, c.Retire(t.Context()))
	s, err := format.DecodeStats(m.objects["job/chk-0000000001/_stats.json"])
	require.NoError(t, err)
	require.Equal(t, 1.5, s.DurationMS)
	commit(t, m, c)
	require.NoError(t, c.Retire(t.Context()))
	require.NotContains(t, m.names(), "job/chk-0000000001/_stats.json")
	require.NoError(t, c.WriteStats(t.Context(), &format.CheckpointStats{ID: id}))
	require.NotContains(t, m.names(), "job/chk-0000000001/_stats.json", "late ones bring nothing back")
	whole(t, m)
}

func TestNames(t *testing.T) {
	m := newMemory()
	for _, bad := range []string{"a/b", "..", ".x", "_x", "a b", "chk-0000000001", "ä", strings.Repeat("x", 256)} {
		_, err := Open(m, bad, Options{})
		require.ErrorIs(t, err, inflight.ErrConfig, bad)
	}
	for _, job := range []string{"b", "a"} {
		l, err := Open(m, job, Options{})
		require.NoError(t, err)
		require.Equal(t, job, l.Job())
		start(t, quick(l), StartOptions{})
	}
	m.objects["empty/file"] = nil
	jobs, err := Jobs(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, jobs)

	root, err := Open(newMemory(), "", Options{}) // the root is the job's directory
	require.NoError(t, err)
	start(t, quick(root), StartOptions{})
	slots, err := root.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"0 claim "}, kinds(slots))
}

func TestBothFormsOfAnEntry(t *testing.T) {
	m := newMemory()
	l := openLog(t, m, Options{})
	id := commit(t, m, start(t, l, StartOptions{}))
	dir := "job/chk-0000000001/"
	m.objects[dir+"_manifest.json/o"] = m.objects[dir+"_manifest.json"]
	delete(m.objects, dir+"_manifest.json")
	latest, err := l.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, id, latest.Manifest.ID)
	_, err = l.Load(t.Context(), id)
	require.NoError(t, err)
	c := start(t, l, StartOptions{})
	c.ReplayDone()
	commit(t, m, c)
	require.NoError(t, c.Retire(t.Context()))
	require.Len(t, m.names(), 2)
}

// noExclusive is a store that cannot create exclusively.
type noExclusive struct{ *memory }

func (noExclusive) Capabilities() backends.Capabilities {
	return backends.Capabilities{AtomicList: true}
}

func TestStartNeedsExclusiveCreate(t *testing.T) {
	_, err := openLog(t, noExclusive{newMemory()}, Options{}).Start(t.Context(), StartOptions{})
	require.ErrorIs(t, err, inflight.ErrUnsupported)
}

// TestBaseWishText takes what MarshalText writes, and nothing else.
func TestBaseWishText(t *testing.T) {
	for _, w := range []BaseWish{BaseLatest, BaseFresh} {
		text, err := w.MarshalText()
		require.NoError(t, err)
		back := BaseID
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, w, back)
	}
	for _, text := range []string{"", "7", "Latest", "latest "} {
		w := BaseID
		require.ErrorIs(t, w.UnmarshalText([]byte(text)), inflight.ErrConfig)
		require.Equal(t, BaseID, w)
	}
}

// TestStartBesideOneThatGoesOn: the slot that a start has chosen is filled and
// retired by the coordinator that it is to fence. The start has claimed below the
// top then; it begins again, and the newer one wins.
func TestStartBesideOneThatGoesOn(t *testing.T) {
	m := newMemory()
	older := start(t, openLog(t, m, Options{}), StartOptions{})
	commit(t, m, older)
	wentOn := false
	l := openLog(t, m.via(func(o op) fault {
		if o.kind == opCreate && strings.HasSuffix(o.name, format.ManifestName) && !wentOn {
			wentOn = true
			for range 3 {
				commit(t, m, older)
			}
			require.NoError(t, older.Retire(t.Context()))
		}
		return fault{}
	}), Options{})
	newer := start(t, l, StartOptions{})
	require.True(t, wentOn)
	require.EqualValues(t, 4, newer.Base().Manifest.ID)
	p, err := older.Begin()
	require.NoError(t, err)
	require.ErrorIs(t, p.Commit(t.Context(), content(t, m, p)), inflight.ErrFenced)
	newer.ReplayDone()
	commit(t, m, newer)
}
