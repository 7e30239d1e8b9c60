package dataflow

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
)

// DefaultMaxParallelism is how many key groups there are, unless a graph says
// otherwise.
const DefaultMaxParallelism = 128

// Key is a record's key: its bytes, and the hash that decides where it goes.
// Hash is what Java's hashCode gives, so that keys go where Flink sends them.
type Key struct {
	Bytes []byte
	Hash  int32
}

// KeyFunc extracts the key of a record body.
type KeyFunc func(body []byte) Key

// IntKey is the key of a big-endian int32 (java.lang.Integer).
func IntKey(b []byte) Key { return Key{b, int32(binary.BigEndian.Uint32(b))} }

// StringKey is the key of UTF-8 text (java.lang.String).
func StringKey(b []byte) Key {
	var h int32
	for i, c := range b {
		if c >= 0x80 {
			h = 0
			for _, u := range utf16.Encode([]rune(string(b))) {
				h = 31*h + int32(u)
			}
			return Key{b, h}
		}
		_ = i
		h = 31*h + int32(c)
	}
	return Key{b, h}
}

// KeyGroup is the group of a key: murmur of its hash (flink-format §6.4).
func KeyGroup(hash int32, maxParallelism int) int {
	c := uint32(hash)
	c *= 0xcc9e2d51
	c = bits.RotateLeft32(c, 15)
	c *= 0x1b873593
	c = bits.RotateLeft32(c, 13)
	c = c*5 + 0xe6546b64
	c ^= 4
	c ^= c >> 16
	c *= 0x85ebca6b
	c ^= c >> 13
	c *= 0xc2b2ae35
	c ^= c >> 16
	n := int32(c)
	switch {
	case n == -1<<31:
		n = 0
	case n < 0:
		n = -n
	}
	if m := uint32(maxParallelism); m&(m-1) == 0 {
		return int(uint32(n) & (m - 1)) // the same, without a division
	}
	return int(uint32(n) % uint32(maxParallelism))
}

// KeyGroupOwner is the subtask that a key group belongs to.
func KeyGroupOwner(group, parallelism, maxParallelism int) int {
	return group * parallelism / maxParallelism
}
