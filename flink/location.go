package flink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/inflight"
)

// Move says that what was written below From (an absolute path or URI, as it
// stands in _metadata) lies below the URL To.
type Move struct{ From, To string }

// location is where something lies.
type location struct {
	backend backends.Backend
	name    string
}

// places opens the backends that absolute paths lead to; each is opened once.
type places struct {
	home  backends.Backend
	dir   string // of the checkpoint on home
	moves []Move
	open  func(context.Context, string) (backends.Backend, error)

	mu     sync.Mutex
	opened map[string]backends.Backend
}

// uri is an absolute path taken apart.
type uri struct {
	scheme, host, path string
}

// parseURI takes apart what Flink writes: "file:/a/b", "s3a://bucket/a", "/a/b".
func parseURI(s string) (uri, error) {
	u := uri{path: s}
	if scheme, rest, ok := strings.Cut(s, ":"); ok && !strings.Contains(scheme, "/") {
		u.scheme, u.path = strings.ToLower(scheme), rest
		if after, ok := strings.CutPrefix(rest, "//"); ok {
			u.host, u.path, _ = strings.Cut(after, "/")
			u.path = "/" + u.path
		}
	}
	switch u.scheme {
	case "s3a", "s3n", "s3p":
		u.scheme = "s3"
	}
	if !strings.HasPrefix(u.path, "/") {
		return uri{}, fmt.Errorf("%w: not an absolute path: %.200q", inflight.ErrConfig, s)
	}
	u.path = path.Clean(u.path)
	return u, nil
}

// below returns the name of u relative to root.
func (u uri) below(root uri) (string, bool) {
	host := root.host[strings.LastIndexByte(root.host, '@')+1:]
	if u.scheme != root.scheme && u.scheme != "" || u.host != host && u.host != root.host && u.host != "" {
		return "", false
	}
	if root.path == "/" {
		return strings.TrimPrefix(u.path, "/"), true
	}
	return strings.CutPrefix(u.path, root.path+"/")
}

// homeURI is the URL of the backend that the checkpoint lies on.
func (p *places) homeURI() (uri, string) {
	u, err := url.Parse(p.home.URL())
	if err != nil {
		return uri{}, ""
	}
	host := u.Host
	if u.User != nil {
		host = u.User.Username() + "@" + host
	}
	return uri{scheme: u.Scheme, host: host, path: path.Clean("/" + u.Path)}, u.RawQuery
}

// absolute returns where the file with an absolute path lies.
func (p *places) absolute(ctx context.Context, s string) (location, error) {
	for _, m := range p.moves {
		from := strings.TrimRight(m.From, "/")
		if rest, ok := strings.CutPrefix(s, from+"/"); ok {
			return p.at(ctx, strings.TrimRight(m.To, "/")+"/"+rest)
		}
	}
	u, err := parseURI(s)
	if err != nil {
		return location{}, err
	}
	home, query := p.homeURI()
	if u.scheme == "" {
		u.scheme = home.scheme
	}
	if u.scheme == home.scheme && u.host == "" {
		u.host = home.host
	}
	full := url.URL{Scheme: u.scheme, Host: u.host, Path: u.path}
	if u.scheme == home.scheme {
		full.RawQuery = query // the endpoint of the store, its region
	}
	return p.at(ctx, full.String())
}

// at returns the location of the file with that URL.
func (p *places) at(ctx context.Context, s string) (location, error) {
	if name, ok := p.belowHome(s); ok {
		return location{p.home, name}, nil
	}
	dir, name, err := SplitURL(s)
	if err != nil {
		return location{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.opened[dir]; b != nil {
		return location{b, name}, nil
	}
	b, err := p.open(ctx, dir)
	if err != nil {
		return location{}, err
	}
	p.opened[dir] = b
	return location{b, name}, nil
}

// belowHome returns the name of the file with that URL on the store of the
// checkpoint, if it lies there.
func (p *places) belowHome(s string) (string, bool) {
	if !strings.Contains(s, "://") {
		u, err := parseURI(s)
		if err != nil {
			return "", false
		}
		home, _ := p.homeURI()
		return u.below(home)
	}
	full, err := url.Parse(s)
	if err != nil {
		return "", false
	}
	home, query := p.homeURI()
	if full.RawQuery != query {
		return "", false
	}
	return uri{scheme: full.Scheme, host: full.Host, path: path.Clean("/" + full.Path)}.below(home)
}

// sibling returns the location of a name beside the directory of the checkpoint.
func (p *places) sibling(ctx context.Context, name string) (location, error) {
	if p.dir != "" {
		return location{p.home, path.Join(path.Dir(p.dir), name)}, nil
	}
	parent, _, err := SplitURL(p.home.URL())
	if err != nil {
		return location{}, err
	}
	u, err := url.Parse(parent)
	if err != nil {
		return location{}, err
	}
	u.Path = path.Join(u.Path, name)
	return p.at(ctx, u.String())
}

// moved guesses where a file lies whose directories were moved together with the
// checkpoint: below shared/ or taskowned/ beside it, or in it.
func (p *places) moved(ctx context.Context, s string) (location, bool) {
	u, err := parseURI(s)
	if err != nil {
		return location{}, false
	}
	parts := strings.Split(strings.TrimPrefix(u.path, "/"), "/")
	for i := len(parts) - 2; i >= 0; i-- {
		switch dir := parts[i]; {
		case dir == "shared" || dir == "taskowned":
			l, err := p.sibling(ctx, path.Join(parts[i:]...))
			return l, err == nil
		case strings.HasPrefix(dir, "chk-") || strings.HasPrefix(dir, "savepoint-"):
			return location{p.home, path.Join(p.dir, path.Join(parts[i+1:]...))}, true
		}
	}
	return location{}, false
}

// relative returns where a file lies whose path is relative to the checkpoint.
func (p *places) relative(rel string) (location, error) {
	name := path.Join(p.dir, rel)
	if rel == "" || path.IsAbs(rel) || name == ".." || strings.HasPrefix(name, "../") || name == p.dir {
		return location{}, fmt.Errorf("%w: no name of a file beside %s: %.200q", inflight.ErrCorrupt, MetadataName, rel)
	}
	return location{p.home, name}, nil
}

func (p *places) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, b := range p.opened {
		errs = append(errs, b.Close())
	}
	p.opened = nil
	return errors.Join(errs...)
}

// SplitURL takes the URL or path of something apart into that of its directory
// and its name: Open wants a checkpoint like that, since what belongs to it lies
// beside it too.
func SplitURL(s string) (dir, name string, err error) {
	bad := func() error {
		return &inflight.Error{Op: "open", Object: fmt.Sprintf("%.200q", s), Err: fmt.Errorf("%w: it has no directory", inflight.ErrConfig), Mend: "give the path or URL of a checkpoint directory"}
	}
	if !strings.Contains(s, "://") {
		s = strings.TrimPrefix(s, "file:")
		clean := path.Clean(s)
		if name = path.Base(clean); clean == "/" || name == "." || name == ".." || s == "" {
			return "", "", bad()
		}
		return path.Dir(clean), name, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", "", bad()
	}
	u.Path = path.Clean("/" + u.Path)
	if u.Path == "/" {
		return "", "", bad()
	}
	name = path.Base(u.Path)
	u.Path, u.RawPath = path.Dir(u.Path), ""
	return u.String(), name, nil
}
