package inspect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"slices"

	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/inflight"
)

// MetadataLine is the _metadata of a checkpoint of Flink.
type MetadataLine struct {
	Type             LineType `json:"type"`
	Version          int      `json:"version"`
	SizeBytes        int64    `json:"size_bytes"`
	SHA256           string   `json:"sha256"`
	PropertiesOffset int64    `json:"properties_offset"`
	Properties       string   `json:"properties,omitempty"` // as Flink prints them
}

// MasterLine is the state of a hook of Flink's coordinator.
type MasterLine struct {
	Type      LineType `json:"type"`
	Name      string   `json:"name"`
	Version   int      `json:"version"`
	SizeBytes int      `json:"size_bytes"`
	SHA256    string   `json:"sha256"`
}

// OperatorLine is an operator of a checkpoint of Flink.
type OperatorLine struct {
	Type           LineType `json:"type"`
	Vertex         string   `json:"vertex"` // what other lines call it: its name, or its id where others have that
	OperatorID     string   `json:"operator_id"`
	Name           string   `json:"name,omitempty"`
	UID            string   `json:"uid,omitempty"`
	Parallelism    int      `json:"parallelism"`
	MaxParallelism int      `json:"max_parallelism"`
	Finished       bool     `json:"finished,omitempty"`
	Subtasks       int      `json:"subtasks"` // that have an entry
	InputBytes     uint64   `json:"input_bytes"`
	OutputBytes    uint64   `json:"output_bytes"`
	StateBytes     uint64   `json:"state_bytes"`
	Coordinator    *Stream  `json:"coordinator,omitempty"`
	// What it takes up in _metadata: in all, and of that for handles of channel
	// state, keyed state and operator state, and for inline data.
	MetadataBytes int `json:"metadata_bytes"`
	ChannelsBytes int `json:"metadata_channels_bytes"`
	KeyedBytes    int `json:"metadata_keyed_bytes"`
	OperatorBytes int `json:"metadata_operator_bytes"`
	InlineBytes   int `json:"metadata_inline_bytes"`
}

// Stream says where bytes of Flink lie.
type Stream struct {
	Class     string `json:"class"`
	SizeBytes int64  `json:"size_bytes"`
	Name      string `json:"name,omitempty"` // of an inline handle
	Path      string `json:"path,omitempty"` // as it stands in _metadata
	File      string `json:"file,omitempty"` // where it was found, on the store
	Moved     bool   `json:"moved,omitempty"`
	StartPos  *int64 `json:"start_pos,omitempty"`
	Scope     string `json:"scope,omitempty"`
	LogicalID string `json:"logical_file_id,omitempty"`
	SHA256    string `json:"sha256,omitempty"`
}

// StateSlot says which of its four states a subtask of Flink has.
type StateSlot string

// The states of a subtask, as used in JSON.
const (
	SlotManagedOperator StateSlot = "managed-operator"
	SlotRawOperator     StateSlot = "raw-operator"
	SlotManagedKeyed    StateSlot = "managed-keyed"
	SlotRawKeyed        StateSlot = "raw-keyed"
)

// StateLine is keyed or operator state of a subtask of Flink.
type StateLine struct {
	Type       LineType  `json:"type"`
	Vertex     string    `json:"vertex"`
	OperatorID string    `json:"operator_id"`
	Subtask    int       `json:"subtask"`
	State      StateSlot `json:"state"`
	KeyedState
	States       []NamedState `json:"states,omitempty"`
	TaskOwnedDir string       `json:"task_owned_dir,omitempty"`
	SharedDir    string       `json:"shared_dir,omitempty"`
	Empty        bool         `json:"empty,omitempty"`
}

// NamedState is one named operator state: where its parts begin.
type NamedState struct {
	Name    string  `json:"name"`
	Mode    string  `json:"mode"`
	Offsets []int64 `json:"offsets"`
}

// KeyedState is what a handle of state says; but for class, size and delegate
// only those of keyed state.
type KeyedState struct {
	Class            string       `json:"class"`
	SizeBytes        int64        `json:"size_bytes"`
	Delegate         *Stream      `json:"delegate,omitempty"`
	StateHandleID    string       `json:"state_handle_id,omitempty"`
	KeyGroups        []int        `json:"key_groups,omitempty"` // the first and the last
	KeyGroupOffsets  []int64      `json:"key_group_offsets,omitempty"`
	BackendID        string       `json:"backend_id,omitempty"`
	CheckpointID     *int64       `json:"checkpoint_id,omitempty"`
	Meta             *Stream      `json:"meta,omitempty"`
	Shared           []LocalFile  `json:"shared,omitempty"`
	Private          []LocalFile  `json:"private,omitempty"`
	Materialized     []KeyedState `json:"materialized,omitempty"` // of a changelog
	Increments       []KeyedState `json:"increments,omitempty"`
	Files            []Stream     `json:"files,omitempty"`
	FileOffsets      []int64      `json:"file_offsets,omitempty"`
	CheckpointedSize *int64       `json:"checkpointed_size,omitempty"`
}

// LocalFile is a file of RocksDB: its name there, and where it lies.
type LocalFile struct {
	LocalPath string `json:"local_path"`
	Handle    Stream `json:"handle"`
}

