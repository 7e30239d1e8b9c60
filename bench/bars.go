package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spillway-io/spillway/bench/payload"
)

// What the toolkit has to reach on local disk. The numbers are ratios to a
// plain sequential write + fsync, or read, of the same bytes in the same round,
// so that they hold on any machine. 0: there is no bar.

// ratioBar is the bar for record.ratio.
func ratioBar(r *record) float64 {
	if r.FS != "disk" || r.Impl != "go" {
		return 0
	}
	switch r.Kind {
	case "W":
		return writerBar(r.cell)
	case "LAT":
		return map[string]float64{"3.2KB-inline": 1.3, "576KiB": 1.25, "600KB-200B": 1.3}[r.Name]
	case "R":
		return restoreBar(r)
	}
	return 0
}

func writerBar(c cell) float64 {
	switch {
	case c.Size == 32768 && c.S == 1:
		return 1.15
	case c.Size == 32768 && c.Max > 1:
		return 1
	case c.Size == 4096 && c.S > 1:
		return 1.1
	case c.Size == 200 && c.S > 1 && c.Max == 1:
		return 1.8
	case c.Size == 200:
		return 1.5
	}
	return 0
}

func restoreBar(r *record) float64 {
	switch {
	case r.Cache != "warm" || r.Gate != "stub":
		return 0
	case r.S == 1 && r.Size == 200:
		return 6
	case r.S == 1:
		return 4
	case r.Size == 200:
		return 3.5
	}
	return 2
}

// cpuBar is the bar for record.cpuPerGB.
func cpuBar(r *record) float64 {
	if r.FS != "disk" || r.Impl != "go" || r.S == 1 || r.Max == 1 {
		return 0
	}
	return map[int]float64{32768: 0.6, 200: 1.3}[r.Size]
}

// writeMetadataBars compares the metadata of 10,000 channels with Flink's, if
// both were measured.
func writeMetadataBars(w io.Writer, recs []*record) {
	for _, fs := range []string{"shm", "disk"} {
		var ours, flink *record
		for _, r := range recs {
			if r.Kind == "M" && r.FS == fs && r.key() == "10000/merged" {
				if r.Impl == "flink" {
					flink = r
				} else {
					ours = r
				}
			}
		}
		if ours == nil || flink == nil {
			continue
		}
		ratio := func(a, b []int64) float64 { return median(a) / median(b) }
		store, load, size := ratio(ours.StoreFile, flink.StoreFile), ratio(ours.LoadFile, flink.LoadFile), float64(ours.Bytes)/float64(flink.Bytes)
		fmt.Fprintf(w, "%s, 10,000 channels, ours to Flink's: store %.3f (%s), load %.3f (%s), bytes %.3f (%s)\n",
			fs, store, verdict(store, 0.125), load, verdict(load, 0.2), size, verdict(size, 0.5))
	}
}

// writeAllocationBars says what a further buffer costs in heap objects: cells of
// W that differ in the number of buffers only are compared, so that what a
// checkpoint, a subtask and a channel cost falls out.
func writeAllocationBars(w io.Writer, recs []*record) {
	for _, few := range recs {
		if few.Kind != "W" || few.Impl != "go" || few.Size != 32768 || few.Payload != payload.Random {
			continue
		}
		i := slices.IndexFunc(recs, func(r *record) bool {
			return r.Kind == "W" && r.Impl == "go" && r.Size == 200 && r.FS == few.FS && r.S == few.S && r.Max == few.Max
		})
		if i < 0 {
			continue
		}
		many := recs[i]
		more := (median(many.AllocObjects) - median(few.AllocObjects)) / float64(many.Buffers-few.Buffers)
		fmt.Fprintf(w, "%s, %d subtasks, %d a file: heap objects for each further buffer %.4f (<= 0.001 %s)\n",
			few.FS, few.S, few.Max, max(more, 0), map[bool]string{true: "met", false: "MISSED"}[more <= 0.001])
	}
}
