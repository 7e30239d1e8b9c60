package flink

// The codes of findings about a Flink checkpoint. They are part of the JSON of
// the inspector.
const (
	CodeMetadata     = "metadata"       // _metadata cannot be read
	CodeMergedHandle = "merged-handle"  // the list of a merged channel handle cannot be read
	CodeProperties   = "properties"     // the checkpoint properties
	CodeTrailing     = "trailing-bytes" // bytes that nothing refers to
	CodeCheckpointID = "checkpoint-id"  // the directory has another number
	CodeOperator     = "operator"       // an operator that is there twice, or whose id is not its uid's
	CodeSubtask      = "subtask"        // a subtask that is there twice
	CodeSavepoint    = "savepoint"      // what a savepoint cannot have
	CodeKeyGroups    = "key-groups"     // key groups that the subtask does not own
	CodeStateOffset  = "state-offset"   // an offset beyond the end of its state

	CodeChannelIndex     = "channel-index"     // a channel that cannot be
	CodeChannelSubtask   = "channel-subtask"   // a handle that names another subtask
	CodeDuplicateChannel = "duplicate-channel" // a channel with two handles
	CodeEmptyHandle      = "empty-handle"      // a handle without channels, or a channel without chunks
	CodeStateSize        = "state-size"        // sizes that do not add up
	CodeInlineName       = "inline-name"       // two inline handles of one name

	CodeMissingFile    = "missing-file"    // a file that is nowhere
	CodeMovedPath      = "moved-path"      // a file that Flink will not find where its path leads
	CodeUnresolvable   = "unresolvable"    // a path that no store is known for
	CodeForeignFile    = "foreign-file"    // a file in the directory that nothing refers to
	CodeWrongSize      = "wrong-size"      // a file of another size
	CodeSegmentOverlap = "segment-overlap" // parts of one file that share bytes
	CodeUnreadable     = "unreadable"      // a file that the store does not give
	CodeFileHeader     = "file-header"     // a channel-state file of another version
	CodeChunkRange     = "chunk-range"     // a chunk beyond the end of its file
	CodeChunkLength    = "chunk-length"    // a chunk of negative length
	CodeChunkOverlap   = "chunk-overlap"   // chunks that share bytes
	CodeDeadBytes      = "dead-bytes"      // bytes of a channel-state file that belong to no channel
	CodeRecordFraming  = "record-framing"  // a connection that is not whole records
	CodeElement        = "stream-element"  // a record that is no stream element

	CodeSeal         = "seal"          // a seal that cannot be used
	CodeSealMetadata = "seal-metadata" // another _metadata than was sealed
	CodeSealChunk    = "seal-chunk"    // a chunk that changed since it was sealed
	CodeSealFile     = "seal-file"     // a file that changed since it was sealed, between its chunks
)
