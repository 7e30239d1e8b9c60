//go:build !(linux || darwin || freebsd)

package local

import (
	"context"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

const hasSpace = false

// Space is not known here.
func (b *Backend) Space(context.Context) (backends.Space, error) {
	return backends.Space{}, &inflight.Error{Op: "space", Object: b.root, Err: inflight.ErrUnsupported}
}
