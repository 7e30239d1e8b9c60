package reader

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// File is a channel-state file that was looked at without manifest or handle:
// what its blocks hold, and everything that is wrong with it.
type File struct {
	*format.Scanned
	Name     string // as it was asked for
	Size     int64
	Findings []inflight.Finding

	r *Reader
}

// File scans the file of that name, which is relative to the job's directory
// and may be any. Every byte is read and checked. Damage is a finding; an error
// means that the file cannot be read at all.
func (r *Reader) File(ctx context.Context, name string) (*File, error) {
	return r.scan(ctx, path.Join(r.job, name), format.FileRef{Name: name})
}

// Subtask opens what intact blocks of f hold of t, whatever its mark says, and
// whether or not other files hold more. It is for looking, not for restoring.
func (f *File) Subtask(t inflight.Task) (*Subtask, error) {
	s := &Subtask{Task: t, r: f.r, partial: true}
	if f.Header != nil {
		s.Checkpoint = f.Header.Checkpoint
	}
	sec := &format.Section{Task: t, Files: []format.FileRef{}}
	if m := f.Member(t); m != nil {
		for i := range m.Found {
			e := format.Entry{Address: m.Found[i].Address}
			for _, x := range m.Found[i].Extents {
				if x.Flags&format.RunReference != 0 {
					continue // its bytes lie in another file
				}
				x.Block = len(sec.Blocks)
				sec.Blocks = append(sec.Blocks, x.Ref)
				e.Extents = append(e.Extents, x.Extent)
				e.Buffers += uint64(x.Buffers())
				e.Bytes += uint64(x.Length)
				e.Digest = e.Digest.Join(x.Digest, uint64(x.Length))
			}
			sec.Entries = append(sec.Entries, e)
		}
		slices.SortFunc(sec.Entries, func(a, b format.Entry) int { return a.Address.Compare(b.Address) })
	}
	file, err := f.r.fileAt(path.Join(f.r.job, f.Name), format.FileRef{Name: f.Name, FileID: f.FileID})
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, file)
	return s, s.build(f.r.inJob, []inflight.Segment{{File: f.Name}}, []*format.Section{sec})
}

// scan reads all of the file at full. What was wrong at first and right in a
// second scan was not wrong at rest.
func (r *Reader) scan(ctx context.Context, full string, ref format.FileRef) (*File, error) {
	src, err := r.openFile(ctx, full)
	if err != nil {
		return nil, fail("open", ref.Name, err)
	}
	defer r.closeFile(src)
	f := &File{Name: ref.Name, Size: src.Info().Size, r: r}
	first, sc, err := f.scanOnce(ctx, src, ref)
	if err != nil {
		return nil, err
	}
	f.Scanned, f.Findings = sc, first
	if !slices.ContainsFunc(first, damaged) {
		return f, nil
	}
	second, sc, err := f.scanOnce(ctx, src, ref)
	if err != nil {
		return nil, err
	}
	if len(second) <= len(first) {
		f.Scanned = sc
	}
	f.Findings = nil
	for _, n := range first {
		if damaged(n) && !slices.ContainsFunc(second, func(o inflight.Finding) bool { return same(n, o) }) {
			n.Severity, n.Code, n.Text = inflight.SeverityWarning, CodeTransient, "wrong in one of two readings: "+n.Text
		}
		f.Findings = append(f.Findings, n)
	}
	return f, nil
}

func damaged(n inflight.Finding) bool { return n.Severity == inflight.SeverityError }

// same reports whether two scans found the same thing.
func same(a, b inflight.Finding) bool {
	return a.Code == b.Code && a.Offset == b.Offset && a.Text == b.Text &&
		(a.Task == nil) == (b.Task == nil) && (a.Task == nil || *a.Task == *b.Task) &&
		(a.Address == nil) == (b.Address == nil) && (a.Address == nil || *a.Address == *b.Address)
}

func (f *File) scanOnce(ctx context.Context, src backends.Source, ref format.FileRef) (found []inflight.Finding, sc *format.Scanned, err error) {
	o := format.ScanOptions{Name: ref.Name, Report: func(n inflight.Finding) { found = append(found, n) }}
	if ref.FileID != (inflight.FileID{}) {
		o.FileID = &ref.FileID
	}
	from := readerAt{f.Size, func(p []byte, off int64) error { return src.ReadAt(ctx, p, off) }}
	sc, err = format.Scan(ctx, from, f.Size, o)
	if errors.Is(err, inflight.ErrTorn) { // the file became shorter under us
		err = errors.Join(inflight.ErrCorrupt, err)
	}
	return found, sc, fail("scan", ref.Name, err)
}
