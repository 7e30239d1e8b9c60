package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Options are the options of a Log. The zero value works.
type Options struct {
	// Retained is how many checkpoints stay, savepoints and pins apart; default 1.
	Retained int
	// MaxConcurrent is how many checkpoints may be pending at a time; default 1.
	MaxConcurrent int
	// Observer is told of claims, commits, aborts and deletions; default none.
	Observer inflight.Observer
}

// Log is the log of one job on a backend. Its methods may be called by several
// goroutines and processes at once.
type Log struct {
	b     backends.Backend
	job   string
	o     Options
	hooks hooks
}

// hooks are what tests replace: randomness, pauses, decoding (by a faster one),
// and single rules of the protocol, to show that each is needed.
type hooks struct {
	attempt func() string
	pause   func(ctx context.Context, try int) error
	decode  func([]byte) (*format.Manifest, error)
	without rule
}

// Open returns the log of a job. It does no I/O: the log exists as soon as
// somebody starts. Job "" means that the root of the backend is the job's
// directory.
func Open(b backends.Backend, job string, o Options) (*Log, error) {
	if job != "" {
		if err := CheckJob(job); err != nil {
			return nil, err
		}
	}
	o.Retained = max(o.Retained, 1)
	o.MaxConcurrent = max(o.MaxConcurrent, 1)
	if o.Observer == nil {
		o.Observer = inflight.Discard
	}
	return &Log{b: b, job: job, o: o, hooks: hooks{attempt: newAttempt, pause: pause, decode: format.DecodeManifest}}, nil
}

// CheckJob reports whether job can name a job: one part of a path that every
// store takes and that is not mistaken for a checkpoint or a hidden file.
func CheckJob(job string) error {
	_, isDir := format.ParseCheckpointDir(job)
	if backends.CheckName(job) != nil || isDir || strings.ContainsAny(job, "/") || job[0] == '.' || job[0] == '_' {
		return &inflight.Error{Op: "open", Object: fmt.Sprintf("job %q", job), Err: fmt.Errorf("%w: not a name for a job", inflight.ErrConfig),
			Mend: "use 1 to 255 letters, digits, '.', '_' and '-', beginning with a letter or digit, not chk-<id>"}
	}
	return nil
}

// Jobs returns the names of the jobs below the root of b, ascending.
func Jobs(ctx context.Context, b backends.Backend) ([]string, error) {
	var jobs []string
	for name, err := range b.Children(ctx, "") {
		if err != nil {
			return nil, &inflight.Error{Op: "list", Object: b.URL(), Err: err}
		}
		if CheckJob(name) != nil {
			continue
		}
		ids, err := children(ctx, b, name)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 {
			jobs = append(jobs, name)
		}
	}
	return jobs, nil
}

// Job returns the name of the job.
func (l *Log) Job() string { return l.job }

// path returns where a name of the job lies on the backend. Every name goes
// through it.
func (l *Log) path(name string) string {
	if l.job == "" {
		return name
	}
	return l.job + "/" + name
}

func (l *Log) dir(id inflight.CheckpointID) string { return l.path(format.CheckpointDir(id)) }

// fail wraps an error about a slot.
func (l *Log) fail(op string, id inflight.CheckpointID, err error, mend string) error {
	return &inflight.Error{Op: op, Object: l.dir(id), Err: err, Mend: mend}
}

// children returns the ids of the chk-* names in a job directory.
func children(ctx context.Context, b backends.Backend, job string) (ids []inflight.CheckpointID, err error) {
	for name, err := range b.Children(ctx, job) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // no root yet
		}
		if err != nil {
			return nil, &inflight.Error{Op: "list", Object: job, Err: err}
		}
		if id, ok := format.ParseCheckpointDir(name); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// readSlot reads the entry of a slot: ErrNotExist where it is open, ErrDamaged
// where it does not verify.
func (l *Log) readSlot(ctx context.Context, id inflight.CheckpointID) (*format.Manifest, error) {
	m, err := l.readEntry(ctx, id, l.path(format.CheckpointDir(id)+"/"+format.ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return l.readEntry(ctx, id, l.path(format.CheckpointDir(id)+"/"+format.ManifestInDir))
	}
	return m, err
}

// readEntry reads the entry of slot id under a name. Bytes that do not verify
// are read once more: it may have been the way, not the store.
func (l *Log) readEntry(ctx context.Context, id inflight.CheckpointID, name string) (*format.Manifest, error) {
	var damage error
	for range 2 {
		m, err := l.readOnceMore(ctx, id, name)
		if err == nil {
			return m, nil
		}
		if !inflight.IsCorruption(err) && !errors.Is(err, inflight.ErrUnknownVersion) && !errors.Is(err, inflight.ErrTooLarge) {
			return nil, err
		}
		damage = err
	}
	return nil, &inflight.Error{Op: "read", Object: name, Err: fmt.Errorf("%w: %w", inflight.ErrDamaged, damage)}
}

func (l *Log) readOnceMore(ctx context.Context, id inflight.CheckpointID, name string) (*format.Manifest, error) {
	p, err := l.readAll(ctx, name)
	if err != nil {
		return nil, err
	}
	m, err := l.hooks.decode(p)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: it is the entry of slot %d", inflight.ErrForeign, m.ID)
	}
	return m, err
}

func (l *Log) readAll(ctx context.Context, name string) (p []byte, err error) {
	src, err := l.b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	size := src.Info().Size
	if size > format.MaxManifest {
		return nil, fmt.Errorf("%w: %d bytes", inflight.ErrTooLarge, size)
	}
	p = make([]byte, size)
	return p, src.ReadAt(ctx, p, 0)
}

// write creates an object at once.
func (l *Log) write(ctx context.Context, name string, p []byte, o backends.CreateOptions) error {
	o.SizeHint = int64(len(p))
	obj, err := l.b.Create(ctx, name, o)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = obj.Abort(ctx) }) // ends a Write that hangs
	_, err = obj.Write(p)
	if !stop() {
		return errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return errors.Join(err, obj.Abort(ctx))
	}
	_, err = obj.Finish(ctx)
	return err
}

func newAttempt() string {
	var b [8]byte
	rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// pause waits before the try-th repetition: 20 ms, doubling up to 1 s.
func pause(ctx context.Context, try int) error {
	t := time.NewTimer(min(20*time.Millisecond<<min(try, 10), time.Second))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
