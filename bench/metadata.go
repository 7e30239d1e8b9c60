package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/bench/payload"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
	"github.com/spillway-io/spillway/restore"
)

// metadata is the metadata of one checkpoint of many channels: its manifest,
// and the sections of its files. The files have holes where the data would be.
type metadata struct {
	dir      string
	backend  *local.Backend
	channels int
	manifest *format.Manifest
	sections []place // of all subtasks, in order
	stored   uint64  // times

	encoded []byte     // manifest, by Serialise
	pages   []byte     // blocks of all sections, one after the other
	loaded  func() int // channels that load found; the next check forgets it
}

// place is a section and where it stands.
type place struct {
	*format.Section
	id     inflight.FileID
	offset int64
	length int
}

// The shape of a checkpoint of M.
const (
	perSubtask = 16 // channels: half input, half output
	perFile    = 5  // subtasks
	metaID     = 42
)

// metaCell is the cell that a checkpoint of M could be of: 8 buffers of 32 KiB
// in each channel.
func metaCell(channels int) cell {
	c := cell{Payload: payload.Random, S: (channels + perSubtask - 1) / perSubtask, I: perSubtask / 2, O: perSubtask / 2, B: 8, Size: 32768, Max: perFile}
	if channels < perSubtask {
		c.I, c.O = channels, 0
	}
	return c
}

