package inspect_test

import (
	"context"
	"fmt"

	_ "github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inspect"
)

// A file that nobody has a manifest for, checked and looked into.
func Example() {
	ctx, i := context.Background(), inspect.New(inspect.Options{})
	t, err := i.Find(ctx, "../testdata/v1/none.cstate", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()

	err = i.Verify(ctx, t, inspect.VerifyOptions{}, func(v *inspect.Verification) error {
		for _, f := range v.Findings {
			fmt.Println(f)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	_, err = i.Dump(ctx, t, inspect.DumpOptions{Filter: inspect.Filter{Vertex: "source", Side: "state"}}, func(d *inspect.Dumped) error {
		fmt.Printf("%s: %q\n", d.Title(), d.Bytes)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// warning gap none.cstate count/0 gate 1 channel 2: bytes before 30 were not captured
	// info aborted none.cstate dead/0: the capture was aborted: its bytes are dead
	// warning incomplete none.cstate open/0: the subtask has no complete mark: it is not restored
	// source/0 state "offsets" in none.cstate: "state.0 state.1 state.2 state.3 state.4 "
}
