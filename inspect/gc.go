package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spillway-io/spillway/catalog"
	"github.com/spillway-io/spillway/inflight"
)

// CollectOptions are the options of Collect.
type CollectOptions struct {
	// DryRun plans and deletes nothing.
	DryRun bool
	// Fence claims the next slot of each job first: for jobs that are stopped.
	Fence bool
}

// Collection is what Collect has done, or would do.
type Collection struct {
	Checkpoints []CheckpointLine // as they were before
	Objects     []ObjectLine
	Summaries   []SummaryLine
}

// Collect deletes what no kept checkpoint of the jobs of t needs, by the rules
// of package catalog. It returns the plan also where that is refused, and goes
// on with the next job.
func (i *Inspector) Collect(ctx context.Context, t *Target, o CollectOptions) (*Collection, error) {
	if t.Kind != TargetJob && t.Kind != TargetRoot {
		return nil, fail("gc", t.Name, fmt.Errorf("%w: it is no job", inflight.ErrConfig), "name a job, or a folder with jobs")
	}
	if t.Flink {
		return nil, fail("gc", t.Name, fmt.Errorf("%w: Flink deletes its checkpoints itself", inflight.ErrUnsupported), "ls and du tell what takes room; delete what no job restores from by hand")
	}
	mine := *t
	mine.FlinkJobs = nil
	list, err := i.List(ctx, &mine)
	if err != nil {
		return nil, err
	}
	c := &Collection{Checkpoints: list.Checkpoints}
	var errs []error
	for _, job := range t.Jobs {
		if err := c.collect(ctx, t, job, o); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

func (c *Collection) collect(ctx context.Context, t *Target, job string, o CollectOptions) error {
	log, err := t.log(job)
	if err != nil {
		return err
	}
	plan, err := log.GC(ctx, catalog.GCOptions{DryRun: o.DryRun, Fence: o.Fence})
	if plan == nil {
		return err
	}
	s := SummaryLine{Type: TypeSummary, Job: job, DryRun: o.DryRun, Tip: plan.Tip, Objects: len(plan.Items)}
	for _, item := range plan.Items {
		s.SizeBytes += item.Size
		c.Objects = append(c.Objects, ObjectLine{Type: TypeObject, Job: job, Name: item.Name, ID: item.ID, SizeBytes: item.Size, Class: item.Class, Delete: item.Delete})
	}
	s.Delete, s.DeleteBytes = plan.Garbage()
	if plan.Damage != nil {
		s.Text = "nothing is deleted while a kept checkpoint is damaged"
	}
	c.Summaries = append(c.Summaries, s)
	return err
}

// Lines returns the lines of slots, objects and sums.
func (c *Collection) Lines() (lines []any) {
	for i := range c.Checkpoints {
		lines = append(lines, &c.Checkpoints[i])
	}
	for i := range c.Objects {
		lines = append(lines, &c.Objects[i])
	}
	for i := range c.Summaries {
		lines = append(lines, &c.Summaries[i])
	}
	return lines
}

// Failed reports whether deletion was refused.
func (c *Collection) Failed() bool {
	return slices.ContainsFunc(c.Summaries, func(s SummaryLine) bool { return s.Text != "" })
}

// Tables returns the objects that are deleted, and the sums by class.
func (c *Collection) Tables() (tables []Table) {
	for _, s := range c.Summaries {
		verb := "deleted"
		if s.DryRun {
			verb = "to be deleted"
		}
		gone := Table{Title: verb, Columns: columns("CLASS", "#SLOT", "#SIZE", "NAME")}
		classes := map[catalog.Class]*[2]int64{}
		for _, o := range c.Objects {
			if o.Job != s.Job {
				continue
			}
			sum := classes[o.Class]
			if sum == nil {
				sum = new([2]int64)
				classes[o.Class] = sum
			}
			sum[0]++
			sum[1] += o.SizeBytes
			if o.Delete {
				gone.add(ToneWarning, o.Class, o.ID, size(o.SizeBytes), o.Name)
			}
		}
		if len(gone.Rows) > 0 {
			tables = append(tables, gone)
		}
		sums := Table{Title: "objects by class", Columns: columns("CLASS", "#OBJECTS", "#SIZE", "MEANING")}
		for _, class := range slices.Sorted(maps.Keys(classes)) {
			sums.add(TonePlain, class, classes[class][0], size(classes[class][1]), meanings[class])
		}
		sums.Note = fmt.Sprintf("%s of %s: %s", plural(s.Delete, "object"), size(s.DeleteBytes), verb)
		if s.Delete == 0 {
			sums.Note = "nothing to delete"
		}
		if s.Text != "" {
			sums.Note = s.Text
		}
		if s.Job != "" {
			sums.Note = "job " + s.Job + ": " + sums.Note
		}
		tables = append(tables, sums)
	}
	return tables
}

// meanings says what the classes of objects are.
var meanings = map[catalog.Class]string{
	catalog.ClassKept:       "an entry that stays, or statistics beside one",
	catalog.ClassReferenced: "a kept checkpoint needs it",
	catalog.ClassRetired:    "of a checkpoint or claim that is no longer kept",
	catalog.ClassAborted:    "of an id that was given up",
	catalog.ClassOrphaned:   "of a coordinator that is over",
	catalog.ClassTemporary:  "left by an unfinished writer",
	catalog.ClassPending:    "somebody may be writing it: --fence ends that",
	catalog.ClassUnknown:    "not Spillway's: never deleted",
}