// newMetadata returns the metadata of a checkpoint of so many channels, in a
// directory of its own below dir.
func newMetadata(ctx context.Context, dir string, channels int) (*metadata, error) {
	job, err := os.MkdirTemp(dir, "meta-")
	if err != nil {
		return nil, err
	}
	m := &metadata{dir: job, backend: local.New(job), channels: channels}
	c := metaCell(channels)
	var handles []inflight.Handle
	var files []format.FileInfo
	for first := 0; first < c.S; first += perFile {
		h, f := m.addFile(c, first, min(perFile, c.S-first), channels)
		handles, files = append(handles, h...), append(files, f)
	}
	m.manifest = &format.Manifest{Kind: format.KindCheckpoint, ID: metaID, Attempt: attempt, Epoch: epoch, Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{Vertices: []format.Vertex{{ID: vertex, Parallelism: c.S}}}}
	m.manifest.SetHandles(handles, files...)
	if _, err = m.serialise(); err == nil {
		err = m.makeFiles()
	}
	if err == nil {
		err = m.commit(ctx, format.CheckpointDir(metaID))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// addFile lays out the sections of n subtasks in one file: each behind the data
// of its subtask, as an encoder writes them.
func (m *metadata) addFile(c cell, first, n, channels int) (handles []inflight.Handle, f format.FileInfo) {
	f = format.FileInfo{Name: format.StateFileName(metaID, fmt.Sprintf("g%03d", first/perFile), attempt), FileID: inflight.NewFileID()}
	offset := int64(128) // of a header
	for sub := first; sub < first+n; sub++ {
		s := c.section(sub, min(perSubtask, channels-sub*perSubtask), &offset)
		p := place{Section: s, id: f.FileID, offset: offset}
		b := format.AppendSection(nil, s, p.id, p.offset)
		p.length = len(b)
		offset += int64(len(b))
		h := inflight.Handle{Task: s.Task, Checkpoint: metaID,
			Segments: []inflight.Segment{{File: f.Name, FileID: f.FileID, Offset: p.offset, Length: int64(len(b)), CRC: format.Checksum(b)}}}
		for _, e := range s.Entries {
			if e.Address.Side == inflight.Input {
				h.InputBytes += e.Bytes
			} else {
				h.OutputBytes += e.Bytes
			}
		}
		m.sections, handles = append(m.sections, p), append(handles, h)
	}
	f.DirOffset, f.DirLength, f.DirCRC = offset, int64(format.BlockHeaderSize+n*32), uint32(offset)
	f.Size = f.DirOffset + f.DirLength + format.TrailerSize
	return handles, f
}

// section is the index of a subtask whose data begins at offset: each channel
// fills a block. Digests are as random as real ones.
func (c cell) section(sub, channels int, offset *int64) *format.Section {
	s := &format.Section{Task: inflight.Task{Vertex: vertex, Subtask: sub}, Checkpoint: metaID, Status: format.StatusComplete}
	digests := payload.Channel(payload.Random, sub, payload.Input, 0, 8*perSubtask)
	for i, cut := range c.cuts(sub) {
		if i == channels {
			break
		}
		at := pos(sub, i%c.I)
		s.Blocks = append(s.Blocks, format.BlockRef{Offset: *offset, Stored: uint32(format.BlockHeaderSize + c.B*c.Size + 32)})
		*offset += int64(s.Blocks[i].Stored)
		s.Entries = append(s.Entries, format.Entry{
			Address: cut.Address, Buffers: uint64(c.B), Bytes: uint64(c.B * c.Size), Digest: format.Digest(binary.LittleEndian.Uint64(digests[8*i:])),
			Extents: []format.Extent{{Block: i, Length: uint32(c.B * c.Size), Pieces: c.B, Flags: format.RunKnown, Pos: at}},
		})
		s.Entries[i].SetCut(cut)
	}
	return s
}

// makeFiles writes the sections into files that are empty otherwise.
func (m *metadata) makeFiles() error {
	if err := os.Mkdir(filepath.Join(m.dir, format.CheckpointDir(metaID)), 0o700); err != nil {
		return err
	}
	pages, next := m.pages, 0
	for _, f := range m.manifest.Files {
		file, err := os.OpenFile(filepath.Join(m.dir, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		err = file.Truncate(f.Size)
		for ; err == nil && next < len(m.sections) && m.sections[next].id == f.FileID; next++ {
			p := &m.sections[next]
			_, err = file.WriteAt(pages[:p.length], p.offset)
			pages = pages[p.length:]
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// encodeSections encodes all sections in memory.
func (m *metadata) encodeSections() {
	m.pages = m.pages[:0]
	for i := range m.sections {
		m.pages = format.AppendSection(m.pages, m.sections[i].Section, m.sections[i].id, m.sections[i].offset)
	}
}

// serialise encodes manifest and sections in memory and returns their size.
func (m *metadata) serialise() (n int, err error) {
	m.encodeSections()
	m.encoded, err = format.EncodeManifest(m.manifest)
	return len(m.encoded) + len(m.pages), err
}

// parse decodes what serialise encoded last.
func (m *metadata) parse() error {
	if _, err := format.DecodeManifest(m.encoded); err != nil {
		return err
	}
	pages := m.pages
	for i := range m.sections {
		p := &m.sections[i]
		if _, err := format.DecodeSection(pages[:p.length], p.id, p.offset); err != nil {
			return err
		}
		pages = pages[p.length:]
	}
	return nil
}

// ready makes the directory of the next manifest; it is not timed.
func (m *metadata) ready() error {
	m.stored++
	return os.Mkdir(filepath.Join(m.dir, m.folder()), 0o700)
}

func (m *metadata) folder() string { return fmt.Sprintf("chk-%d", m.stored) }

// store encodes the sections in memory, and the manifest into a file that is
// durable under its name.
func (m *metadata) store(ctx context.Context) error {
	m.encodeSections()
	return m.commit(ctx, m.folder())
}

// commit stores the manifest in folder.
func (m *metadata) commit(ctx context.Context, folder string) error {
	b, err := format.EncodeManifest(m.manifest)
	if err != nil {
		return err
	}
	o, err := m.backend.Create(ctx, folder+"/"+format.ManifestName, backends.CreateOptions{Exclusive: true, Attempt: m.manifest.Attempt, SizeHint: int64(len(b))})
	if err != nil {
		return err
	}
	if _, err := o.Write(b); err != nil {
		return errors.Join(err, o.Abort(ctx))
	}
	_, err = o.Finish(ctx)
	return err
}

// load does what a restore does before it moves data: it reads the manifest, and
// the sections of all subtasks from their files.
func (m *metadata) load(ctx context.Context) error {
	r := reader.Open(m.backend, "", reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(ctx, format.CheckpointDir(metaID))
	if err != nil {
		return err
	}
	plan, err := restore.NewPlan(c.Manifest, c.Manifest.Topology, restore.Options{})
	if err != nil {
		return err
	}
	replay, err := restore.NewReplay(ctx, c, plan, restore.ReplayOptions{})
	if err != nil {
		return err
	}
	defer replay.Close()
	m.loaded = func() (n int) {
		for i := range plan.Tasks {
			for range replay.Entries(plan.Tasks[i].Task) {
				n++
			}
		}
		return n
	}
	return nil
}

// check checks what load has loaded; it is not timed, as Flink's is not.
func (m *metadata) check() error {
	n := m.loaded()
	m.loaded = nil
	if n != m.channels {
		return fmt.Errorf("%d channels were loaded of %d", n, m.channels)
	}
	return nil
}

// Close removes the directory.
func (m *metadata) Close() error {
	return errors.Join(m.backend.Close(), os.RemoveAll(m.dir))
}
