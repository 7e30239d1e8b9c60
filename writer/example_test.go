package writer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// A subtask captures what a barrier overtook: buffers of an input channel and of
// a subpartition, beside its state and where its connections stood.
func Example() {
	pool, err := writer.NewPool(writer.Options{Backend: mem.New(mem.Options{}), Job: "words"})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	w, err := pool.Writer(inflight.Task{Vertex: "count", Subtask: 0})
	if err != nil {
		log.Fatal(err)
	}

	c, err := w.Start(7, writer.StartOptions{Epoch: 3}) // of the coordinator, as is Attempt
	if err != nil {
		log.Fatal(err)
	}
	in, out := inflight.InputChannel{Gate: 0, Channel: 2}, inflight.Subpartition{Partition: 0, Subpartition: 1}
	// No call waits for the store; what goes wrong is what Handle says.
	_ = c.Cuts(
		inflight.Cut{Address: in.Address(), Epoch: 3, Bytes: 8192},  // consumed
		inflight.Cut{Address: out.Address(), Epoch: 3, Bytes: 4106}) // emitted
	_ = c.State("counts", inflight.Bytes("in=1"))
	_ = c.Input(in, inflight.Pos{Epoch: 3, Offset: 8192, Seq: 40}, inflight.Bytes("not yet"), inflight.Bytes("processed"))
	_ = c.FinishInput()
	_ = c.Output(out, inflight.Pos{Epoch: 3, Offset: 4096, Seq: 11}, inflight.Bytes("not queued"))
	_ = c.FinishOutput()

	<-c.Done()
	h, err := c.Handle()
	fmt.Printf("%s: %d bytes of input, %d of output, %d of state in %d file: %v\n", h.Task, h.InputBytes, h.OutputBytes, h.StateBytes, len(c.Files()), err)
	// Output: count/0: 16 bytes of input, 10 of output, 4 of state in 1 file: <nil>
}

// Over the bound on memory a checkpoint is declined as a whole. A caller that
// can pace itself waits for room.
func ExamplePool_WaitRoom() {
	pool, err := writer.NewPool(writer.Options{Backend: mem.New(mem.Options{}), MaxBuffered: 1000})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	w, err := pool.Writer(inflight.Task{Vertex: "count"})
	if err != nil {
		log.Fatal(err)
	}
	c, err := w.Start(1, writer.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	pos := inflight.Pos{}
	for range 10 {
		if err := pool.WaitRoom(context.Background(), 400); err != nil {
			log.Fatal(err)
		}
		_ = c.Input(inflight.InputChannel{}, pos, inflight.Bytes(make([]byte, 400)))
		pos = pos.Advance(400, 1)
	}
	fmt.Println("paced:", c.FinishInput())

	err = c.Output(inflight.Subpartition{}, inflight.Pos{}, inflight.Bytes(make([]byte, 2000)))
	fmt.Println("over the bound:", errors.Is(err, inflight.ErrOverBudget))
	// Output:
	// paced: <nil>
	// over the bound: true
}

// A coordinator that gives a checkpoint up aborts it at every subtask. What is
// queued for it is released at once.
func ExampleWriter_Abort() {
	pool, err := writer.NewPool(writer.Options{Backend: mem.New(mem.Options{})})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	w, err := pool.Writer(inflight.Task{Vertex: "count"})
	if err != nil {
		log.Fatal(err)
	}
	c, err := w.Start(1, writer.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	w.Abort(1, inflight.ErrTimeout)
	<-c.Done()
	_, err = c.Handle()
	fmt.Println(errors.Is(err, inflight.ErrAborted), errors.Is(err, inflight.ErrTimeout))
	// Output: true true
}
