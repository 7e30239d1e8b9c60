package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/flink"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// flinkNames is what the names in a directory say about Flink.
type flinkNames struct {
	metadata    bool // there is a _metadata
	checkpoints bool // there are directories that are called as its checkpoints are
}

func (f *flinkNames) add(child string) {
	_, _, is := flink.ParseDir(child)
	f.metadata, f.checkpoints = f.metadata || child == flink.MetadataName, f.checkpoints || is
}

// flink finds out whether a directory is a checkpoint or a job of Flink's; nil:
// neither. Others have files called _metadata too, so the magic number decides,
// but not about a directory that has the name of a checkpoint: there, it may be
// damaged.
func (n *named) flink(ctx context.Context, f flinkNames) (*Target, error) {
	_, _, is := flink.ParseDir(n.base)
	if f.metadata && !is {
		var err error
		if is, err = flink.Detect(ctx, n.self, ""); err != nil {
			return nil, err
		}
	}
	switch {
	case is && n.up != nil: // what belongs to a checkpoint lies beside it too
		return &Target{Kind: TargetCheckpoint, Name: n.name, Backend: n.up, Flink: true, FlinkJobs: []string{""}, Dir: n.base}, nil
	case is:
		return &Target{Kind: TargetCheckpoint, Name: n.name, Backend: n.self, Flink: true, FlinkJobs: []string{""}}, nil
	case f.checkpoints:
		return n.flinkJob(), nil
	}
	return nil, nil
}

// flinkJob is the directory as a job of Flink's.
func (n *named) flinkJob() *Target {
	if n.up == nil {
		return &Target{Kind: TargetJob, Name: n.name, Backend: n.self, Flink: true, FlinkJobs: []string{""}}
	}
	return &Target{Kind: TargetJob, Name: n.name, Backend: n.up, Flink: true, FlinkJobs: []string{n.base}}
}

// flinkCopies returns the directories in folder that are called otherwise than
// Flink calls its checkpoints, and hold one.
func flinkCopies(ctx context.Context, b backends.Backend, folder string) (dirs []string, err error) {
	for child, err := range b.Children(ctx, folder) {
		if err != nil {
			return nil, err
		}
		if _, _, is := flink.ParseDir(child); is {
			continue
		}
		if is, err := flink.Detect(ctx, b, path.Join(folder, child)); err == nil && is {
			dirs = append(dirs, child)
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return dirs, nil
}

// flinkJobs returns the folders of b that hold checkpoints of Flink.
func flinkJobs(ctx context.Context, b backends.Backend) (jobs []string, err error) {
	for child, err := range b.Children(ctx, "") {
		if err != nil {
			return nil, err
		}
		f := flinkNames{}
		for c, err := range b.Children(ctx, child) {
			if err != nil {
				return nil, err
			}
			f.add(c)
		}
		if f.checkpoints {
			jobs = append(jobs, child)
		}
	}
	return jobs, nil
}

// CodeUnsealed is the code of what is said of a checkpoint of Flink that has no
// seal: what cannot be found in it.
const CodeUnsealed = "unsealed"

// openFlink opens the checkpoint of Flink in dir.
func (i *Inspector) openFlink(ctx context.Context, t *Target, dir string) (*flink.Checkpoint, error) {
	c, err := flink.Open(ctx, t.Backend, dir, flink.OpenOptions{Moves: i.o.Moves, OpenURL: i.o.Open})
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, notCheckpoint(t.nameOf(dir), "it has no _metadata, so it was not completed", "ls of its job tells what there is")
	case errors.Is(err, inflight.ErrConfig): // a pipe, a device, a link to itself
		return nil, fmt.Errorf("%w: %w", inflight.ErrDamaged, err)
	}
	return nil, err
}

// nameOf names a directory of t as the user would.
func (t *Target) nameOf(dir string) string {
	if t.Kind == TargetCheckpoint {
		return t.Name
	}
	return path.Join(t.Name, path.Base(dir))
}

// listFlink lists the checkpoints of one job of Flink; as findings, what is wrong
// with their metadata.
func (i *Inspector) listFlink(ctx context.Context, t *Target, job string) (lines []CheckpointLine, findings []inflight.Finding, err error) {
	dirs, err := flinkCopies(ctx, t.Backend, job)
	if err != nil {
		return nil, nil, err
	}
	for child, err := range t.Backend.Children(ctx, job) {
		if err != nil {
			return nil, nil, err
		}
		if _, _, is := flink.ParseDir(child); is {
			dirs = append(dirs, child)
		}
	}
	for _, dir := range dirs {
		l, found, err := i.flinkSlot(ctx, t, job, path.Join(job, dir))
		if err != nil {
			return nil, nil, err
		}
		lines, findings = append(lines, l), append(findings, found...)
	}
	slices.SortStableFunc(lines, func(a, b CheckpointLine) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Dir, b.Dir)) })
	return lines, findings, nil
}

