package dataflow

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Simulation runs a random job under a seed, with crashes and messages that
// are lost, late or doubled, and counts what became of its records. The store
// is the caller's: an in-memory one here, the real format elsewhere.
type Simulation struct {
	Seed uint64
	// Open claims the job for one more incarnation. It is called again after a
	// crash: what was not durable is gone, what was must be there.
	Open func(*Seeded) (Store, error)
	// Limit is virtual; a run that takes longer hangs. Default 5 minutes.
	Limit time.Duration
	// Adjust changes what the seed has chosen; may be nil.
	Adjust func(*SimulationPlan)
	// Deployed is called for each incarnation before it starts; may be nil.
	Deployed func(*Deployment)
	// Zombie is asked where an incarnation is to crash; if it says so, that one
	// goes on beside the next one, and must end as fenced. Nil: never.
	Zombie func() bool
	// Again is asked whether a job that ended with this error is started again.
	// Nil: never.
	Again func(error) bool
}

// SimulationPlan is what a seed chooses.
type SimulationPlan struct {
	Options Options
	Records int // of each source subtask
	MaxBody int
	Crashes []time.Duration
	// Lose and Double are how many of 1,000 messages are lost or doubled; they
	// take up to SendTime.
	Lose, Double int
	SendTime     time.Duration
	Vertices     []SimulationVertex
}

// SimulationVertex is one vertex of a random graph.
type SimulationVertex struct {
	Name        string
	Kind        string // source, fan, keyed, chain, window, sink
	Parallelism int
	Busy        time.Duration
	Inputs      []Input
}

// SimulationResult is how a run went. Lost, Doubled and Corrupt must be 0 and
// Hang empty.
type SimulationResult struct {
	Plan                   SimulationPlan
	Steps                  int
	Time                   time.Duration
	Checkpoints, Failed    int
	TimedOut               int // of Failed
	Unaligned              int // of Checkpoints, in part at least
	Crashes                int
	Restored               int // incarnations that began from a checkpoint
	Fenced                 int // that went on beside the next one
	Lost, Doubled, Corrupt int
	Hang                   string
	Err                    error
}

// Bad reports whether anything went wrong.
func (r SimulationResult) Bad() bool {
	return r.Lost+r.Doubled+r.Corrupt > 0 || r.Hang != "" || r.Err != nil
}

// String returns a line that says all.
func (r SimulationResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "LOSS %d DUP %d CORRUPT %d; %d checkpoints (%d not aligned), %d failed, %d crashes, %d steps, %v",
		r.Lost, r.Doubled, r.Corrupt, r.Checkpoints, r.Unaligned, r.Failed, r.Crashes, r.Steps, r.Time)
	if r.Err != nil {
		fmt.Fprintf(&b, "\n%v", r.Err)
	}
	if r.Hang != "" {
		fmt.Fprintf(&b, "\nhangs %s", r.Hang)
	}
	for _, v := range r.Plan.Vertices {
		fmt.Fprintf(&b, "\n  %s ×%d %s", v.Name, v.Parallelism, v.Kind)
		for _, in := range v.Inputs {
			fmt.Fprintf(&b, " ←%s %s", in.Partitioner.Kind, in.Vertex)
		}
	}
	return b.String()
}

// simulation is a run in progress.
type simulation struct {
	Simulation
	plan  SimulationPlan
	res   SimulationResult
	sinks map[inflight.Task]*simSink
	// zombies are how many incarnations are at work beside the newest one.
	zombies int
	failed  bool // the last incarnation did not crash, it ended
}

// Run runs the simulation to its end.
func (c Simulation) Run() SimulationResult {
	s := &simulation{Simulation: c, plan: planOf(c.Seed)}
	s.Limit = cmp.Or(s.Limit, 5*time.Minute)
	if c.Adjust != nil {
		c.Adjust(&s.plan)
	}
	s.sinks = map[inflight.Task]*simSink{}
	exec := NewSeeded(c.Seed)
	exec.Lose, exec.Double, exec.SendTime = s.plan.Lose, s.plan.Double, s.plan.SendTime
	s.res.Plan = s.plan
	for {
		ended, err := s.incarnation(exec)
		if err != nil || ended {
			s.res.Err = err
			break
		}
		s.res.Crashes++
		if !s.failed && s.Zombie != nil && s.Zombie() {
			s.zombies++
			continue
		}
		exec.Crash()
		s.zombies = 0
	}
	s.outlive(exec)
	s.res.Steps, s.res.Time = exec.Steps, exec.Now()
	if s.res.Err == nil && s.res.Hang == "" {
		s.count()
	}
	return s.res
}

