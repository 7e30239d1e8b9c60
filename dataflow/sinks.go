package dataflow

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillway-io/spillway/inflight"
)

// Count counts records by key and emits, for each, "key TAB count". sleep is
// how long a record takes.
func Count(key KeyFunc, sleep time.Duration) func(subtask int) Operator {
	return func(int) Operator { return &countOperator{key: key, sleep: sleep} }
}

type countOperator struct {
	Base
	key    KeyFunc
	sleep  time.Duration
	counts *Keyed[int64]
	line   []byte
}

func (o *countOperator) Open(c *Context) (err error) {
	o.counts, err = NewKeyed(c, "counts", Int64)
	return err
}

func (o *countOperator) Process(c *Context, r Record) error {
	k := o.key(r.Body)
	n := o.counts.Put(k)
	*n++
	o.line = append(append(o.line[:0], k.Bytes...), '\t')
	o.line = fmt.Appendf(o.line, "%d", *n)
	c.Emit(Record{Body: o.line})
	if o.sleep > 0 {
		c.Busy(o.sleep)
	}
	return nil
}

// SinkFiles is where a file sink puts its files.
type SinkFiles interface {
	// Create makes a file that nobody reads yet.
	Create(name string) (SinkFile, error)
	// Commit gives a finished file its final name. Doing it twice is doing it
	// once; a final name that is another file's is ErrExist.
	Commit(name, final string) error
	// Pending lists the files that were created and not committed.
	Pending() ([]string, error)
	Remove(name string) error
}

// SinkFile is a file being written.
type SinkFile interface {
	io.Writer
	// Finish makes the file and its name durable, and closes it.
	Finish() error
}

// FileSink writes records as lines, each exactly once, by two-phase commit:
// the file is finished when a barrier comes, and gets its final name when the
// checkpoint is complete. Final names grow with commits.
type FileSink struct {
	Base
	Files SinkFiles
	Log   *slog.Logger
	Sleep time.Duration // a record takes

	name string
	file SinkFile
	lost bool // disconnected: the file is closed, and to be opened again
	w    *bufio.Writer
	made int
	// txs are the transactions that are finished and not known to be committed.
	txs *Value[[]transaction]
}

// transaction is a finished file that waits for its checkpoint.
type transaction struct {
	Checkpoint inflight.CheckpointID `json:"checkpoint"`
	Pending    string                `json:"pending"`
	Final      string                `json:"final"`
}

var transactions = Codec[[]transaction]{
	Append: func(dst []byte, v *[]transaction) []byte {
		b, _ := json.Marshal(*v) // plain strings and numbers
		return append(dst, b...)
	},
	Decode: func(data []byte, v *[]transaction) error { return json.Unmarshal(data, v) },
}

const pendingPrefix = ".pending-"

// Open implements Operator: it commits what the restored checkpoint holds, and
// rolls back other transactions of this subtask, of smaller epochs only: those
// of a greater one belong to a coordinator that has taken over.
func (s *FileSink) Open(c *Context) (err error) {
	if s.txs, err = NewValue(c, "transactions", transactions, nil); err != nil {
		return err
	}
	if err := s.commit(c, inflight.CheckpointID(1<<63)); err != nil {
		return err
	}
	pending, err := s.Files.Pending()
	if err != nil {
		return err
	}
	for _, name := range pending {
		var epoch, subtask, n int
		if _, err := fmt.Sscanf(name, pendingPrefix+"%d-%d-%d", &epoch, &subtask, &n); err != nil || subtask != c.Task.Subtask || epoch >= int(c.Epoch) {
			continue
		}
		if err := s.Files.Remove(name); err != nil {
			return err
		}
		s.log().Info("rolled back", "task", c.Task.String(), "file", name)
	}
	return nil
}

// Process implements Operator.
func (s *FileSink) Process(c *Context, r Record) error {
	if s.file == nil {
		s.name = fmt.Sprintf(pendingPrefix+"%d-%d-%d", c.Epoch, c.Task.Subtask, s.made)
		s.made++
		var err error
		if s.file, err = s.Files.Create(s.name); err != nil {
			return err
		}
		s.w = bufio.NewWriter(s.file)
	}
	if s.lost {
		var err error
		if s.file, err = s.Files.(appender).Append(s.name); err != nil {
			return err
		}
		s.lost = false
		s.w.Reset(s.file)
	}
	if s.Sleep > 0 {
		c.Busy(s.Sleep)
	}
	_, err := s.w.Write(r.Body)
	return errors.Join(err, s.w.WriteByte('\n'))
}

// appender is SinkFiles that can go on with a file.
type appender interface {
	Append(name string) (SinkFile, error)
}

// Disconnect implements Disconnecter: it closes the file, and opens it again
// for the next record.
func (s *FileSink) Disconnect() error {
	if _, ok := s.Files.(appender); !ok || s.file == nil || s.lost {
		return nil
	}
	s.lost = true
	return errors.Join(s.w.Flush(), s.file.Finish())
}

