// Package flink reads, verifies and rewrites the checkpoints of Apache Flink, so
// far as their metadata and their channel state go.
//
// A checkpoint is the directory of a file _metadata (versions 2 to 6 are read,
// from Flink 1.3 on):
//
//	+-------+---------+---------------+---------------+-----------+------------+
//	| magic | version | checkpoint id | master states | operators | properties |
//	+-------+---------+---------------+---------------+-----------+------------+
//
//	operator = name, uid, id, parallelism, coordinator state, subtasks
//	subtask  = index, operator state, keyed state, input handles, output handles
//	handle   = of channel state: subtask, channels with the offsets of their chunks, and
//	           the stream that they lie in: a file, a part of one, or the bytes themselves
//
// A channel-state file is a version and chunks; only the handles say which
// chunk belongs to which channel. There is no checksum anywhere:
//
//	+---+--------+-------+--------+-------+
//	| 0 | length | bytes | length | bytes | …
//	+---+--------+-------+--------+-------+
//
// For each connection, the chunks of the downstream input channel followed by
// those of the upstream subpartition are whole records, each behind its length.
// That, and that the chunks of a file lie side by side, is what verification
// rests on.
//
// Parse keeps the bytes that it was given and what it hands out are views of
// them, so that everything that a rewrite does not change stays as it is.
package flink
