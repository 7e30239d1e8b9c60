package local_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
)

// Nothing is visible before Finish; after it, a second exclusive create loses.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, store := context.Background(), local.New(dir)
	defer store.Close()
	for _, who := range []string{"first", "second"} {
		o, err := store.Create(ctx, "job/chk-0000000000/_manifest.json", backends.CreateOptions{Exclusive: true})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.WriteString(o, who); err != nil {
			log.Fatal(err)
		}
		info, err := o.Finish(ctx)
		fmt.Println(who, info.Size, err != nil)
	}
	// Output:
	// first 5 false
	// second 0 true
}
