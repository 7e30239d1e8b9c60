package dataflow

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-io/spillway/inflight"
	"github.com/stretchr/testify/require"
)

// planter damages what is captured, once in each checkpoint that allows it.
type planter struct {
	log  *memLog
	d    *Deployment
	seen map[*memCapture]map[inflight.Address]bool
	hit  map[inflight.CheckpointID]bool // where it took effect
	// forged is what the cut of an input says too little.
	forged map[*memCapture]map[inflight.Address]uint64
	fault  func(p *planter, c *memCapture, d *capturedData, first bool) bool
}

func (p *planter) plant(c *memCapture, d *capturedData) []capturedData {
	if p.seen[c] == nil {
		p.seen[c] = map[inflight.Address]bool{}
	}
	first := !p.seen[c][d.addr]
	p.seen[c][d.addr] = true
	if !p.hit[c.id] && len(d.bufs) > 0 && p.fault(p, c, d, first) {
		p.hit[c.id] = true
	}
	return []capturedData{*d}
}

// dropBuf takes the i-th buffer out.
func dropBuf(d *capturedData, i int) bool {
	if len(d.bufs[i].Bytes()) == 0 {
		return false
	}
	d.bufs[i].Release()
	d.bufs = slices.Delete(slices.Clone(d.bufs), i, i+1)
	return true
}

func (p *planter) connection(c *memCapture, a inflight.Address) (connection, *subpartition) {
	for conn, s := range p.d.connections() {
		if a.Side == inflight.Output && conn.from == c.w.task && conn.partition == a.Output.Partition && conn.to.Subtask == a.Output.Subpartition ||
			a.Side == inflight.Input && conn.to == c.w.task && conn.gate == a.Input.Gate && conn.from.Subtask == a.Input.Channel {
			return conn, s
		}
	}
	panic(fmt.Sprint("no connection ", c.w.task, a))
}

// inputs is how many channels a task has.
func (p *planter) inputs(t inflight.Task) int {
	i := slices.IndexFunc(p.d.tasks, func(o *task) bool { return o.id == t })
	return len(p.d.tasks[i].in.channels)
}

var faults = map[string]func(p *planter, c *memCapture, d *capturedData, first bool) bool{
	"overtaken buffer dropped": func(_ *planter, _ *memCapture, d *capturedData, _ bool) bool {
		return d.addr.Side == inflight.Output && dropBuf(d, 0)
	},
	"arriving buffer not captured": func(_ *planter, _ *memCapture, d *capturedData, first bool) bool {
		return d.addr.Side == inflight.Input && !first && dropBuf(d, 0)
	},
	"unfinished last buffer forgotten": func(_ *planter, _ *memCapture, d *capturedData, _ bool) bool {
		return d.addr.Side == inflight.Output && dropBuf(d, len(d.bufs)-1)
	},
	"partial record forgotten": func(_ *planter, _ *memCapture, d *capturedData, first bool) bool {
		return d.addr.Side == inflight.Input && first && d.bufs[0].(view).seg.home == nil && dropBuf(d, 0)
	},
	"wrong channel": func(p *planter, c *memCapture, d *capturedData, _ bool) bool {
		conn, _ := p.connection(c, d.addr)
		if d.addr.Side != inflight.Input || p.d.opts.parallelism[conn.from.Vertex] < 2 || p.d.edges[0].Kind.Pointwise() {
			return false
		}
		other := d.addr
		other.Input.Channel = (d.addr.Input.Channel + 1) % p.d.opts.parallelism[conn.from.Vertex]
		d.addr = other
		return true
	},
	"barrier behind data": func(p *planter, c *memCapture, d *capturedData, _ bool) bool {
		if d.addr.Side != inflight.Output {
			return false
		}
		conn, s := p.connection(c, d.addr)
		if s.prio.n == 0 || s.reader != nil && p.inputs(conn.to) > 1 {
			return false // of several barriers, another one may begin the snapshot: then no harm is done
		}
		s.q.push(s.prio.pop())
		s.notify(false)
		return true
	},
	"record processed already captured again": func(p *planter, c *memCapture, d *capturedData, first bool) bool {
		if d.addr.Side != inflight.Input || !first || d.pos.Offset == 0 {
			return false
		}
		conn, _ := p.connection(c, d.addr)
		past := p.log.history[conn][:d.pos.Offset]
		at := 0
		for next := 0; next < len(past); next += lengthBytes + int(binary.BigEndian.Uint32(past[next:])) {
			at = next
		}
		n := len(past) - at
		d.pos.Offset -= uint64(n)
		d.bufs = append([]inflight.Buffer{inflight.Bytes(slices.Clone(past[at:]))}, d.bufs...)
		p.forged[c] = map[inflight.Address]uint64{d.addr: uint64(n)}
		return true
	},
	"two buffers of equal length swapped": func(_ *planter, _ *memCapture, d *capturedData, _ bool) bool {
		for i := 1; i < len(d.bufs); i++ {
			a, b := d.bufs[i-1].Bytes(), d.bufs[i].Bytes()
			if len(a) == len(b) && string(a) != string(b) {
				d.bufs = slices.Clone(d.bufs)
				d.bufs[i-1], d.bufs[i] = d.bufs[i], d.bufs[i-1]
				return true
			}
		}
		return false
	},
}

// TestPlantedFaults shows that the proof and the counts can go red: each kind
// of fault is found in every checkpoint that has it, before anybody restores;
// and restoring it loses or doubles records.
func TestPlantedFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			planted, counted := 0, 0
			for seed := uint64(1); seed <= 400 && (planted < max(15/scarce, 6) || counted == 0); seed++ {
				log := newMemLog()
				p := &planter{log: log, fault: fault, seen: map[*memCapture]map[inflight.Address]bool{},
					hit: map[inflight.CheckpointID]bool{}, forged: map[*memCapture]map[inflight.Address]uint64{}}
				log.plant, log.forged = p.plant, p.forged
				res := Simulation{Seed: seed,
					Adjust: func(plan *SimulationPlan) {
						plan.Options.Unaligned, plan.Options.AlignedTimeout = true, 0
						plan.Options.OutputBuffers = 0
					},
					Open:     func(s *Seeded) (Store, error) { return log.open(s), nil },
					Deployed: func(d *Deployment) { p.d = d; log.tap(d) },
				}.Run()
				for id := range p.hit {
					if log.byID[id] == nil {
						continue // not committed
					}
					planted++
					require.True(t, slices.ContainsFunc(log.red, func(s string) bool {
						return strings.HasPrefix(s, fmt.Sprintf("checkpoint %d,", id))
					}), "seed %d: checkpoint %d is damaged, and green; red: %v", seed, id, log.red)
				}
				if res.Bad() {
					counted++
				}
			}
			t.Logf("red in all of %d damaged checkpoints; %d runs with LOSS, DUP or CORRUPT", planted, counted)
			require.Greater(t, planted, 5)
			require.Positive(t, counted)
		})
	}
}
