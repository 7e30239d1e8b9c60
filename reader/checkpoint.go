package reader

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// Checkpoint is a checkpoint whose manifest is known.
type Checkpoint struct {
	Manifest *format.Manifest
	// Dir is the folder on the backend that the manifest lies in.
	Dir string

	r *Reader
}

// Checkpoint reads the manifest in dir, which is relative to the job's
// directory: "chk-0000000007", or whatever a copy is called.
func (r *Reader) Checkpoint(ctx context.Context, dir string) (*Checkpoint, error) {
	full := path.Join(r.job, dir)
	p, name, err := r.readManifest(ctx, full)
	if err != nil {
		return nil, fail("open checkpoint", name, err)
	}
	m, err := format.DecodeManifest(p)
	if err == nil && m.Kind != format.KindCheckpoint {
		return nil, &inflight.Error{Op: "open checkpoint", Object: name, Err: fmt.Errorf("%w: it is %s, not a checkpoint", inflight.ErrMismatch, m)}
	}
	if err != nil {
		if !errors.Is(err, inflight.ErrUnknownVersion) {
			err = errors.Join(inflight.ErrDamaged, err)
		}
		return nil, fail("open checkpoint", name, err)
	}
	return r.At(m, full), nil
}

// At returns the checkpoint of a manifest that was read from folder dir of the
// backend.
func (r *Reader) At(m *format.Manifest, dir string) *Checkpoint {
	return &Checkpoint{Manifest: m, Dir: dir, r: r}
}

// readManifest returns the manifest in folder dir, which may lie there in
// either of its forms.
func (r *Reader) readManifest(ctx context.Context, dir string) (p []byte, name string, err error) {
	name = path.Join(dir, format.ManifestName)
	for _, name := range []string{name, path.Join(dir, format.ManifestInDir)} {
		src, err := r.b.Open(ctx, name)
		if errors.Is(err, inflight.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, name, err
		}
		defer src.Close()
		size := src.Info().Size
		if size > format.MaxManifest {
			return nil, name, &inflight.Error{Op: "read", Object: name, Err: fmt.Errorf("%w: %d bytes, at most %d", inflight.ErrTooLarge, size, format.MaxManifest)}
		}
		p := make([]byte, size)
		if size > 0 {
			err = src.ReadAt(ctx, p, 0)
		}
		return p, name, err
	}
	return nil, name, &inflight.Error{Op: "open", Object: name, Err: inflight.ErrNotExist, Mend: "name a directory with a manifest"}
}

func (c *Checkpoint) resolve(name string) string { return c.Manifest.Resolve(c.Dir, name) }

// Subtask opens the state of one subtask of the checkpoint. One that had
// finished, or had nothing to capture, is empty; one that the checkpoint does
// not know is ErrNotExist.
func (c *Checkpoint) Subtask(ctx context.Context, t inflight.Task) (*Subtask, error) {
	if h := c.Manifest.Handle(t); h != nil {
		return c.r.subtask(ctx, *h, c.resolve)
	}
	for _, f := range c.Manifest.Finished {
		if f == t {
			return c.r.subtask(ctx, inflight.Handle{Task: t, Checkpoint: c.Manifest.ID}, c.resolve)
		}
	}
	return nil, &inflight.Error{Op: "open", Object: t.String(), Err: fmt.Errorf("%w in checkpoint %d", inflight.ErrNotExist, c.Manifest.ID)}
}

// Remote reports whether c lies where each request costs a round trip.
func (c *Checkpoint) Remote() bool { return c.r.remote }

// Open opens what h names, a handle of the checkpoint.
func (c *Checkpoint) Open(ctx context.Context, h inflight.Handle) (*Subtask, error) {
	return c.r.subtask(ctx, h, c.resolve)
}
