package dataflow

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Deployment is one run of a graph, from a base on, until it has ended or
// failed. It is never restarted; Job makes a new one.
type Deployment struct {
	exec  Executor
	graph *Graph
	opts  *Options
	store Store
	edges []EdgeInfo
	// capacity is, for each edge, how many bytes its queues can hold.
	capacity []int64
	latency  latency

	tasks     []*task
	net       *network // nil: all channels are local
	netWorker Worker
	coord     *coordinator
	boss      Worker
	replaying int // tasks that replay inputs
	onEnd     func(error)

	mu    sync.Mutex
	alive int
	over  bool
	err   error
}

// Deploy builds a deployment on exec; Start lets it run. A nil store means
// that there are no checkpoints. onEnd is called once, beside all actors, when
// everything has ended and is released.
func Deploy(exec Executor, g *Graph, o Options, store Store, onEnd func(error)) (*Deployment, error) {
	if g.err != nil {
		return nil, g.err
	}
	opts := o.withDefaults(g)
	if err := opts.check(g); err != nil {
		return nil, err
	}
	d := &Deployment{exec: exec, graph: g, opts: opts, store: store, edges: g.Edges(*opts), onEnd: onEnd}
	d.coord = &coordinator{a: d, exec: exec, store: store, opts: opts, ended: map[inflight.Task]Finished{}, drained: map[inflight.Task]bool{}}
	d.boss = d.add("coordinator", d.coord)
	d.coord.mail.owner = d.boss
	if opts.Credit {
		d.net = &network{}
		d.netWorker = d.add("network", d.net)
		d.net.owner = d.netWorker
	}
	if err := d.build(); err != nil {
		for _, t := range d.tasks {
			err = errors.Join(err, t.close())
		}
		return nil, err
	}
	return d, nil
}

// tracked tells the deployment when its actor has ended.
type tracked struct {
	Actor
	d *Deployment
}

func (a tracked) Step(budget int) Status {
	st := a.Actor.Step(budget)
	if st.Why == Done {
		a.d.actorEnded()
	}
	return st
}

func (d *Deployment) add(name string, a Actor) Worker { return d.exec.Add(name, tracked{a, d}) }

// build makes the tasks, connects them, and gives them what is restored.
func (d *Deployment) build() error {
	byName := map[string][]*task{}
	for _, v := range d.graph.vertices {
		for i := range v.parallelism {
			t, err := d.newTask(v, i)
			if err != nil {
				return err
			}
			d.tasks = append(d.tasks, t)
			byName[v.name] = append(byName[v.name], t)
		}
	}
	buffers := 0
	for _, e := range d.edges {
		n := d.connect(e, byName[e.From], byName[e.To])
		d.capacity = append(d.capacity, int64(n*d.opts.BufferSize))
		buffers += n
	}
	if need := buffers * d.opts.BufferSize; need > d.opts.Memory {
		return &inflight.Error{Op: "configure", Object: "network.memory", Mend: fmt.Sprintf("set it to %d at least", need),
			Err: fmt.Errorf("%d buffers of %d bytes do not fit into %d: %w", buffers, d.opts.BufferSize, d.opts.Memory, inflight.ErrConfig)}
	}
	restored, err := d.restore()
	if err != nil {
		return err
	}
	for _, t := range d.tasks {
		if t.phase == ended {
			continue
		}
		t.bar = newBarriers(t, t.in.channels, d.opts.Unaligned)
		if err := t.open(d.opts.Seed ^ seedOf(t.id)); err != nil {
			return err
		}
		t.restored = nil
		if restored && len(t.in.channels) > 0 {
			d.replaying++
		}
	}
	return nil
}

func seedOf(t inflight.Task) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, t)
	return h.Sum64()
}

func (d *Deployment) newTask(v *vertex, subtask int) (t *task, err error) {
	t = &task{id: inflight.Task{Vertex: v.name, Subtask: subtask}, exec: d.exec, boss: d, opts: d.opts}
	t.ckpt = checkpointing{last: -1, finalID: -1, aborted: map[inflight.CheckpointID]bool{}}
	if d.store != nil {
		t.epoch = d.store.Epoch()
		if t.writer, err = d.store.Writer(t.id); err != nil {
			return nil, err
		}
	}
	if v.newSource != nil {
		t.src = v.newSource(subtask)
	} else {
		t.op = v.newOperator(subtask)
	}
	t.worker = d.add(t.id.String(), t)
	t.mail.owner, t.in.owner = t.worker, t.worker
	return t, nil
}

// connect makes an edge: a partition of each upstream task, a gate of each
// downstream task, a channel for each pair. It returns how many buffers it
// may use.
func (d *Deployment) connect(e EdgeInfo, ups, downs []*task) (buffers int) {
	gates := make([]*creditGate, len(downs))
	for i := range downs {
		gates[i] = &creditGate{exclusive: d.opts.ExclusiveBuffers, floating: d.opts.FloatingBuffers, bytes: d.opts.BufferSize}
	}
	for _, u := range ups {
		targets := e.partitioner.targets(u.id.Subtask, len(ups), len(downs))
		n := len(targets)
		size := d.opts.OutputBuffers
		if size == 0 {
			size = 2*n + 8
		}
		buffers += size
		p := &partition{index: e.Partition, unaligned: e.Unaligned, full: &u.full,
			pool: newPool(n, size, d.opts.PerSubpartition, d.opts.OverdraftBuffers, d.opts.BufferSize, u.epoch)}
		p.pool.owner = u.worker
		p.selector = e.partitioner.selector(n, d.opts.maxParallelism,
			rand.New(rand.NewPCG(d.opts.Seed^seedOf(u.id), uint64(e.Partition))))
		for i, target := range targets {
			s := &subpartition{part: p, index: i, target: target}
			p.subs = append(p.subs, s)
			buffers += d.attach(s, u, downs[target], e.Gate, gates[target])
		}
		u.out = append(u.out, p)
	}
	return buffers
}

