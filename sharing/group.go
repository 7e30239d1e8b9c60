package sharing

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Key identifies a checkpoint as one coordinator takes it. What belongs to
// different keys never shares a file.
type Key struct {
	Checkpoint inflight.CheckpointID
	Epoch      inflight.Epoch
	Attempt    string
}

// Group is the subtasks that share files. Its methods may be called by several
// goroutines at once.
type Group struct {
	hub  *Hub
	name string // part of file names

	mu       sync.Mutex
	passed   map[inflight.Task]int64 // the subtasks, and the newest checkpoint that each has seen; -1: none
	sessions map[Key]*session
}

// session is one checkpoint of a group. Its plan and files are guarded by the
// group's lock.
type session struct {
	group  *Group
	key    Key
	plan   *Plan
	files  map[int]*File
	timers map[int]*time.Timer
}

// NewGroup returns a group without subtasks. The index is part of file names.
func (h *Hub) NewGroup(index int) *Group {
	return &Group{hub: h, name: "g" + strconv.Itoa(index), passed: map[inflight.Task]int64{}, sessions: map[Key]*session{}}
}

// Join adds t: from now on files wait for it.
func (g *Group) Join(t inflight.Task) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed[t] = -1
}

// Leave removes t, whose streams have been cancelled.
func (g *Group) Leave(t inflight.Task) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.passed, t)
	for _, s := range g.sessions {
		s.do(Event{Kind: Left, Task: t})
	}
}

// Skip says that t will start no checkpoint up to id.
func (g *Group) Skip(t inflight.Task, id inflight.CheckpointID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass(t, id)
}

// pass has nobody wait for t in checkpoints up to id. Those that t has started
// are not concerned.
func (g *Group) pass(t inflight.Task, id inflight.CheckpointID) {
	passed, here := g.passed[t]
	if !here {
		return
	}
	g.passed[t] = max(passed, int64(id))
	for _, s := range g.sessions {
		if s.key.Checkpoint <= id {
			s.do(Event{Kind: Skipped, Task: t})
		}
	}
}

// Start begins what t captures for key. Its checkpoint must be newer than those
// that t has seen. done is called once, when the stream is durable, has failed
// or was cancelled; held counts the bytes of t that are held, where they are
// bounded.
func (g *Group) Start(t inflight.Task, key Key, held *atomic.Int64, done func(Result)) *Stream {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sessions[key]
	if s == nil {
		var expect []inflight.Task
		for t, passed := range g.passed {
			if passed < int64(key.Checkpoint) {
				expect = append(expect, t)
			}
		}
		s = &session{group: g, key: key, plan: NewPlan(expect...), files: map[int]*File{}, timers: map[int]*time.Timer{}}
		g.sessions[key] = s
	}
	s.do(Event{Kind: Started, Task: t})
	g.pass(t, key.Checkpoint)
	if g.hub.PerTask <= 0 {
		held = nil
	}
	return &Stream{task: t, session: s, done: done, held: held}
}

// on tells the plan what happened, and does what it answers.
func (s *session) on(e Event) {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	s.do(e)
}

// join finds the file that packs st, whose lock is held. It answers nil when
// the subtask has left meanwhile.
func (s *session) join(st *Stream) *part {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	var p *part
	for _, a := range s.plan.On(Event{Kind: HasBytes, Task: st.task}) {
		if a.Kind == Join {
			p = s.files[a.File].join(st)
			continue
		}
		s.act(a)
	}
	return p
}

// do is on with the group's lock held.
func (s *session) do(e Event) {
	if e.Kind == FileEnded {
		s.drop(e.File)
	}
	for _, a := range s.plan.On(e) {
		s.act(a)
	}
	if s.plan.Idle() && s.group.sessions[s.key] == s {
		delete(s.group.sessions, s.key)
	}
}

func (s *session) act(a Action) {
	switch a.Kind {
	case Open:
		s.files[a.File] = s.newFile(a.File)
	case Linger:
		s.timers[a.File] = time.AfterFunc(s.group.hub.Linger, func() { s.on(Event{Kind: Lingered, File: a.File}) })
	case Seal:
		s.stopTimer(a.File)
		s.files[a.File].seal()
	case Discard:
		s.files[a.File].cancel()
		s.drop(a.File)
	}
}

// drop forgets a file.
func (s *session) drop(n int) {
	s.stopTimer(n)
	delete(s.files, n)
}

func (s *session) stopTimer(n int) {
	if t := s.timers[n]; t != nil {
		t.Stop()
		delete(s.timers, n)
	}
}
