package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// A cost is what something took: wall time, and CPU time of all threads.
type cost struct{ wall, cpu time.Duration }

// costOf runs f.
func costOf(f func() error) (cost, error) {
	cpu, start := cpuTime(), time.Now()
	err := f()
	return cost{time.Since(start), cpuTime() - cpu}, err
}

// heapOf runs f and returns what it allocated. Reading the allocator stops the
// world and empties its caches, so that is not done where time is measured.
func heapOf(f func() error) (bytes, objects int64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), int64(after.Mallocs - before.Mallocs), err
}

// settle gives memory back, so that the next cell's peak is its own, and
// restarts the count of the peak. It returns the resident size now, in KiB.
func settle() int64 {
	debug.FreeOSMemory()
	resetPeak()
	return peakKB()
}
