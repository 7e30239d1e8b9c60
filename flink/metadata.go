package flink

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// MetadataName is the name of the file that a checkpoint consists of, in its
// directory.
const MetadataName = "_metadata"

// Versions of _metadata.
//
//	2  no channel state
//	3  channel handles, coordinators, finished subtasks
//	4  checkpoint properties at the end (Flink 1.17 to 1.20)
//	5  name and uid of operators (2.0)
//	6  merged channel handles (2.1 and later)
const (
	MinVersion = 2
	MaxVersion = 6
)

const (
	magic       = 0x4960672D
	masterMagic = 0xC96B1696
)

// OperatorID is what Flink prints as 32 hexadecimal digits.
type OperatorID [16]byte

// String returns the 32 digits.
func (id OperatorID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id OperatorID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// Metadata is a parsed _metadata file. It keeps the bytes that it was parsed
// from; nothing in it may be changed. Rewrite makes another one.
type Metadata struct {
	Version      int
	CheckpointID inflight.CheckpointID
	Masters      []MasterState
	Operators    []Operator

	raw  []byte
	tail int // where the properties begin, or before version 4 what should be the end
	odd  []*FormatError
}

// MasterState is state of a hook of the coordinator.
type MasterState struct {
	Name    string
	Version int
	Payload []byte
}

// Operator is the state of one operator.
type Operator struct {
	ID             OperatorID
	Name, UID      string // "" is absent; before version 5 always
	Parallelism    int
	MaxParallelism int
	Finished       bool         // all subtasks had ended
	Coordinator    StreamHandle // inline, or null
	Subtasks       []Subtask    // in the order of the file; not all need be there

	at, end int
}

// Subtask is the state of one subtask of an operator.
type Subtask struct {
	Index           int
	Finished        bool // it had ended: there is no state
	ManagedOperator *OperatorState
	RawOperator     *OperatorState
	ManagedKeyed    *KeyedState
	RawKeyed        *KeyedState
	Input, Output   []ChannelHandle

	at         int
	span, stop int // the two lists of channel handles
}

// Parse reads the bytes of a _metadata file, to the last one; b must not be
// changed as long as the result is used. It refuses what Flink refuses to load.
// Errors are *FormatError in an *inflight.Error.
//
// It does not look into the lists of merged channel handles (see
// ChannelHandle.Channels) and the properties (see Properties): neither does
// Flink before it needs them.
func Parse(b []byte) (*Metadata, error) {
	d := decoder{b: b, code: CodeMetadata}
	m, err := d.metadata()
	if err != nil {
		return nil, &inflight.Error{Op: "parse", Object: MetadataName, Err: err}
	}
	return m, nil
}

func (d *decoder) metadata() (*Metadata, *FormatError) {
	m := &Metadata{raw: d.b}
	if len(d.b) == 0 {
		return nil, &FormatError{Code: CodeMetadata, Text: "an empty file", Err: inflight.ErrEmpty}
	}
	if len(d.b) > math.MaxInt32 {
		return nil, &FormatError{Code: CodeMetadata, Offset: -1, Text: fmt.Sprintf("%d bytes: more than this reader takes", len(d.b)), Err: inflight.ErrTooLarge}
	}
	if magicAt := d.at; uint32(d.i32(fieldMagic)) != magic && d.err == nil {
		return nil, &FormatError{Code: CodeMetadata, Offset: int64(magicAt), Text: "no metadata of a Flink checkpoint", Err: inflight.ErrForeign}
	}
	versionAt := d.at
	m.Version = d.i32(fieldVersion)
	if d.err == nil && (m.Version < MinVersion || m.Version > MaxVersion) {
		return nil, &FormatError{Code: CodeMetadata, Offset: int64(versionAt), Err: inflight.ErrUnknownVersion,
			Text: fmt.Sprintf("metadata version %d; %d to %d are known", m.Version, MinVersion, MaxVersion)}
	}
	idAt := d.at
	id := d.i64(fieldCheckpointID)
	if id < 0 {
		d.fail(idAt, "negative checkpoint id: %d", id)
	}
	m.CheckpointID = inflight.CheckpointID(id)
	for range d.count("master states", 14) {
		m.Masters = append(m.Masters, d.master())
		if d.err != nil {
			return nil, d.err
		}
	}
	for range d.count("operators", 32) {
		o := d.operator(m.Version)
		if d.err != nil {
			return nil, d.err
		}
		m.Operators = append(m.Operators, o)
	}
	m.tail = d.at
	if m.Version >= 4 && d.err == nil && d.left() < len(nullProperties) {
		d.err = torn(CodeMetadata, int64(d.at), "%s: %d bytes left", fieldProperties, d.left())
	}
	d.take(fieldProperties, d.left())
	m.odd = d.odd
	return m, d.err
}

func (d *decoder) master() (s MasterState) {
	at := d.at
	if uint32(d.i32(fieldMaster)) != masterMagic {
		d.fail(at, "wrong magic number of a master state")
	}
	at = d.at
	n := d.i32(fieldMaster)
	if n <= 0 {
		d.fail(at, "length of a master state: %d", n)
	}
	if n > d.left() {
		d.take(fieldMaster, n)
	}
	if d.err != nil {
		return s
	}
	end := d.at + n
	s.Version, s.Name, s.Payload = d.i32(fieldMaster), d.text(fieldMaster), d.bytes(fieldMasterPayload)
	if d.err == nil && d.at != end {
		d.fail(d.at, "master state of %d bytes ends at %d", n, end)
	}
	return s
}

func (d *decoder) operator(version int) (o Operator) {
	o.at = d.at
	if version >= 5 {
		o.Name, o.UID = d.text(fieldOperatorName), d.text(fieldOperatorUID)
	}
	copy(o.ID[:], d.take(fieldOperatorID, len(o.ID)))
	at := d.at
	o.Parallelism, o.MaxParallelism = d.i32(fieldParallelism), d.i32(fieldMaxParallelism)
	if o.Parallelism < 0 || o.MaxParallelism < o.Parallelism {
		d.fail(at, "parallelism %d of at most %d", o.Parallelism, o.MaxParallelism)
	}
	if version == 2 {
		if n := d.i32(fieldUnused); n != 1 {
			d.note(d.at-4, "chain length %d instead of 1", n)
		}
	} else {
		at = d.at
		o.Coordinator = d.streamHandle(0)
		if k := o.Coordinator.Kind(); k != KindNull && k != KindByteStream {
			d.fail(at, "coordinator state is a %s", k)
		}
	}
	at = d.at
	n := d.i32(fieldCount)
	switch {
	case n < 0 && version == 2:
		d.fail(at, "negative number of subtasks: %d", n)
	case n < 0:
		if n != -1 {
			d.note(at, "%d instead of -1 for an operator that had finished", n)
		}
		if o.Finished = true; !o.Coordinator.IsNull() {
			d.fail(at, "coordinator state of an operator that had finished")
		}
	case n > d.left()/4 && d.err == nil:
		d.err = torn(d.code, int64(at), "%d subtasks cannot stand in the %d bytes that are left", n, d.left())
	}
	for range n {
		s := d.subtask(version, o.Parallelism)
		if d.err != nil {
			return o
		}
		o.Subtasks = append(o.Subtasks, s)
	}
	o.end = d.at
	return o
}

func (d *decoder) subtask(version, parallelism int) (s Subtask) {
	s.at = d.at
	s.Index = d.i32(fieldSubtask)
	if version > 2 && s.Index < 0 {
		s.Finished, s.Index = true, -s.Index-1
	}
	if d.err == nil && (s.Index < 0 || s.Index >= parallelism) {
		d.fail(s.at, "subtask %d of %d", s.Index, parallelism)
	}
	if s.Finished || d.err != nil {
		return s
	}
	if version == 2 {
		if n := d.i64(fieldUnused); n != -1 {
			d.note(d.at-8, "duration %d instead of -1", n)
		}
		at := d.at
		if n := d.i32(fieldCount); n > 0 {
			d.fail(at, "legacy state is no longer supported")
		} else if n < 0 {
			d.note(at, "a negative number of legacy states")
		}
	}
	if d.present() {
		s.ManagedOperator = d.operatorState()
	}
	if d.present() {
		s.RawOperator = d.operatorState()
	}
	s.ManagedKeyed, s.RawKeyed = d.keyedState(0), d.keyedState(0)
	s.span = d.at
	if version > 2 {
		s.Input = d.channelHandles(inflight.Input, version)
		s.Output = d.channelHandles(inflight.Output, version)
	}
	s.stop = d.at
	return s
}

// present reads whether an operator state follows.
func (d *decoder) present() bool {
	at := d.at
	n := d.i32(fieldPresence)
	if n != 0 && n != 1 {
		d.note(at, "%d instead of 1 for the presence of operator state", n)
	}
	return n != 0
}

// Bytes returns the file. It must not be changed.
func (m *Metadata) Bytes() []byte { return m.raw }

// PropertiesOffset returns where the checkpoint properties begin; they are the
// rest of the file. Before version 4 there are none, and this is where the file
// should end.
func (m *Metadata) PropertiesOffset() int64 { return int64(m.tail) }

// Operator returns the operator with that id, or nil.
func (m *Metadata) Operator(id OperatorID) *Operator {
	i := slices.IndexFunc(m.Operators, func(o Operator) bool { return o.ID == id })
	if i < 0 {
		return nil
	}
	return &m.Operators[i]
}

// Label returns what findings and tables call o: its name, or its id where it has
// none or shares it.
func (m *Metadata) Label(o *Operator) string {
	if o.Name == "" {
		return o.ID.String()
	}
	for i := range m.Operators {
		if x := &m.Operators[i]; x.Name == o.Name && x.ID != o.ID {
			return o.Name + " " + o.ID.String()
		}
	}
	return o.Name
}

// Subtask returns the entry of subtask index, or nil.
func (o *Operator) Subtask(index int) *Subtask {
	i := slices.IndexFunc(o.Subtasks, func(s Subtask) bool { return s.Index == index })
	if i < 0 {
		return nil
	}
	return &o.Subtasks[i]
}

// StateHandles yields the stream handles of s but for those of channel state.
func (s *Subtask) StateHandles() iter.Seq[StreamHandle] {
	return func(yield func(StreamHandle) bool) {
		for _, o := range []*OperatorState{s.ManagedOperator, s.RawOperator} {
			if o != nil && !yield(o.Delegate) {
				return
			}
		}
		for _, k := range []*KeyedState{s.ManagedKeyed, s.RawKeyed} {
			if k != nil && !k.handles(yield) {
				return
			}
		}
	}
}

// Handles yields the channel handles of s, input before output.
func (s *Subtask) Handles() iter.Seq[ChannelHandle] {
	return func(yield func(ChannelHandle) bool) {
		for _, list := range [][]ChannelHandle{s.Input, s.Output} {
			for _, h := range list {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// Room is what an operator takes up in _metadata, in bytes.
type Room struct {
	Operator *Operator
	Bytes    int // in all
	Channels int // handles of channel state, inline state included
	Keyed    int
	State    int // operator state
	Inline   int // of all that: data of inline handles, the coordinator's too
}

// Room returns what each operator takes up in _metadata, largest first. The rest
// of the file are the properties and a few numbers.
func (m *Metadata) Room() []Room {
	list := make([]Room, len(m.Operators))
	for i := range m.Operators {
		o := &m.Operators[i]
		r := Room{Operator: o, Bytes: o.end - o.at, Inline: len(o.Coordinator.Data())}
		for j := range o.Subtasks {
			s := &o.Subtasks[j]
			r.Channels += s.stop - s.span
			for _, k := range []*KeyedState{s.ManagedKeyed, s.RawKeyed} {
				if k != nil {
					r.Keyed += len(k.raw)
				}
			}
			for _, x := range []*OperatorState{s.ManagedOperator, s.RawOperator} {
				if x != nil {
					r.State += len(x.raw)
				}
			}
			for h := range s.StateHandles() {
				r.Inline += len(h.Data())
			}
			for h := range s.Handles() {
				r.Inline += len(h.Delegate().Data())
			}
		}
		list[i] = r
	}
	slices.SortStableFunc(list, func(a, b Room) int { return b.Bytes - a.Bytes })
	return list
}

// channelHandles yields the channel handles of all subtasks.
func (m *Metadata) channelHandles() iter.Seq[ChannelHandle] {
	return func(yield func(ChannelHandle) bool) {
		for i := range m.Operators {
			for j := range m.Operators[i].Subtasks {
				for h := range m.Operators[i].Subtasks[j].Handles() {
					if !yield(h) {
						return
					}
				}
			}
		}
	}
}

// Changes say what Rewrite changes. What they do not name stays as it is, byte
// for byte.
type Changes struct {
	// Channels returns the channel state of a subtask, and whether it differs
	// from what is there. Nil: none differs.
	Channels func(o *Operator, s *Subtask) (input, output []ChannelHandle, changed bool)
	// Handle returns what takes the place of a stream handle, and whether
	// anything does. It is not asked for channel state that Channels changes.
	Handle func(h StreamHandle) (StreamHandle, bool)
	// Operator returns what takes the place of an operator state, nil for none, and
	// whether it differs. Handle is not asked for that one then.
	Operator func(s *OperatorState) (*OperatorState, bool)
	// NullProperties writes the null object instead of the properties.
	NullProperties bool
}

// Rewrite returns the bytes of m with changes.
func (m *Metadata) Rewrite(c Changes) ([]byte, error) {
	r := rewriter{m: m, c: c, out: make([]byte, 0, len(m.raw))}
	for i := range m.Operators {
		o := &m.Operators[i]
		r.handle(o.Coordinator)
		for j := range o.Subtasks {
			if err := r.subtask(o, &o.Subtasks[j]); err != nil {
				return nil, &inflight.Error{Op: "rewrite", Object: MetadataName, Err: err}
			}
		}
	}
	if c.NullProperties && m.Version >= 4 {
		r.splice(m.tail, len(m.raw), nullProperties)
	}
	r.splice(len(m.raw), len(m.raw), nil)
	return r.out, nil
}

// rewriter copies a file and puts other bytes in the place of some.
type rewriter struct {
	m    *Metadata
	c    Changes
	out  []byte
	done int // of m.raw
}

// splice puts with in the place of the bytes from at to end, which follow on
// the places before.
func (r *rewriter) splice(at, end int, with []byte) {
	r.out = append(append(r.out, r.m.raw[r.done:at]...), with...)
	r.done = end
}

func (r *rewriter) handle(h StreamHandle) {
	if r.c.Handle == nil || h.IsNull() {
		return
	}
	if n, changed := r.c.Handle(h); changed {
		r.splice(h.at, h.at+len(h.raw), n.raw)
	}
}

func (r *rewriter) subtask(o *Operator, s *Subtask) (err error) {
	if s.Finished {
		return nil
	}
	for _, x := range []*OperatorState{s.ManagedOperator, s.RawOperator} {
		if x == nil {
			continue
		}
		if r.c.Operator != nil {
			if n, changed := r.c.Operator(x); changed {
				if err := r.operator(x, n); err != nil {
					return err
				}
				continue
			}
		}
		r.handle(x.Delegate)
	}
	for _, x := range []*KeyedState{s.ManagedKeyed, s.RawKeyed} {
		if x != nil {
			for h := range x.Handles() {
				r.handle(h)
			}
		}
	}
	if r.c.Channels != nil {
		if input, output, changed := r.c.Channels(o, s); changed {
			return r.channels(s, input, output)
		}
	}
	for h := range s.Handles() {
		r.handle(h.Delegate())
	}
	return nil
}

// operator puts n in the place of x; nil is none, which the number before it says.
func (r *rewriter) operator(x, n *OperatorState) error {
	if n == nil {
		r.splice(x.at-4, x.at+len(x.raw), appendI32(nil, 0))
		return nil
	}
	b, err := n.append(nil)
	if err == nil {
		r.splice(x.at, x.at+len(x.raw), b)
	}
	return err
}

func (r *rewriter) channels(s *Subtask, input, output []ChannelHandle) error {
	if r.m.Version < 3 {
		if len(input)+len(output) == 0 {
			return nil
		}
		return fmt.Errorf("%w: metadata version %d has no channel state", inflight.ErrUnsupported, r.m.Version)
	}
	b, err := appendHandles(nil, r.m.Version, input)
	if err == nil {
		b, err = appendHandles(b, r.m.Version, output)
	}
	if err != nil {
		return err
	}
	r.splice(s.span, s.stop, b)
	return nil
}

// IsMetadata reports whether b begins as a _metadata file does.
func IsMetadata(b []byte) bool { return len(b) >= 4 && binary.BigEndian.Uint32(b) == magic }
