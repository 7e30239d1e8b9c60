package hdfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	hdfs "github.com/colinmarc/hdfs/v2"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// source is a file by its number at the namenode, so that another one under its
// name is never read. Each read has a reader of its own.
type source struct {
	b      *Backend
	info   backends.Info
	id     uint64
	closed atomic.Bool

	mu   sync.Mutex
	ends map[int64]*turn // where reads end that are under way
}

// turn is a read that another one may wait for.
type turn struct {
	over  chan struct{} // closed then
	moved atomic.Int64  // grows while it goes on
}

// standstill is how long a stream may rest before whoever waits for its end goes
// elsewhere.
const standstill = 100 * time.Millisecond

// Open looks the file up. Datanodes are asked with the first read.
func (b *Backend) Open(ctx context.Context, name string) (backends.Source, error) {
	at, err := b.lookUp("open", name)
	if err != nil {
		return nil, err
	}
	s, err := do(ctx, b, "open", name, func(c *client) (*source, error) {
		_, st, err := c.find(at)
		if err != nil {
			return nil, missing(err)
		}
		return &source{b: b, info: info(name, st), id: id(st), ends: map[int64]*turn{}}, nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *source) Info() backends.Info { return s.info }

func (s *source) Close() error {
	s.closed.Store(true)
	return nil
}

// ReadAt reads len(p) bytes, or fails.
func (s *source) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.check(ctx, "read", off, int64(len(p))); err != nil || len(p) == 0 {
		return err
	}
	r := s.at(ctx, off, off+int64(len(p)))
	defer r.Close()
	_, err := io.ReadFull(r, p)
	return err
}

// enter says where r will end, and remembers the read that ends where r begins,
// if there is one.
func (s *source) enter(r *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.before = s.ends[r.off]
	delete(s.ends, r.off) // for one of several
	s.ends[r.end] = &r.turn
}

func (s *source) leave(r *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends[r.end] == &r.turn {
		delete(s.ends, r.end)
	}
	close(r.turn.over)
}

// follow waits for the read that ends where r begins, while that goes on: to go
// on where it is costs a reader nothing, and to begin elsewhere a connection.
func (r *stream) follow() {
	tick := time.NewTicker(standstill)
	defer tick.Stop()
	for moved := int64(-1); r.before != nil; {
		select {
		case <-r.before.over:
			r.before = nil
		case <-r.ctx.Done():
			r.before = nil
		case <-tick.C:
			if now := r.before.moved.Load(); now != moved {
				moved = now
			} else {
				r.before = nil
			}
		}
	}
}

// Stream reads n bytes from off.
func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if n < 0 {
		n = max(s.info.Size-off, 0)
	}
	if err := s.check(ctx, "stream", off, n); err != nil {
		return nil, err
	}
	return s.at(ctx, off, off+n), nil
}

// check refuses ranges that are not within the file.
func (s *source) check(ctx context.Context, op string, off, n int64) error {
	err := s.b.ready(ctx, op, s.info.Name)
	switch {
	case err != nil:
		return err
	case s.closed.Load():
		err = inflight.ErrClosed
	case off < 0 || off > s.info.Size || n > s.info.Size-off:
		err = fmt.Errorf("%w: %d bytes at %d, and the file has %d", inflight.ErrTorn, n, off, s.info.Size)
	}
	if err != nil {
		return &inflight.Error{Op: op, Object: s.b.object(s.info.Name), Err: err}
	}
	return nil
}

func (s *source) at(ctx context.Context, off, end int64) *stream {
	r := &stream{s: s, ctx: ctx, off: off, end: end, turn: turn{over: make(chan struct{})}}
	s.enter(r)
	return r
}

// stream reads a range with a client of its own. The reader goes to another
// datanode when one is lost; when that does not help, the stream goes on where it
// is with another client, a few times without a byte between.
type stream struct {
	s        *source
	ctx      context.Context
	off, end int64
	closed   bool
	turn     turn
	before   *turn // to wait for; nil: none

	client *client
	done   func() // with the client
	failed int    // times in a row
}

// maxReads is as many replicas as files usually have.
const maxReads = 3

