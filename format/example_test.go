package format_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
)

// A file is written front to back, and its index can be rebuilt from what is
// left of it.
func Example() {
	var file bytes.Buffer
	e, err := format.NewEncoder(&file, "chk-0000000007/g0-a.cstate", format.FileHeader{FileID: inflight.NewFileID(), Job: "words", Checkpoint: 7}, format.EncoderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := e.Begin(inflight.Task{Vertex: "count"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	channel := inflight.InputChannel{Gate: 0, Channel: 2}.Address()
	if err := e.Append(m, channel, inflight.Pos{Offset: 8192, Seq: 7}, []byte("in flight")); err != nil {
		log.Fatal(err)
	}
	if err := e.Complete(m); err != nil {
		log.Fatal(err)
	}
	if _, err := e.Close(); err != nil {
		log.Fatal(err)
	}

	torn := file.Bytes()[:file.Len()-10]
	found, err := format.Scan(context.Background(), bytes.NewReader(torn), int64(len(torn)), format.ScanOptions{
		Name: "g0-a.cstate", Report: func(f inflight.Finding) { fmt.Println(f.Severity, f.Code) }})
	if err != nil {
		log.Fatal(err)
	}
	entry := found.Members[0].Section.Entries[0]
	fmt.Println(found.Members[0].Task, found.Members[0].Section.Status, entry.Address, entry.Bytes, "bytes from", entry.Extents[0].Pos)
	// Output:
	// error torn
	// count/0 complete gate 0 channel 2 9 bytes from 0/8192#7
}