// flinkSlot describes what lies in a directory that is called as a checkpoint is.
func (i *Inspector) flinkSlot(ctx context.Context, t *Target, job, dir string) (CheckpointLine, []inflight.Finding, error) {
	c, err := i.openFlink(ctx, t, dir)
	if err == nil {
		defer c.Close()
		l, err := i.flinkLine(ctx, job, c)
		return l, nil, err
	}
	id, savepoint, _ := flink.ParseDir(path.Base(dir))
	l := CheckpointLine{Type: TypeCheckpoint, Job: job, Dir: dir, ID: id, Flink: true, Kind: catalog.SlotCheckpoint, State: catalog.StatePending}
	if savepoint {
		l.Kind = catalog.SlotSavepoint
	}
	for info, e := range t.Backend.List(ctx, backends.Below(dir)) {
		if e != nil {
			return l, nil, e
		}
		l.SizeBytes += info.Size
		l.Files++
		l.Modified, l.AgeMS = i.stamp(info.Modified)
	}
	if errors.Is(err, ErrNotCheckpoint) {
		l.Text = "no _metadata: somebody is writing it, or its job has failed"
		return l, nil, nil
	}
	if ctx.Err() != nil || ExitCode(err) != ExitFindings {
		return l, nil, err
	}
	f := i.flinkFinding(t, err, dir)
	l.State, l.Text, l.Files = catalog.StateDamaged, Shorten(oneLine(f.Text)), 0
	return l, []inflight.Finding{f}, nil
}

// flinkFinding is what is wrong with the metadata in dir.
func (i *Inspector) flinkFinding(t *Target, err error, dir string) inflight.Finding {
	f := findingOf(err, path.Join(dir, flink.MetadataName))
	f.Object = onBackend(t.Backend, f.Object)
	return f
}

// flinkLine describes a checkpoint of Flink from its metadata.
func (i *Inspector) flinkLine(ctx context.Context, job string, c *flink.Checkpoint) (CheckpointLine, error) {
	l := CheckpointLine{Type: TypeCheckpoint, Job: job, Dir: c.Dir, ID: c.CheckpointID, Flink: true, MetadataVersion: c.Version, State: catalog.StateCompleted, Kind: catalog.SlotCheckpoint}
	_, named, _ := flink.ParseDir(path.Base(c.Dir))
	if p, err := c.Properties(); err == nil && p != nil && (p.Savepoint || p.Null && named) {
		l.Kind = catalog.SlotSavepoint
	}
	u := flinkUse{seen: map[string]bool{}, line: &l}
	for k := range c.Operators {
		for j := range c.Operators[k].Subtasks {
			u.subtask(&c.Operators[k].Subtasks[j])
		}
	}
	if u.channels > 0 {
		l.Alignment = format.Unaligned
	}
	l.SizeBytes += int64(len(c.Bytes()))
	l.SelfContained = !u.absolute
	info, err := c.Backend().Stat(ctx, path.Join(c.Dir, c.Name))
	if err != nil {
		return l, err
	}
	l.Modified, l.AgeMS = i.stamp(info.Modified)
	return l, nil
}

// expect tells that all channel state of c is going to be read so many times.
func (i *Inspector) expect(ctx context.Context, c *flink.Checkpoint, times int64) {
	if l, err := i.flinkLine(ctx, "", c); err == nil {
		i.o.Expect(times * int64(l.ChannelStateBytes))
	}
}

// flinkUse sums up what the handles of a checkpoint say.
type flinkUse struct {
	seen     map[string]bool // streams that were counted
	line     *CheckpointLine
	channels int
	absolute bool // something lies outside the directory
}

func (u *flinkUse) subtask(s *flink.Subtask) {
	for _, o := range []*flink.OperatorState{s.ManagedOperator, s.RawOperator} {
		if o != nil {
			u.line.StateBytes += uint64(max(o.Size(), 0))
		}
	}
	for _, k := range []*flink.KeyedState{s.ManagedKeyed, s.RawKeyed} {
		if k != nil {
			u.line.StateBytes += uint64(max(k.Size(), 0))
		}
	}
	for h := range s.StateHandles() {
		u.file(h)
	}
	for h := range s.Handles() {
		if u.file(h.Delegate()) {
			u.line.Files++
		}
		for ch, err := range h.Channels() {
			if err != nil {
				break // verify says so
			}
			u.channels++
			u.line.ChannelStateBytes += uint64(h.Delegate().Payload(ch.StateSize, ch.Offsets.Len()))
		}
	}
}

// file counts the file, or the part of a file, that h leads to, and reports
// whether it is a new one.
func (u *flinkUse) file(h flink.StreamHandle) (first bool) {
	for h.Kind() == flink.KindKeyGroups {
		h = h.Inner()
	}
	if h.Path() == "" || u.seen[h.Key()] {
		return false
	}
	u.seen[h.Key()] = true
	u.absolute = u.absolute || h.Kind() != flink.KindRelativeFile
	u.line.SizeBytes += max(h.Size(), 0)
	return true
}

// newestFlink returns where the newest completed checkpoint of a job of Flink
// lies. One that is damaged is not passed over silently.
func (i *Inspector) newestFlink(ctx context.Context, t *Target) (job, dir string, err error) {
	job = t.FlinkJobs[0]
	lines, _, err := i.listFlink(ctx, t, job)
	if err != nil {
		return "", "", err
	}
	lines = slices.DeleteFunc(lines, func(l CheckpointLine) bool { return l.State == catalog.StatePending })
	if len(lines) == 0 {
		return "", "", notCheckpoint(t.Name, "the job has no completed checkpoint", "ls tells what it has")
	}
	last := lines[len(lines)-1]
	if last.State == catalog.StateCompleted {
		return job, last.Dir, nil
	}
	c, err := i.openFlink(ctx, t, last.Dir)
	if err == nil {
		return job, last.Dir, c.Close()
	}
	mend := "there is no older one"
	for _, l := range slices.Backward(lines) {
		if l.State == catalog.StateCompleted {
			mend = "the next older one is " + path.Base(l.Dir)
			break
		}
	}
	return "", "", fail("open", last.Dir, fmt.Errorf("%w: %w", inflight.ErrDamaged, err), mend)
}