func (r *stream) Read(p []byte) (int, error) {
	switch err := r.s.check(r.ctx, "read", r.off, 0); {
	case err != nil:
		r.letGo()
		return 0, err
	case r.closed:
		return 0, &inflight.Error{Op: "read", Object: r.s.b.object(r.s.info.Name), Err: inflight.ErrClosed}
	case r.off == r.end:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if r.before != nil {
		r.follow()
	}
	for {
		n, err := r.read(p[:min(int64(len(p)), r.end-r.off)])
		if n > 0 {
			r.off += int64(n)
			r.turn.moved.Add(1)
			r.failed = 0
			return n, nil
		}
		c := r.client
		r.failed++
		if final := r.failed == maxReads || c == nil || r.ctx.Err() != nil || errors.Is(err, inflight.ErrCorrupt) || errors.Is(err, inflight.ErrNotExist); !final {
			r.s.b.again(r.ctx, c, "read", r.s.info.Name, err)
			c.spoil(err)
			r.letGo()
			continue
		}
		err = r.s.b.explain(r.ctx, c, "read", r.s.info.Name, err)
		c.spoil(err)
		r.letGo()
		return 0, err
	}
}

// read reads once.
func (r *stream) read(p []byte) (int, error) {
	if r.client == nil {
		if err := r.connect(); err != nil {
			return 0, err
		}
	}
	n, err := r.client.reader.Read(p)
	if n > 0 && gaveUp(r.client.reader) {
		return 0, cmp.Or(r.client.dataFault(), errChecksum)
	}
	r.client.next += int64(n)
	return n, err
}

var errChecksum = errors.New("invalid checksum")

// gaveUp reports whether a reader has lost its datanode with the last read. It
// hides that when it has bytes, also bytes whose checksum it has found to be
// wrong: those are not for us.
func gaveUp(r *hdfs.FileReader) bool {
	if streamField == nil {
		return false
	}
	block := reflect.ValueOf(r).Elem().FieldByIndex(blockField)
	return !block.IsNil() && block.Elem().FieldByIndex(streamField).IsNil()
}

// blockField and streamField are where gaveUp looks; nil: the library has others.
var blockField, streamField = func() (block, stream []int) {
	b, ok := reflect.TypeFor[hdfs.FileReader]().FieldByName("blockReader")
	if !ok || b.Type.Kind() != reflect.Pointer || b.Type.Elem().Kind() != reflect.Struct {
		return nil, nil
	}
	s, ok := b.Type.Elem().FieldByName("stream")
	if !ok || s.Type.Kind() != reflect.Pointer {
		return nil, nil
	}
	return b.Index, s.Index
}()

// connect takes a client, and opens the file with it, or goes on with one that
// has it open.
func (r *stream) connect() (err error) {
	b, s := r.s.b, r.s
	c := (*client)(nil)
	if r.failed == 0 {
		c = b.pool.take(s.id, r.off)
	}
	if c == nil {
		if c, err = b.connect(r.ctx, "read", s.info.Name, r.failed > 0); err != nil {
			return err
		}
	}
	r.client, r.done = c, c.watch(r.ctx)
	if c.reader == nil || c.file != s.id {
		if c.reader != nil {
			_ = c.reader.Close() // it was only read
		}
		c.reader, c.file = nil, 0
		reader, err := c.Open(byID(s.id))
		if err != nil {
			return missing(err)
		}
		if size := reader.Stat().Size(); size != s.info.Size {
			return &kindError{inflight.ErrCorrupt, fmt.Errorf("it had %d bytes when it was opened, and has %d", s.info.Size, size), "somebody has changed it"}
		}
		c.reader, c.file, c.next = reader, s.id, 0
	}
	if c.next == r.off { // to seek where it is would cost the connection
		return nil
	}
	c.next, err = c.reader.Seek(r.off, io.SeekStart)
	return err
}

// letGo gives the client back.
func (r *stream) letGo() {
	if r.client != nil {
		r.done()
		r.client = nil
	}
}

// Close ends the stream.
func (r *stream) Close() error {
	if !r.closed {
		r.closed = true
		r.letGo()
		r.s.leave(r)
	}
	return nil
}
