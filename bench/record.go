package main

import (
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/spillway-io/spillway/format"
)

// A record is one line of a driver's output: the rounds of one cell. Flink's
// driver (flink/java) writes the same fields, with "impl":"flink", and
// flink/report.py reads both.
type record struct {
	Impl string `json:"impl,omitempty"`
	Kind string `json:"kind"`
	cell
	Bytes   int `json:"bytes"` // payload; of M: what is stored
	Buffers int `json:"buffers"`

	Gate  string `json:"gate,omitempty"`  // R: "stub": a consumer that copies, counts and recycles
	Cache string `json:"cache,omitempty"` // R: "warm" or "cold"

	Wall         []int64 `json:"wall_ns,omitempty"`
	PlainForce   []int64 `json:"plain_force_ns,omitempty"`
	PlainNoForce []int64 `json:"plain_noforce_ns,omitempty"`
	PlainRead    []int64 `json:"plain_read_ns,omitempty"`
	CPU          int64   `json:"cpu_ns_total"`
	PlainCPU     int64   `json:"plain_cpu_ns_total,omitempty"` // of the forced writes, or the reads
	Rounds       int     `json:"rounds"`
	Alloc        []int64 `json:"alloc_bytes,omitempty"` // of further rounds
	AllocObjects []int64 `json:"alloc_objects,omitempty"`
	Files        int     `json:"files"`
	FileBytes    int64   `json:"file_bytes"`
	FileMin      int64   `json:"file_min"`
	FileMax      int64   `json:"file_max"`
	RSSPeak      int64   `json:"rss_peak_kb"`
	RSSBase      int64   `json:"rss_base_kb,omitempty"` // before the first round, payload included

	Handles   int     `json:"handles,omitempty"` // M: channels
	Form      string  `json:"form,omitempty"`    // M: "merged": one handle to a subtask and file
	SerMem    []int64 `json:"ser_mem_ns,omitempty"`
	ParseMem  []int64 `json:"parse_mem_ns,omitempty"`
	StoreFile []int64 `json:"store_file_ns,omitempty"`
	LoadFile  []int64 `json:"load_file_ns,omitempty"`

	Op string `json:"op,omitempty"` // GO: what the raw probe did
}

// newRecord begins the record of a cell of ours.
func newRecord(kind string, c cell) *record {
	return &record{Impl: "go", Kind: kind, cell: c, Bytes: c.bytes(), Buffers: c.buffers()}
}

// add adds a round.
func (r *record) add(x cost) {
	r.Wall = append(r.Wall, x.wall.Nanoseconds())
	r.CPU += x.cpu.Nanoseconds()
	r.Rounds = len(r.Wall)
}

// heap runs a few more rounds of f for what they allocate, and done after each.
func (r *record) heap(f, done func() error) error {
	for range 3 {
		bytes, objects, err := heapOf(f)
		if err := errors.Join(err, done()); err != nil {
			return err
		}
		r.Alloc, r.AllocObjects = append(r.Alloc, bytes), append(r.AllocObjects, objects)
	}
	return nil
}

// plain adds the plain write or read of a round to one of the lists.
func (r *record) plain(list *[]int64, c cost) {
	timing(list, c.wall)
	r.PlainCPU += c.cpu.Nanoseconds()
}

// files adds the sizes of a checkpoint's files.
func (r *record) files(m *format.Manifest) {
	r.Files, r.FileBytes, r.FileMin, r.FileMax = len(m.Files), m.FileBytes(), 0, 0
	for i, f := range m.Files {
		r.FileMax = max(r.FileMax, f.Size)
		if i == 0 || f.Size < r.FileMin {
			r.FileMin = f.Size
		}
	}
}

func (r *record) writeTo(w io.Writer) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// timing appends a duration to one of a record's lists.
func timing(list *[]int64, d time.Duration) { *list = append(*list, d.Nanoseconds()) }
