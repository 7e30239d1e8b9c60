package flink

import (
	"context"
	"errors"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// savepointName has the beginning of the job's id, where there is one, and a
// random number.
var savepointName = regexp.MustCompile("^savepoint-([0-9a-f]{6}-)?[0-9a-f]{12}$")

// ParseDir reports whether Flink gives a checkpoint or savepoint a directory of
// that name: "chk-7", "savepoint-4d1e2a-8f03b6c1d2e4". The id is that of a
// checkpoint.
func ParseDir(name string) (id inflight.CheckpointID, savepoint, ok bool) {
	if savepointName.MatchString(name) {
		return 0, true, true
	}
	digits, is := strings.CutPrefix(name, "chk-")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !is || err != nil || strconv.FormatInt(n, 10) != digits || n < 0 {
		return 0, false, false
	}
	return inflight.CheckpointID(n), false, true
}

// Contents is what could be read of one channel.
type Contents struct {
	Buffers, Bytes int64
	Digest         format.Digest // of the bytes
	// Records that end in it; -1 where that cannot be told.
	Records int64
	Whole   bool // all its chunks could be read
}

// Connection is what is in flight on one connection, or on a channel whose edge
// is not known.
type Connection struct {
	Edge *Edge // nil: not known
	// Input and Output are indexes into Index.Channels; -1: that side is empty, or
	// not known.
	Input, Output int
	Buffers       int64
	Bytes         int64
	// Records that could be told apart, and whether those are all.
	Records      int64
	RecordsKnown bool
}

// Scan reads the channel state of c and follows its records, which tell the
// edges. It is the part of Verify that is about channel state, and fills
// Contents and Connections of the report.
func (c *Checkpoint) Scan(ctx context.Context, o VerifyOptions) (*Report, error) {
	s := c.newScan(c.Index(), slices.Clone(o.Edges))
	s.digests = true
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	sortFindings(s.findings)
	r := s.report()
	r.Findings = s.findings
	s.contents(r)
	return r, nil
}

// report counts what could be read.
func (s *scan) report() *Report {
	r := &Report{Edges: s.edges, Index: s.x, Channels: int64(len(s.x.Channels))}
	for i := range s.channels {
		r.Bytes += s.channels[i].bytes
		r.Buffers += s.channels[i].chunks
	}
	return r
}

func (s *scan) contents(r *Report) {
	r.Contents = make([]Contents, len(s.channels))
	for i := range s.channels {
		ch := &s.channels[i]
		r.Contents[i] = Contents{Buffers: ch.chunks, Bytes: ch.bytes, Digest: ch.digest, Records: -1, Whole: !ch.unread}
		if s.x.Channels[i].Address.Side == inflight.Input && !s.lost(i) {
			r.Contents[i].Records = ch.frame.records()
		}
	}
	s.eachConnection(func(e *Edge, in, out int) {
		k := Connection{Edge: e, Input: in, Output: out}
		k.Records, k.RecordsKnown = s.recordsOf(in, out)
		for _, i := range []int{in, out} {
			if i >= 0 {
				k.Buffers, k.Bytes = k.Buffers+s.channels[i].chunks, k.Bytes+s.channels[i].bytes
			}
		}
		r.Connections = append(r.Connections, k)
		if e == nil || out < 0 || s.channels[out].unread || in >= 0 && s.lost(in) {
			return
		}
		if t := s.trackOf(in, out); !t.bad {
			r.Contents[out].Records = t.records()
		}
	})
}

// Content yields the bytes that h leads to, piece by piece. A piece is valid
// until the next step; an error ends the iteration.
func (c *Checkpoint) Content(ctx context.Context, h StreamHandle) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r, err := c.openStream(ctx, h)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.close()
		err = r.pieces(ctx, func(p []byte) error {
			if !yield(p, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(nil, err)
		}
	}
}
