package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A runner runs the workloads of one level on one file system.
type runner struct {
	dir   string
	fs    string
	level level
	out   io.Writer // records
	log   io.Writer // a line for each, for people
}

func (r *runner) emit(rec *record) error {
	fmt.Fprintln(r.log, rec.line())
	return rec.writeTo(r.out)
}

// round is what one round took.
type round struct {
	wall time.Duration
	window
}

// together runs f for each of n subtasks on a goroutine of its own, released
// together. Wall time is from the earliest start to the latest return.
func together(n int, f func(sub int) error) (round, error) {
	starts, ends, errs := make([]time.Time, n), make([]time.Time, n), make([]error, n)
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-release
			starts[i] = time.Now()
			errs[i] = f(i)
			ends[i] = time.Now()
		})
	}
	ready.Wait()
	w := open()
	close(release)
	done.Wait()
	x := round{window: w.close()}
	first := starts[0]
	for _, t := range starts {
		if t.Before(first) {
			first = t
		}
	}
	for _, t := range ends {
		x.wall = max(x.wall, t.Sub(first))
	}
	return x, errors.Join(errs...)
}

// warmUp runs f for the rounds and the time that b warms.
func (b budget) warmUp(ctx context.Context, f func() error) error {
	until := time.Now().Add(b.warm)
	for i := 0; i < b.warmRounds || time.Now().Before(until); i++ {
		if err := errors.Join(ctx.Err(), f()); err != nil {
			return err
		}
	}
	return nil
}

// measure runs f for the rounds of b, or fewer where they take too long.
func (b budget) measure(ctx context.Context, f func() error) error {
	until := time.Now().Add(b.limit)
	for i := 0; i < b.rounds && (i < b.minRounds || time.Now().Before(until)); i++ {
		if err := errors.Join(ctx.Err(), f()); err != nil {
			return err
		}
	}
	return nil
}

// A rig is a capturer that counts its checkpoints.
type rig struct {
	capturer
	load *load
	id   uint64
}

func newRig(ctx context.Context, dir string, c cell, l *load) (*rig, error) {
	cp, err := newCapturer(ctx, dir, c, l)
	if err != nil {
		return nil, err
	}
	return &rig{capturer: cp, load: l}, nil
}

// capture captures the next checkpoint and accounts for every buffer.
func (r *rig) capture(ctx context.Context) (round, error) {
	r.id++
	if err := r.Begin(ctx, r.id); err != nil {
		return round{}, err
	}
	x, err := together(r.load.S, func(sub int) error { return r.Capture(ctx, r.id, sub) })
	return x, errors.Join(err, r.load.settled())
}

// sizes returns the sizes of the files of the last checkpoint.
func (r *rig) sizes(ctx context.Context) (sizes []int64, err error) {
	names, err := r.Files(ctx, r.id)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		st, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, st.Size())
	}
	return sizes, nil
}

// writer runs W for s subtasks.
func (r *runner) writer(ctx context.Context, s int) error {
	return r.each(writerCells(r.level, r.fs, s), func(c cell, l *load) error {
		return r.write(ctx, "W", c, l, r.level.writerBudget(c), func(rec *record) error {
			force, err := plainWrite(r.dir, c.framed(), true)
			timing(&rec.PlainForce, force)
			return err
		})
	})
}

// latency runs LAT. The limit is a plain write into a fresh directory: a
// checkpoint goes to one too.
func (r *runner) latency(ctx context.Context) error {
	return r.each(latencyCells(r.level, r.fs), func(c cell, l *load) error {
		return r.write(ctx, "LAT", c, l, r.level.latencyBudget(), func(rec *record) error {
			force, err := plainWriteFresh(r.dir, c.framed(), true)
			timing(&rec.PlainForce, force)
			return err
		})
	})
}

// each makes the payload of each cell, once for neighbours that share it.
func (r *runner) each(cells []cell, f func(cell, *load) error) error {
	var l *load
	var err error
	for _, c := range cells {
		if l == nil || !l.fits(c) {
			if l != nil {
				err = l.free()
			}
			if err == nil {
				l, err = newLoad(c)
			}
			if err != nil {
				return err
			}
		}
		if err := f(c, l); err != nil {
			return errors.Join(fmt.Errorf("%s on %s: %w", c.Name, r.fs, err), l.free())
		}
	}
	return l.free()
}

