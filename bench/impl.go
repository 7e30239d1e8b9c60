package main

import (
	"context"
	"errors"
)

// The driver touches the toolkit here and nowhere else.

// A capturer captures the checkpoints of one cell, as the tasks and the
// coordinator of an engine would. Ids grow.
type capturer interface {
	// Begin makes ready for checkpoint id; it is not timed.
	Begin(ctx context.Context, id uint64) error
	// Capture hands over all buffers of one subtask and returns when they are
	// durable. The subtasks of a checkpoint capture at the same time.
	Capture(ctx context.Context, id uint64, sub int) error
	// Files returns the files of a captured checkpoint; it is not timed.
	Files(ctx context.Context, id uint64) ([]string, error)
	// Restore gives one subtask's buffers of a captured checkpoint to sink,
	// output side first, verified. The subtasks restore at the same time.
	Restore(ctx context.Context, id uint64, sub int, sink *sink) error
	// Drop deletes a checkpoint; it is not timed.
	Drop(ctx context.Context, id uint64) error
	Close() error
}

// metadata is the metadata of one checkpoint of many channels and little data:
// the manifest, and the sections of its files.
type metadata interface {
	// Serialise encodes manifest and sections in memory and returns their size.
	Serialise() (int, error)
	// Parse decodes what Serialise encoded last.
	Parse() error
	// Store encodes the sections in memory, and the manifest into a file of dir.
	Store(ctx context.Context) error
	// Load reads manifest and sections from the files.
	Load(ctx context.Context) error
	Close() error
}

// errNoToolkit is the honest answer of a driver that has nothing to drive.
var errNoToolkit = errors.New("the toolkit is not built into this driver: only mode=raw works")

// newCapturer returns a capturer of c, whose payload is l, below dir.
func newCapturer(context.Context, string, cell, *load) (capturer, error) {
	return nil, errNoToolkit
}

// newMetadata returns the metadata of a checkpoint of so many channels, in dir.
func newMetadata(context.Context, string, int) (metadata, error) {
	return nil, errNoToolkit
}
