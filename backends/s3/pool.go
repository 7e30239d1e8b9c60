package s3

import (
	"context"
	"hash/crc32"
	"io"
	"sync"
)

// chunkSize is the unit in which parts take memory. Small objects take less.
const (
	chunkSize  = 256 << 10
	firstChunk = 16 << 10
)

// pool is the memory of all parts of a backend. What it has once taken it keeps
// for the next parts, until the backend is closed.
type pool struct {
	limit int64

	mu     sync.Mutex
	used   int64
	flying int64         // of used, what uploads will give back whatever their callers do
	change chan struct{} // is closed when used or flying goes down
	free   [][]byte      // chunks of chunkSize
}

func newPool(limit int64) *pool { return &pool{limit: limit, change: make(chan struct{})} }

// get returns n bytes. It waits while the memory is used up and an upload will
// give some back. Where none is under way, every part waits for its writer, who
// may wait for us: then the limit is exceeded.
func (p *pool) get(ctx context.Context, n int) ([]byte, error) {
	p.mu.Lock()
	for p.used+int64(n) > p.limit && p.flying > 0 {
		change := p.change
		p.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	p.used += int64(n)
	if last := len(p.free) - 1; n == chunkSize && last >= 0 {
		chunk := p.free[last]
		p.free = p.free[:last]
		return chunk, nil
	}
	return make([]byte, n), nil
}

// fly says that n bytes are being uploaded, and land that they no longer are.
func (p *pool) fly(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying += n
}

// land takes back the memory of a part; flown of it had been announced by fly.
func (p *pool) land(chunks [][]byte, flown int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying -= flown
	for _, c := range chunks {
		p.used -= int64(len(c))
		if len(c) == chunkSize && int64(len(p.free)) < p.limit/chunkSize {
			p.free = append(p.free, c)
		}
	}
	close(p.change)
	p.change = make(chan struct{})
}

// drop forgets what is free.
func (p *pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = nil
}

// part is a piece of an object in memory.
type part struct {
	pool   *pool
	limit  int64 // of its size
	size   int64
	taken  int64 // memory
	crc    uint32
	chunks [][]byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fill copies as much of b as there is room for in the last chunk, after taking
// one more where that is full. The part must not be.
func (p *part) fill(ctx context.Context, b []byte, hint int64) (int, error) {
	if p.size == p.taken {
		n := min(max(p.taken, firstChunk), chunkSize, p.limit-p.taken)
		if hint > 0 && hint <= chunkSize && p.taken == 0 {
			n = min(hint, p.limit)
		}
		chunk, err := p.pool.get(ctx, int(n))
		if err != nil {
			return 0, err
		}
		p.chunks = append(p.chunks, chunk)
		p.taken += n
	}
	last := p.chunks[len(p.chunks)-1]
	n := copy(last[int64(len(last))-(p.taken-p.size):], b)
	p.crc = crc32.Update(p.crc, castagnoli, b[:n])
	p.size += int64(n)
	return n, nil
}

func (p *part) full() bool { return p.size == p.limit }

// all calls f with the bytes, in order.
func (p *part) all(f func([]byte)) {
	left := p.size
	for _, c := range p.chunks {
		c = c[:min(left, int64(len(c)))]
		left -= int64(len(c))
		f(c)
	}
}

// release gives the memory back.
func (p *part) release(flown int64) {
	if p.chunks != nil {
		p.pool.land(p.chunks, flown)
		p.chunks = nil
	}
}

// reader returns the bytes for one request. Stop must be called before the part
// is released or read again: a request that was given up may go on reading for a
// while.
func (p *part) reader() *partReader { return &partReader{chunks: p.chunks, left: p.size} }

type partReader struct {
	mu      sync.Mutex
	chunks  [][]byte
	off     int // in the first chunk
	left    int64
	stopped bool
}

func (r *partReader) Read(b []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return 0, io.ErrClosedPipe
	case r.left == 0:
		return 0, io.EOF
	}
	for n < len(b) && r.left > 0 {
		k := copy(b[n:], r.chunks[0][r.off:min(int64(len(r.chunks[0])), int64(r.off)+r.left)])
		n, r.off, r.left = n+k, r.off+k, r.left-int64(k)
		if r.off == len(r.chunks[0]) {
			r.chunks, r.off = r.chunks[1:], 0
		}
	}
	return n, nil
}

func (r *partReader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped, r.chunks = true, nil
}