// Prepare implements Operator.
func (s *FileSink) Prepare(c *Context, id inflight.CheckpointID) error {
	if s.file == nil {
		return nil
	}
	file, lost := s.file, s.lost
	s.file, s.lost = nil, false
	if !lost {
		if err := errors.Join(s.w.Flush(), file.Finish()); err != nil {
			return err
		}
	}
	s.log().Info("pre-committed", "task", c.Task.String(), "file", s.name, "checkpoint", id)
	s.txs.V = append(s.txs.V, transaction{id, s.name, fmt.Sprintf("part-%010d-%04d.tsv", id, c.Task.Subtask)})
	return nil
}

// Complete implements Operator: it commits this checkpoint's transaction, and
// those of older ones whose notification was lost or which were given up: their
// records are in this checkpoint, too.
func (s *FileSink) Complete(c *Context, id inflight.CheckpointID) error { return s.commit(c, id) }

func (s *FileSink) commit(c *Context, upTo inflight.CheckpointID) error {
	for len(s.txs.V) > 0 && s.txs.V[0].Checkpoint <= upTo {
		tx := s.txs.V[0]
		if err := s.Files.Commit(tx.Pending, tx.Final); err != nil {
			return &inflight.Error{Op: "commit", Object: tx.Final, Err: err}
		}
		s.txs.V = s.txs.V[1:]
		s.log().Info("committed", "task", c.Task.String(), "file", tx.Final, "checkpoint", tx.Checkpoint)
	}
	return nil
}

// Close implements Operator: what is not finished stays pending, and is rolled
// back by the next incarnation.
func (s *FileSink) Close() error {
	if s.file == nil || s.lost {
		return nil
	}
	return s.file.Finish()
}

func (s *FileSink) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// PlainSink writes lines as they come. After a restore it writes some of them
// again: what an output without transactions gets.
type PlainSink struct {
	Base
	// Append opens the output of a subtask for appending.
	Append func(subtask int) (io.WriteCloser, error)
	Sleep  time.Duration

	file io.WriteCloser
	w    *bufio.Writer
}

// Open implements Operator.
func (s *PlainSink) Open(c *Context) (err error) {
	if s.file, err = s.Append(c.Task.Subtask); err != nil {
		return err
	}
	s.w = bufio.NewWriter(s.file)
	return nil
}

// Disconnect implements Disconnecter: it closes the output, and opens it again
// for the next record.
func (s *PlainSink) Disconnect() error {
	err := s.Close()
	s.file = nil
	return err
}

// Process implements Operator.
func (s *PlainSink) Process(c *Context, r Record) error {
	if s.file == nil {
		if err := s.Open(c); err != nil {
			return err
		}
	}
	if s.Sleep > 0 {
		c.Busy(s.Sleep)
	}
	_, err := s.w.Write(r.Body)
	return errors.Join(err, s.w.WriteByte('\n'))
}

// Prepare implements Operator.
func (s *PlainSink) Prepare(*Context, inflight.CheckpointID) error { return s.w.Flush() }

// Close implements Operator.
func (s *PlainSink) Close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.w.Flush(), s.file.Close())
}

// Dir is SinkFiles in a directory of the local file system.
type Dir string

// Create implements SinkFiles.
func (d Dir) Create(name string) (SinkFile, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return dirFile{f, d}, nil
}

// Append opens a file that was created to go on with it.
func (d Dir) Append(name string) (SinkFile, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return dirFile{f, d}, nil
}

type dirFile struct {
	*os.File
	dir Dir
}

// Finish implements SinkFile. A checkpoint that names the file may survive a
// power cut, so its name must, too.
func (f dirFile) Finish() error { return errors.Join(f.Sync(), f.File.Close(), f.dir.sync()) }

// Commit implements SinkFiles. A link does not overwrite, as a rename would. A
// coordinator and the one that has superseded it may do this at the same time.
func (d Dir) Commit(name, final string) error {
	from, to := filepath.Join(string(d), name), filepath.Join(string(d), final)
	err := os.Link(from, to)
	switch _, there := os.Lstat(to); {
	case errors.Is(err, fs.ErrNotExist) && there == nil:
		return nil // committed before
	case errors.Is(err, fs.ErrExist) && sameFile(from, to):
	case errors.Is(err, fs.ErrExist) && gone(from):
		return nil // by somebody else, just now
	case err != nil:
		return err
	}
	if err := os.Remove(from); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.sync()
}

func gone(name string) bool {
	_, err := os.Lstat(name)
	return errors.Is(err, fs.ErrNotExist)
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

func (d Dir) sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Pending implements SinkFiles.
func (d Dir) Pending() (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), pendingPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Remove implements SinkFiles.
func (d Dir) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }
