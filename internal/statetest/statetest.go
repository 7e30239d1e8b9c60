// Package statetest makes channel state for tests: random layouts of files with
// everything that the format allows, and what has to come out of them.
package statetest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Buf is a buffer as it was captured.
type Buf struct {
	Pos  inflight.Pos
	Data []byte
}

// Key is one address of one subtask.
type Key struct {
	Task    inflight.Task
	Address inflight.Address
}

// Checkpoint is what was written, and what has to be read.
type Checkpoint struct {
	ID      inflight.CheckpointID
	Handles []inflight.Handle
	Files   []format.FileInfo
	Want    map[Key][]Buf
}

// Reference is a run of an older file.
type Reference struct {
	File format.FileRef
	Run  format.Run
}

// Rest is what a channel of a new checkpoint takes over from an older one:
// buffers that are queued, and bytes by reference, and what they are.
type Rest struct {
	Queued     []Buf
	References []Reference
	Want       []Buf // of the references
}

// Options say what Draw makes.
type Options struct {
	Job    string
	ID     inflight.CheckpointID
	Tasks  []inflight.Task
	Codecs []format.Codec
	Rests  map[Key]Rest
	// Tiny leaves out large buffers.
	Tiny bool
}

// Tasks draws subtasks of two vertices.
func Tasks(t *rapid.T) (tasks []inflight.Task) {
	for i := range rapid.IntRange(1, 5).Draw(t, "tasks") {
		tasks = append(tasks, inflight.Task{Vertex: []string{"src", "count"}[i%2], Subtask: i / 2})
	}
	return tasks
}

// Address draws an address of few.
func Address(t *rapid.T) inflight.Address {
	n := rapid.IntRange(0, 9).Draw(t, "address")
	switch {
	case n < 4:
		return inflight.InputChannel{Gate: n / 2, Channel: n % 2}.Address()
	case n < 8:
		return inflight.Subpartition{Partition: n / 2 % 2, Subpartition: n % 2}.Address()
	}
	return inflight.StateName([]string{"counts", "offsets"}[n%2]).Address()
}

// drawing is a checkpoint being drawn.
type drawing struct {
	*Checkpoint
	t    *rapid.T
	b    backends.Backend
	o    Options
	eo   format.EncoderOptions
	next map[Key]inflight.Pos
	n    int // buffers
}

// Draw writes a random checkpoint to b: several files, subtasks that continue
// in the next file, buffers that continue in the next block, gaps, channels
// without positions, references.
func Draw(t *rapid.T, b backends.Backend, o Options) *Checkpoint {
	d := &drawing{Checkpoint: &Checkpoint{ID: o.ID, Want: map[Key][]Buf{}}, t: t, b: b, o: o, next: map[Key]inflight.Pos{}}
	if len(o.Codecs) == 0 {
		o.Codecs = []format.Codec{format.CodecNone, format.CodecS2, format.CodecZstd, format.CodecAuto}
	}
	d.eo = format.EncoderOptions{
		BlockSize: rapid.SampledFrom([]int{64, 512, 4096, format.DefaultBlock}).Draw(t, "block"),
		PageSize:  rapid.SampledFrom([]int{64, 1024, format.MaxPage}).Draw(t, "page"),
		Codec:     rapid.SampledFrom(o.Codecs).Draw(t, "codec"),
		Pool:      format.NewPool(1 << 20),
	}
	if d.eo.BlockSize == 64 {
		d.eo.LargestBlock = 128 // most buffers continue
	}
	for tasks := o.Tasks; len(tasks) > 0; {
		n := rapid.IntRange(1, len(tasks)).Draw(t, "group")
		d.group(tasks[:n])
		tasks = tasks[n:]
	}
	slices.SortFunc(d.Handles, func(a, b inflight.Handle) int { return a.Task.Compare(b.Task) })
	require.Zero(t, d.eo.Pool.InUse())
	return d.Checkpoint
}

// group writes the files of tasks that share them.
func (d *drawing) group(tasks []inflight.Task) {
	t := d.t
	carries := map[inflight.Task]*format.Carry{}
	group := fmt.Sprintf("g%d", len(d.Files))
	for first := true; len(tasks) > 0; first = false {
		var file bytes.Buffer
		name := format.StateFileName(d.ID, fmt.Sprintf("%s.%d", group, len(d.Files)), "abcdef")
		id := inflight.NewFileID()
		e, err := format.NewEncoder(&file, name, format.FileHeader{FileID: id, Job: d.o.Job, Checkpoint: d.ID, Epoch: 1, Group: group}, d.eo)
		require.NoError(t, err)
		members := map[inflight.Task]format.Member{}
		for _, task := range tasks {
			members[task], err = e.Begin(task, carries[task])
			require.NoError(t, err)
		}
		for _, task := range tasks {
			if first {
				d.rests(e, members[task], task)
			}
		}
		for range rapid.IntRange(0, 25).Draw(t, "buffers") {
			task := rapid.SampledFrom(tasks).Draw(t, "task")
			d.append(e, members[task], Key{task, Address(t)})
		}
		var left []inflight.Task
		for _, task := range tasks {
			if rapid.IntRange(0, 3).Draw(t, "continue") == 0 {
				require.NoError(t, e.Continue(members[task]))
				left = append(left, task)
			} else {
				require.NoError(t, e.Complete(members[task]))
			}
		}
		info, err := e.Close()
		require.NoError(t, err)
		Put(t, d.b, d.o.Job+"/"+name, file.Bytes())
		d.Files = append(d.Files, info)
		for _, task := range tasks {
			if slices.Contains(left, task) {
				carries[task] = e.Carry(members[task])
			} else {
				d.Handles = append(d.Handles, e.Handle(members[task]))
			}
		}
		tasks = left
	}
}

func (d *drawing) rests(e *format.Encoder, m format.Member, task inflight.Task) {
	for _, k := range sorted(d.o.Rests) {
		r := d.o.Rests[k]
		if k.Task != task {
			continue
		}
		for _, b := range r.Queued {
			require.NoError(d.t, e.Append(m, k.Address, b.Pos, b.Data))
		}
		for _, ref := range r.References {
			require.NoError(d.t, e.Reference(m, k.Address, ref.File, ref.Run))
		}
		all := slices.Concat(r.Queued, r.Want)
		if len(all) == 0 {
			continue
		}
		d.Want[k] = append(d.Want[k], all...)
		if last := all[len(all)-1]; last.Pos.Known() {
			d.next[k] = last.Pos.Advance(uint64(len(last.Data)), 1)
		}
	}
}

// append writes one buffer. Channels with an odd number have no positions.
func (d *drawing) append(e *format.Encoder, m format.Member, k Key) {
	size := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 700))
	if !d.o.Tiny {
		size = rapid.OneOf(size, size, rapid.IntRange(1, 20000))
	}
	n := size.Draw(d.t, "size")
	data := bytes.Repeat([]byte{byte(d.n)}, n)
	for i := 0; i < n && d.n%2 == 0; i += 31 {
		data[i] = byte(i*n + d.n)
	}
	d.n++
	pos, ok := d.next[k]
	if !ok {
		pos = inflight.Pos{Epoch: 1, Offset: uint64(100 * d.n)}
	}
	if rapid.IntRange(0, 20).Draw(d.t, "gap") == 0 {
		pos.Offset += 11
	}
	if k.Address.Input.Channel == 1 {
		pos = inflight.PosUnknown
	}
	d.next[k] = pos.Advance(uint64(n), 1)
	require.NoError(d.t, e.Append(m, k.Address, pos, data))
	d.Want[k] = append(d.Want[k], Buf{pos, data})
}

// Keys returns the addresses that c has something of, in order.
func (c *Checkpoint) Keys() []Key { return sorted(c.Want) }

func sorted[V any](m map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int { return cmp.Or(a.Task.Compare(b.Task), a.Address.Compare(b.Address)) })
}

// Manifest returns the manifest of c. The job has the subtasks of c, and no
// edges.
func (c *Checkpoint) Manifest() *format.Manifest {
	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "job", ID: c.ID, Attempt: "abcdef", Epoch: 1, Mode: format.ExactlyOnce, Alignment: format.Unaligned, Topology: &format.Topology{}}
	for _, h := range c.Handles {
		v := m.Topology.Vertex(h.Task.Vertex)
		if v == nil {
			m.Topology.Vertices = append(m.Topology.Vertices, format.Vertex{ID: h.Task.Vertex})
			v = m.Topology.Vertex(h.Task.Vertex)
		}
		v.Parallelism = max(v.Parallelism, h.Task.Subtask+1)
	}
	m.SetHandles(c.Handles, c.Files...)
	return m
}

// T is what both testing.T and rapid.T are.
type T interface {
	require.TestingT
	Helper()
}

// Put stores an object.
func Put(t T, b backends.Backend, name string, p []byte) {
	ctx := ctxOf(t)
	o, err := b.Create(ctx, name, backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(p)
	require.NoError(t, err)
	_, err = o.Finish(ctx)
	require.NoError(t, err)
}

// Get returns an object.
func Get(t T, b backends.Backend, name string) []byte {
	ctx := ctxOf(t)
	src, err := b.Open(ctx, name)
	require.NoError(t, err)
	defer src.Close()
	p := make([]byte, src.Info().Size)
	if len(p) > 0 {
		require.NoError(t, src.ReadAt(ctx, p, 0))
	}
	return p
}
