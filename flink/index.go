package flink

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/spillway-io/spillway/inflight"
)

// ChannelState is what a checkpoint holds of one channel.
type ChannelState struct {
	Operator *Operator
	Task     inflight.Task // the label of the operator, and the subtask that holds the state
	Channel
	// Stream is the index of the stream that the chunks lie in; Chunks lists them
	// in the order in which Flink reads them: by their offsets.
	Stream int
	Merged bool

	at int // of its handle in _metadata
}

// payload is how many bytes c has in stream h, as its handle says.
func (c *Channel) payload(h StreamHandle) int64 { return h.Payload(c.StateSize, c.Offsets.Len()) }

// Chunk is one buffer in a stream of channel state.
type Chunk struct {
	Offset  int64 // of its length, in the stream
	Length  int32 // of the payload; -1 while it is not known
	Channel int32 // index into Index.Channels
}

// Stream is one file, part of a file, or inline handle with channel state.
type Stream struct {
	Handle StreamHandle
	Chunks []Chunk // by offset
	// Differs: handles that Flink takes for this stream say different things.
	Differs bool
}

// Index says which channels a checkpoint holds and which streams they lie in. It
// comes from the metadata alone.
type Index struct {
	Channels []ChannelState
	Streams  []Stream
	// Damaged are the merged handles whose lists cannot be read.
	Damaged []DamagedHandle
}

// DamagedHandle is a channel handle whose list of channels cannot be read.
type DamagedHandle struct {
	Operator *Operator
	Task     inflight.Task
	Handle   ChannelHandle
	Err      *FormatError
}

// Index lists the channels of m and groups them by stream, as Flink does.
func (m *Metadata) Index() *Index {
	n := 0
	for h := range m.channelHandles() {
		n += h.channelCount()
	}
	x := &Index{Channels: make([]ChannelState, 0, n)}
	streams := map[string]int{}
	for i := range m.Operators {
		o := &m.Operators[i]
		label := m.Label(o)
		for j := range o.Subtasks {
			s := &o.Subtasks[j]
			for h := range s.Handles() {
				x.add(streams, h, ChannelState{Operator: o, Task: inflight.Task{Vertex: label, Subtask: s.Index}, Merged: h.Merged})
			}
		}
	}
	for i := range x.Streams {
		slices.SortStableFunc(x.Streams[i].Chunks, func(a, b Chunk) int {
			switch {
			case a.Offset < b.Offset:
				return -1
			case a.Offset > b.Offset:
				return 1
			}
			return 0
		})
	}
	return x
}

func (x *Index) add(streams map[string]int, h ChannelHandle, c ChannelState) {
	delegate := h.Delegate()
	key := delegate.Key()
	at, known := streams[key]
	if !known {
		at = len(x.Streams)
		streams[key] = at
		x.Streams = append(x.Streams, Stream{Handle: delegate})
	}
	c.Stream, c.at = at, h.at
	s := &x.Streams[at]
	s.Differs = s.Differs || !bytes.Equal(s.Handle.raw, delegate.raw)
	for ch, err := range h.Channels() {
		if err != nil {
			var f *FormatError
			errors.As(err, &f)
			x.Damaged = append(x.Damaged, DamagedHandle{Operator: c.Operator, Task: c.Task, Handle: h, Err: f})
			return
		}
		c.Channel = ch
		for offset := range ch.Offsets.All() {
			s.Chunks = append(s.Chunks, Chunk{Offset: offset, Length: -1, Channel: int32(len(x.Channels))})
		}
		x.Channels = append(x.Channels, c)
	}
}

// chunksOf returns the chunks of channel i, by offset.
func (x *Index) chunksOf(i int) (chunks []Chunk) {
	for offset := range x.Channels[i].Offsets.All() {
		chunks = append(chunks, Chunk{Offset: offset, Length: -1, Channel: int32(i)})
	}
	slices.SortStableFunc(chunks, func(a, b Chunk) int { return int(min(max(a.Offset-b.Offset, -1), 1)) })
	return chunks
}

// Buffer is one captured buffer.
type Buffer struct {
	Chunk
	Bytes []byte // valid until the next step
}

var errStop = errors.New("stop")

// BufferReader reads the buffers of channels. It keeps the last stream open:
// channels of one subtask often share one. It is used by one goroutine.
type BufferReader struct {
	c      *Checkpoint
	x      *Index
	stream int
	r      *streamReader // of stream; nil: none is open
}

// Reader returns a reader of the channels of x. Close it after use.
func (c *Checkpoint) Reader(x *Index) *BufferReader { return &BufferReader{c: c, x: x} }

// Close closes the stream that is open.
func (b *BufferReader) Close() {
	if b.r != nil {
		b.r.close()
		b.r = nil
	}
}

// open opens stream i, if it is not open.
func (b *BufferReader) open(ctx context.Context, i int) (err error) {
	if b.r != nil && b.stream == i {
		return nil
	}
	b.Close()
	b.stream = i
	b.r, err = b.c.openStream(ctx, b.x.Streams[i].Handle)
	return err
}

// Buffers yields the buffers of channel i in the order in which Flink replays
// them. A chunk that cannot be read is an error; whoever goes on gets the chunks
// behind it. Any other error ends the iteration.
func (b *BufferReader) Buffers(ctx context.Context, i int) iter.Seq2[Buffer, error] {
	return func(yield func(Buffer, error) bool) {
		if err := b.open(ctx, b.x.Channels[i].Stream); err != nil {
			yield(Buffer{}, err)
			return
		}
		chunks := b.x.chunksOf(i)
		var whole []byte
		err := b.r.each(ctx, chunks, chunkVisitor{
			piece: func(k int, _ int64, p []byte) error {
				if whole = append(whole, p...); int64(len(whole)) < int64(chunks[k].Length) {
					return nil
				}
				full := Buffer{Chunk: chunks[k], Bytes: whole}
				whole = whole[:0]
				if !yield(full, nil) {
					return errStop
				}
				return nil
			},
			bad: func(k int, err *FormatError) error {
				if !yield(Buffer{Chunk: chunks[k]}, &inflight.Error{Op: "read", Object: b.r.name, Err: err}) {
					return errStop
				}
				return nil
			},
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Buffer{}, err)
		}
	}
}

// Buffers yields the buffers of channel i of x, as BufferReader.Buffers does.
func (c *Checkpoint) Buffers(ctx context.Context, x *Index, i int) iter.Seq2[Buffer, error] {
	return func(yield func(Buffer, error) bool) {
		b := c.Reader(x)
		defer b.Close()
		b.Buffers(ctx, i)(yield)
	}
}
