package flink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// writeFile writes a whole object, which must not exist.
func writeFile(ctx context.Context, b backends.Backend, name string, p []byte) error {
	o, err := b.Create(ctx, name, backends.CreateOptions{Exclusive: true, SizeHint: int64(len(p))})
	if err != nil {
		return err
	}
	if _, err := o.Write(p); err != nil {
		return errors.Join(err, o.Abort(context.WithoutCancel(ctx)))
	}
	_, err = o.Finish(ctx)
	return err
}

// StateWriter writes a channel-state file that Flink accepts. Which channel a
// chunk belongs to is in the handles only: the caller keeps the offsets.
type StateWriter struct {
	w    io.Writer
	size int64
	err  error
}

// NewStateWriter returns a writer of a channel-state file to w. The file begins
// with the first chunk.
func NewStateWriter(w io.Writer) *StateWriter { return &StateWriter{w: w} }

// Begin begins a chunk of n bytes, which Write must bring, and returns its offset
// for the handle. The first error sticks.
func (s *StateWriter) Begin(n int) (offset int64, err error) {
	if n < 0 || n > math.MaxInt32 {
		return 0, fmt.Errorf("%w: a chunk of %d bytes", inflight.ErrTooLarge, n)
	}
	var head [headerSize + lengthSize]byte
	p := head[headerSize:]
	if s.size == 0 {
		p = head[:]
	}
	binary.BigEndian.PutUint32(p[len(p)-lengthSize:], uint32(n))
	if _, err := s.Write(p); err != nil {
		return 0, err
	}
	return s.size - lengthSize, nil
}

// Write writes bytes of the chunk that was begun.
func (s *StateWriter) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.size, s.err = s.size+int64(n), err
	return n, err
}

// Append writes a chunk and returns its offset for the handle.
func (s *StateWriter) Append(p []byte) (offset int64, err error) {
	if offset, err = s.Begin(len(p)); err == nil {
		_, err = s.Write(p)
	}
	return offset, err
}

// Size returns how many bytes were written: 0 before the first chunk.
func (s *StateWriter) Size() int64 { return s.size }
