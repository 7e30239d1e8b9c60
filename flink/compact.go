package flink

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/inflight"
)

// CompactOptions are the options of PlanCompact. The zero value is fine.
type CompactOptions struct {
	// ChunkSize is the length that chunks shall have. Default 32 KiB, the size of
	// Flink's network buffers: shorter ones cost a buffer each at the restore,
	// longer ones are cut there.
	ChunkSize int32
	// FileSize is the size at which the next file is begun. Default 64 MiB.
	FileSize int64
	Verify   VerifyOptions
}

// defaults of a layout.
const (
	defaultChunk = 32 << 10
	defaultFile  = 64 << 20
)

// PlanCompact plans to put the channel state of many files, and inline state,
// into few files, in chunks of about one size. A checkpoint that is damaged is
// refused.
func (c *Checkpoint) PlanCompact(ctx context.Context, o CompactOptions) (*Plan, error) {
	s, err := c.survey(ctx, "compact", o.Verify)
	if err != nil {
		return nil, err
	}
	if o.ChunkSize < 0 {
		return nil, &inflight.Error{Op: "compact", Object: c.Dir, Err: fmt.Errorf("%w: chunks of %d bytes", inflight.ErrConfig, o.ChunkSize)}
	}
	l := layout{chunk: o.ChunkSize, file: o.FileSize}
	if l.chunk == 0 {
		l.chunk = defaultChunk
	}
	return s.plan(ctx, "compact", l, func(i int) int64 { return s.channels[i].bytes })
}

// plan plans a checkpoint in which channel i keeps its first keep(i) bytes.
func (s *scan) plan(ctx context.Context, verb string, l layout, keep func(i int) int64) (*Plan, error) {
	if l.file <= 0 {
		l.file = defaultFile
	}
	p := s.c.bare(verb, s.x)
	if err := p.carry(ctx); err != nil {
		return nil, err
	}
	p.Notes = append(p.Notes, s.notes...)
	p.countBefore(s)
	var contents []content
	for i := range s.x.Channels {
		contents = append(contents, s.contentOf(i, keep(i)))
	}
	return p, p.lay(contents, l)
}

// countBefore counts the files and buffers that there are.
func (p *Plan) countBefore(s *scan) {
	p.Before.Files = len(p.Files)
	for i := range s.x.Streams {
		if s.x.Streams[i].Handle.Kind() != KindByteStream {
			p.Before.Files++
		}
	}
	for i := range s.channels {
		p.Before.Buffers += s.channels[i].chunks
		p.Before.Bytes += s.channels[i].bytes
	}
}
