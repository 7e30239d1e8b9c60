package statetest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/spillway-io/spillway/backends"
)

func ctxOf(t T) context.Context {
	if c, ok := t.(interface{ Context() context.Context }); ok {
		return c.Context()
	}
	return context.Background()
}

// Read is one request that reads.
type Read struct {
	Name   string
	Offset int64
	Length int
}

// Backend records reads, and lets a test change what they bring.
type Backend struct {
	backends.Backend
	// After is called with what each read brought, and may change it or fail.
	After func(r Read, p []byte) error
	// Remote is declared as capability.
	Remote bool

	mu    sync.Mutex
	reads []Read
	opens int
	open  int
	most  int
}

// Reads returns the reads so far.
func (b *Backend) Reads() []Read {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.reads)
}

// Reset forgets the reads so far.
func (b *Backend) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads = nil
}

// Open opens an object.
func (b *Backend) Open(ctx context.Context, name string) (backends.Source, error) {
	src, err := b.Backend.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opens++
	b.open++
	b.most = max(b.most, b.open)
	return &source{Source: src, b: b}, nil
}

// Opened returns how many sources are open, and how many were at most.
func (b *Backend) Opened() (now, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.most
}

// Capabilities returns those of the backend below, with Remote.
func (b *Backend) Capabilities() backends.Capabilities {
	c := b.Backend.Capabilities()
	c.Remote = c.Remote || b.Remote
	return c
}

type source struct {
	backends.Source
	b      *Backend
	closed sync.Once
}

// ReadAt is one read.
func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	r := Read{s.Info().Name, off, len(p)}
	s.b.mu.Lock()
	s.b.reads = append(s.b.reads, r)
	s.b.mu.Unlock()
	err := s.Source.ReadAt(ctx, p, off)
	if err == nil && s.b.After != nil {
		err = s.b.After(r, p)
	}
	return err
}

// Stream is one read, too.
func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	p := make([]byte, n)
	if err := s.ReadAt(ctx, p, off); err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(p)), nil
}

func (s *source) Close() error {
	s.closed.Do(func() {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		s.b.open--
	})
	return s.Source.Close()
}
