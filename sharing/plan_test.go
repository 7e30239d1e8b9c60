package sharing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var eventNames = map[string]EventKind{
	"started": Started, "bytes": HasBytes, "finished": Finished, "skipped": Skipped, "givenup": GivenUp, "left": Left,
	"lingered": Lingered, "filled": Filled, "sealed": Sealed, "ended": FileEnded,
}

func TestPlanScript(t *testing.T) {
	var p *Plan
	datadriven.RunTest(t, "testdata/plan", func(t *testing.T, d *datadriven.TestData) string {
		var tasks []inflight.Task
		e := Event{Kind: eventNames[d.Cmd]}
		for _, arg := range d.CmdArgs {
			if _, err := fmt.Sscan(arg.Key, &e.File); err != nil {
				tasks = append(tasks, inflight.Task{Vertex: arg.Key})
			}
		}
		if d.Cmd == "new" {
			p = NewPlan(tasks...)
			return ""
		}
		require.NotZero(t, e.Kind, d.Cmd)
		if e.Moved = tasks; len(tasks) > 0 {
			e.Task = tasks[0]
		}
		var b strings.Builder
		for _, a := range p.On(e) {
			fmt.Fprintln(&b, a)
		}
		if p.Idle() {
			fmt.Fprintln(&b, "idle")
		}
		return b.String()
	})
}

// TestPlan drives a plan as files and streams do, in random order, and demands
// what sharing promises.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newPlanWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":       w.invariants,
			"start":  w.start,
			"bytes":  w.bytes,
			"finish": w.finish,
			"skip":   w.skip,
			"giveUp": w.giveUp,
			"leave":  w.leave,
			"full":   w.full,
			"linger": w.linger,
			"close":  w.closeFile,
			"end":    w.endFile,
		})
		w.drain(t)
	})
}

// planWorld is the rest of the world, as a plan sees it.
type planWorld struct {
	plan  *Plan
	tasks []inflight.Task
	is    map[inflight.Task]*planTask
	files map[int]*planFile
}

type planTask struct {
	state string // "", started, finished, out
	file  int    // that it writes to
	more  bool   // something of it is not packed
	ever  bool   // has had bytes
}

type planFile struct {
	members         map[inflight.Task]bool // false: given up
	sealing, sealed bool
	lingers         bool
}

func newPlanWorld(t *rapid.T) *planWorld {
	w := &planWorld{is: map[inflight.Task]*planTask{}, files: map[int]*planFile{}}
	for i := range rapid.IntRange(1, 4).Draw(t, "tasks") {
		w.tasks = append(w.tasks, inflight.Task{Subtask: i})
		w.is[w.tasks[i]] = &planTask{}
	}
	w.plan = NewPlan(w.tasks...)
	return w
}

func (w *planWorld) on(t require.TestingT, e Event) {
	for _, a := range w.plan.On(e) {
		f := w.files[a.File]
		switch a.Kind {
		case Open:
			require.Nil(t, f, "a file is opened once")
			for n, other := range w.files {
				require.True(t, other.sealing, "file %d is opened while %d takes subtasks", a.File, n)
				require.Less(t, n, a.File)
			}
			w.files[a.File] = &planFile{members: map[inflight.Task]bool{}}
		case Join:
			require.NotNil(t, f)
			require.False(t, f.sealing, "file %d takes nobody any more", a.File)
			require.NotContains(t, f.members, a.Task, "a file takes a subtask once")
			f.members[a.Task] = true
			w.is[a.Task].file = a.File
		case Linger:
			require.False(t, f.lingers)
			f.lingers = true
		case Seal:
			require.False(t, f.sealing, "a file is sealed once")
			f.sealing = true
		case Discard:
			require.NotContains(t, slices.Collect(maps.Values(f.members)), true, "a file is discarded that somebody needs")
			delete(w.files, a.File)
		}
	}
}

func (w *planWorld) any(t *rapid.T, states ...string) (inflight.Task, *planTask) {
	var fit []inflight.Task
	for _, k := range w.tasks {
		if slices.Contains(states, w.is[k].state) {
			fit = append(fit, k)
		}
	}
	if len(fit) == 0 {
		t.Skip("nobody")
	}
	k := rapid.SampledFrom(fit).Draw(t, "task")
	return k, w.is[k]
}

func (w *planWorld) start(t *rapid.T) {
	k, s := w.any(t, "", "left")
	*s = planTask{state: "started"}
	w.on(t, Event{Kind: Started, Task: k})
}

func (w *planWorld) bytes(t *rapid.T) {
	k, s := w.any(t, "started")
	s.more, s.ever = true, true
	if s.file == 0 {
		w.on(t, Event{Kind: HasBytes, Task: k})
		require.NotZero(t, s.file)
	}
}

