package flink

import (
	"fmt"
	"iter"
)

// StateMode says how a named operator state is given out at a restore.
type StateMode uint8

// The modes; the numbers are Flink's.
const (
	ModeSplitDistribute StateMode = 0
	ModeUnion           StateMode = 1
	ModeBroadcast       StateMode = 2
)

// String returns Flink's name of the mode.
func (m StateMode) String() string {
	return [...]string{"SPLIT_DISTRIBUTE", "UNION", "BROADCAST"}[m]
}

// NamedState is one operator state: where its parts begin in the stream.
type NamedState struct {
	Name    string
	Mode    StateMode
	Offsets Int64s
}

// OperatorState is the managed or raw operator state of a subtask.
type OperatorState struct {
	States   []NamedState
	Delegate StreamHandle
	// Merging: written by file merging; the next three are set then.
	Merging      bool
	TaskOwnedDir string
	SharedDir    string
	Empty        bool

	raw []byte
	at  int
}

// Tags of operator handles.
const (
	tagOperator        = 4
	tagOperatorMerging = 17
)

// Kind returns the name of Flink's class.
func (s *OperatorState) Kind() string {
	switch {
	case s.Merging && s.Empty:
		return "EmptyFileMergingOperatorStreamStateHandle"
	case s.Merging:
		return "FileMergingOperatorStreamStateHandle"
	}
	return "OperatorStreamStateHandle"
}

// Size returns the bytes of state, as the handle says.
func (s *OperatorState) Size() int64 { return s.Delegate.Size() }

// Handles yields the stream handles in s.
func (s *OperatorState) Handles() iter.Seq[StreamHandle] {
	return func(yield func(StreamHandle) bool) { yield(s.Delegate) }
}

func (d *decoder) operatorState() *OperatorState {
	at := d.at
	s := &OperatorState{at: at}
	switch tag := d.u8(fieldTag); tag {
	case tagOperator:
	case tagOperatorMerging:
		s.Merging = true
	case 0:
		d.fail(at, "operator state is announced and null: Flink fails on it")
	default:
		d.fail(at, "unknown tag of an operator state handle: %d", tag)
	}
	for range d.count("operator states", 7) {
		n := NamedState{Name: d.text(fieldStateName)}
		modeAt := d.at
		if n.Mode = StateMode(d.u8(fieldStateMode)); n.Mode > ModeBroadcast {
			d.fail(modeAt, "unknown mode of operator state: %d", n.Mode)
		}
		n.Offsets = d.offsets(fieldStateOffset, d.count("offsets", 8))
		if d.err != nil {
			return nil
		}
		s.States = append(s.States, n)
	}
	if s.Merging {
		s.TaskOwnedDir, s.SharedDir = d.text(fieldDirectory), d.text(fieldDirectory)
		empty := d.u8(fieldPresence)
		if s.Empty = empty != 0; empty > 1 {
			d.note(d.at-1, "%d for a boolean", empty)
		}
	}
	delegateAt := d.at
	s.Delegate = d.streamHandle(0)
	if k := s.Delegate.Kind(); d.err == nil && s.Merging && k != KindSegment && k != KindEmptySegment {
		d.fail(delegateAt, "state of file merging lies in a %s", k)
	}
	s.raw = d.b[at:d.at]
	return s
}

// append appends s as it stands in _metadata.
func (s *OperatorState) append(b []byte) (_ []byte, err error) {
	tag := byte(tagOperator)
	if s.Merging {
		tag = tagOperatorMerging
	}
	b = appendI32(append(b, tag), len(s.States))
	for _, n := range s.States {
		if b, err = appendUTF(b, n.Name); err != nil {
			return nil, err
		}
		b = append(appendI32(append(b, byte(n.Mode)), n.Offsets.Len()), n.Offsets...)
	}
	if s.Merging {
		for _, dir := range []string{s.TaskOwnedDir, s.SharedDir} {
			if b, err = appendUTF(b, dir); err != nil {
				return nil, err
			}
		}
		empty := byte(0)
		if s.Empty {
			empty = 1
		}
		b = append(b, empty)
	}
	return append(b, s.Delegate.raw...), nil
}

// KeyedKind is the tag of a keyed state handle. The numbers are Flink's.
type KeyedKind uint8

