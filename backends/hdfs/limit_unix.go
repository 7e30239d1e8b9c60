//go:build unix

package hdfs

import (
	"strconv"
	"syscall"
)

// fileLimit returns how many files the process may open.
func fileLimit() string {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return "not known"
	}
	return strconv.FormatUint(uint64(limit.Cur), 10)
}
