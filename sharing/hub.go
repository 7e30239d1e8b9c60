package sharing

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Options are what the files of a process have in common.
type Options struct {
	Backend  backends.Backend
	Job      string
	Linger   time.Duration // how long a subtask that has finished waits for the others of its file
	Target   int64         // a file of this size is sealed
	PerTask  int64         // bytes of one subtask that may be held; 0: no bound
	SpillDir string        // where encoded bytes go when more than half of the budget is held; "": nowhere
	Encoder  format.EncoderOptions
	Observer inflight.Observer
	Budget   *Budget
}

// Hub is what all groups of a process share.
type Hub struct {
	Options
	budget       *Budget
	held         bool // the store can lose what Write has taken
	abortsFinish bool // of the store: cancel need not end the context of a Finish
	overflow     overflow
	memory       memory
	ahead        atomic.Int64 // bytes of memory in chunks that wait for the store
	crew         crew

	mu    sync.Mutex
	files map[*File]struct{} // not ended
}

// NewHub returns a hub without groups.
func NewHub(o Options) *Hub {
	c := o.Backend.Capabilities()
	h := &Hub{Options: o, budget: o.Budget, held: c.HeldUntilFinish, abortsFinish: c.AbortsFinish, files: map[*File]struct{}{}}
	h.overflow.hub = h
	h.memory.most = memoryKept
	if h.held {
		h.memory.most = max(memoryKept, min(h.budget.limit/2, h.Target)) // of one file, for the next one
	}
	h.budget.relieve = h.relieve
	return h
}

// Wait waits until all goroutines have ended, or for so long, and reports
// whether they have. All streams must have been cancelled.
func (h *Hub) Wait(limit time.Duration) bool { return h.crew.wait(limit) }

// pressed reports whether chunks should go to the spill directory. There must be
// room left then for what callers hand over meanwhile.
func (h *Hub) pressed() bool { return h.SpillDir != "" && h.budget.Used() > h.budget.limit/2 }

func (h *Hub) adopt(f *File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[f] = struct{}{}
}

func (h *Hub) forget(f *File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.files, f); len(h.files) == 0 {
		h.memory.trim()
	}
}

// relieve seals files early when what they keep stands in the way of a waiter
// for needed bytes: what an idle file has not handed to the store yet, and what
// a store can lose until the file is finished. Everything else is on its way
// out, and a file that has more to pack may be full soon.
func (h *Hub) relieve(needed int64) {
	h.mu.Lock()
	files := slices.Collect(maps.Keys(h.files))
	h.mu.Unlock()
	var stuck []*File
	held := map[*File]int64{}
	leaving, kept := h.budget.Used(), int64(0)
	for _, f := range files {
		n, sealing, packing, idle := f.state()
		keeps := h.held && !f.spills()
		switch {
		case sealing:
			if keeps {
				kept += n
			}
		case !packing && (keeps || idle):
			stuck = append(stuck, f)
			held[f] = n
			leaving -= n
		}
	}
	if h.held && h.SpillDir == "" {
		leaving = kept // the rest will be kept too
	}
	short := needed - (h.budget.limit - h.budget.Used() + leaving)
	slices.SortFunc(stuck, func(a, b *File) int { return cmp.Compare(held[b], held[a]) })
	for _, f := range stuck {
		if short <= 0 || held[f] == 0 {
			return
		}
		// When what is being sealed has gone, this is asked again; many small files
		// would take the store longer.
		if kept > 0 && held[f] < h.Target/4 {
			return
		}
		f.session.on(Event{Kind: Filled, File: f.number})
		short -= held[f]
	}
}

// overflow packs for files whose own goroutine waits for a slow store, so that
// buffers are released all the same. There is one goroutine for a hub, and only
// while there is something to do.
type overflow struct {
	hub *Hub

	mu      sync.Mutex
	queue   []*File
	running bool
}

func (o *overflow) add(f *File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Contains(o.queue, f) {
		return
	}
	o.queue = append(o.queue, f)
	if !o.running {
		o.running = true
		o.hub.crew.run(o.run)
	}
}

func (o *overflow) next() *File {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.running = false
		return nil
	}
	f := o.queue[0]
	o.queue = slices.Delete(o.queue, 0, 1)
	return f
}

func (o *overflow) run() {
	for f := o.next(); f != nil; f = o.next() {
		if f.packAhead() {
			o.add(f) // in turn: others wait too
		}
	}
}

// memory lends the memory of chunks that have to wait, so that the buffers of
// the encoders serve what is being encoded.
type memory struct {
	most int64 // bytes that are kept

	mu   sync.Mutex
	free [][]byte
	size int64
}

const (
	memoryUnit = 64 << 10
	memoryKept = 8 << 20 // also while there are no files
)

// get returns n bytes.
func (m *memory) get(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.free, func(b []byte) bool { return cap(b) >= n && cap(b) <= n+n/2+memoryUnit })
	if i < 0 {
		return make([]byte, n, (n+memoryUnit-1)/memoryUnit*memoryUnit)
	}
	b := m.free[i]
	m.free = slices.Delete(m.free, i, i+1)
	m.size -= int64(cap(b))
	return b[:n]
}

// put takes memory back.
func (m *memory) put(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.size+int64(cap(b)) <= m.most {
		m.free = append(m.free, b)
		m.size += int64(cap(b))
	}
}

// trim forgets what is kept for files that follow soon.
func (m *memory) trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.size > memoryKept {
		last := len(m.free) - 1
		m.size -= int64(cap(m.free[last]))
		m.free[last] = nil
		m.free = m.free[:last]
	}
}

// crew is a sync.WaitGroup for goroutines that others are still starting while
// somebody waits, and that may never end.
type crew struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0, where somebody waits
}

func (c *crew) run(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.ended()
		f()
	}()
}

func (c *crew) ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

func (c *crew) wait(limit time.Duration) bool {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return true
	}
	if c.none == nil {
		c.none = make(chan struct{})
	}
	none := c.none
	c.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-none:
		return true
	case <-t.C:
		return false
	}
}
