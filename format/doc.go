// Package format reads and writes the bytes of a channel-state file and of a
// checkpoint's manifest. It knows io.Reader, io.Writer and io.ReaderAt, and no
// stores. docs/format.md is the specification, with byte tables.
//
// A channel-state file holds what several subtasks captured for one checkpoint:
//
//	+--------+-------+-------+---------+-------+- ... -+---------+-----------+---------+
//	| header | block | block | section | block |       | section | directory | trailer |
//	+--------+-------+-------+---------+-------+- ... -+---------+-----------+---------+
//
//	block    = block header (32 bytes), payload
//	payload  = bytes of buffers, run table          (kind data)
//	         | piece of a section                   (kind section)
//	         | directory entries                    (kind directory)
//	run      = (member, address, position, buffer lengths, CRC-64) of bytes in this block,
//	           or a reference to bytes of an older file
//	section  = of one subtask: status, cuts, and per address totals and extents
//	trailer  = 64 bytes, magic last
//
// Everything after the file header up to the trailer is a block, so one walk
// sees every byte. A section is written as soon as its subtask has finished and
// the block with its last bytes is closed: it is the subtask's complete mark, a
// crash or a cut after it leaves the subtask whole. All numbers are
// little-endian; "varint" is the unsigned LEB128 of encoding/binary.
//
// The constants of this package that describe bytes are frozen for version 1.
package format
