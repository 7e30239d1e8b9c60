package reader_test

import (
	"context"
	"fmt"
	"log"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/format"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/reader"
)

var (
	read  = inflight.Task{Vertex: "read"}
	count = inflight.Task{Vertex: "count"}
)

// checkpoint makes a store with chk-0000000007 of job words: "read" had emitted
// 120 bytes to "count", which had consumed 100.
func checkpoint(ctx context.Context) backends.Backend {
	b := mem.New(mem.Options{})
	name := format.StateFileName(7, "g0", "4f1c")
	o, err := b.Create(ctx, "words/"+name, backends.CreateOptions{})
	check(err)
	id := inflight.FileID{7}
	e, err := format.NewEncoder(o, name, format.FileHeader{FileID: id, Job: "words", Checkpoint: 7}, format.EncoderOptions{})
	check(err)
	out, in := inflight.Subpartition{}.Address(), inflight.InputChannel{}.Address()
	up, err := e.Begin(read, nil)
	check(err)
	check(e.SetCut(up, inflight.Cut{Address: out, Bytes: 120}))
	check(e.Append(up, out, inflight.Pos{Offset: 111, Seq: 1}, []byte("not sent.")))
	check(e.Complete(up))
	down, err := e.Begin(count, nil)
	check(err)
	check(e.SetCut(down, inflight.Cut{Address: in, Bytes: 100}))
	check(e.Append(down, in, inflight.Pos{Offset: 100}, []byte("not counted")))
	check(e.Complete(down))
	info, err := e.Close()
	check(err)
	_, err = o.Finish(ctx)
	check(err)

	m := &format.Manifest{Kind: format.KindCheckpoint, Job: "words", ID: 7, Attempt: "4f1c", Mode: format.ExactlyOnce, Alignment: format.Unaligned,
		Topology: &format.Topology{
			Vertices: []format.Vertex{{ID: "read", Parallelism: 1}, {ID: "count", Parallelism: 1}},
			Edges:    []format.Edge{{From: "read", To: "count", Partitioner: "hash"}}}}
	m.SetHandles([]inflight.Handle{e.Handle(up), e.Handle(down)}, info)
	p, err := format.EncodeManifest(m)
	check(err)
	o, err = b.Create(ctx, "words/chk-0000000007/_manifest.json", backends.CreateOptions{})
	check(err)
	_, err = o.Write(p)
	check(err)
	_, err = o.Finish(ctx)
	check(err)
	return b
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// What was captured of a subtask is read buffer by buffer.
func Example() {
	ctx := context.Background()
	r := reader.Open(checkpoint(ctx), "words", reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(ctx, "chk-0000000007")
	check(err)
	s, err := c.Subtask(ctx, count)
	check(err)
	defer s.Close()
	for b, err := range s.Buffers(ctx, inflight.Input) {
		check(err)
		fmt.Printf("%s %s at %s: %q\n", b.Task, b.Address, b.Pos, b.Bytes)
	}
	// Output: count/0 gate 0 channel 0 at 0/100#0: "not counted"
}

// Verify reads every byte, and proves for every connection that what was
// consumed and what was captured is what was emitted.
func ExampleCheckpoint_Verify() {
	ctx := context.Background()
	r := reader.Open(checkpoint(ctx), "words", reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(ctx, "chk-0000000007")
	check(err)
	report, err := c.Verify(ctx, reader.VerifyOptions{})
	check(err)
	fmt.Println(len(report.Findings), "findings")
	for _, f := range report.Flows {
		fmt.Printf("%s → %s: %d consumed + %d input + %d output = %d emitted: %s\n", f.From, f.To, f.Consumed.Bytes, f.Input, f.Output, f.Emitted.Bytes, f.Verdict)
	}
	// Output:
	// 0 findings
	// read/0 → count/0: 100 consumed + 11 input + 9 output = 120 emitted: proven
}

// A handle is enough to read a subtask: no manifest is needed.
func ExampleReader_Subtask() {
	ctx := context.Background()
	store := checkpoint(ctx)
	r := reader.Open(store, "words", reader.Options{})
	defer r.Close()
	c, err := r.Checkpoint(ctx, "chk-0000000007")
	check(err)
	handle := *c.Manifest.Handle(read) // as the subtask sent it with its acknowledgement

	s, err := r.Subtask(ctx, handle)
	check(err)
	defer s.Close()
	for e := range s.Entries() {
		fmt.Println(e.Address, e.Buffers, "buffer", e.Bytes, "bytes from", e.Start, "to", e.End)
	}
	// Output: partition 0 subpartition 0 1 buffer 9 bytes from 0/111#1 to 0/120#2
}
