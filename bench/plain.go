package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spillway-io/spillway/bench/payload"
)

// hot is what plain writes write, and plain reads read into: one MiB that stays
// in the cache.
var hot = payload.Channel(payload.Random, 9999, payload.Input, 0, 1<<20)

// plainWrite is the limit that a writer is measured against: n bytes into a new
// file of dir, in pieces of 1 MiB, closed, and with sync forced to the disk.
func plainWrite(dir string, n int, sync bool) (cost, error) {
	name := filepath.Join(dir, fmt.Sprintf("plain.%d", os.Getpid()))
	took, err := costOf(func() error { return writeHot(name, n, sync) })
	return took, errors.Join(err, os.Remove(name))
}

// plainWriteFresh is plainWrite into a directory that was made for it, as that
// of a checkpoint is: the first fsync in it may have to write the directory too.
func plainWriteFresh(dir string, n int, sync bool) (cost, error) {
	fresh, err := os.MkdirTemp(dir, "plain-")
	if err != nil {
		return cost{}, err
	}
	took, err := plainWrite(fresh, n, sync)
	return took, errors.Join(err, os.Remove(fresh))
}

func writeHot(name string, n int, sync bool) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for n > 0 {
		k, err := f.Write(hot[:min(n, len(hot))])
		if err != nil {
			return err
		}
		n -= k
	}
	if sync {
		return f.Sync()
	}
	return nil
}

// plainRead is the limit that a reader is measured against: every file once, in
// order, 1 MiB a read.
func plainRead(names []string, buf []byte) (cost, error) {
	return costOf(func() error {
		for _, name := range names {
			if err := readAll(name, buf); err != nil {
				return err
			}
		}
		return nil
	})
}

func readAll(name string, buf []byte) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Read(buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
