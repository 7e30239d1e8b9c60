package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/cmd/ckpt-run/monitor"
	"github.com/spillway-io/spillway/dataflow"
	"github.com/spillway-io/spillway/inflight"
	"github.com/spillway-io/spillway/internal/trigger"
	"github.com/spillway-io/spillway/reader"
)

// watchSpace has the trigger know the store, where it decides. What it returns
// ends that.
func (x *runner) watchSpace(ctx context.Context, b backends.Backend) func() {
	chain := x.settings.Trigger
	if chain == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	x.space = trigger.NewSpace(ctx, b)
	chain.Free = x.space.Free
	chain.State = func() int64 {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.state
	}
	x.refresh = func() { x.space.Refresh(ctx) }
	x.settings.Dataflow.Decide = chain.Decide
	return func() {
		stop()
		x.space.Wait()
	}
}

// latencyInterval is how often sources mark a record while somebody watches.
const latencyInterval = 200 * time.Millisecond

func (x *runner) newMonitor(stats func() dataflow.Stats) *monitor.Monitor {
	o := &x.settings.Dataflow
	o.LatencyInterval = latencyInterval
	return monitor.New(monitor.Options{Job: x.job, Store: x.store, Vertices: x.graph.Vertices(), Edges: x.graph.Edges(*o), Stats: stats, Bound: x.settings.Writer.MaxBuffered})
}

// observer is told what the toolkit does.
func (x *runner) observer() inflight.Observer {
	if x.monitor == nil {
		return inflight.Discard
	}
	return x.monitor
}

// accounted is told what a completed checkpoint holds of each connection.
func (x *runner) accounted(id inflight.CheckpointID, flows []reader.Flow) {
	if x.monitor != nil {
		x.monitor.Accounted(id, flows)
	}
}

// noted passes on how a checkpoint went, and why as it did.
func (x *runner) noted(r dataflow.CheckpointResult, l checkpointLine) {
	if x.refresh != nil {
		x.refresh()
	}
	if x.monitor != nil {
		brief := l
		brief.Subtasks = []subtaskLine{}
		x.monitor.Checkpoint(r, l.State, l, brief)
	}
	switch {
	case r.Decision == "":
	case r.Reason == dataflow.ReasonSkipped:
		x.log.Warn("checkpoint skipped: " + r.Decision)
	default:
		x.log.Info(fmt.Sprintf("checkpoint %d: %s, %s", r.ID, l.Alignment, r.Decision), "checkpoint", r.ID, "alignment", l.Alignment)
	}
}

// serve serves the live page, and says where. What it returns ends that.
func (x *runner) serve(ctx context.Context) (stop func(), err error) {
	if x.monitor == nil {
		return func() {}, nil
	}
	address := x.listen
	if host, _, err := net.SplitHostPort(address); err == nil && host == "" {
		address = "localhost" + address
	} else if !strings.Contains(address, ":") {
		address = "localhost:" + address
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &inflight.Error{Op: "listen", Object: x.listen, Err: errors.Join(inflight.ErrConfig, err), Mend: "name a free port, or 0 for any"}
	}
	s := &http.Server{Handler: x.monitor.Handler(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends when it is closed
	}()
	x.log.Info("live page", "url", "http://"+l.Addr().String()+"/")
	return func() {
		_ = s.Close() // nobody is served any more
		<-done
	}, nil
}

// bound is how many bytes may be in flight: the queues, and a partial record on
// each connection. Of lines nobody knows the largest: 0.
func (x *runner) bound() int64 {
	if x.input != "" {
		return 0
	}
	channels := int64(x.parallelism) * int64(x.parallelism+1) // to the counts, and on to the sinks
	return x.queues(x.settings.Dataflow) + channels*int64(x.recordBytes)
}
