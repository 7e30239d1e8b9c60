package attach

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
)

// planter damages what is captured, once in each checkpoint that allows it.
type planter struct {
	w     *world
	seen  map[*simCapture]map[inflight.Address]bool
	hit   map[attempt]bool // where it took effect
	fault fault
}

// fault damages d, which may be the first of its address; it reports whether it
// has.
type fault func(w *world, c *simCapture, d *data, first bool) bool

func (p *planter) plant(c *simCapture, d *data) {
	if p.seen[c] == nil {
		p.seen[c] = map[inflight.Address]bool{}
	}
	first := !p.seen[c][d.addr]
	p.seen[c][d.addr] = true
	at := attempt{p.w.newest, c.id}
	if at.by.spoilt {
		return // twice may be as good as never
	}
	if !p.hit[at] && len(d.bufs) > 0 && p.fault(p.w, c, d, first) {
		p.hit[at] = true
	}
}

// dropBuf takes the i-th buffer out.
func dropBuf(d *data, i int) bool {
	if len(d.bufs[i].Bytes()) == 0 {
		return false
	}
	d.bufs[i].Release()
	d.bufs = slices.Delete(slices.Clone(d.bufs), i, i+1)
	return true
}

// record returns the length of the record that p begins with; 0: it is not whole.
func record(p []byte) int {
	if len(p) < 4 || int(binary.BigEndian.Uint32(p)) > len(p)-4 {
		return 0
	}
	return 4 + int(binary.BigEndian.Uint32(p))
}

// forge makes the cut of an input say something else.
func (c *simCapture) forge(a inflight.Address, change func(*inflight.Cut)) {
	c.cuts = func(cuts []inflight.Cut) []inflight.Cut {
		change(&cuts[slices.IndexFunc(cuts, func(k inflight.Cut) bool { return k.Address == a })])
		return cuts
	}
}

var faults = map[string]fault{
	"overtaken buffer dropped": func(_ *world, _ *simCapture, d *data, _ bool) bool {
		return d.addr.Side == inflight.Output && dropBuf(d, 0)
	},
	"arriving buffer not captured": func(_ *world, _ *simCapture, d *data, first bool) bool {
		return d.addr.Side == inflight.Input && !first && dropBuf(d, 0)
	},
	"unfinished last buffer forgotten": func(_ *world, _ *simCapture, d *data, _ bool) bool {
		return d.addr.Side == inflight.Output && dropBuf(d, len(d.bufs)-1)
	},
	"partial record forgotten": func(_ *world, _ *simCapture, d *data, first bool) bool {
		return d.addr.Side == inflight.Input && first && record(d.bufs[0].Bytes()) == 0 && dropBuf(d, 0)
	},
	"wrong channel": func(w *world, c *simCapture, d *data, _ bool) bool {
		if d.addr.Side != inflight.Input {
			return false
		}
		n := w.topology.Vertex(w.connection(c.t, d.addr).From.Vertex).Parallelism
		d.addr.Input.Channel = (d.addr.Input.Channel + 1) % n
		return n > 1
	},
	// The receiver has processed a record before its barrier, which stands behind it.
	"barrier behind data": func(_ *world, c *simCapture, d *data, first bool) bool {
		n := record(d.bufs[0].Bytes())
		if d.addr.Side != inflight.Input || !first || n == 0 || c.told {
			return false
		}
		c.forge(d.addr, func(k *inflight.Cut) { k.Bytes, k.Records = k.Bytes+uint64(n), k.Records+1 })
		return true
	},
	"record processed already captured again": func(w *world, c *simCapture, d *data, first bool) bool {
		if d.addr.Side != inflight.Input || !first || d.pos.Offset == 0 || c.told {
			return false
		}
		past := w.newest.history[w.connection(c.t, d.addr)][:d.pos.Offset]
		n := 0
		for n = record(past); n < len(past); n = record(past) {
			past = past[n:]
		}
		d.pos.Offset -= uint64(n)
		d.bufs = append([]inflight.Buffer{inflight.Bytes(slices.Clone(past))}, d.bufs...)
		c.forge(d.addr, func(k *inflight.Cut) { k.Bytes -= uint64(n) })
		return true
	},
	"two buffers of equal length swapped": func(_ *world, _ *simCapture, d *data, _ bool) bool {
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

// blind are the faults that a proof in bytes does not see: they are committed, and
// the proof in records or the digest finds them.
var blind = []string{"record processed already captured again", "two buffers of equal length swapped"}

// TestPlantedFaults shows that what keeps damaged checkpoints from being restored
// can go red: each is refused before it is committed, or found by what verify
// does. What is not refused shows in the counts if it is restored.
func TestPlantedFaults(t *testing.T) {
	want := max(20/scarce, 2)
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			refused, red, counted := 0, 0, 0
			sees := !slices.Contains(blind, name)
			for seed := uint64(1); seed <= 400 && (refused+red < want || !sees && counted == 0); seed++ {
				p := &planter{fault: fault, seen: map[*simCapture]map[inflight.Address]bool{}, hit: map[attempt]bool{}}
				res, w := simulate(t, seed, func(plan *dataflow.SimulationPlan) {
					plan.Options.Unaligned, plan.Options.AlignedTimeout, plan.Options.OutputBuffers = true, 0, 0
				}, func(w *world) {
					p.w, w.plant, w.alone, w.limit = w, p.plant, true, 2*time.Second // what restores damage may hang
					w.flaky, w.lost, w.late, w.doubled = 0, 0, 0, 0
				})
				for at := range p.hit {
					id := at.id
					switch e := w.committed[id]; {
					case w.refused[at]:
						refused++
					case e != nil && e.by == at.by:
						red++
						require.True(t, slices.ContainsFunc(w.red, func(s string) bool {
							return strings.HasPrefix(s, fmt.Sprintf("checkpoint %d:", id))
						}), "seed %d: checkpoint %d is damaged, and green; red: %v", seed, id, w.red)
					}
				}
				if res.Bad() {
					counted++
				}
			}
			t.Logf("%d damaged checkpoints were refused, %d found; %d runs with LOSS, DUP or CORRUPT", refused, red, counted)
			require.GreaterOrEqual(t, refused+red, want)
			if sees {
				require.Zero(t, red)
				require.Zero(t, counted)
			} else {
				require.Positive(t, counted)
			}
		})
	}
}