// The kinds of keyed state handles; v1 kinds are read by Flink and no longer
// written.
const (
	KeyedKeyGroupsV1      KeyedKind = 3
	KeyedIncrementalV1    KeyedKind = 5
	KeyedSavepoint        KeyedKind = 7
	KeyedChangelogV1      KeyedKind = 8
	KeyedChangelogInline  KeyedKind = 9
	KeyedChangelogFilesV1 KeyedKind = 10
	KeyedIncremental      KeyedKind = 11
	KeyedKeyGroups        KeyedKind = 12
	KeyedChangelogFiles   KeyedKind = 13
	KeyedChangelog        KeyedKind = 14
	keyedNull             KeyedKind = 0
)

// String returns the name of Flink's class.
func (k KeyedKind) String() string {
	switch k {
	case KeyedKeyGroupsV1, KeyedKeyGroups:
		return "KeyGroupsStateHandle"
	case KeyedSavepoint:
		return "KeyGroupsSavepointStateHandle"
	case KeyedIncrementalV1, KeyedIncremental:
		return "IncrementalRemoteKeyedStateHandle"
	case KeyedChangelogV1, KeyedChangelog:
		return "ChangelogStateBackendHandleImpl"
	case KeyedChangelogInline:
		return "InMemoryChangelogStateHandle"
	case KeyedChangelogFilesV1, KeyedChangelogFiles:
		return "ChangelogStateHandleStreamImpl"
	}
	return fmt.Sprintf("keyed(%d)", uint8(k))
}

// LocalFile is a file of a RocksDB instance: its name there, and where it lies.
type LocalFile struct {
	LocalPath string
	Handle    StreamHandle
}

// KeyedState is the managed or raw keyed state of a subtask. Which fields are
// set depends on Kind.
type KeyedState struct {
	Kind          KeyedKind
	FirstKeyGroup int
	KeyGroups     int    // number of key groups; 0 is the empty range
	Offsets       Int64s // key groups: where each begins in Delegate
	Delegate      StreamHandle
	ID            string // state handle id; "" where the kind has none

	// Of incremental state.
	BackendID       string
	CheckpointID    int64
	Meta            StreamHandle
	Shared, Private []LocalFile

	// Of changelogs.
	Base, Deltas      []*KeyedState
	MaterializationID int64
	From, To          int64 // sequence numbers of an inline increment
	Changes           int   // in an inline increment
	ChangeBytes       int64
	Files             []StreamHandle // of an increment in files
	FileOffsets       []int64
	StorageID         string
	// CheckpointedSize is what this checkpoint added, where the kind says.
	CheckpointedSize int64
	size             int64

	raw []byte
	at  int
}

// Size returns the bytes of state, as the handles say.
func (s *KeyedState) Size() int64 {
	n := s.size + s.ChangeBytes
	for h := range s.Handles() {
		if s.Kind != KeyedChangelogFiles && s.Kind != KeyedChangelogFilesV1 {
			n += max(h.Size(), 0)
		}
	}
	return n
}

// Handles yields all stream handles in s, those of nested handles too.
func (s *KeyedState) Handles() iter.Seq[StreamHandle] {
	return func(yield func(StreamHandle) bool) { s.handles(yield) }
}

func (s *KeyedState) handles(yield func(StreamHandle) bool) bool {
	for _, h := range []StreamHandle{s.Delegate, s.Meta} {
		if !h.IsNull() && !yield(h) {
			return false
		}
	}
	for _, list := range [][]LocalFile{s.Shared, s.Private} {
		for _, f := range list {
			if !yield(f.Handle) {
				return false
			}
		}
	}
	for _, h := range s.Files {
		if !yield(h) {
			return false
		}
	}
	for _, list := range [][]*KeyedState{s.Base, s.Deltas} {
		for _, n := range list {
			if n != nil && !n.handles(yield) {
				return false
			}
		}
	}
	return true
}

