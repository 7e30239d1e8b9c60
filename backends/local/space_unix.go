//go:build linux || darwin || freebsd

package local

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/backends"
)

const hasSpace = true

// Space asks the file system of the root, or where the root will be.
func (b *Backend) Space(ctx context.Context) (backends.Space, error) {
	if err := b.ready(ctx, "space", ""); err != nil {
		return backends.Space{}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(existing(b.root), &st); err != nil {
		return backends.Space{}, fail("space", b.root, err)
	}
	unit := int64(st.Bsize)
	return backends.Space{Free: int64(st.Bavail) * unit, Total: int64(st.Blocks) * unit}, nil
}
