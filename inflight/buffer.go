package inflight

// Buffer is a piece of a connection's byte stream that somebody owns.
//
// Whoever is handed a Buffer owns it and calls Release exactly once; Bytes must
// not be used or changed afterwards. Bytes may be called by one goroutine at a
// time; Release may be called from another goroutine than the one that made
// the buffer.
type Buffer interface {
	Bytes() []byte
	Release()
}

// Bytes is a Buffer over a slice that nobody recycles.
type Bytes []byte

// Bytes returns b.
func (b Bytes) Bytes() []byte { return b }

// Release does nothing.
func (b Bytes) Release() {}
