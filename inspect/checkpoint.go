package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

// checkpoint is a checkpoint that is open for looking into.
type checkpoint struct {
	*reader.Checkpoint
	target *Target
	job    string // its folder on the backend
	r      *reader.Reader
	reread []inflight.Finding // what was damaged when it was read first
}

// Close gives up what c holds. The target stays open.
func (c *checkpoint) Close() { c.r.Close() }

// newest returns where the checkpoint lies that t means: itself, or the newest
// completed one of its job.
func (i *Inspector) newest(ctx context.Context, t *Target) (job, dir string, err error) {
	switch {
	case t.Kind == TargetFile:
		return "", "", fail("open", t.Name, fmt.Errorf("%w: a checkpoint is wanted, and this is a file", inflight.ErrConfig), "name the directory chk-<id>, a job, or a root with one job")
	case t.Kind == TargetCheckpoint:
		return "", t.Dir, nil
	case len(t.allJobs()) > 1:
		return "", "", fail("open", t.Name, fmt.Errorf("%w: there are several jobs: %s", inflight.ErrConfig, few(t.allJobs())), "name one, or add --job")
	case t.Flink:
		return i.newestFlink(ctx, t)
	}
	log, err := t.log(t.Jobs[0])
	if err != nil {
		return "", "", err
	}
	latest, err := log.Latest(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inflight.ErrDamaged):
		return "", "", notCheckpoint(t.Name, "the job has no completed checkpoint", "ls tells what it has")
	case err != nil:
		return "", "", err
	}
	return t.Jobs[0], latest.Dir, nil
}

// open opens the checkpoint that t means. Without one there it says what is
// there instead.
func (i *Inspector) open(ctx context.Context, t *Target) (*checkpoint, error) {
	job, dir, err := i.newest(ctx, t)
	if err != nil {
		return nil, err
	}
	return i.openDir(ctx, t, job, dir)
}

func (i *Inspector) openDir(ctx context.Context, t *Target, job, dir string) (*checkpoint, error) {
	c := &checkpoint{target: t, job: job}
	c.r = reader.Open(t.Backend, job, reader.Options{Report: func(f inflight.Finding) { c.reread = append(c.reread, f) }})
	rel := strings.TrimPrefix(strings.TrimPrefix(dir, job), "/")
	var err error
	if c.Checkpoint, err = c.r.Checkpoint(ctx, rel); err == nil {
		err = checkSlot(c.Manifest, dir)
	}
	if err != nil {
		c.Close()
		damaged := errors.Is(err, inflight.ErrDamaged)
		switch {
		case errors.Is(err, inflight.ErrConfig): // a pipe, a device, a link to itself
			err = fmt.Errorf("%w: %w", inflight.ErrDamaged, err)
		case errors.Is(err, fs.ErrNotExist) && !damaged:
			err = notCheckpoint(path.Join(t.Name, rel), "it has no manifest, so it was not committed", "verify or dump its files one by one")
		case errors.Is(err, inflight.ErrMismatch) && !damaged:
			err = notCheckpoint(path.Join(t.Name, rel), "the slot holds a claim or an aborted id", "ls tells what it holds")
		}
		return nil, err
	}
	return c, nil
}

// checkSlot compares the manifest with the name of its directory.
func checkSlot(m *format.Manifest, dir string) error {
	id, ok := format.ParseCheckpointDir(path.Base(dir))
	if !ok || id == m.ID {
		return nil
	}
	return fail("open", dir, fmt.Errorf("%w: %w: it is the entry of slot %d", inflight.ErrDamaged, inflight.ErrForeign, m.ID), "put the right manifest back")
}

// stats reads the statistics beside the manifest; nil: there are none.
func (c *checkpoint) stats(ctx context.Context) (*format.CheckpointStats, error) {
	name := path.Join(c.Dir, format.StatsName)
	src, err := c.target.Backend.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer src.Close()
	const limit = 64 << 20
	stream, err := src.Stream(ctx, 0, min(src.Info().Size, limit))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	p, err := io.ReadAll(stream)
	if err != nil {
		return nil, err
	}
	return format.DecodeStats(p)
}

// line describes the checkpoint.
func (i *Inspector) line(ctx context.Context, c *checkpoint) CheckpointLine {
	m := c.Manifest
	l := CheckpointLine{Type: TypeCheckpoint, Job: c.job, Dir: c.Dir, ID: m.ID, State: catalog.StateCompleted, Kind: catalog.SlotCheckpoint, SizeBytes: m.FileBytes()}
	if m.Savepoint {
		l.Kind = catalog.SlotSavepoint
	}
	l.describe(m)
	for _, name := range []string{format.ManifestName, format.ManifestInDir} {
		if info, err := c.target.Backend.Stat(ctx, path.Join(c.Dir, name)); err == nil {
			l.SizeBytes += info.Size
			l.Modified, l.AgeMS = i.stamp(info.Modified)
		}
	}
	return l
}
