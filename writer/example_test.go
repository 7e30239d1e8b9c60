package writer_test

import (
	"fmt"
	"log"

	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/writer"
)

// A subtask captures what a barrier overtook: two buffers in an input channel
// and one that has not left for a subpartition.
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

	c, err := w.Start(7, writer.StartOptions{Epoch: 3, Attempt: "a1b2"})
	if err != nil {
		log.Fatal(err)
	}
	channel := inflight.InputChannel{Gate: 0, Channel: 2}
	err = c.Input(channel, inflight.Pos{Epoch: 3, Offset: 8192, Seq: 12}, inflight.Bytes("the quick "), inflight.Bytes("brown fox"))
	if err == nil {
		err = c.Output(inflight.Subpartition{Partition: 0, Subpartition: 1}, inflight.PosUnknown, inflight.Bytes("jumps"))
	}
	if err == nil {
		err = c.Cuts(inflight.Cut{Address: channel.Address(), Epoch: 3, Bytes: 8192, Records: 300, RecordsKnown: true})
	}
	if err == nil {
		err = c.FinishInput()
	}
	if err == nil {
		err = c.FinishOutput()
	}
	if err != nil {
		log.Fatal(err)
	}

	<-c.Done() // the bytes are durable; the handle goes to the coordinator
	h, err := c.Handle()
	fmt.Println(h.Task, h.InputBytes, h.OutputBytes, len(h.Segments), err)
	// Output: count/0 19 5 1 <nil>
}
