package inflight_test

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spillway-io/spillway/inflight"
)

// An error names what was done, to what, and the mend; what kind it is can be
// asked.
func ExampleError() {
	err := error(&inflight.Error{Op: "open", Object: "chk-0000000007", Err: inflight.ErrNotExist, Mend: "run ls"})
	fmt.Println(err)
	fmt.Println(errors.Is(err, fs.ErrNotExist), inflight.IsCorruption(err), inflight.Retryable(err))
	// Output:
	// open chk-0000000007: file does not exist (run ls)
	// true false false
}

// A position goes on by what was captured, and says when bytes are missing.
func ExamplePos_Advance() {
	p := inflight.Pos{Epoch: 1, Offset: 8192, Seq: 7}
	fmt.Println(p.Advance(4096, 2))
	fmt.Println(inflight.PosUnknown.Advance(4096, 2))
	// Output:
	// 1/12288#9
	// unknown
}
