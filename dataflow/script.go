package dataflow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Fault is one line of a script: what happens to a subtask, and when.
type Fault struct {
	Task       inflight.Task
	Disconnect bool // else a stall, or
	Gone       bool // of a source: nobody can ask it where it stands
	At, For    time.Duration
}

// ParseFault parses for example "source:0:stall@5s+12s",
// "source:1:disconnect@3s+500ms" or "source:0:gone@10s+5s".
func ParseFault(s string) (f Fault, err error) {
	bad := &inflight.Error{Op: "configure", Object: fmt.Sprintf("fault %q", s), Mend: "write VERTEX:SUBTASK:stall|disconnect|gone@START+LENGTH",
		Err: inflight.ErrConfig}
	what, when, _ := strings.Cut(s, "@")
	at, length, _ := strings.Cut(when, "+")
	parts := strings.Split(what, ":")
	if len(parts) != 3 || parts[2] != "stall" && parts[2] != "disconnect" && parts[2] != "gone" {
		return f, bad
	}
	f.Task.Vertex, f.Disconnect, f.Gone = parts[0], parts[2] == "disconnect", parts[2] == "gone"
	var errs [3]error
	f.Task.Subtask, errs[0] = strconv.Atoi(parts[1])
	f.At, errs[1] = time.ParseDuration(at)
	f.For, errs[2] = time.ParseDuration(length)
	if errs != [3]error{} || f.Task.Subtask < 0 || f.At < 0 || f.For < 0 {
		return f, bad
	}
	return f, nil
}

// Disconnecter is a source or operator that can lose its connection, and
// finds a new one by itself.
type Disconnecter interface{ Disconnect() error }

// script is the faults of one subtask.
type script struct {
	faults []Fault
	hit    map[int]bool // disconnects that were done
}

func scriptFor(t inflight.Task, faults []Fault) (s script) {
	s.hit = map[int]bool{}
	for _, f := range faults {
		if f.Task == t {
			s.faults = append(s.faults, f)
		}
	}
	return s
}

// until returns when the fault of this moment ends; 0: there is none.
func (s *script) until(now time.Duration, d any) (end time.Duration, err error) {
	for i, f := range s.faults {
		if now < f.At || now >= f.At+f.For {
			continue
		}
		end = max(end, f.At+f.For)
		if d, ok := d.(Disconnecter); ok && f.Disconnect && !s.hit[i] {
			s.hit[i] = true
			err = d.Disconnect()
		}
	}
	return end, err
}

// gone reports whether nobody can ask the subtask now.
func (s *script) gone(now time.Duration) bool {
	return slices.ContainsFunc(s.faults, func(f Fault) bool { return f.Gone && now >= f.At && now < f.At+f.For })
}

// ScriptedSource makes a source obey a script. While stalled it gives nothing,
// and takes part in checkpoints; while gone it does neither (see
// Options.AllowWithoutSource).
func ScriptedSource(s Source, faults []Fault) Source {
	return &scriptedSource{Source: s, faults: faults}
}

type scriptedSource struct {
	Source
	faults []Fault
	script script
}

func (s *scriptedSource) Open(c *Context) error {
	s.script = scriptFor(c.Task, s.faults)
	return s.Source.Open(c)
}

func (s *scriptedSource) Next(c *Context) (Status, error) {
	if len(s.script.faults) > 0 {
		if end, err := s.script.until(c.Now(), s.Source); end > 0 || err != nil {
			return Status{Why: NoInput, At: end}, err
		}
	}
	return s.Source.Next(c)
}

// ScriptedOperator makes an operator obey a script. While stalled it is busy
// with the record at hand.
func ScriptedOperator(o Operator, faults []Fault) Operator {
	return &scriptedOperator{Operator: o, faults: faults}
}

type scriptedOperator struct {
	Operator
	faults []Fault
	script script
}

func (o *scriptedOperator) Open(c *Context) error {
	o.script = scriptFor(c.Task, o.faults)
	return o.Operator.Open(c)
}

func (o *scriptedOperator) Process(c *Context, r Record) error {
	if err := o.Operator.Process(c, r); err != nil || len(o.script.faults) == 0 {
		return err
	}
	now := max(c.Now(), c.t.busyUntil) // it may be busy with the record already
	end, err := o.script.until(now, o.Operator)
	if end > 0 {
		c.Busy(end - now)
	}
	return err
}
