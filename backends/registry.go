package backends

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spillway-io/spillway/inflight"
)

// Opener opens the backend that a URL names. It makes no request: a store that
// cannot be reached is found by the first call.
type Opener func(ctx context.Context, u *url.URL) (Backend, error)

var (
	registryMu sync.RWMutex
	registry   = map[string]Opener{}
)

// Register makes a scheme known to Open. Drivers call it from init; a program
// may add its own. It panics if the scheme is taken.
func Register(scheme string, open Opener) {
	registryMu.Lock()
	defer registryMu.Unlock()
	if _, dup := registry[scheme]; dup {
		panic("backends: scheme registered twice: " + scheme)
	}
	registry[scheme] = open
}

// Schemes returns the registered schemes, sorted.
func Schemes() []string {
	registryMu.RLock()
	defer registryMu.RUnlock()
	return slices.Sorted(maps.Keys(registry))
}

// Open opens the backend that rawURL names: "s3://bucket/prefix?region=…",
// "hdfs://namenode:port/dir", "mem://name", "file:///dir" or a plain path.
// Import the driver, or backends/all, for its scheme to be known.
func Open(ctx context.Context, rawURL string) (Backend, error) {
	u, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	registryMu.RLock()
	open := registry[u.Scheme]
	registryMu.RUnlock()
	if open == nil {
		return nil, &inflight.Error{Op: "open", Object: u.Redacted(), Err: fmt.Errorf("%w: no backend for %q", inflight.ErrConfig, u.Scheme+"://"),
			Mend: "known here: " + strings.Join(Schemes(), ", ") + ", or a plain path"}
	}
	return open(ctx, u)
}

// parse turns a plain path into a file URL.
func parse(rawURL string) (*url.URL, error) {
	if rawURL == "" {
		return nil, &inflight.Error{Op: "open", Object: `""`, Err: fmt.Errorf("%w: no URL", inflight.ErrConfig), Mend: "give a directory or a URL"}
	}
	if !strings.Contains(rawURL, "://") {
		abs, err := filepath.Abs(rawURL)
		if err != nil {
			return nil, &inflight.Error{Op: "open", Object: rawURL, Err: err}
		}
		return &url.URL{Scheme: "file", Path: abs}, nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		// The URL itself is not repeated: it may hold a password.
		return nil, &inflight.Error{Op: "open", Object: "URL", Err: fmt.Errorf("%w: it cannot be parsed", inflight.ErrConfig), Mend: "escape special characters"}
	}
	if _, secret := u.User.Password(); secret {
		u.RawQuery = "" // where one secret stands there may be two
		return nil, &inflight.Error{Op: "open", Object: u.Redacted(), Err: fmt.Errorf("%w: a password in the URL", inflight.ErrConfig),
			Mend: "give secrets by environment, profile file or ticket cache"}
	}
	return u, nil
}

// CheckName reports whether name is a name that every store takes.
func CheckName(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return nameError(name)
		}
		for _, c := range []byte(part) {
			switch {
			case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
			default:
				return nameError(name)
			}
		}
	}
	return nil
}

func nameError(name string) error {
	return &inflight.Error{Op: "check name", Object: fmt.Sprintf("%q", name), Err: fmt.Errorf("%w: not a valid name", inflight.ErrConfig),
		Mend: "use letters, digits, '.', '_' and '-', in parts of 1 to 255 bytes, joined by '/'"}
}

// Below returns the prefix of the names below folder: "" for the root,
// otherwise the folder with exactly one slash at its end.
func Below(folder string) string {
	if folder = strings.TrimRight(folder, "/"); folder == "" {
		return ""
	}
	return folder + "/"
}
