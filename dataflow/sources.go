package dataflow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Generator is a source that makes its records up: the n-th of a subtask is
// always the same.
type Generator struct {
	// Records of this subtask; negative: without end.
	Records int64
	// Body appends the n-th record to dst.
	Body func(dst []byte, n int64) []byte
	// Pause is how long the source waits before each record; 0: not at all.
	Pause time.Duration

	at   *Value[int64]
	body []byte
	due  time.Duration
}

// Open implements Source.
func (g *Generator) Open(c *Context) (err error) {
	g.at, err = NewValue(c, "position", Int64, 0)
	return err
}

// Next implements Source.
func (g *Generator) Next(c *Context) (Status, error) {
	if g.Records >= 0 && g.at.V >= g.Records {
		return Status{Why: Done}, nil
	}
	if g.Pause > 0 {
		now := c.Now()
		if now < g.due {
			return Status{Why: NoInput, At: g.due}, nil
		}
		g.due = now + g.Pause
	}
	g.body = g.Body(g.body[:0], g.at.V)
	g.at.V++
	c.Emit(Record{Body: g.body})
	return Status{}, nil
}

// Passed implements Positioned.
func (g *Generator) Passed() uint64 { return uint64(g.at.V) }

// Complete implements Source.
func (g *Generator) Complete(*Context, inflight.CheckpointID) error { return nil }

// Close implements Source.
func (g *Generator) Close() error { return nil }

// ChangeEvent is the body of a Generator that resembles change data capture:
// one partition, small events, each with its full schema. Keys come in turn.
func ChangeEvent(keys int64) func(dst []byte, n int64) []byte {
	return func(dst []byte, n int64) []byte {
		return fmt.Appendf(dst, `{"schema":{"type":"struct","name":"inventory.items","fields":[{"field":"id","type":"int64"},{"field":"quantity","type":"int32"}]},`+
			`"op":"u","key":"%d","before":{"id":%d,"quantity":%d},"after":{"id":%d,"quantity":%d},"lsn":%d}`,
			n%keys, n%keys, n/keys, n%keys, n/keys+1, n)
	}
}

// LineFile is a source that reads the lines of a file; each subtask has its
// range of bytes. A line belongs to the range that it begins in.
type LineFile struct {
	Connect func() (io.ReaderAt, int64, error) // the file and its size; an io.Closer is closed
	// Body makes the body of a line's record; nil: it is the line.
	Body func(line []byte) []byte

	file     io.ReaderAt
	end      int64 // of the range
	size     int64
	at       *Value[int64]
	lines    *Value[int64] // emitted so far
	length   *Value[int64] // of the file, which the ranges depend on; -1: not known yet
	buf      []byte
	bufStart int64
}

// readChunk is how much a line file reads at a time.
const readChunk = 64 << 10

// maxLine bounds a line.
const maxLine = 16 << 20

// Open implements Source.
func (f *LineFile) Open(c *Context) (err error) {
	if f.at, err = NewValue(c, "position", Int64, -1); err != nil {
		return err
	}
	if f.lines, err = NewValue(c, "lines", Int64, 0); err != nil {
		return err
	}
	if f.length, err = NewValue(c, "length", Int64, -1); err != nil {
		return err
	}
	if err := f.connect(); err != nil {
		return err
	}
	if f.length.V >= 0 && f.length.V != f.size {
		return &inflight.Error{Op: "restore", Object: c.Task.String(), Mend: "give it the file that the checkpoint had read, or start afresh",
			Err: fmt.Errorf("%w: the file has %d bytes, and had %d", inflight.ErrMismatch, f.size, f.length.V)}
	}
	f.length.V = f.size
	i, n := int64(c.Task.Subtask), int64(c.Parallelism)
	begin := f.size * i / n
	f.end = f.size * (i + 1) / n
	if f.at.V >= 0 {
		return nil
	}
	if f.at.V = begin; begin > 0 {
		f.at.V = begin - 1 // the line that begins before the range is not ours
		_, _, err = f.line()
	}
	return err
}

