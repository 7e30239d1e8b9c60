package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// The raw probe writes the payload of W to the same place with nothing in
// between, from the memory where it lies: what the machine could do.

// rawOps are the ways to write data, buffers of size bytes, below dir.
var rawOps = []struct {
	name    string
	latency bool // also with small checkpoints
	run     func(dir string, data []byte, size int) error
}{
	{"write1m", false, func(dir string, data []byte, size int) error { return rawHot(dir, data, size, false) }},
	{"write1m_fsync", false, func(dir string, data []byte, size int) error { return rawHot(dir, data, size, true) }},
	{"pwritev_framed", true, func(dir string, data []byte, size int) error { return framed(dir, "raw0", data, size, false) }},
	{"pwritev_framed_fsync", true, func(dir string, data []byte, size int) error { return framed(dir, "raw0", data, size, true) }},
	{"packed_fsync", true, packed},
	{"pwritev_2files_fsync", false, framedTwice},
}

// rawHot writes as many bytes as framed, but always the same ones.
func rawHot(dir string, data []byte, size int, sync bool) error {
	return writeHot(filepath.Join(dir, "raw0"), len(data)+4+4*len(data)/size, sync)
}

// createRaw gives write a new file, and syncs and closes it.
func createRaw(dir, name string, sync bool, write func(*os.File) error) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := write(f); err != nil {
		return err
	}
	if sync {
		return f.Sync()
	}
	return nil
}

// framed writes Flink's file, a version and a length before each buffer, by
// iovecs: at most 1 MiB or 1,024 of them a call.
func framed(dir, name string, data []byte, size int, sync bool) error {
	return createRaw(dir, name, sync, func(f *os.File) error {
		version, length := make([]byte, 4), binary.BigEndian.AppendUint32(nil, uint32(size))
		iov, pending, off := [][]byte{version}, 4, int64(0)
		flush := func() error {
			n, err := pwritev(f, iov, off)
			if err == nil && n != pending {
				err = fmt.Errorf("%d of %d bytes were written", n, pending)
			}
			off += int64(n)
			iov, pending = iov[:0], 0
			return err
		}
		for ; len(data) > 0; data = data[size:] {
			if len(iov)+2 > 1024 || pending >= 1<<20 {
				if err := flush(); err != nil {
					return err
				}
			}
			iov = append(iov, length, data[:size])
			pending += 4 + size
		}
		return flush()
	})
}

// framedTwice writes half of data into each of two files at the same time.
func framedTwice(dir string, data []byte, size int) error {
	half := len(data) / 2 / size * size
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = framed(dir, "raw0", data[:half], size, true) })
	wg.Go(func() { errs[1] = framed(dir, "raw1", data[half:], size, true) })
	wg.Wait()
	return errors.Join(errs...)
}

// packed copies the buffers into blocks of 1 MiB and writes these.
func packed(dir string, data []byte, size int) error {
	return createRaw(dir, "raw0", true, func(f *os.File) error {
		block := make([]byte, 4, 1<<20)
		for ; len(data) > 0; data = data[size:] {
			if len(block)+4+size > cap(block) {
				if _, err := f.Write(block); err != nil {
					return err
				}
				block = block[:0]
			}
			block = binary.BigEndian.AppendUint32(block, uint32(size))
			block = append(block, data[:size]...)
		}
		_, err := f.Write(block)
		return err
	})
}

// raw runs the probe over the cells of W and LAT.
func (r *runner) raw(ctx context.Context) error {
	for _, s := range pick(r.level, []int{1, 8}, []int{1, 8, 64}) {
		for _, size := range []int{32768, 4096, 200} {
			b := budget{warmRounds: 2, rounds: pick(r.level, 7, map[int]int{1: 40, 8: 15, 64: 9}[s])}
			b.minRounds = b.rounds
			if err := r.rawCell(ctx, shape(r.fs, s, size, 1), b, false); err != nil {
				return err
			}
		}
	}
	for _, c := range latencyCells(level{quick: true}, r.fs)[1:5] {
		b := budget{warmRounds: 20, rounds: pick(r.level, 60, 200)}
		b.minRounds = b.rounds
		if err := r.rawCell(ctx, c, b, true); err != nil {
			return err
		}
	}
	return nil
}

// rawCell runs every way to write a cell, one after the other, round by round.
func (r *runner) rawCell(ctx context.Context, c cell, b budget, latency bool) (err error) {
	l, err := newLoad(c)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.dir, "raw-")
	if err != nil {
		return errors.Join(err, l.free())
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), l.free()) }()
	recs := map[string]*record{}
	buf := make([]byte, 1<<20)
	once := func() error {
		for _, op := range rawOps {
			if latency && !op.latency {
				continue
			}
			if err := rawStep(recs, op.name, func() error { return op.run(dir, l.mem, c.Size) }); err != nil {
				return err
			}
			if op.name == "pwritev_framed_fsync" && !latency {
				if err := rawStep(recs, "read1m_warm", func() error { return readAll(filepath.Join(dir, "raw0"), buf) }); err != nil {
					return err
				}
			}
			if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := b.warmUp(ctx, once); err != nil {
		return err
	}
	clear(recs)
	if err := b.measure(ctx, once); err != nil {
		return err
	}
	for _, op := range slices.Sorted(maps.Keys(recs)) {
		rec := recs[op]
		rec.Kind, rec.Op, rec.cell, rec.Bytes, rec.Buffers = "GO", op, c, c.bytes(), c.buffers()
		if latency {
			rec.Op = "lat_" + op
		}
		if err := r.emit(rec); err != nil {
			return err
		}
	}
	return nil
}

// rawStep times f and adds the round to the record of op.
func rawStep(recs map[string]*record, op string, f func() error) error {
	took, err := costOf(f)
	if recs[op] == nil {
		recs[op] = &record{}
	}
	recs[op].add(took)
	return err
}
