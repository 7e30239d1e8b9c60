package flink

// field names what the bytes at a place of _metadata are. Errors carry it, and
// tests learn from it what a changed byte was part of.
type field uint8

const (
	fieldMagic field = iota
	fieldVersion
	fieldCheckpointID
	fieldCount // of what follows
	fieldMaster
	fieldMasterPayload
	fieldOperatorName
	fieldOperatorUID
	fieldOperatorID
	fieldParallelism
	fieldMaxParallelism
	fieldSubtask // index of a subtask entry
	fieldUnused
	fieldPresence
	fieldTag
	fieldHandleName
	fieldInlineData
	fieldPath
	fieldSize
	fieldSegment // start and size of a segment
	fieldAdded   // bytes that a checkpoint added: statistics
	fieldLocalPath
	fieldScope
	fieldLogicalID
	fieldStateName
	fieldStateMode
	fieldStateOffset
	fieldKeyGroup
	fieldKeyGroupOffset
	fieldBackend
	fieldStateID
	fieldDelta
	fieldDirectory
	fieldChannelSubtask
	fieldChannelIndex // gate, channel, partition or subpartition
	fieldChannelOffset
	fieldChannelSize
	fieldMerged // length of the list of a merged handle
	fieldProperties
)

var fieldNames = [...]string{
	fieldMagic: "magic", fieldVersion: "version", fieldCheckpointID: "checkpoint id", fieldCount: "count",
	fieldMaster: "master state", fieldMasterPayload: "payload of a master state",
	fieldOperatorName: "operator name", fieldOperatorUID: "operator uid", fieldOperatorID: "operator id",
	fieldParallelism: "parallelism", fieldMaxParallelism: "max parallelism", fieldSubtask: "subtask index", fieldUnused: "unused field",
	fieldPresence: "presence of operator state", fieldTag: "tag of a handle",
	fieldHandleName: "name of an inline handle", fieldInlineData: "inline data", fieldPath: "path", fieldSize: "size of a handle",
	fieldSegment: "bounds of a segment", fieldAdded: "size of what was added", fieldLocalPath: "local path", fieldScope: "scope of a segment", fieldLogicalID: "logical file id",
	fieldStateName: "name of a state", fieldStateMode: "mode of a state", fieldStateOffset: "offset of operator state",
	fieldKeyGroup: "key group", fieldKeyGroupOffset: "offset of a key group", fieldBackend: "backend id", fieldStateID: "state handle id",
	fieldDelta: "numbers of incremental state and changelogs", fieldDirectory: "directory",
	fieldChannelSubtask: "subtask of a channel handle", fieldChannelIndex: "index of a channel", fieldChannelOffset: "offset of a chunk",
	fieldChannelSize: "size of channel state", fieldMerged: "list of a merged handle", fieldProperties: "checkpoint properties",
}

func (f field) String() string { return fieldNames[f] }
