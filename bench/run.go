package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/spillway-io/spillway/format"
)

// A runner runs the workloads of one level on one file system.
type runner struct {
	dir   string
	fs    string
	level level
	cells *regexp.Regexp // of the names of the cells to run; nil: all
	out   io.Writer      // records
	log   io.Writer      // a line for each, for people
}

func (r *runner) emit(rec *record) error {
	fmt.Fprintln(r.log, rec.line())
	return rec.writeTo(r.out)
}

// together runs f for each of n subtasks on a goroutine of its own, released
// together. Wall time is from the earliest start to the latest return.
func together(n int, f func(sub int) error) (cost, error) {
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
	cpu := cpuTime()
	close(release)
	done.Wait()
	x := cost{cpu: cpuTime() - cpu}
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

// captureAll captures the next checkpoint and accounts for every buffer.
func (p *capturer) captureAll() (cost, error) {
	if err := p.begin(); err != nil {
		return cost{}, err
	}
	x, err := together(p.S, p.capture)
	return x, errors.Join(err, p.load.settled())
}

// restoreAll restores a checkpoint once. With check every byte is compared with
// the payload.
func (p *capturer) restoreAll(ctx context.Context, m *format.Manifest, check bool) (cost, error) {
	var want *load
	if check {
		want = p.load
	}
	for len(p.sinks) < p.S {
		p.sinks = append(p.sinks, newSink(p.cell, len(p.sinks)))
	}
	for _, s := range p.sinks {
		s.reset(want)
	}
	x, err := together(1, func(int) error { return p.restore(ctx, m, p.sinks) })
	for _, s := range p.sinks {
		err = errors.Join(err, s.complete())
	}
	return x, err
}

// writer runs W for s subtasks.
func (r *runner) writer(ctx context.Context, s int) error {
	return r.each(writerCells(r.level, r.fs, s), func(c cell, l *load) error {
		return r.write(ctx, "W", c, l, r.level.writerBudget(c), func(rec *record) error {
			force, err := plainWrite(r.dir, c.framed(), true)
			rec.plain(&rec.PlainForce, force)
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
			rec.plain(&rec.PlainForce, force)
			return err
		})
	})
}

// each makes the payload of each cell, once for neighbours that share it.
func (r *runner) each(cells []cell, f func(cell, *load) error) error {
	var l *load
	var err error
	for _, c := range cells {
		if r.cells != nil && !r.cells.MatchString(c.Name) {
			continue
		}
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
	if l == nil {
		return errors.New("no cell has such a name")
	}
	return l.free()
}

// write captures checkpoint after checkpoint of a cell; plain measures the
// limit after each, in the same conditions.
func (r *runner) write(ctx context.Context, kind string, c cell, l *load, b budget, plain func(*record) error) (err error) {
	p, err := newCapturer(r.dir, c, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var m *format.Manifest
	once := func() (cost, error) {
		x, err := p.captureAll()
		if err == nil {
			m, err = p.manifest()
		}
		return x, errors.Join(err, p.drop(ctx))
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
		timing(&rec.PlainNoForce, noForce.wall)
		return err
	})
	if err == nil {
		err = rec.heap(func() error { _, err := p.captureAll(); return err }, func() error { return p.drop(ctx) })
	}
	if err != nil {
		return err
	}
	rec.files(m)
	rec.RSSPeak = peakKB()
	return r.emit(rec)
}

// restore runs R.
func (r *runner) restore(ctx context.Context) error {
	return r.each(restoreCells(r.level, r.fs), func(c cell, l *load) error {
		if err := r.read(ctx, c, l, r.level.restoreBudget(c, false), false); err != nil || !r.level.cold(c) {
			return err
		}
		return r.read(ctx, c, l, r.level.restoreBudget(c, true), true)
	})
}

// read restores one checkpoint of a cell again and again.
func (r *runner) read(ctx context.Context, c cell, l *load, b budget, cold bool) (err error) {
	p, err := newCapturer(r.dir, c, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if _, err := p.captureAll(); err != nil {
		return err
	}
	m, err := p.manifest()
	if err != nil {
		return err
	}
	names := p.files(m)
	if _, err := p.restoreAll(ctx, m, true); err != nil {
		return err
	}
	if err := b.warmUp(ctx, func() error { _, err := p.restoreAll(ctx, m, false); return err }); err != nil {
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
		x, err := p.restoreAll(ctx, m, false)
		if err != nil {
			return err
		}
		rec.add(x)
		if err := prepare(); err != nil {
			return err
		}
		plain, err := plainRead(names, buf)
		rec.plain(&rec.PlainRead, plain)
		return err
	})
	if err == nil {
		err = rec.heap(func() error { _, err := p.restoreAll(ctx, m, false); return err }, prepare)
	}
	if err != nil {
		return err
	}
	rec.files(m)
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
	b := budget{minRounds: 3, rounds: 2000, warm: r.level.warm(), limit: r.level.warm()}
	if r.level.quick {
		b.warm, b.limit = b.warm/2, b.limit/2
	}
	for _, n := range []int{1, 100, 10000} {
		if r.cells != nil && !r.cells.MatchString(strconv.Itoa(n)) {
			continue
		}
		if err := r.meta(ctx, n, b); err != nil {
			return fmt.Errorf("%d channels on %s: %w", n, r.fs, err)
		}
	}
	return nil
}

func (r *runner) meta(ctx context.Context, channels int, b budget) (err error) {
	md, err := newMetadata(ctx, r.dir, channels)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, md.Close()) }()
	once := func(rec *record) error {
		size, err := md.serialise()
		if err == nil {
			err = md.ready()
		}
		if err != nil {
			return err
		}
		rec.Bytes = size
		for _, step := range []struct {
			list *[]int64
			do   func() error
		}{
			{&rec.SerMem, func() error { _, err := md.serialise(); return err }},
			{&rec.StoreFile, func() error { return md.store(ctx) }},
			{&rec.LoadFile, func() error { return md.load(ctx) }},
			{&rec.ParseMem, md.parse},
		} {
			start := time.Now()
			if err := step.do(); err != nil {
				return err
			}
			timing(step.list, time.Since(start))
		}
		if err := md.check(); err != nil {
			return err
		}
		force, err := plainWriteFresh(r.dir, size, true)
		rec.plain(&rec.PlainForce, force)
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

// memory runs MEM.
func (r *runner) memory(ctx context.Context) error {
	return r.each(memoryCells(r.fs), func(c cell, l *load) error { return r.peak(ctx, c, l) })
}

// peak captures and restores a cell once each, and records the peak of resident
// memory.
func (r *runner) peak(ctx context.Context, c cell, l *load) (err error) {
	p, err := newCapturer(r.dir, c, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var m *format.Manifest
	for _, step := range []struct {
		kind string
		do   func() (cost, error)
	}{
		{"MEM-W", func() (cost, error) {
			x, err := p.captureAll()
			if err == nil {
				m, err = p.manifest()
			}
			return x, err
		}},
		{"MEM-R", func() (cost, error) { return p.restoreAll(ctx, m, false) }},
	} {
		rec := newRecord(step.kind, c)
		rec.RSSBase = settle()
		x, err := step.do()
		if err != nil {
			return err
		}
		rec.RSSPeak = peakKB()
		rec.add(x)
		rec.files(m)
		if err := r.emit(rec); err != nil {
			return err
		}
	}
	return nil
}
