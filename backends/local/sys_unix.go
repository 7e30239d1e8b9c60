//go:build unix

package local

import (
	"io/fs"
	"syscall"
)

func ownerOf(st fs.FileInfo) (uid int, ok bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(sys.Uid), true
}
