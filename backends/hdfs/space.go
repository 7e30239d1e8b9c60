package hdfs

import (
	"context"
	"errors"
	"path"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Space tells how many bytes of files fit: each takes its size on as many
// datanodes as it has replicas. The quotas of the root and of the folders above it
// count, where they may be looked at.
func (b *Backend) Space(ctx context.Context) (backends.Space, error) {
	return do(ctx, b, "space", "", func(c *client) (backends.Space, error) {
		repl, _, err := b.sizes(c)
		if err != nil {
			return backends.Space{}, err
		}
		fs, err := c.StatFs()
		if err != nil {
			return backends.Space{}, err
		}
		s := backends.Space{Free: int64(fs.Remaining), Total: int64(fs.Capacity)}
		for at := b.o.Dir; at != "/"; at = path.Dir(at) {
			if err := c.quota(at, &s); err != nil {
				return backends.Space{}, err
			}
		}
		return backends.Space{Free: s.Free / int64(max(repl, 1)), Total: s.Total / int64(max(repl, 1))}, nil
	})
}

// quota lowers s to what the quotas of a folder allow.
func (c *client) quota(at string, s *backends.Space) error {
	sum, err := c.GetContentSummary(at)
	switch {
	case err != nil && c.fault() != nil:
		return err
	case err != nil: // it is missing, or not for us to look at
		return nil
	}
	if quota := sum.SpaceQuota(); quota > 0 {
		s.Total = min(s.Total, quota)
		s.Free = min(s.Free, max(quota-sum.SizeAfterReplication(), 0))
	}
	if quota := sum.NameQuota(); quota > 0 && quota <= sum.FileCount()+sum.DirectoryCount() {
		s.Free = 0
	}
	return nil
}

// ifFull turns a failure of a datanode into ErrNoSpace where the cluster has no
// room for a block: a datanode whose disk is full just hangs up.
func (b *Backend) ifFull(ctx context.Context, op, name string, failure error) error {
	full, err := do(ctx, b, op, name, func(c *client) (bool, error) {
		_, block, err := b.sizes(c)
		if err != nil {
			return false, err
		}
		fs, err := c.StatFs()
		return int64(fs.Remaining) < block, err
	})
	if err != nil || !full {
		return failure
	}
	e, ok := errors.AsType[*inflight.Error](failure)
	if !ok {
		return failure
	}
	return &inflight.Error{Op: e.Op, Object: e.Object, Err: &kindError{inflight.ErrNoSpace, e.Err, ""}, Mend: "free space on the datanodes: there is no room for a block; or use a smaller block-size= in the URL"}
}