// keyedState reads a keyed handle; nil is null.
func (d *decoder) keyedState(depth int) *KeyedState {
	at := d.at
	s := &KeyedState{Kind: KeyedKind(d.u8(fieldTag)), at: at}
	if depth > maxNesting {
		d.fail(at, "handles nested more than %d deep", maxNesting)
		return nil
	}
	switch s.Kind {
	case keyedNull:
		return nil
	case KeyedKeyGroupsV1, KeyedKeyGroups, KeyedSavepoint:
		s.FirstKeyGroup, s.KeyGroups, s.Offsets = d.keyGroups()
		s.Delegate = d.streamHandle(0)
		if s.Kind == KeyedKeyGroups {
			s.ID = d.text(fieldStateID)
		}
	case KeyedIncrementalV1, KeyedIncremental:
		d.incremental(s)
	case KeyedChangelogV1, KeyedChangelog:
		d.changelog(s, depth)
	case KeyedChangelogInline:
		d.changelogInline(s)
	case KeyedChangelogFilesV1, KeyedChangelogFiles:
		d.changelogFiles(s)
	default:
		d.fail(at, "unknown tag of a keyed state handle: %d", s.Kind)
	}
	if d.err != nil {
		return nil
	}
	s.raw = d.b[at:d.at]
	return s
}

func (d *decoder) incremental(s *KeyedState) {
	s.CheckpointID = d.i64(fieldDelta)
	s.BackendID = d.text(fieldBackend)
	s.FirstKeyGroup, s.KeyGroups = d.keyGroupRange()
	if s.Kind == KeyedIncremental {
		s.CheckpointedSize = d.i64(fieldAdded)
	}
	s.Meta = d.streamHandle(0)
	s.Shared = d.localFiles()
	s.Private = d.localFiles()
	if s.Kind == KeyedIncremental {
		s.ID = d.text(fieldStateID)
	}
}

func (d *decoder) localFiles() (files []LocalFile) {
	for range d.count("files", 3) {
		f := LocalFile{LocalPath: d.text(fieldLocalPath)}
		at := d.at
		if f.Handle = d.streamHandle(0); f.Handle.IsNull() {
			d.fail(at, "null handle in a list of files")
		}
		if d.err != nil {
			return nil
		}
		files = append(files, f)
	}
	return files
}

func (d *decoder) changelog(s *KeyedState, depth int) {
	s.FirstKeyGroup, s.KeyGroups = d.keyGroupRange()
	s.CheckpointedSize = d.i64(fieldAdded)
	s.Base = d.keyedStates("materialized states", depth)
	deltasAt := d.at
	s.Deltas = d.keyedStates("changelog increments", depth)
	for _, x := range s.Deltas {
		if x != nil && x.Kind != KeyedChangelogInline && x.Kind != KeyedChangelogFiles && x.Kind != KeyedChangelogFilesV1 {
			d.fail(deltasAt, "%s among changelog increments", x.Kind)
		}
	}
	s.MaterializationID = d.i64(fieldDelta)
	if s.Kind == KeyedChangelog {
		s.CheckpointID = d.i64(fieldDelta)
	}
	s.ID = d.text(fieldStateID)
}

func (d *decoder) keyedStates(what string, depth int) (list []*KeyedState) {
	for range d.count(what, 1) {
		x := d.keyedState(depth + 1)
		if d.err != nil {
			return nil
		}
		list = append(list, x)
	}
	return list
}

func (d *decoder) changelogInline(s *KeyedState) {
	s.FirstKeyGroup, s.KeyGroups = d.keyGroupRange()
	s.From, s.To = d.i64(fieldDelta), d.i64(fieldDelta)
	s.Changes = d.count("changes", 8)
	for range s.Changes {
		d.i32(fieldKeyGroup)
		s.ChangeBytes += int64(len(d.bytes(fieldInlineData)))
		if d.err != nil {
			return
		}
	}
	s.ID = d.text(fieldStateID)
}

func (d *decoder) changelogFiles(s *KeyedState) {
	s.FirstKeyGroup, s.KeyGroups = d.keyGroupRange()
	for range d.count("changelog files", 9) {
		offset, at := d.i64(fieldDelta), d.at
		h := d.streamHandle(0)
		if h.IsNull() {
			d.fail(at, "null handle in a list of files")
		}
		if d.err != nil {
			return
		}
		s.FileOffsets, s.Files = append(s.FileOffsets, offset), append(s.Files, h)
	}
	s.size = d.i64(fieldAdded)
	s.CheckpointedSize = d.i64(fieldAdded)
	s.ID = d.text(fieldStateID)
	if s.StorageID = "filesystem"; s.Kind == KeyedChangelogFiles {
		s.StorageID = d.text(fieldDelta)
	}
}