func (w *planWorld) finish(t *rapid.T) {
	k, s := w.any(t, "started")
	s.state = "finished"
	if s.ever && s.file == 0 {
		w.on(t, Event{Kind: HasBytes, Task: k}) // for the complete mark
	}
	w.on(t, Event{Kind: Finished, Task: k})
}

func (w *planWorld) skip(t *rapid.T) {
	k, s := w.any(t, "", "started", "finished", "out", "left")
	if s.state == "" {
		s.state = "out"
	}
	w.on(t, Event{Kind: Skipped, Task: k})
}

func (w *planWorld) giveUp(t *rapid.T) {
	k, s := w.any(t, "started", "finished")
	w.drop(k, s, "out")
	w.on(t, Event{Kind: GivenUp, Task: k})
}

func (w *planWorld) leave(t *rapid.T) {
	k, s := w.any(t, "", "started", "finished", "out")
	w.drop(k, s, "left")
	w.on(t, Event{Kind: Left, Task: k})
}

func (w *planWorld) drop(k inflight.Task, s *planTask, state string) {
	s.state, s.file = state, 0
	for _, f := range w.files {
		if f.members[k] {
			f.members[k] = false
		}
	}
}

func (w *planWorld) file(t *rapid.T, fits func(*planFile) bool) (int, *planFile) {
	var fit []int
	for _, n := range slices.Sorted(maps.Keys(w.files)) {
		if fits(w.files[n]) {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		t.Skip("no file")
	}
	n := rapid.SampledFrom(fit).Draw(t, "file")
	return n, w.files[n]
}

func (w *planWorld) full(t *rapid.T) {
	n, f := w.file(t, func(*planFile) bool { return true })
	w.on(t, Event{Kind: Filled, File: n})
	require.True(t, f.sealing)
}

func (w *planWorld) linger(t *rapid.T) {
	n, f := w.file(t, func(f *planFile) bool { return f.lingers })
	w.on(t, Event{Kind: Lingered, File: n})
	require.True(t, f.sealing)
}

// closeFile ends an encoder: members that have finished may be complete, the
// others go on elsewhere.
func (w *planWorld) closeFile(t *rapid.T) {
	n, f := w.file(t, func(f *planFile) bool { return f.sealing && !f.sealed })
	w.seal(t, n, f, func() bool { return rapid.Bool().Draw(t, "packed") })
}

func (w *planWorld) seal(t require.TestingT, n int, f *planFile, packed func() bool) {
	f.sealed = true
	e := Event{Kind: Sealed, File: n}
	for _, k := range w.tasks {
		s := w.is[k]
		if s.file != n || s.state == "out" || s.state == "left" {
			continue
		}
		if s.state == "finished" && packed() {
			s.more = false // complete; its file stays n
			continue
		}
		s.file = 0
		e.Moved = append(e.Moved, k)
	}
	w.on(t, e)
	for _, k := range e.Moved {
		if s := w.is[k]; s.more || s.state == "finished" {
			w.on(t, Event{Kind: HasBytes, Task: k})
			require.Greater(t, s.file, n)
		}
	}
}

func (w *planWorld) endFile(t *rapid.T) {
	n, _ := w.file(t, func(f *planFile) bool { return f.sealed })
	delete(w.files, n)
	w.on(t, Event{Kind: FileEnded, File: n})
}

func (w *planWorld) invariants(t *rapid.T) {
	for n, f := range w.files {
		if f.sealing {
			continue
		}
		waits, first := false, false
		for _, k := range w.tasks {
			s := w.is[k]
			waits = waits || s.state == "" || s.state == "started" || s.state == "finished" && s.ever && s.file == 0
			first = first || f.members[k] && s.state == "finished" && s.file == n
		}
		require.True(t, waits, "file %d waits for nobody", n)
		require.True(t, f.lingers || !first, "nobody looks at the time of file %d", n)
	}
}

// drain ends everything: no file may be left over.
func (w *planWorld) drain(t *rapid.T) {
	for _, k := range w.tasks {
		switch s := w.is[k]; s.state {
		case "":
			w.on(t, Event{Kind: Skipped, Task: k})
		case "started":
			s.state = "finished"
			if s.ever && s.file == 0 {
				w.on(t, Event{Kind: HasBytes, Task: k})
			}
			w.on(t, Event{Kind: Finished, Task: k})
		}
	}
	for range 100 {
		for _, n := range slices.Sorted(maps.Keys(w.files)) {
			f := w.files[n]
			require.True(t, f.sealing, "file %d is never sealed", n)
			if !f.sealed {
				w.seal(t, n, f, func() bool { return true })
			}
			delete(w.files, n)
			w.on(t, Event{Kind: FileEnded, File: n})
		}
	}
	require.Empty(t, w.files)
	require.True(t, w.plan.Idle())
}
