package writer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/sharing"
)

// The defaults of Options.
const (
	DefaultTasksPerFile   = 5
	DefaultSealLinger     = 20 * time.Millisecond
	DefaultTargetFileSize = 64 << 20
	DefaultMaxBuffered    = 256 << 20
)

// closeTime is how long Close waits for a store.
const closeTime = 800 * time.Millisecond

// Options are the options of NewPool. Zero values are the defaults.
type Options struct {
	// Backend is the store.
	Backend backends.Backend
	// Job is the name of the job, and of its directory on the store. "": the root
	// of the store is the job's directory.
	Job string
	// TasksPerFile is how many subtasks share a file, from 1. Default 5.
	TasksPerFile int
	// SealLinger is how long a subtask that has finished waits for the others of
	// its file; negative: not at all. Default 20ms.
	SealLinger time.Duration
	// TargetFileSize seals a file that has reached it. Default 64 MiB.
	TargetFileSize int64
	// MaxBuffered bounds the bytes that are held in memory. Default 256 MiB.
	MaxBuffered int64
	// MaxBufferedPerTask is the same bound for one subtask. Default: none.
	MaxBufferedPerTask int64
	// SpillDir is a local directory for encoded blocks, used once more than half
	// of MaxBuffered is held. Default: none.
	SpillDir string
	// Codec compresses blocks. CodecAuto means none unless the store is remote.
	Codec format.Codec
	// BlockSize is that of format.EncoderOptions.
	BlockSize int
	// Observer is told of files and captures. Default: nobody.
	Observer inflight.Observer
	// Memory lends the encoders' buffers. Default format.DefaultPool.
	Memory *format.Pool
}

// Pool is what the writers of a process share: files, and the bound on memory.
// Its methods may be called by several goroutines at once.
type Pool struct {
	o       Options
	hub     *sharing.Hub
	budget  *sharing.Budget
	attempt string // of captures that name none

	mu       sync.Mutex
	closed   bool
	groups   []*sharing.Group
	slots    []*Writer // group i owns the slots from i*TasksPerFile on; nil: free
	declined sharing.Key
	why      error // of declined; nil: none was
}

// NewPool returns a pool without writers.
func NewPool(o Options) (*Pool, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	p := &Pool{o: o, budget: sharing.NewBudget(o.MaxBuffered), attempt: inflight.NewFileID().String()}
	p.hub = sharing.NewHub(sharing.Options{
		Backend: o.Backend, Job: o.Job, Linger: o.SealLinger, Target: o.TargetFileSize, PerTask: o.MaxBufferedPerTask, SpillDir: o.SpillDir,
		Encoder: format.EncoderOptions{BlockSize: o.BlockSize, Codec: o.Codec, Pool: o.Memory}, Observer: o.Observer, Budget: p.budget,
	})
	return p, nil
}

// fill puts the defaults in, and refuses what cannot work.
func (o *Options) fill() error {
	if o.Backend == nil {
		return badOption("no backend", "open one with backends.Open")
	}
	o.TasksPerFile = cmp.Or(o.TasksPerFile, DefaultTasksPerFile)
	o.SealLinger = cmp.Or(o.SealLinger, DefaultSealLinger)
	o.TargetFileSize = cmp.Or(o.TargetFileSize, DefaultTargetFileSize)
	o.MaxBuffered = cmp.Or(o.MaxBuffered, DefaultMaxBuffered)
	if o.Observer == nil {
		o.Observer = inflight.Discard
	}
	if o.Memory == nil {
		o.Memory = format.DefaultPool
	}
	if o.Codec == format.CodecAuto && !o.Backend.Capabilities().Remote {
		o.Codec = format.CodecNone
	}
	switch {
	case o.TasksPerFile < 1:
		return badOption(fmt.Sprintf("unaligned.tasks-per-file is %d", o.TasksPerFile), "use 1 or more")
	case o.TargetFileSize < 1:
		return badOption(fmt.Sprintf("unaligned.target-file-size is %d", o.TargetFileSize), "use 1 or more")
	case o.MaxBuffered < 1 || o.MaxBufferedPerTask < 0:
		return badOption(fmt.Sprintf("unaligned.max-buffered-data is %d, per task %d", o.MaxBuffered, o.MaxBufferedPerTask), "use a positive number of bytes")
	}
	// The encoder knows what else can be wrong, such as the block size.
	e, err := format.NewEncoder(nil, "x", format.FileHeader{Job: o.Job}, format.EncoderOptions{BlockSize: o.BlockSize, Codec: o.Codec, Pool: o.Memory})
	if err != nil {
		return &inflight.Error{Op: "open writer pool", Object: o.Job, Err: err, Mend: "change the job's name or the block size"}
	}
	e.Discard()
	if o.Job != "" && backends.CheckName(o.Job) != nil {
		return badOption(fmt.Sprintf("job %q", o.Job), "use letters, digits, '.', '_' and '-'")
	}
	return nil
}

