package flink

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// StateVersion is the version of channel-state files: the number at their front.
const StateVersion = 0

const (
	headerSize = 4
	lengthSize = 4
	// windowLocal and windowRemote are how much is read at once.
	windowLocal  = 512 << 10
	windowRemote = 8 << 20
	// wholeStream is up to which size a stream of a remote store is kept.
	wholeStream = windowRemote
	// gapToRead is how many bytes that nobody wants are read rather than skipped.
	gapToRead = 128 << 10
)

// streamReader reads an opened stream of channel state.
type streamReader struct {
	name string // of the file, for errors
	size int64
	data []byte          // the stream, if it is in memory
	src  backends.Source // otherwise
	base int64           // of the stream in src

	window    []byte // what was read last
	windowAt  int64
	windowMax int
	pooled    *[]byte // what window lies in, on local disk
	file      File    // where the stream lies, unless it is inline
}

// windows are the buffers of streams on local disk.
var windows = sync.Pool{New: func() any { b := make([]byte, windowLocal); return &b }}

// openStream opens the stream of a handle.
func (c *Checkpoint) openStream(ctx context.Context, h StreamHandle) (*streamReader, error) {
	for h.Kind() == KindKeyGroups {
		h = h.Inner()
	}
	if h.Kind() == KindByteStream {
		return &streamReader{name: h.String(), size: h.Size(), data: h.Data()}, nil
	}
	f, err := c.Locate(ctx, h)
	if err != nil {
		return nil, err
	}
	r := &streamReader{name: h.String(), file: f}
	if r.src, err = f.Backend.Open(ctx, f.Name); err != nil {
		return nil, err
	}
	r.size = r.src.Info().Size
	if h.Kind() == KindSegment {
		start, size := h.StartPos(), h.Size()
		if start < 0 || size < 0 || start > r.size || size > r.size-start {
			r.close()
			return nil, &inflight.Error{Op: "open", Object: h.String(),
				Err: torn(CodeWrongSize, start, "a segment of %d bytes in a file of %d", size, r.src.Info().Size)}
		}
		r.base, r.size = start, size
	}
	if r.windowMax = windowRemote; !f.Backend.Capabilities().Remote {
		r.windowMax = windowLocal
		if r.size >= windowLocal {
			r.pooled = windows.Get().(*[]byte)
			r.window = (*r.pooled)[:0]
		}
	}
	return r, nil
}

func (r *streamReader) close() {
	if r.src != nil {
		_ = r.src.Close() // it was only read
	}
	if r.pooled != nil {
		windows.Put(r.pooled)
		r.pooled, r.window = nil, nil
	}
}

// load reads the whole stream into memory.
func (r *streamReader) load(ctx context.Context) error {
	if r.data != nil || r.size == 0 {
		return nil
	}
	p := make([]byte, r.size)
	if err := r.src.ReadAt(ctx, p, r.base); err != nil {
		return err
	}
	r.data = p
	return nil
}

// view returns up to n bytes at offset off, at least one; the caller has checked
// that they are there. On a miss it reads on to ahead.
func (r *streamReader) view(ctx context.Context, off int64, n int, ahead int64) ([]byte, error) {
	if r.data != nil {
		return r.data[off : off+int64(n)], nil
	}
	if have := r.windowAt + int64(len(r.window)); off < r.windowAt || off >= have || n <= 8 && off+int64(n) > have {
		want := min(max(ahead-off, int64(n)), int64(r.windowMax), r.size-off)
		if int64(cap(r.window)) < want {
			r.window = make([]byte, want)
		}
		r.window, r.windowAt = r.window[:want], off
		if err := r.src.ReadAt(ctx, r.window, r.base+off); err != nil {
			r.window = r.window[:0]
			return nil, err
		}
	}
	p := r.window[off-r.windowAt:]
	return p[:min(n, len(p))], nil
}

