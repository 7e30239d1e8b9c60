package backendtest_test

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/mem"
)

// The suite runs on any store, also outside of tests.
func ExampleEach() {
	failed := 0
	open := func(context.Context) (backends.Backend, error) { return mem.New(mem.Options{}), nil }
	for r := range backendtest.Each(context.Background(), open) {
		if r.Err != nil {
			failed++
			fmt.Println(r.Name, r.Err)
		}
	}
	fmt.Println(failed, "checks failed")
	// Output: 0 checks failed
}