// HandleLine is a handle of channel state of Flink.
type HandleLine struct {
	Type       LineType `json:"type"`
	Handle     int      `json:"handle"` // its number, from 0: channels name it
	Vertex     string   `json:"vertex"`
	OperatorID string   `json:"operator_id"`
	Subtask    int      `json:"subtask"`
	Side       string   `json:"side"`
	Class      string   `json:"class"`
	WrittenBy  int      `json:"written_by"` // the subtask that the handle names
	StateSize  int64    `json:"state_size"`
	Channels   int      `json:"channels"`
	Delegate   Stream   `json:"delegate"`
	// Of a merged handle: its list of channels as it stands in _metadata.
	ListBytes  int    `json:"list_bytes,omitempty"`
	ListSHA256 string `json:"list_sha256,omitempty"`
}

// describer makes lines of what the metadata of a checkpoint of Flink says.
type describer struct {
	ctx    context.Context
	c      *flink.Checkpoint
	digest bool              // read state, for its SHA-256
	sums   map[string]string // SHA-256 of streams, by their key
	err    error             // of ctx
	// found is what went wrong: files that are not there, or cannot be read.
	found []inflight.Finding
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fileOf names the file that h leads to, on the store; "" if it is not there.
func (d *describer) fileOf(h flink.StreamHandle) (name string, moved bool) {
	for h.Kind() == flink.KindKeyGroups {
		h = h.Inner()
	}
	if h.Kind() == flink.KindByteStream {
		return path.Join(d.c.Dir, d.c.Name), false
	}
	if h.Path() == "" {
		return "", false
	}
	f, err := d.c.Locate(d.ctx, h)
	if err != nil {
		if d.err == nil {
			d.err = d.ctx.Err()
		}
		return "", false
	}
	return d.nameOf(f), f.Moved
}

// nameOf names a file: on the store of the checkpoint, or in full.
func (d *describer) nameOf(f flink.File) string {
	if f.Backend == d.c.Backend() {
		return f.Name
	}
	return urlOf(f.Backend, f.Name)
}

// stream describes a handle; nil is the null handle.
func (d *describer) stream(h flink.StreamHandle, state bool) *Stream {
	if h.IsNull() {
		return nil
	}
	s := &Stream{Class: h.Kind().String(), SizeBytes: h.Size(), Name: h.Name(), Path: h.Path(), LogicalID: h.LogicalID()}
	switch h.Kind() {
	case flink.KindByteStream:
		s.StartPos = ptr(h.DataOffset(), true)
	case flink.KindSegment:
		s.StartPos, s.Scope = ptr(h.StartPos(), true), h.Scope().String()
	}
	if h.Kind() != flink.KindByteStream {
		s.File, s.Moved = d.fileOf(h)
	}
	if state && d.digest && h.Kind() != flink.KindEmptySegment {
		s.SHA256 = d.sum(h)
	}
	return s
}

// sum returns the SHA-256 of what h leads to.
func (d *describer) sum(h flink.StreamHandle) string {
	key := string(h.Bytes())
	if s, known := d.sums[key]; known {
		return s
	}
	sum := sha256.New()
	for p, err := range d.c.Content(d.ctx, h) {
		if err != nil {
			if d.err = d.ctx.Err(); d.err == nil {
				d.found = append(d.found, findingOf(err, h.String()))
			}
			d.sums[key] = ""
			return ""
		}
		sum.Write(p)
	}
	d.sums[key] = hex.EncodeToString(sum.Sum(nil))
	return d.sums[key]
}

// fileSum returns the SHA-256 of a whole file.
func (d *describer) fileSum(f flink.File) string {
	sum := sha256.New()
	err := func() error {
		src, err := f.Backend.Open(d.ctx, f.Name)
		if err != nil {
			return err
		}
		defer src.Close()
		r, err := src.Stream(d.ctx, 0, -1)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(sum, r)
		return err
	}()
	if err == nil {
		return hex.EncodeToString(sum.Sum(nil))
	}
	if d.err = cmp.Or(d.err, d.ctx.Err()); d.err == nil {
		d.found = append(d.found, findingOf(err, f.Name))
	}
	return ""
}

func (d *describer) metadata() *MetadataLine {
	raw := d.c.Bytes()
	l := &MetadataLine{Type: TypeMetadata, Version: d.c.Version, SizeBytes: int64(len(raw)), SHA256: hexSum(raw), PropertiesOffset: d.c.PropertiesOffset()}
	if p, err := d.c.Properties(); err != nil {
		d.found = append(d.found, findingOf(err, path.Join(d.c.Dir, d.c.Name)))
	} else if p != nil {
		l.Properties = p.String()
	}
	return l
}

func (d *describer) masters() (lines []MasterLine) {
	for _, m := range d.c.Masters {
		lines = append(lines, MasterLine{Type: TypeMaster, Name: m.Name, Version: m.Version, SizeBytes: len(m.Payload), SHA256: hexSum(m.Payload)})
	}
	return lines
}

// operators returns the operators in the order of the file; bytes are added by
// others.
func (d *describer) operators() []OperatorLine {
	lines := make([]OperatorLine, 0, len(d.c.Operators))
	room := map[*flink.Operator]flink.Room{}
	for _, r := range d.c.Room() {
		room[r.Operator] = r
	}
	for i := range d.c.Operators {
		o := &d.c.Operators[i]
		r := room[o]
		lines = append(lines, OperatorLine{Type: TypeOperator, Vertex: d.c.Label(o), OperatorID: o.ID.String(), Name: o.Name, UID: o.UID,
			Parallelism: o.Parallelism, MaxParallelism: o.MaxParallelism, Finished: o.Finished, Subtasks: len(o.Subtasks), Coordinator: d.stream(o.Coordinator, true),
			MetadataBytes: r.Bytes, ChannelsBytes: r.Channels, KeyedBytes: r.Keyed, OperatorBytes: r.State, InlineBytes: r.Inline})
	}
	return lines
}

// states returns the keyed and operator state of a subtask.
func (d *describer) states(vertex string, o *flink.Operator, s *flink.Subtask) (lines []StateLine) {
	line := func(slot StateSlot) StateLine {
		return StateLine{Type: TypeState, Vertex: vertex, OperatorID: o.ID.String(), Subtask: s.Index, State: slot}
	}
	for _, x := range []struct {
		slot  StateSlot
		state *flink.OperatorState
	}{{SlotManagedOperator, s.ManagedOperator}, {SlotRawOperator, s.RawOperator}} {
		if x.state == nil {
			continue
		}
		l := line(x.slot)
		l.Class, l.SizeBytes, l.Delegate = x.state.Kind(), x.state.Size(), d.stream(x.state.Delegate, true)
		l.TaskOwnedDir, l.SharedDir, l.Empty = x.state.TaskOwnedDir, x.state.SharedDir, x.state.Empty
		for _, n := range x.state.States {
			l.States = append(l.States, NamedState{Name: n.Name, Mode: n.Mode.String(), Offsets: offsets(n.Offsets)})
		}
		lines = append(lines, l)
	}
	for _, x := range []struct {
		slot  StateSlot
		state *flink.KeyedState
	}{{SlotManagedKeyed, s.ManagedKeyed}, {SlotRawKeyed, s.RawKeyed}} {
		if x.state != nil {
			l := line(x.slot)
			l.KeyedState = d.keyed(x.state)
			lines = append(lines, l)
		}
	}
	return lines
}

// offsets returns a list that is never null in JSON.
func offsets(s flink.Int64s) []int64 { return slices.AppendSeq(make([]int64, 0, s.Len()), s.All()) }

func (d *describer) keyed(k *flink.KeyedState) KeyedState {
	s := KeyedState{Class: k.Kind.String(), SizeBytes: k.Size(), Delegate: d.stream(k.Delegate, true), StateHandleID: k.ID,
		KeyGroups: []int{k.FirstKeyGroup, k.FirstKeyGroup + k.KeyGroups - 1}, KeyGroupOffsets: offsets(k.Offsets),
		BackendID: k.BackendID, Meta: d.stream(k.Meta, true), Shared: d.localFiles(k.Shared), Private: d.localFiles(k.Private),
		Materialized: d.keyedStates(k.Base), Increments: d.keyedStates(k.Deltas), FileOffsets: k.FileOffsets}
	switch k.Kind {
	case flink.KeyedIncremental, flink.KeyedIncrementalV1, flink.KeyedChangelog:
		s.CheckpointID = &k.CheckpointID
	}
	switch k.Kind {
	case flink.KeyedIncremental, flink.KeyedChangelog, flink.KeyedChangelogV1, flink.KeyedChangelogFiles, flink.KeyedChangelogFilesV1:
		s.CheckpointedSize = &k.CheckpointedSize
	}
	for _, h := range k.Files {
		s.Files = append(s.Files, *d.stream(h, true))
	}
	return s
}

func (d *describer) keyedStates(list []*flink.KeyedState) (states []KeyedState) {
	for _, k := range list {
		if k != nil {
			states = append(states, d.keyed(k))
		}
	}
	return states
}

func (d *describer) localFiles(list []flink.LocalFile) (files []LocalFile) {
	for _, f := range list {
		files = append(files, LocalFile{LocalPath: f.LocalPath, Handle: *d.stream(f.Handle, true)})
	}
	return files
}

// handle describes a handle of channel state.
func (d *describer) handle(vertex string, o *flink.Operator, s *flink.Subtask, h flink.ChannelHandle) HandleLine {
	l := HandleLine{Type: TypeHandle, Vertex: vertex, OperatorID: o.ID.String(), Subtask: s.Index, Side: h.Side.String(), WrittenBy: h.Subtask(),
		StateSize: h.StateSize(), Delegate: *d.stream(h.Delegate(), false)}
	l.Class = "InputChannelStateHandle"
	if h.Side == inflight.Output {
		l.Class = "ResultSubpartitionStateHandle"
	}
	if h.Merged {
		l.Class = "Merged" + l.Class
		l.ListBytes, l.ListSHA256 = len(h.List()), hexSum(h.List())
	}
	return l
}
