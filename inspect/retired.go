package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// retiredTries is how many times a newer checkpoint is taken, when a running job
// retires the one that is being read.
const retiredTries = 10

// settled runs look on the checkpoint that t means. Beside a running job its
// files may be deleted meanwhile, which is no damage: a checkpoint that lacks
// something is looked up again, and if the job keeps it no longer, look runs on
// the newer one. look reports whether something was not there; with final it has
// handed out what cannot be taken back, and is not run again.
func (i *Inspector) settled(ctx context.Context, t *Target, look func(job, dir string) (lacks, final bool, err error)) error {
	for try := 1; ; try++ {
		job, dir, err := i.newest(ctx, t)
		if err != nil {
			return err
		}
		lacks, final, err := look(job, dir)
		if !lacks || ctx.Err() != nil || !i.retired(ctx, t, job, dir) {
			return err
		}
		if final || t.Kind == TargetCheckpoint || try == retiredTries {
			return fail("read", path.Join(t.Name, path.Base(dir)), fmt.Errorf("%w while it was being read", inflight.ErrRetired), "ls tells what the job keeps")
		}
	}
}

// lacks reports whether something was not there.
func lacks(findings []inflight.Finding, err error) bool {
	return errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc(findings, func(f inflight.Finding) bool { return errors.Is(f.Err, fs.ErrNotExist) })
}

// gone reports whether err says that there is no checkpoint where a job had one.
func gone(t *Target, err error) bool {
	return lacks(nil, err) || t.Kind != TargetCheckpoint && errors.Is(err, ErrNotCheckpoint)
}

// retired reports whether the job has gone on and does not keep the checkpoint
// in dir, which was there before.
func (i *Inspector) retired(ctx context.Context, t *Target, job, dir string) bool {
	if t.Flink { // which deletes the metadata first
		_, err := t.Backend.Stat(ctx, path.Join(dir, flink.MetadataName))
		return errors.Is(err, fs.ErrNotExist)
	}
	id, ok := format.ParseCheckpointDir(path.Base(dir))
	if !ok {
		return false // a copy, which is in no log
	}
	log, err := t.log(job)
	if err != nil {
		return false
	}
	slots, err := log.List(ctx)
	if err != nil {
		return false
	}
	k := slices.IndexFunc(slots, func(s catalog.Slot) bool { return s.ID == id })
	switch {
	case !slices.ContainsFunc(slots, func(s catalog.Slot) bool { return s.Kept && s.ID != id }):
		return false // there is nothing newer that tells what is kept
	case k < 0:
		return true
	}
	return slots[k].State != catalog.StateDamaged && !slots[k].Kept
}
