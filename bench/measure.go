package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// A window is what one round took of the process: CPU time of all threads,
// bytes and objects allocated on the heap.
type window struct {
	cpu            time.Duration
	bytes, objects uint64
}

// open begins a window. Reading the allocator stops the world, so it is done
// outside of the CPU time.
func open() window {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return window{cpu: cpuTime(), bytes: m.TotalAlloc, objects: m.Mallocs}
}

// close returns what was taken since.
func (w window) close() window {
	cpu := cpuTime()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return window{cpu: cpu - w.cpu, bytes: m.TotalAlloc - w.bytes, objects: m.Mallocs - w.objects}
}

// settle gives memory back, so that the next cell's peak is its own, and
// restarts the count of the peak. It returns the resident size now, in KiB.
func settle() int64 {
	debug.FreeOSMemory()
	resetPeak()
	return peakKB()
}
