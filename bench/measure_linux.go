package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what the process has used, user and system, all threads.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeak makes the kernel count the peak of resident memory anew. Where it
// may not, peaks include what came before: too high, never too low.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakKB is the peak of resident memory (VmHWM) in KiB; 0 where unknown.
func peakKB() (kb int64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb
		}
	}
	return 0
}

// evict drops the file's pages from the page cache.
func evict(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// allocate returns n bytes outside of the Go heap.
func allocate(n int) (p []byte, free func() error, err error) {
	p, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("%d bytes for the payload: %w", n, err)
	}
	return p, func() error { return unix.Munmap(p) }, nil
}

// pwritev writes the pieces, one after the other, at off.
func pwritev(f *os.File, pieces [][]byte, off int64) (int, error) {
	return unix.Pwritev(int(f.Fd()), pieces, off)
}
