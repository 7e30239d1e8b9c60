package reader

import "encoding/binary"

// RecordCount is how many records a stream of bytes holds.
type RecordCount struct {
	Whole uint64 // complete records
	Left  uint64 // bytes behind the last complete one
	Bad   bool   // a length makes no sense: these are not such records, or not from a boundary on
}

// RecordCounter counts records that stand behind their big-endian int32 length,
// as Flink and the reference runtime frame them. Records may span buffers. The
// zero value is at a boundary.
type RecordCounter struct {
	n    RecordCount
	head [4]byte
	got  int    // bytes of head
	need uint64 // bytes of the record still to come
}

// Add counts the bytes p that follow.
func (c *RecordCounter) Add(p []byte) {
	for len(p) > 0 && !c.n.Bad {
		if c.got < len(c.head) {
			k := copy(c.head[c.got:], p)
			c.got, c.n.Left, p = c.got+k, c.n.Left+uint64(k), p[k:]
			if c.got < len(c.head) {
				return
			}
			length := int32(binary.BigEndian.Uint32(c.head[:]))
			c.need, c.n.Bad = uint64(length), length < 0
		} else {
			k := min(c.need, uint64(len(p)))
			c.need, c.n.Left, p = c.need-k, c.n.Left+k, p[k:]
		}
		if c.need == 0 {
			c.n.Whole++
			c.n.Left, c.got = 0, 0
		}
	}
	if c.n.Bad {
		c.n.Left += uint64(len(p))
	}
}

// Count returns what was counted so far.
func (c *RecordCounter) Count() RecordCount { return c.n }