// attach makes the channel that reads a subpartition.
func (d *Deployment) attach(s *subpartition, up, down *task, gate int, credit *creditGate) (buffers int) {
	c := &channel{address: inflight.InputChannel{Gate: gate, Channel: up.id.Subtask}, index: len(down.in.channels),
		in: &down.in, up: s, watermark: noWatermark}
	c.local = newPersister(c.address)
	down.in.channels = append(down.in.channels, c)
	down.upstream = append(down.upstream, up.id)
	if d.net == nil {
		s.reader = &c.local
		s.notify = func(prio bool) { c.in.enqueue(c, prio) }
		return 0
	}
	c.conn = newConn(credit, d.net, s, c)
	if c.index == 0 || down.in.channels[c.index-1].address.Gate != gate {
		buffers = d.opts.FloatingBuffers
	}
	return buffers + d.opts.ExclusiveBuffers
}

// Start lets everything run.
func (d *Deployment) Start() {
	d.mu.Lock()
	d.alive = 1
	if d.net != nil {
		d.alive++
	}
	for _, t := range d.tasks {
		if t.phase != ended {
			d.alive++
		}
	}
	d.mu.Unlock()
	d.coord.do(d.coord.start)
	d.boss.Start()
	if d.net != nil {
		d.netWorker.Start()
	}
	for _, t := range d.tasks {
		if t.phase != ended {
			t.worker.Start()
		}
	}
}

// Stop ends the deployment with cause, wherever it is.
func (d *Deployment) Stop(cause error) { d.fail(cause) }

// Savepoint triggers a savepoint, which is always aligned; done is called with
// how it went, on the coordinator.
func (d *Deployment) Savepoint(done func(CheckpointResult)) {
	d.Trigger(Request{Savepoint: true}, done)
}

// Trigger takes a checkpoint out of turn; done is called with how it went, on
// the coordinator.
func (d *Deployment) Trigger(r Request, done func(CheckpointResult)) {
	d.mu.Lock()
	over := d.over
	if !over { // so it is put before the mail that stops the coordinator
		d.coord.do(func() { d.coord.trigger(request{r, done}) })
	}
	d.mu.Unlock()
	if over {
		done(CheckpointResult{Savepoint: r.Savepoint, Reason: ReasonTaskStopped, Cause: inflight.ErrClosed})
	}
}

// Records is how many records each task has processed or, at a source, emitted.
func (d *Deployment) Records() map[inflight.Task]uint64 {
	m := map[inflight.Task]uint64{}
	for _, t := range d.tasks {
		m[t.id] = t.shown.Load()
	}
	return m
}

// Edges are the edges of the graph as they are deployed.
func (d *Deployment) Edges() []EdgeInfo { return d.edges }

func (d *Deployment) fail(err error) { d.shut(err, ReasonTaskFailed) }

// finish is called when every task has ended.
func (d *Deployment) finish() { d.shut(nil, ReasonTaskStopped) }

// shut stops all actors. The first cause is the one that counts.
func (d *Deployment) shut(err error, r Reason) {
	d.mu.Lock()
	was := d.over
	if !was {
		d.over, d.err = true, err
	}
	d.mu.Unlock()
	if was {
		return
	}
	for _, t := range d.tasks {
		t.cancel.Store(true)
		t.worker.Wake()
	}
	if d.net != nil {
		d.net.stop()
	}
	d.coord.do(func() { d.coord.stop(r) })
}

// actorEnded counts; the last one releases everything.
func (d *Deployment) actorEnded() {
	d.mu.Lock()
	d.alive--
	last, err := d.alive == 0, d.err
	d.mu.Unlock()
	if !last {
		return
	}
	d.exec.Go(func() {
		for _, t := range d.tasks {
			if e := t.close(); err == nil {
				err = e
			}
		}
		if d.onEnd != nil {
			d.onEnd(err)
		}
	})
}

// The calls of taskObserver.

func (d *Deployment) acked(a Ack) {
	d.exec.Send(func() { d.coord.do(func() { d.coord.ack(a) }) })
}

func (d *Deployment) declined(task inflight.Task, id inflight.CheckpointID, r Reason, cause error) {
	d.exec.Send(func() { d.coord.do(func() { d.coord.decline(task, id, r, cause) }) })
}

func (d *Deployment) replayed(inflight.Task) { d.coord.do(d.coord.taskReplayed) }

func (d *Deployment) drained(task inflight.Task) { d.coord.do(func() { d.coord.taskDrained(task) }) }

func (d *Deployment) ended(task inflight.Task, cuts []inflight.Cut) {
	d.coord.do(func() { d.coord.taskEnded(Finished{task, cuts}) })
}

func (d *Deployment) failed(task inflight.Task, err error) {
	d.fail(fmt.Errorf("%s: %w", task, err))
}

func (d *Deployment) marked(took time.Duration) { d.latency.observe(took) }

func (d *Deployment) traced(e TraceEvent) { d.opts.say(e) }
