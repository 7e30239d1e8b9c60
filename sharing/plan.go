package sharing

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// Plan decides which file each subtask of a group writes to during one
// checkpoint, and when a file is sealed. It has no clock and does no I/O: On
// takes what happened and answers what is to be done.
//
// One file at a time takes subtasks. It is opened for the first bytes or cuts, and
// sealed when each subtask that started has finished and the others will not
// come, or some time after the first has finished, or when it is full. Who comes
// later, or has more, goes on in the next file. A file that nobody needs any
// more is discarded.
type Plan struct {
	members map[inflight.Task]*member
	files   map[int]*planned
	open    int // the file that takes subtasks; 0: none
	last    int // the number of the newest file
}

// member is what the plan knows of a subtask.
type member struct {
	phase phase
	owes  bool // its file was sealed before all of it was packed
}

type phase int

const (
	expected phase = iota // it belongs to the group and may start
	started
	finished // everything was handed over; it may not be packed yet
	out      // it was skipped, or given up
)

// planned is a file that exists.
type planned struct {
	live    map[inflight.Task]bool // with bytes in it; false: given up
	lingers bool
}

// EventKind says what happened.
type EventKind int

// The events of a plan. Those about a file of the past are ignored.
const (
	Started   EventKind = iota + 1 // Task began to capture
	HasBytes                       // Task has bytes to pack, or a mark to set, and no file
	Finished                       // Task has handed over everything
	Skipped                        // Task will not start; no effect once it has
	GivenUp                        // Task was aborted or failed
	Left                           // Task has left the group
	Lingered                       // File has waited long enough
	Filled                         // File is to take no more
	Sealed                         // File is encoded to its end; what Moved have left goes elsewhere
	FileEnded                      // File is durable, or has failed
)

// Event is something that happened.
type Event struct {
	Kind  EventKind
	Task  inflight.Task
	File  int
	Moved []inflight.Task
}

// ActionKind says what is to be done.
type ActionKind int

// The actions of a plan.
const (
	Open    ActionKind = iota + 1 // open File
	Join                          // Task writes to File from now on
	Linger                        // tell Lingered after a while
	Seal                          // pack what has finished, then end File
	Discard                       // drop File: nobody needs it
)

// String returns the name of k.
func (k ActionKind) String() string {
	return [...]string{"", "open", "join", "linger", "seal", "discard"}[k]
}

// Action is something to be done.
type Action struct {
	Kind ActionKind
	File int
	Task inflight.Task
}

// String returns for example "join 1 count/0".
func (a Action) String() string {
	if a.Kind == Join {
		return fmt.Sprintf("%s %d %s", a.Kind, a.File, a.Task)
	}
	return fmt.Sprintf("%s %d", a.Kind, a.File)
}

// NewPlan returns the plan for a group in which expect may start.
func NewPlan(expect ...inflight.Task) *Plan {
	p := &Plan{members: map[inflight.Task]*member{}, files: map[int]*planned{}}
	for _, t := range expect {
		p.members[t] = &member{}
	}
	return p
}

// On returns what e leads to, in order.
func (p *Plan) On(e Event) (todo []Action) {
	m := p.members[e.Task]
	if m == nil && (e.Kind == HasBytes || e.Kind == Finished) {
		return nil // it has left meanwhile
	}
	switch e.Kind {
	case Started:
		if _, was := p.lives(p.open)[e.Task]; was {
			todo = p.seal(todo) // the same subtask, begun anew: a file takes it once
		}
		p.members[e.Task] = &member{phase: started}
	case HasBytes:
		if p.open == 0 {
			p.last++
			p.open = p.last
			p.files[p.open] = &planned{live: map[inflight.Task]bool{}}
			todo = append(todo, Action{Kind: Open, File: p.open})
		}
		m.owes = false
		p.files[p.open].live[e.Task] = true
		todo = append(todo, Action{Kind: Join, File: p.open, Task: e.Task})
	case Finished:
		m.phase = finished
	case Skipped:
		if m != nil && m.phase == expected {
			m.phase = out
		}
	case GivenUp:
		todo = p.drop(todo, e.Task)
	case Left:
		todo = p.drop(todo, e.Task)
		delete(p.members, e.Task)
	case Lingered, Filled:
		if e.File == p.open {
			todo = p.seal(todo)
		}
	case Sealed:
		for _, t := range e.Moved {
			if m := p.members[t]; m != nil {
				m.owes = true
			}
		}
	case FileEnded:
		delete(p.files, e.File)
		if e.File == p.open {
			p.open = 0
		}
	}
	return p.settle(todo)
}

// Idle reports whether nothing is going on, so that the plan may be forgotten.
func (p *Plan) Idle() bool {
	for _, m := range p.members {
		if m.phase == started || m.phase == finished && m.owes {
			return false
		}
	}
	return len(p.files) == 0
}

// drop gives t up, and with it the files that only t needed.
func (p *Plan) drop(todo []Action, t inflight.Task) []Action {
	if m := p.members[t]; m != nil {
		m.phase = out
	}
	for _, n := range slices.Sorted(maps.Keys(p.files)) {
		live := p.lives(n)
		if !live[t] {
			continue
		}
		live[t] = false
		if !slices.Contains(slices.Collect(maps.Values(live)), true) {
			todo = append(todo, Action{Kind: Discard, File: n})
			delete(p.files, n)
			if n == p.open {
				p.open = 0
			}
		}
	}
	return todo
}

func (p *Plan) seal(todo []Action) []Action {
	todo = append(todo, Action{Kind: Seal, File: p.open})
	p.open = 0
	return todo
}

// settle looks at the open file after each event.
func (p *Plan) settle(todo []Action) []Action {
	if p.open == 0 {
		return todo
	}
	all, first := true, false
	for t, m := range p.members {
		all = all && (m.phase == out || m.phase == finished && !m.owes)
		first = first || m.phase == finished && !m.owes && p.lives(p.open)[t]
	}
	f := p.files[p.open]
	switch {
	case all:
		return p.seal(todo)
	case first && !f.lingers:
		f.lingers = true
		return append(todo, Action{Kind: Linger, File: p.open})
	}
	return todo
}

// lives returns the subtasks with bytes in file n.
func (p *Plan) lives(n int) map[inflight.Task]bool {
	if f := p.files[n]; f != nil {
		return f.live
	}
	return nil
}