func (f *LineFile) connect() (err error) {
	f.file, f.size, err = f.Connect()
	f.buf = nil
	return err
}

// line returns the line at the position and moves on behind it; ok is false
// at the end of the file.
func (f *LineFile) line() (line []byte, ok bool, err error) {
	for {
		off := f.at.V - f.bufStart
		if off >= 0 && off <= int64(len(f.buf)) {
			rest := f.buf[off:]
			if i := bytes.IndexByte(rest, '\n'); i >= 0 {
				f.at.V += int64(i) + 1
				return rest[:i], true, nil
			}
			if f.bufStart+int64(len(f.buf)) == f.size { // no newline at the end
				f.at.V = f.size
				return rest, len(rest) > 0, nil
			}
		}
		if err := f.fill(); err != nil {
			return nil, false, err
		}
	}
}

// fill reads from the position on, more than last time if that was not a line.
func (f *LineFile) fill() error {
	n := int64(readChunk)
	if f.bufStart == f.at.V {
		n = max(n, 2*int64(len(f.buf)))
	}
	if n > maxLine {
		return &inflight.Error{Op: "read", Object: fmt.Sprintf("the line at byte %d", f.at.V), Err: inflight.ErrTooLarge}
	}
	f.buf, f.bufStart = make([]byte, min(n, f.size-f.at.V)), f.at.V
	k, err := f.file.ReadAt(f.buf, f.bufStart)
	switch {
	case k == len(f.buf):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = fmt.Errorf("the file has become shorter: %w", inflight.ErrTorn)
	}
	return &inflight.Error{Op: "read", Object: fmt.Sprintf("byte %d", f.bufStart+int64(k)), Err: err}
}

// Next implements Source.
func (f *LineFile) Next(c *Context) (Status, error) {
	if f.file == nil {
		if err := f.connect(); err != nil {
			return Status{}, err
		}
	}
	if f.at.V >= f.end {
		return Status{Why: Done}, nil
	}
	line, ok, err := f.line()
	if err != nil || !ok {
		return Status{Why: Done}, err
	}
	if f.Body != nil {
		line = f.Body(line)
	}
	f.lines.V++
	c.Emit(Record{Body: line})
	return Status{}, nil
}

// Passed implements Positioned.
func (f *LineFile) Passed() uint64 { return uint64(f.lines.V) }

