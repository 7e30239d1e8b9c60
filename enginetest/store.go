package enginetest

import (
	"context"
	"fmt"
	"net/url"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// scheme is that of the stores that instances in this process get. Behind each
// URL is one instance's own way to the store: it can be cut off, and have faults.
const scheme = "enginetest"

func init() { backends.Register(scheme, openPath) }

var paths struct {
	sync.Mutex
	last int
	of   map[string]backends.Backend
}

// newPath returns the URL of a path to b.
func newPath(b backends.Backend) string {
	paths.Lock()
	defer paths.Unlock()
	if paths.of == nil {
		paths.of = map[string]backends.Backend{}
	}
	paths.last++
	host := fmt.Sprintf("instance-%d", paths.last)
	paths.of[host] = b
	return scheme + "://" + host
}

// forget ends the validity of a URL.
func forget(rawURL string) {
	paths.Lock()
	defer paths.Unlock()
	delete(paths.of, rawURL[len(scheme+"://"):])
}

func openPath(_ context.Context, u *url.URL) (backends.Backend, error) {
	paths.Lock()
	defer paths.Unlock()
	b := paths.of[u.Host]
	if b == nil {
		return nil, &inflight.Error{Op: "open", Object: u.Redacted(), Err: inflight.ErrNotExist, Mend: "open the store while the instance runs"}
	}
	return unclosed{b}, nil
}

// unclosed is a path that the engine's Close does not end.
type unclosed struct{ backends.Backend }

// Close does nothing.
func (unclosed) Close() error { return nil }

// Unwrap returns the backend below.
func (u unclosed) Unwrap() backends.Backend { return u.Backend }
