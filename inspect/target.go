package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// TargetKind says what a user named.
type TargetKind int

// The kinds of targets.
const (
	TargetFile       TargetKind = iota + 1 // a bare channel-state file
	TargetCheckpoint                       // the directory of a checkpoint, or of what was to become one
	TargetJob                              // the directory of a job
	TargetRoot                             // a folder with jobs
)

// Target is what a user named by a path or URL.
type Target struct {
	Kind    TargetKind
	Name    string // as it is shown
	Backend backends.Backend
	// Flink: a job or checkpoint is one of Apache Flink's.
	Flink bool
	// Jobs are the folders of the jobs on Backend; "" is its root. FlinkJobs are
	// those of Flink's. A target of another kind than TargetRoot has one.
	Jobs, FlinkJobs []string
	// Dir is the directory of the checkpoint on Backend.
	Dir string
	// File is the name of the file on Backend.
	File string
}

// Close closes the backend.
func (t *Target) Close() error { return t.Backend.Close() }

// Find finds out what a path or URL names. Job chooses one job of a root; ""
// means all. The caller closes the target.
func (i *Inspector) Find(ctx context.Context, name, job string) (*Target, error) {
	t, err := i.find(ctx, name)
	if err != nil || job == "" {
		return t, err
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	switch {
	case t.Kind != TargetRoot:
		err = fail("open", t.Name, fmt.Errorf("%w: job %q was asked for, and this is no folder with jobs", inflight.ErrConfig, job), "name the root, or leave the job out")
	case slices.Contains(t.Jobs, job):
		t.Kind, t.Jobs, t.FlinkJobs = TargetJob, []string{job}, nil
	case slices.Contains(t.FlinkJobs, job):
		t.Kind, t.Jobs, t.FlinkJobs, t.Flink = TargetJob, nil, []string{job}, true
	default:
		err = fail("open", t.Name, fmt.Errorf("%w: there is no job %q", inflight.ErrConfig, job), "name one of: "+few(t.allJobs()))
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// allJobs are the folders of all jobs.
func (t *Target) allJobs() []string {
	return slices.Sorted(slices.Values(slices.Concat(t.Jobs, t.FlinkJobs)))
}

func (i *Inspector) find(ctx context.Context, name string) (t *Target, err error) {
	parent, base := splitURL(name)
	switch {
	case base == format.ManifestName, base == flink.MetadataName:
		return i.find(ctx, parent)
	case base == path.Base(format.ManifestInDir) && strings.HasSuffix(parent, "/"+format.ManifestName):
		return i.find(ctx, strings.TrimSuffix(parent, "/"+format.ManifestName))
	}
	n := named{name: name, base: base}
	defer func() { n.closeOthers(t) }()
	if n.self, err = i.o.Open(ctx, name); err != nil {
		return nil, err
	}
	if base != "" {
		if n.up, err = i.o.Open(ctx, parent); err != nil {
			return nil, err
		}
		switch _, err := n.up.Stat(ctx, base); {
		case err == nil:
			return n.file(ctx)
		case strings.HasPrefix(base, ".") && errors.Is(err, inflight.ErrConfig) && backends.CheckName(base) != nil:
			return nil, fail("open", name, fmt.Errorf("%w: it has the name of an unfinished file", ErrNotCheckpoint), "copy it under another name, such as copy.cstate, and name the copy")
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return n.dir(ctx)
}

// named is what a user named, opened, and what is above it, where there is
// something.
type named struct {
	name, base string
	self, up   backends.Backend
}

// closeOthers closes what t does not use; it may be nil.
func (n *named) closeOthers(t *Target) {
	for _, b := range []backends.Backend{n.self, n.up} {
		if b != nil && (t == nil || t.Backend != b) {
			b.Close()
		}
	}
}

// file is the file of that name; those of Flink say nothing without their
// metadata.
func (n *named) file(ctx context.Context) (*Target, error) {
	if !strings.HasSuffix(n.base, format.StateSuffix) {
		if is, err := flink.Detect(ctx, n.up, ""); is && err == nil {
			return nil, notCheckpoint(n.name, "a file of a Flink checkpoint does not say whose bytes it holds: only _metadata does", "name the directory")
		}
	}
	return &Target{Kind: TargetFile, Name: n.name, Backend: n.up, Jobs: []string{""}, File: n.base}, nil
}

// dir finds out what a directory holds.
func (n *named) dir(ctx context.Context) (*Target, error) {
	manifest, slots, any := false, false, false
	f := flinkNames{}
	for child, err := range n.self.Children(ctx, "") {
		if err != nil {
			return nil, err
		}
		_, isSlot := format.ParseCheckpointDir(child)
		manifest, slots, any = manifest || child == format.ManifestName, slots || isSlot, true
		f.add(child)
	}
	_, isSlot := format.ParseCheckpointDir(n.base)
	if isSlot && !any { // what is no file is not listed, and may stand where an entry should
		_, err := n.self.Stat(ctx, format.ManifestName)
		manifest = err != nil && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil
	}
	if _, _, is := flink.ParseDir(n.base); is && !any {
		_, err := n.self.Stat(ctx, flink.MetadataName)
		f.metadata = err != nil && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil
		any = f.metadata
	}
	switch {
	case (manifest || isSlot && any && !slots && !f.metadata) && n.up != nil:
		// In other directories of the parent some of its files may lie.
		return &Target{Kind: TargetCheckpoint, Name: n.name, Backend: n.up, Jobs: []string{""}, Dir: n.base}, nil
	case manifest:
		return &Target{Kind: TargetCheckpoint, Name: n.name, Backend: n.self, Jobs: []string{""}}, nil
	case slots && n.up != nil && catalog.CheckJob(n.base) == nil:
		// Its log has the name of the folder, so the parent is the root.
		return &Target{Kind: TargetJob, Name: n.name, Backend: n.up, Jobs: []string{n.base}}, nil
	case slots:
		return &Target{Kind: TargetJob, Name: n.name, Backend: n.self, Jobs: []string{""}}, nil
	case !any && isSlot && n.leftovers(ctx):
		return nil, notCheckpoint(n.name, "it is pending, not committed: only unfinished files of writers lie there", "ls of the job lists it; to verify such a file, copy it under another name")
	case !any:
		return nil, notCheckpoint(n.name, "there is nothing below it", "name a checkpoint, a job, or a folder with jobs")
	}
	if t, err := n.flink(ctx, f); t != nil || err != nil {
		return t, err
	}
	jobs, err := catalog.Jobs(ctx, n.self)
	if err != nil {
		return nil, err
	}
	theirs, err := flinkJobs(ctx, n.self)
	if err != nil {
		return nil, err
	}
	if len(jobs)+len(theirs) == 0 {
		copies, err := flinkCopies(ctx, n.self, "")
		if err != nil {
			return nil, err
		}
		if len(copies) > 0 {
			return n.flinkJob(), nil
		}
		return nil, notCheckpoint(n.name, "no job below it has a checkpoint", "name a checkpoint, a job, or a folder with jobs")
	}
	return &Target{Kind: TargetRoot, Name: n.name, Backend: n.self, Flink: len(jobs) == 0, Jobs: jobs, FlinkJobs: theirs}, nil
}

// leftovers reports whether unfinished writers left anything, or are at work.
func (n *named) leftovers(ctx context.Context) bool {
	for _, err := range n.self.Leftovers(ctx, "") {
		return err == nil
	}
	return false
}

// splitURL takes the last part off a path or URL. Base is "" where there is none.
func splitURL(name string) (parent, base string) {
	if !strings.Contains(name, "://") {
		abs, err := filepath.Abs(name)
		if err != nil || abs == filepath.Dir(abs) {
			return "", ""
		}
		return filepath.Dir(abs), filepath.Base(abs)
	}
	u, err := url.Parse(name)
	if err != nil {
		return "", "" // Open says what is wrong with it
	}
	p := strings.Trim(u.Path, "/")
	if p == "" {
		return "", ""
	}
	u.Path, u.RawPath = "/"+strings.TrimPrefix(path.Dir(p), "."), ""
	return u.String(), path.Base(p)
}

// urlOf is the URL of a name on b, without what says how to reach the store.
func urlOf(b backends.Backend, name string) string {
	u, err := url.Parse(b.URL())
	if err != nil {
		return name
	}
	u.RawQuery = ""
	return u.JoinPath(name).String()
}

// log opens the log of a job.
func (t *Target) log(job string) (*catalog.Log, error) {
	return catalog.Open(t.Backend, job, catalog.Options{})
}