func badOption(what, mend string) error {
	return &inflight.Error{Op: "open writer pool", Err: fmt.Errorf("%w: %s", inflight.ErrConfig, what), Mend: mend}
}

// Writer returns the writer of t, which belongs to the pool until its Close.
// Subtasks that register one after the other share files.
func (p *Pool) Writer(t inflight.Task) (*Writer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, &inflight.Error{Op: "register", Object: t.String(), Err: inflight.ErrClosed}
	case len(t.Vertex) > maxName || t.Subtask < 0:
		return nil, &inflight.Error{Op: "register", Object: t.String(), Err: fmt.Errorf("%w: not a subtask", inflight.ErrConfig), Mend: "shorten the name of the vertex"}
	case slices.ContainsFunc(p.slots, func(w *Writer) bool { return w != nil && w.task == t }):
		return nil, &inflight.Error{Op: "register", Object: t.String(), Err: inflight.ErrExist, Mend: "close the writer that it has"}
	}
	slot := slices.Index(p.slots, nil)
	if slot < 0 {
		slot = len(p.slots)
		p.slots = append(p.slots, nil)
	}
	group := slot / p.o.TasksPerFile
	if group == len(p.groups) {
		p.groups = append(p.groups, p.hub.NewGroup(group))
	}
	w := &Writer{pool: p, task: t, slot: slot, group: p.groups[group], live: map[inflight.CheckpointID]*Capture{}}
	w.group.Join(t)
	p.slots[slot] = w
	return w, nil
}

// leave frees the slot of w.
func (p *Pool) leave(w *Writer) {
	w.group.Leave(w.task)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots[w.slot] = nil
}

// writers returns those that are open.
func (p *Pool) writers() []*Writer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.slots), func(w *Writer) bool { return w == nil })
}

// Room returns how many bytes can be handed over before checkpoints are
// declined.
func (p *Pool) Room() int64 { return p.budget.Room() }

// Buffered returns how many bytes are held in memory.
func (p *Pool) Buffered() int64 { return p.budget.Used() }

// WaitRoom waits until there is room for n bytes. It reserves nothing: callers
// that pace each other ask for what all of them are going to hand over.
func (p *Pool) WaitRoom(ctx context.Context, n int64) error { return p.budget.Wait(ctx, n) }

// decline gives up a checkpoint in the whole process.
func (p *Pool) decline(key sharing.Key, why error) {
	p.mu.Lock()
	p.declined, p.why = key, why
	p.mu.Unlock()
	for _, w := range p.writers() {
		w.declined(key, why)
	}
}

// isDeclined answers why key was declined, or nil.
func (p *Pool) isDeclined(key sharing.Key) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.declined == key {
		return p.why
	}
	return nil
}

// Close closes all writers, and waits for their files, but not longer than a
// second, even if the store hangs. It is idempotent.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.budget.Close() // before room is made by giving up: a waiter must not take it for his
	for _, w := range p.writers() {
		w.Close()
	}
	if !p.hub.Wait(closeTime) {
		return &inflight.Error{Op: "close writer pool", Object: p.o.Backend.URL(), Err: fmt.Errorf("%w: the store does not let go of its objects", inflight.ErrTimeout)}
	}
	return nil
}
