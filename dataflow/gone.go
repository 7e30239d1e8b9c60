package dataflow

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// ErrSourceGone is why a checkpoint fails: a source subtask is gone, and has
// emitted records since its last acknowledged checkpoint, or may not be missing.
var ErrSourceGone = errors.New("the source subtask is gone")

// past is what the last acknowledged checkpoint has of a source subtask. While
// the source is gone it stands for its state, as long as nothing was emitted
// since: what lies in its queues is captured as ever.
type past struct {
	cuts  []inflight.Cut
	state map[inflight.StateName][]byte
}

func (p *past) keep(name inflight.StateName, b []byte) {
	if p.state == nil {
		p.state = map[inflight.StateName][]byte{}
	}
	p.state[name] = append(p.state[name], b...)
}

// keepsPast reports whether t may be gone one day.
func (t *task) keepsPast() bool { return t.src != nil && t.opts.AllowWithoutSource }

// sourceGone reports whether nobody can ask the source of t.
func (t *task) sourceGone() bool {
	s, scripted := t.src.(*scriptedSource)
	return scripted && s.script.gone(t.exec.Now())
}

// pastOfSource returns what stands for a source that is gone; nil: it is there.
func (t *task) pastOfSource() (*past, error) {
	if !t.sourceGone() {
		return nil, nil
	}
	p := t.past.Load()
	switch {
	case !t.opts.AllowWithoutSource:
		return nil, fmt.Errorf("%w, and unaligned.allow-without-source is false", ErrSourceGone)
	case p == nil:
		return nil, fmt.Errorf("%w, and was in no checkpoint before", ErrSourceGone)
	case !slices.EqualFunc(p.cuts, t.cuts(), func(a, b inflight.Cut) bool {
		return a.Address == b.Address && a.Bytes == b.Bytes && a.Records == b.Records
	}):
		return nil, fmt.Errorf("%w, and has emitted records since its last checkpoint", ErrSourceGone)
	}
	return p, nil
}

// freeze takes the picture of all state; that of a source that is gone is p's.
func (t *task) freeze(p *past) []Frozen {
	frozen := make([]Frozen, len(t.states))
	for i, ns := range t.states {
		if p != nil {
			frozen[i] = FrozenBytes(p.state[ns.name])
		} else {
			frozen[i] = ns.s.Freeze()
		}
	}
	return frozen
}
