//go:build unix

package doctor

import "syscall"

// fileLimit is how many files this process may have open.
func fileLimit() (uint64, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur), err
}
