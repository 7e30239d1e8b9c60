package format

import "sync"

// Encoded bytes leave an encoder in steps. Larger steps cost less CPU; small
// ones at the front of a file let the disk begin early; the smallest are for
// hundreds of files at once. A block is never larger than a step unless one
// buffer is.
const (
	tinyStep  = 64 << 10
	smallStep = 256 << 10
	largeStep = 1 << 20
	tableRoom = 64 << 10
)

// Buffer sizes for the steps: a step less one byte, a block on top, its table.
const (
	tinyBuffer  = 2*tinyStep + tableRoom
	smallBuffer = smallStep + DefaultBlock + tableRoom + 4096
	largeBuffer = largeStep + DefaultBlock + tableRoom + 4096
)

// DefaultPoolLimit is the limit of DefaultPool in bytes.
const DefaultPoolLimit = 56 << 20

// DefaultPool is used by encoders that are given no other: one per process.
var DefaultPool = NewPool(DefaultPoolLimit)

// Pool lends the buffers that encoders assemble blocks in. With many files open
// it lends smaller ones, so that the sum stays under its limit; it never makes
// a caller wait, and so may pass the limit when there are hundreds of files.
// Its methods may be called by several goroutines at once.
type Pool struct {
	limit int64

	mu    sync.Mutex
	inUse int64
	kept  int64
	free  map[int][][]byte // by capacity
}

// NewPool returns a pool with that limit in bytes.
func NewPool(limit int64) *Pool {
	return &Pool{limit: limit, free: map[int][][]byte{}}
}

// InUse returns how many bytes are lent.
func (p *Pool) InUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse
}

// step returns the step for an encoder that has handed out offset bytes.
func (p *Pool) step(offset int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.inUse+smallBuffer > p.limit:
		return tinyStep
	case offset >= largeStep && p.inUse+largeBuffer <= p.limit*3/4:
		return largeStep
	}
	return smallStep
}

// bufferFor returns the size of the buffer for a step.
func bufferFor(step int) int {
	switch step {
	case tinyStep:
		return tinyBuffer
	case smallStep:
		return smallBuffer
	}
	return largeBuffer
}

// get returns an empty buffer of at least size bytes.
func (p *Pool) get(size int) []byte {
	for _, c := range []int{tinyBuffer, smallBuffer, largeBuffer} {
		if size <= c {
			size = c
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inUse += int64(size)
	if l := p.free[size]; len(l) > 0 {
		b := l[len(l)-1]
		p.free[size] = l[:len(l)-1]
		p.kept -= int64(size)
		return b
	}
	return make([]byte, 0, size)
}

// put takes a buffer back.
func (p *Pool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := cap(b)
	p.inUse -= int64(size)
	standard := size == tinyBuffer || size == smallBuffer || size == largeBuffer
	if standard && p.inUse+p.kept+int64(size) <= p.limit {
		p.free[size] = append(p.free[size], b[:0])
		p.kept += int64(size)
	}
}

// resized counts a lent buffer that append has moved.
func (p *Pool) resized(from, to int) {
	if from != to {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.inUse += int64(to - from)
	}
}