// write captures checkpoint after checkpoint of a cell; plain measures the
// limit after each, in the same conditions.
func (r *runner) write(ctx context.Context, kind string, c cell, l *load, b budget, plain func(*record) error) (err error) {
	rig, err := newRig(ctx, r.dir, c, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	var sizes []int64
	once := func() (round, error) {
		x, err := rig.capture(ctx)
		if err != nil {
			return x, err
		}
		sizes, err = rig.sizes(ctx)
		return x, errors.Join(err, rig.Drop(ctx, rig.id))
	}
	warm := record{}
	if err := b.warmUp(ctx, func() error { _, err := once(); return errors.Join(err, plain(&warm)) }); err != nil {
		return err
	}
	rec := newRecord(kind, c)
	rec.RSSBase = settle()
	err = b.measure(ctx, func() error {
		x, err := once()
		if err != nil {
			return err
		}
		rec.add(x)
		if err := plain(rec); err != nil {
			return err
		}
		noForce, err := plainWrite(r.dir, c.framed(), false)
		timing(&rec.PlainNoForce, noForce)
		return err
	})
	if err != nil {
		return err
	}
	rec.files(sizes)
	rec.RSSPeak = peakKB()
	return r.emit(rec)
}

// restore runs R.
func (r *runner) restore(ctx context.Context) error {
	return r.each(restoreCells(r.level, r.fs), func(c cell, l *load) error {
		if err := r.read(ctx, c, l, false); err != nil || !r.level.cold(c) {
			return err
		}
		return r.read(ctx, c, l, true)
	})
}

// restoreAll restores the last checkpoint once. With check every byte is
// compared with the payload.
func (r *rig) restoreAll(ctx context.Context, c cell, check bool) (round, error) {
	var want *load
	if check {
		want = r.load
	}
	sinks := make([]*sink, c.S)
	for i := range sinks {
		sinks[i] = newSink(c, i, want)
	}
	x, err := together(c.S, func(sub int) error { return r.Restore(ctx, r.id, sub, sinks[sub]) })
	for _, s := range sinks {
		err = errors.Join(err, s.complete())
	}
	return x, err
}

// read restores one checkpoint of a cell again and again.
func (r *runner) read(ctx context.Context, c cell, l *load, cold bool) (err error) {
	rig, err := newRig(ctx, r.dir, c, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	if _, err := rig.capture(ctx); err != nil {
		return err
	}
	names, err := rig.Files(ctx, rig.id)
	if err != nil {
		return err
	}
	if _, err := rig.restoreAll(ctx, c, true); err != nil {
		return err
	}
	b := r.level.restoreBudget(c, cold)
	if err := b.warmUp(ctx, func() error { _, err := rig.restoreAll(ctx, c, false); return err }); err != nil {
		return err
	}
	rec := newRecord("R", c)
	rec.Gate, rec.Cache = "stub", "warm"
	prepare := func() error { return nil }
	if cold {
		rec.Cache = "cold"
		prepare = func() error { return evictAll(names) }
	}
	buf := make([]byte, 1<<20)
	rec.RSSBase = settle()
	err = b.measure(ctx, func() error {
		if err := prepare(); err != nil {
			return err
		}
		x, err := rig.restoreAll(ctx, c, false)
		if err != nil {
			return err
		}
		rec.add(x)
		if err := prepare(); err != nil {
			return err
		}
		plain, err := plainRead(names, buf)
		timing(&rec.PlainRead, plain)
		return err
	})
	if err != nil {
		return err
	}
	sizes, err := rig.sizes(ctx)
	if err != nil {
		return err
	}
	rec.files(sizes)
	rec.RSSPeak = peakKB()
	return r.emit(rec)
}

func evictAll(names []string) error {
	for _, name := range names {
		if err := evict(name); err != nil {
			return err
		}
	}
	return nil
}

// metadata runs M.
func (r *runner) metadata(ctx context.Context) error {
	for _, n := range []int{1, 100, 10000} {
		if err := r.meta(ctx, n); err != nil {
			return fmt.Errorf("%d channels on %s: %w", n, r.fs, err)
		}
	}
	return nil
}

func (r *runner) meta(ctx context.Context, channels int) (err error) {
	md, err := newMetadata(ctx, r.dir, channels)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, md.Close()) }()
	b := budget{minRounds: 3, rounds: 2000, warm: r.level.warm(), limit: r.level.warm()}
	if r.level.quick {
		b.warm, b.limit = b.warm/2, b.limit/2
	}
	once := func(rec *record) error {
		size, err := md.Serialise()
		if err != nil {
			return err
		}
		rec.Bytes = size
		for _, step := range []struct {
			list *[]int64
			do   func() error
		}{
			{&rec.SerMem, func() error { _, err := md.Serialise(); return err }},
			{&rec.StoreFile, func() error { return md.Store(ctx) }},
			{&rec.LoadFile, func() error { return md.Load(ctx) }},
			{&rec.ParseMem, md.Parse},
		} {
			start := time.Now()
			if err := step.do(); err != nil {
				return err
			}
			timing(step.list, time.Since(start))
		}
		force, err := plainWriteFresh(r.dir, size, true)
		timing(&rec.PlainForce, force)
		return err
	}
	if err := b.warmUp(ctx, func() error { return once(&record{}) }); err != nil {
		return err
	}
	rec := &record{Impl: "go", Kind: "M", cell: cell{FS: r.fs}, Handles: channels, Form: "merged"}
	if err := b.measure(ctx, func() error { return once(rec) }); err != nil {
		return err
	}
	return r.emit(rec)
}

// memory writes and restores the cells of memoryCells once each and records
// the peak of resident memory.
func (r *runner) memory(ctx context.Context) error {
	return r.each(memoryCells(r.fs), func(c cell, l *load) (err error) {
		rig, err := newRig(ctx, r.dir, c, l)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rig.Close()) }()
		for _, step := range []struct {
			kind string
			do   func() (round, error)
		}{
			{"MEM-W", func() (round, error) { return rig.capture(ctx) }},
			{"MEM-R", func() (round, error) { return rig.restoreAll(ctx, c, false) }},
		} {
			rec := newRecord(step.kind, c)
			rec.RSSBase = settle()
			x, err := step.do()
			if err != nil {
				return err
			}
			rec.RSSPeak = peakKB()
			rec.add(x)
			if err := r.emit(rec); err != nil {
				return err
			}
		}
		return nil
	})
}