// Disconnect closes the file; the next read opens it again.
func (f *LineFile) Disconnect() error {
	file := f.file
	f.file = nil
	if c, ok := file.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Complete implements Source.
func (f *LineFile) Complete(*Context, inflight.CheckpointID) error { return nil }

// Close implements Source.
func (f *LineFile) Close() error { return f.Disconnect() }

// LineKey is the key of a line: the line.
func LineKey(body []byte) Key { return StringKey(body) }

// JSONKey is the key of a line of JSON: one field of the object, as text. A
// line without it has the empty key.
func JSONKey(field string) KeyFunc {
	return func(body []byte) Key {
		var object map[string]json.RawMessage
		if json.Unmarshal(body, &object) != nil {
			return Key{}
		}
		raw := []byte(object[field])
		var text string
		if json.Unmarshal(raw, &text) == nil {
			raw = []byte(text)
		}
		return StringKey(raw)
	}
}

// PartitionedLog is what a LogSource reads: partitions of records that have
// positions, of which the oldest are deleted after a while.
type PartitionedLog interface {
	Partitions() int
	// Range is the oldest position that is kept, and the one behind the newest.
	Range(partition int) (first, end int64)
	Read(partition int, position int64) ([]byte, error)
	// Closed reports whether nothing is appended any more.
	Closed() bool
}

// LogSource reads a PartitionedLog; partitions are dealt out to the subtasks
// in turn. Positions are state: a restore goes on where the checkpoint was,
// and fails where the log has deleted that, since to begin elsewhere in
// silence would lose or double records.
type LogSource struct {
	Log  PartitionedLog
	Poll time.Duration // between two looks at a log that has nothing; default 10 ms

	next *Value[[]int64] // by partition
	mine []int
	turn int
}

// positions is the codec of a LogSource's state.
var positions = Codec[[]int64]{
	Append: func(dst []byte, v *[]int64) []byte {
		for i := range *v {
			dst = Int64.Append(dst, &(*v)[i])
		}
		return dst
	},
	Decode: func(data []byte, v *[]int64) error {
		*v = nil
		for ; len(data) >= 8; data = data[8:] {
			var n int64
			_ = Int64.Decode(data[:8], &n)
			*v = append(*v, n)
		}
		if len(data) > 0 {
			return fmt.Errorf("%d bytes behind the last position: %w", len(data), inflight.ErrCorrupt)
		}
		return nil
	},
}

// Open implements Source.
func (s *LogSource) Open(c *Context) (err error) {
	if s.next, err = NewValue(c, "positions", positions, nil); err != nil {
		return err
	}
	for p := range s.Log.Partitions() {
		if p >= len(s.next.V) {
			first, _ := s.Log.Range(p)
			s.next.V = append(s.next.V, first)
		}
		if p%c.Parallelism == c.Task.Subtask {
			s.mine = append(s.mine, p)
		}
	}
	return nil
}

// Next implements Source.
func (s *LogSource) Next(c *Context) (Status, error) {
	for range s.mine {
		s.turn = (s.turn + 1) % len(s.mine)
		p := s.mine[s.turn]
		first, end := s.Log.Range(p)
		at := s.next.V[p]
		if at < first || at > end {
			return Status{}, &inflight.Error{Op: "read", Object: fmt.Sprintf("position %d of partition %d", at, p),
				Mend: "restore a newer checkpoint, or start afresh; keep the records of the log for longer than its checkpoints", Err: fmt.Errorf("the log keeps %d to %d: %w", first, end, inflight.ErrRetired)}
		}
		if at == end {
			continue
		}
		body, err := s.Log.Read(p, at)
		if err != nil {
			return Status{}, err
		}
		s.next.V[p]++
		c.Emit(Record{Body: body})
		return Status{}, nil
	}
	if s.Log.Closed() {
		return Status{Why: Done}, nil
	}
	poll := s.Poll
	if poll == 0 {
		poll = 10 * time.Millisecond
	}
	return Status{Why: NoInput, At: c.Now() + poll}, nil
}

// Passed implements Positioned.
func (s *LogSource) Passed() (records uint64) {
	for _, p := range s.mine {
		records += uint64(s.next.V[p])
	}
	return records
}

// Complete implements Source.
func (s *LogSource) Complete(*Context, inflight.CheckpointID) error { return nil }

// Close implements Source.
func (s *LogSource) Close() error { return nil }

// GeneratedLog is a PartitionedLog that makes its records up. They are appended
// as time goes on, and so do the oldest ones go.
type GeneratedLog struct {
	Count   int       // of partitions
	Since   time.Time // when the first record was appended
	Every   time.Duration
	Records int64 // of a partition, then it is closed; negative: without end
	Retain  int64 // how many are kept of each partition; 0: all
	Body    func(partition int, position int64) []byte
}

// Partitions implements PartitionedLog.
func (l *GeneratedLog) Partitions() int { return l.Count }

// Range implements PartitionedLog.
func (l *GeneratedLog) Range(int) (first, end int64) {
	end = l.Records
	if n := int64(time.Since(l.Since)/max(l.Every, 1)) + 1; end < 0 || n < end {
		end = n
	}
	if l.Retain > 0 {
		first = max(0, end-l.Retain)
	}
	return first, end
}

// Read implements PartitionedLog.
func (l *GeneratedLog) Read(partition int, position int64) ([]byte, error) {
	return l.Body(partition, position), nil
}

// Closed implements PartitionedLog.
func (l *GeneratedLog) Closed() bool {
	_, end := l.Range(0)
	return l.Records >= 0 && end == l.Records
}
