package flink

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// MaxMetadata is the largest _metadata that Open reads, in bytes.
const MaxMetadata = 2<<30 - 1

// OpenOptions are the options of Open. The zero value is fine.
type OpenOptions struct {
	// Moves say where files lie that were written elsewhere. The first that fits
	// counts.
	Moves []Move
	// OpenURL opens the stores that absolute paths lead to. Default:
	// backends.Open.
	OpenURL func(ctx context.Context, url string) (backends.Backend, error)
}

// Checkpoint is a checkpoint or savepoint of Flink on a store. Its methods may be
// called by several goroutines at once.
type Checkpoint struct {
	*Metadata
	// Dir is the directory on the backend that relative files lie in, Name the
	// name of the metadata file there.
	Dir, Name string

	places *places
	owned  backends.Backend // closed with the checkpoint; may be nil
	mu     sync.Mutex
	found  map[string]found
}

// Open opens the checkpoint whose directory is dir on b, or whose metadata file
// is. What belongs to a checkpoint lies in its directory, beside it, and where
// absolute paths lead; so b should be the store of the directory above it (see
// SplitURL). The caller closes the checkpoint; b stays open.
//
// An error that is about the bytes of the metadata wraps a *FormatError.
func Open(ctx context.Context, b backends.Backend, dir string, o OpenOptions) (*Checkpoint, error) {
	p := &places{home: b, moves: o.Moves, open: o.OpenURL, opened: map[string]backends.Backend{}}
	if p.open == nil {
		p.open = backends.Open
	}
	name := path.Join(dir, MetadataName)
	raw, err := readAll(ctx, b, name, MaxMetadata)
	if errors.Is(err, inflight.ErrNotExist) && dir != "" {
		// The pointer may name the metadata file itself.
		if direct, e := readAll(ctx, b, dir, MaxMetadata); e == nil {
			name, raw, err = dir, direct, nil
		}
	}
	if err != nil {
		return nil, err
	}
	m, err := Parse(raw)
	if err != nil {
		var f *FormatError
		errors.As(err, &f)
		return nil, &inflight.Error{Op: "parse", Object: name, Err: f}
	}
	c := &Checkpoint{Metadata: m, Dir: path.Dir(name), Name: path.Base(name), places: p, found: map[string]found{}}
	if c.Dir == "." {
		c.Dir = ""
	}
	p.dir = c.Dir
	return c, nil
}

// Close closes the stores that absolute paths led to, and that of OpenURL.
func (c *Checkpoint) Close() error {
	err := c.places.close()
	if c.owned != nil {
		err = errors.Join(err, c.owned.Close())
	}
	return err
}

// Backend returns the store that the checkpoint was opened on.
func (c *Checkpoint) Backend() backends.Backend { return c.places.home }

// readAll reads a whole object of at most limit bytes.
func readAll(ctx context.Context, b backends.Backend, name string, limit int64) ([]byte, error) {
	src, err := b.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	size := src.Info().Size
	if size > limit {
		return nil, &inflight.Error{Op: "read", Object: name, Err: fmt.Errorf("%w: %d bytes", inflight.ErrTooLarge, size)}
	}
	p := make([]byte, size)
	if err := src.ReadAt(ctx, p, 0); err != nil {
		return nil, err
	}
	return p, nil
}

// File is where the file of a stream handle lies.
type File struct {
	Backend backends.Backend
	Name    string
	Info    backends.Info
	// Moved: it is not where its absolute path leads, but where it would be if it
	// had been moved together with the checkpoint. Flink does not find it.
	Moved bool
}

// found is what locating a path came to.
type found struct {
	file File
	err  error
}

// Locate finds the file of a handle: of a file, relative file or segment. A file
// that is nowhere is ErrNotExist, a path of a store that no backend is known for
// ErrConfig.
func (c *Checkpoint) Locate(ctx context.Context, h StreamHandle) (File, error) {
	for h.Kind() == KindKeyGroups {
		h = h.Inner()
	}
	p := h.Path()
	key := string(h.raw[:1]) + p
	if h.Kind() == KindSegment {
		key = string([]byte{byte(KindFile)}) + p
	}
	c.mu.Lock()
	f, known := c.found[key]
	c.mu.Unlock()
	if known {
		return f.file, f.err
	}
	f.file, f.err = c.locate(ctx, h, p)
	if ctx.Err() != nil {
		return File{}, ctx.Err()
	}
	if !inflight.Retryable(f.err) {
		c.mu.Lock()
		c.found[key] = f
		c.mu.Unlock()
	}
	return f.file, f.err
}

func (c *Checkpoint) locate(ctx context.Context, h StreamHandle, p string) (File, error) {
	fail := func(err error) (File, error) {
		return File{}, &inflight.Error{Op: "locate", Object: p, Err: err}
	}
	switch h.Kind() {
	case KindRelativeFile:
		l, err := c.places.relative(p)
		if err != nil {
			return fail(err)
		}
		info, err := l.backend.Stat(ctx, l.name)
		return File{Backend: l.backend, Name: l.name, Info: info}, err
	case KindFile, KindSegment:
	default:
		return fail(fmt.Errorf("%w: a %s has no file", inflight.ErrUnsupported, h.Kind()))
	}
	l, err := c.places.absolute(ctx, p)
	if err == nil {
		var info backends.Info
		if info, err = l.backend.Stat(ctx, l.name); err == nil {
			return File{Backend: l.backend, Name: l.name, Info: info}, nil
		}
	}
	if l, ok := c.places.moved(ctx, p); ok {
		if info, e := l.backend.Stat(ctx, l.name); e == nil {
			return File{Backend: l.backend, Name: l.name, Info: info, Moved: true}, nil
		}
	}
	return fail(err)
}

// OpenURL opens the checkpoint at a path or URL, on a store of its own.
func OpenURL(ctx context.Context, url string, o OpenOptions) (*Checkpoint, error) {
	dir, name, err := SplitURL(url)
	if err != nil {
		return nil, err
	}
	open := o.OpenURL
	if open == nil {
		open = backends.Open
	}
	b, err := open(ctx, dir)
	if err != nil {
		return nil, err
	}
	c, err := Open(ctx, b, name, o)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	c.owned = b
	return c, nil
}

// Detect reports whether a checkpoint of Flink lies in directory dir of b, by the
// first bytes of its metadata.
func Detect(ctx context.Context, b backends.Backend, dir string) (bool, error) {
	src, err := b.Open(ctx, path.Join(dir, MetadataName))
	if errors.Is(err, inflight.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer src.Close()
	if src.Info().Size < 4 {
		return false, nil
	}
	var p [4]byte
	err = src.ReadAt(ctx, p[:], 0)
	return err == nil && IsMetadata(p[:]), err
}