// incarnation runs the job from its last checkpoint to its end, or to the next
// crash.
func (s *simulation) incarnation(exec *Seeded) (ended bool, err error) {
	store, err := s.Open(exec)
	if err != nil {
		return false, err
	}
	if _, ok := store.Base(); ok {
		s.res.Restored++
	}
	o := s.plan.Options
	o.OnCheckpoint = func(r CheckpointResult) {
		switch {
		case !r.Completed:
			s.res.Failed++
			if r.Reason == ReasonTimeout {
				s.res.TimedOut++
				if o.Trace != nil {
					o.Trace(TraceEvent{At: exec.Now(), Point: PointFailed, Checkpoint: r.ID, Text: exec.Report()})
				}
			}
		default:
			s.res.Checkpoints++
			if r.Alignment() != "aligned" {
				s.res.Unaligned++
			}
		}
	}
	var result error
	me := s.res.Crashes
	d, err := Deploy(exec, s.graph(), o, store, func(err error) {
		if me < s.res.Crashes {
			s.superseded(err)
			return
		}
		ended, result = true, err
	})
	if err != nil {
		return false, err
	}
	if s.Deployed != nil {
		s.Deployed(d)
	}
	d.Start()
	if exec.Rand.IntN(4) == 0 {
		exec.At(exec.Now()+exec.random(50*time.Millisecond), func() { d.Savepoint(func(CheckpointResult) {}) })
	}
	until := s.Limit
	if s.res.Crashes < len(s.plan.Crashes) {
		until = exec.Now() + s.plan.Crashes[s.res.Crashes]
	}
	idle := exec.Run(until)
	s.failed = false
	switch {
	case ended && result != nil && s.Again != nil && s.Again(result):
		s.failed = true
		return false, nil
	case ended:
		return true, result
	case idle || until == s.Limit:
		s.res.Hang = exec.Report()
		return true, nil
	}
	return false, nil
}

// superseded takes the end of an incarnation beside a newer one. It is fenced,
// unless it came to its end before the newer one had begun.
func (s *simulation) superseded(err error) {
	s.zombies--
	switch {
	case errors.Is(err, inflight.ErrFenced):
		s.res.Fenced++
	case err != nil && (s.Again == nil || !s.Again(err)):
		s.res.Err = fmt.Errorf("a superseded incarnation: %w", err)
	}
}

// outlive lets incarnations that were superseded come to their end.
func (s *simulation) outlive(exec *Seeded) {
	for s.zombies > 0 && s.res.Err == nil && s.res.Hang == "" {
		if idle := exec.Run(exec.Now() + time.Millisecond); s.zombies > 0 && (idle || exec.Now() > s.Limit) {
			s.res.Hang = "after it was superseded, " + exec.Report()
		}
	}
}

// count compares what the sinks have seen with what they should.
func (s *simulation) count() {
	for _, v := range s.plan.Vertices {
		if v.Kind != "sink" {
			continue
		}
		seen := map[string]int64{}
		for sub := range v.Parallelism {
			s.sinks[inflight.Task{Vertex: v.Name, Subtask: sub}].counts.each(func(key string, n *int64) { seen[key] += *n })
		}
		for id := range s.ids() {
			want, got := s.times(v.Name, id), seen[id]
			s.res.Lost += int(max(0, want-got))
			s.res.Doubled += int(max(0, got-want))
			delete(seen, id)
		}
		s.res.Corrupt += len(seen) // records that nobody sent
	}
}

// ids yields the id of every record that the sources emit.
func (s *simulation) ids() func(func(string) bool) {
	return func(yield func(string) bool) {
		for i, v := range s.plan.Vertices {
			for sub := range v.Parallelism {
				for seq := range s.plan.Records {
					if v.Kind == "source" && !yield(string(simID(i, sub, seq))) {
						return
					}
				}
			}
		}
	}
}

// times is how often a vertex should see a record.
func (s *simulation) times(name, id string) (n int64) {
	v := s.vertex(name)
	for _, in := range v.Inputs {
		up := s.vertex(in.Vertex)
		k := int64(0)
		switch up.Kind {
		case "source":
			if s.plan.Vertices[id[0]].Name == up.Name {
				k = 1
			}
		case "fan":
			k = s.times(up.Name, id) * int64(simHash([]byte(id))%3)
		default:
			k = s.times(up.Name, id)
		}
		if in.Partitioner.Kind == KindBroadcast {
			k *= int64(v.Parallelism)
		}
		n += k
	}
	return n
}

func (s *simulation) vertex(name string) SimulationVertex {
	i := slices.IndexFunc(s.plan.Vertices, func(v SimulationVertex) bool { return v.Name == name })
	return s.plan.Vertices[i]
}

// graph makes the graph of the plan.
func (s *simulation) graph() *Graph {
	g := NewGraph()
	for i, v := range s.plan.Vertices {
		if v.Kind == "source" {
			g.Source(v.Name, v.Parallelism, func(sub int) Source {
				return &simSource{sim: s, vertex: i, sub: sub}
			})
			continue
		}
		g.Operator(v.Name, v.Parallelism, func(int) Operator {
			switch v.Kind {
			case "fan":
				return FlatMap(func(c *Context, r Record) error {
					for range simHash(simIDOf(r.Body)) % 3 {
						c.Emit(r)
					}
					return nil
				})(0)
			case "window":
				return &simWindow{sim: s}
			case "chain":
				keyed := func(int) Operator { return &simKeyed{busy: v.Busy} }
				return Chain(keyed, keyed)(0)
			case "sink":
				return &simSink{sim: s}
			}
			return &simKeyed{busy: v.Busy}
		}, v.Inputs...)
	}
	return g
}

// A simulated record is an id, from which its body follows.
const simIDBytes = 6

func simID(vertex, sub, seq int) []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(vertex), byte(sub)}, uint32(seq))
}

func simHash(id []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range id {
		h = (h ^ uint32(c)) * 16777619
	}
	return h ^ h>>15
}

// body makes the record of an id. One in 16 is much longer than the others.
func (s *simulation) body(id []byte) []byte {
	h := simHash(id)
	n := int(h>>8) % (s.plan.MaxBody + 1)
	if h%16 == 0 {
		n *= 8
	}
	b := append(make([]byte, 0, simIDBytes+n), id...)
	for range n {
		h = h*1664525 + 1013904223
		b = append(b, byte(h>>24))
	}
	return b
}

// simIDOf is the id of a record. A record that was damaged may be too short.
func simIDOf(body []byte) []byte {
	var id [simIDBytes]byte
	copy(id[:], body)
	return id[:]
}

func simKey(body []byte) Key {
	if len(body) < simIDBytes {
		body = simIDOf(body)
	}
	return Key{body[:simIDBytes], int32(body[simIDBytes-1] % 23)}
}

type simSource struct {
	sim         *simulation
	vertex, sub int
	at          *Value[int64]
}

func (o *simSource) Open(c *Context) (err error) {
	o.at, err = NewValue(c, "at", Int64, 0)
	return err
}

func (o *simSource) Next(c *Context) (Status, error) {
	if o.at.V == int64(o.sim.plan.Records) {
		return Status{Why: Done}, nil
	}
	if c.Rand.IntN(20) == 0 {
		return Status{Why: NoInput, At: c.Now() + time.Duration(c.Rand.IntN(2000))*time.Microsecond}, nil
	}
	c.Emit(Record{Body: o.sim.body(simID(o.vertex, o.sub, int(o.at.V))), Time: o.at.V, Timed: o.at.V%2 == 0})
	if o.at.V++; o.at.V%8 == 0 {
		c.EmitWatermark(o.at.V - 1)
	}
	return Status{}, nil
}

func (o *simSource) Complete(*Context, inflight.CheckpointID) error { return nil }
func (o *simSource) Close() error                                   { return nil }

// simKeyed passes records on, and counts them per key.
type simKeyed struct {
	Base
	busy   time.Duration
	counts *Keyed[int64]
}

func (o *simKeyed) Open(c *Context) (err error) {
	o.counts, err = NewKeyed(c, "counts", Int64)
	return err
}

func (o *simKeyed) Process(c *Context, r Record) error {
	*o.counts.Put(simKey(r.Body))++
	c.Emit(r)
	if o.busy > 0 {
		c.Busy(o.busy)
	}
	return nil
}

// simWindow holds records back until event time has passed them.
type simWindow struct {
	Base
	sim    *simulation
	held   *Keyed[int64]
	timers *Timers
}

func (o *simWindow) Open(c *Context) (err error) {
	if o.held, err = NewKeyed(c, "held", Int64); err == nil {
		o.timers, err = NewTimers(c)
	}
	return err
}

func (o *simWindow) Process(_ *Context, r Record) error {
	k := simKey(r.Body)
	*o.held.Put(k)++
	o.timers.Set(Timer{Event: true, At: int64(binary.BigEndian.Uint32(k.Bytes[2:])) + 5, Key: k})
	return nil
}

func (o *simWindow) Timer(c *Context, t Timer) error {
	n := o.held.Put(t.Key)
	for ; *n > 0; *n-- {
		c.Emit(Record{Body: o.sim.body(t.Key.Bytes)})
	}
	return nil
}

// simSink counts records by id, and checks their bytes.
type simSink struct {
	simKeyed
	sim *simulation
}

// Open makes this sink the one that counts. It is not called where the subtask
// had ended before a crash: then the one of that time counts.
func (o *simSink) Open(c *Context) error {
	o.sim.sinks[c.Task] = o
	return o.simKeyed.Open(c)
}

func (o *simSink) Process(_ *Context, r Record) error {
	if len(r.Body) < simIDBytes || string(r.Body) != string(o.sim.body(r.Body[:simIDBytes])) {
		o.sim.res.Corrupt++
		return nil
	}
	*o.counts.Put(simKey(r.Body))++
	return nil
}

// planOf chooses a job.
func planOf(seed uint64) (p SimulationPlan) {
	r := rand.New(rand.NewPCG(seed, 0x9a97))
	p.Records = 20 + r.IntN(80)
	p.MaxBody = []int{8, 60, 300}[r.IntN(3)]
	o := &p.Options
	o.Seed = seed
	o.TolerableFailures = -1
	o.Interval = time.Duration(500+r.IntN(5000)) * time.Microsecond
	o.Timeout = time.Duration(20+r.IntN(200)) * time.Millisecond
	o.BufferSize = []int{32, 64, 128, 512}[r.IntN(4)]
	o.Memory = 1 << 30
	o.Credit = r.IntN(2) == 0
	if r.IntN(4) == 0 {
		o.OutputBuffers, o.FloatingBuffers = 1+r.IntN(3), 1+r.IntN(2)
		o.ExclusiveBuffers = []int{-1, 1}[r.IntN(2)]
		o.OverdraftBuffers = []int{-1, 20}[r.IntN(2)]
		o.PerSubpartition = 1 + r.IntN(3)
	}
	switch r.IntN(3) {
	case 0:
		o.Unaligned = true
	case 1:
		o.Unaligned, o.AlignedTimeout = true, time.Duration(1+r.IntN(6000))*time.Microsecond
	}
	for range r.IntN(4) {
		p.Crashes = append(p.Crashes, time.Duration(1+r.IntN(60000))*time.Microsecond)
	}
	p.SendTime = time.Duration(1+r.IntN(3000)) * time.Microsecond
	if r.IntN(2) == 0 {
		p.Lose, p.Double = r.IntN(40), r.IntN(40)
	} else {
		o.Timeout = 10 * time.Second // then none may time out
	}
	sources := 1 + r.IntN(2)
	for i := range sources + 1 + r.IntN(3) {
		v := SimulationVertex{Name: fmt.Sprintf("v%d", i), Kind: "source", Parallelism: 1 + r.IntN(4)}
		if i >= sources {
			v.Kind = []string{"fan", "keyed", "chain", "window"}[r.IntN(4)]
			if r.IntN(4) == 0 {
				v.Busy = time.Duration(r.IntN(300)) * time.Microsecond
			}
			for range 1 + r.IntN(2) {
				v.Inputs = append(v.Inputs, p.input(r, r.IntN(i), v.Parallelism))
			}
		}
		p.Vertices = append(p.Vertices, v)
	}
	sink := SimulationVertex{Name: "sink", Kind: "sink", Parallelism: 1 + r.IntN(4)}
	for i, v := range p.Vertices {
		if !slices.ContainsFunc(p.Vertices, func(w SimulationVertex) bool {
			return slices.ContainsFunc(w.Inputs, func(in Input) bool { return in.Vertex == v.Name })
		}) {
			sink.Inputs = append(sink.Inputs, p.input(r, i, sink.Parallelism))
		}
	}
	p.Vertices = append(p.Vertices, sink)
	return p
}

// input chooses an edge from the i-th vertex to one with n subtasks.
func (p *SimulationPlan) input(r *rand.Rand, i, n int) Input {
	from := p.Vertices[i]
	choices := []Partitioner{Hash(simKey), Hash(simKey), Hash(simKey), Rebalance(), Rebalance(), Shuffle(), Global()}
	if r.IntN(3) == 0 {
		choices = []Partitioner{Broadcast(), Rescale(), Custom(func(b []byte, n int) int { return int(simIDOf(b)[simIDBytes-1]) % n })}
		if from.Parallelism == n {
			choices = append(choices, Forward(), Forward())
		}
	}
	return From(from.Name, choices[r.IntN(len(choices))])
}
