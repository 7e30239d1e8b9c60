package flink

// The codes of findings about a Flink checkpoint. They are part of the JSON of
// the inspector.
const (
	CodeMetadata     = "metadata"
	CodeMergedHandle = "merged-handle"
	CodeProperties   = "properties"
)
