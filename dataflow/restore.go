package dataflow

import (
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// restore puts back what the base holds. On each connection the order is: the
// input part, which the channel hands out first; the output part, which lies
// in the sender's queue ahead of everything that will be emitted; the mark of
// the end of recovery; live data. The input part may end within a record that
// the output part goes on with.
func (d *Deployment) restore() (bool, error) {
	if d.store == nil {
		return false, nil
	}
	base, ok := d.store.Base()
	if !ok {
		return false, nil
	}
	for _, t := range d.tasks {
		r, err := d.store.Restore(t.id)
		if err == nil && r != nil {
			err = t.putBack(r, d.opts.BufferSize)
		}
		if err != nil {
			return false, &inflight.Error{Op: "restore", Object: fmt.Sprintf("%s of checkpoint %d", t.id, base), Err: err}
		}
	}
	for _, t := range d.tasks {
		t.replaying = len(t.in.channels)
		for _, c := range t.in.channels {
			if d.opts.AtLeastOnce && c.received > c.up.published {
				// It ran ahead of its barrier; what it saw then comes again.
				c.received, c.records = c.up.published, c.up.records
			}
			if err := c.joins(); err != nil {
				return false, &inflight.Error{Op: "restore", Object: fmt.Sprintf("%s %s of checkpoint %d", t.id, c, base), Err: err}
			}
		}
		for _, p := range t.out {
			p.event(&event{kind: evRecovered})
		}
		if t.phase == ended {
			t.endAgain()
			d.coord.ended[t.id] = Finished{t.id, t.cuts()}
			d.coord.drained[t.id] = true
		}
	}
	return true, nil
}

// putBack gives a task its part.
func (t *task) putBack(r *Restored, bufferSize int) error {
	t.restored = r.State
	if t.keepsPast() {
		t.past.Store(&past{cuts: r.Cuts, state: r.State})
	}
	if r.Finished {
		t.phase = ended
	}
	channels := map[inflight.Address]*channel{}
	for _, c := range t.in.channels {
		channels[c.address.Address()] = c
	}
	subs := map[inflight.Address]*subpartition{}
	for _, p := range t.out {
		for i, s := range p.subs {
			subs[p.address(i).Address()] = s
		}
	}
	for _, cut := range r.Cuts {
		if c := channels[cut.Address]; c != nil {
			c.received, c.records = cut.Bytes, cut.Records
		} else if s := subs[cut.Address]; s != nil {
			s.published, s.records = cut.Bytes, cut.Records
		} else {
			return fmt.Errorf("there is no %s: %w", cut.Address, inflight.ErrMismatch)
		}
	}
	for _, data := range r.Input {
		c := channels[data.Address]
		if c == nil {
			return fmt.Errorf("there is no %s: %w", data.Address, inflight.ErrMismatch)
		}
		c.recovered.push(entry{view: view{heapSegment(data.Bytes, data.Pos.Epoch), 0, len(data.Bytes)}})
		c.in.enqueue(c, false)
		if c.conn != nil {
			c.conn.recovering.Store(true)
		}
	}
	for _, data := range r.Output {
		s := subs[data.Address]
		if s == nil {
			return fmt.Errorf("there is no %s: %w", data.Address, inflight.ErrMismatch)
		}
		// A receiver's buffer holds no more than one of ours.
		for b := data.Bytes; len(b) > 0; b = b[min(len(b), bufferSize):] {
			n := min(len(b), bufferSize)
			s.q.push(entry{view: view{s.part.pool.adopt(s.index, b[:n:n], data.Pos.Epoch), 0, n}})
		}
	}
	return nil
}

// joins checks that the input part ends where the output part begins.
func (c *channel) joins() error {
	end := c.received + c.recovered.bytes()
	begin := c.up.published - c.up.q.bytes()
	if end != begin {
		return fmt.Errorf("the input part ends at byte %d, the output part begins at %d: %w", end, begin, inflight.ErrCorrupt)
	}
	c.local.arrived = end
	if c.conn != nil {
		c.conn.persister.arrived = end
	}
	return nil
}

// endAgain tells those downstream that a task which had ended has ended.
func (t *task) endAgain() {
	for _, p := range t.out {
		p.event(&event{kind: evEndOfData})
		p.event(&event{kind: evEnd})
	}
}
