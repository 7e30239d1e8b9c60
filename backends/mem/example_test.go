package mem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
)

// The answer to a create is late, somebody else takes the name, gives it up, and
// then the late create is applied.
func ExampleBackend_SetFate() {
	ctx, store := context.Background(), mem.New(mem.Options{})
	create := func(who string) error {
		o, err := store.Create(ctx, "slot", backends.CreateOptions{Exclusive: true, Attempt: who})
		if err != nil {
			return err
		}
		_, err = o.Finish(ctx)
		return err
	}
	store.SetFate(func(r mem.Request) mem.Fate {
		if r.Attempt == "A" {
			return mem.Delay
		}
		return mem.Apply
	})
	fmt.Println("A:", errors.Is(create("A"), inflight.ErrOutcomeUnknown))
	fmt.Println("B:", create("B"))
	late := store.InFlight()[0]
	before := store.Snapshot()
	fmt.Println("A now:", store.Release(late.ID))
	store.Restore(before)
	fmt.Println("removed:", store.Remove(ctx, "slot"))
	fmt.Println("A now:", store.Release(late.ID))
	// Output:
	// A: true
	// B: <nil>
	// A now: false
	// removed: <nil>
	// A now: true
}