// header checks the version at the front.
func (r *streamReader) header(ctx context.Context) error {
	if r.size < headerSize {
		return torn(CodeFileHeader, 0, "a channel-state file of %d bytes", r.size)
	}
	p, err := r.view(ctx, 0, headerSize, headerSize)
	if err != nil {
		return err
	}
	if v := int32(binary.BigEndian.Uint32(p)); v != StateVersion {
		return &FormatError{Code: CodeFileHeader, Text: fmt.Sprintf("channel state of version %d", v), Err: inflight.ErrUnknownVersion}
	}
	return nil
}

// chunkVisitor is told what each finds; chunks are named by their index. An
// error of a visitor ends the walk.
type chunkVisitor struct {
	// want tells which chunks to visit; nil is all.
	want func(*Chunk) bool
	// piece is called with the payload from at on, in one piece or several; an
	// empty chunk has one empty piece.
	piece func(i int, at int64, p []byte) error
	// bad is called instead for a chunk that cannot be read.
	bad func(i int, err *FormatError) error
}

// each visits chunks, which are ordered by their offsets, and notes their lengths.
func (r *streamReader) each(ctx context.Context, chunks []Chunk, v chunkVisitor) error {
	wanted := func(c *Chunk) bool { return v.want == nil || v.want(c) }
	for i := range chunks {
		c := &chunks[i]
		if !wanted(c) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		ahead := r.ahead(chunks[i:], wanted)
		if bad, err := r.length(ctx, c, ahead); err != nil {
			return err
		} else if bad != nil {
			if err := v.bad(i, bad); err != nil {
				return err
			}
			continue
		}
		if err := r.payload(ctx, c, ahead, func(at int64, p []byte) error { return v.piece(i, at, p) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *streamReader) payload(ctx context.Context, c *Chunk, ahead int64, piece func(at int64, p []byte) error) error {
	if c.Length == 0 {
		return piece(0, nil)
	}
	for at := int64(0); at < int64(c.Length); {
		off := c.Offset + lengthSize + at
		p, err := r.view(ctx, off, int(int64(c.Length)-at), max(ahead, c.end()))
		if err != nil {
			return err
		}
		if err := piece(at, p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// length reads the length of c and checks that its bytes are there.
func (r *streamReader) length(ctx context.Context, c *Chunk, ahead int64) (*FormatError, error) {
	if c.Offset < headerSize {
		return corrupt(CodeChunkRange, c.Offset, "a chunk before the end of the header"), nil
	}
	if c.Offset > r.size-lengthSize {
		return torn(CodeChunkRange, c.Offset, "a chunk in a stream of %d bytes", r.size), nil
	}
	p, err := r.view(ctx, c.Offset, lengthSize, ahead)
	if err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(p))
	if n < 0 {
		return corrupt(CodeChunkLength, c.Offset, "a chunk of %d bytes", n), nil
	}
	if int64(n) > r.size-lengthSize-c.Offset {
		return torn(CodeChunkRange, c.Offset, "a chunk of %d bytes, %d are there", n, r.size-lengthSize-c.Offset), nil
	}
	c.Length = n
	return nil, nil
}

// end returns where the chunk behind c would begin.
func (c *Chunk) end() int64 { return c.Offset + lengthSize + int64(max(c.Length, 0)) }

// ahead returns how far it is worth to read on from the first chunk: to the
// first long stretch that nobody wants.
func (r *streamReader) ahead(chunks []Chunk, wanted func(*Chunk) bool) int64 {
	if r.data != nil || chunks[0].Offset >= r.windowAt && chunks[0].Offset+lengthSize <= r.windowAt+int64(len(r.window)) {
		return 0 // nothing will be read, or only the rest of a chunk
	}
	start := chunks[0].Offset
	end := start + lengthSize
	for i := range chunks {
		c := &chunks[i]
		if c.Offset > end+gapToRead || c.Offset > start+int64(r.windowMax) {
			break
		}
		if !wanted(c) {
			continue
		}
		end = int64(math.MaxInt64)
		if i+1 < len(chunks) {
			end = max(chunks[i+1].Offset, c.Offset+lengthSize)
		}
	}
	return end
}
