package wrap_test

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
)

// A process that is killed before each operation in turn leaves either the whole
// object or none.
func ExampleFaults() {
	ctx := context.Background()
	work := func(b backends.Backend) {
		o, err := b.Create(ctx, "job/x", backends.CreateOptions{Exclusive: true})
		if err != nil {
			return
		}
		if _, err := o.Write([]byte("0123456789")); err != nil {
			return
		}
		_, _ = o.Finish(ctx)
	}
	count := wrap.NewFaults(mem.New(mem.Options{}))
	work(count)
	for n := range count.Ops() + 1 {
		store := mem.New(mem.Options{})
		work(wrap.NewFaults(store, wrap.Rule{When: wrap.AtOp(n + 1), Then: wrap.Kill()}))
		after := store.CrashClone(nil, mem.CrashConfig{})
		info, err := after.Stat(ctx, "job/x")
		fmt.Println(n, info.Size, err)
	}
	// Output:
	// 0 0 stat mem:///job/x: file does not exist
	// 1 0 stat mem:///job/x: file does not exist
	// 2 0 stat mem:///job/x: file does not exist
	// 3 10 <nil>
}
