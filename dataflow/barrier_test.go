package dataflow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillway-io/spillway/inflight"
)

// tableHost is a barrierHost that writes down what is asked of it.
type tableHost struct {
	log  strings.Builder
	at   time.Duration
	due  []func() // timers that have not been stopped
	when []time.Duration
	fail inflight.CheckpointID // whose capture cannot start
}

func (h *tableHost) say(format string, args ...any) { fmt.Fprintf(&h.log, format+"\n", args...) }

func (h *tableHost) initInputs(b barrier) error {
	h.say("  init %d %s", b.id, b.alignment)
	if b.id == h.fail {
		return inflight.ErrSubsumed
	}
	return nil
}
func (h *tableHost) trigger(b barrier) error                            { h.say("  trigger %d %s", b.id, b.alignment); return nil }
func (h *tableHost) stopInputs(id inflight.CheckpointID)                { h.say("  stop inputs %d", id) }
func (h *tableHost) allReceived(id inflight.CheckpointID)               { h.say("  all received %d", id) }
func (h *tableHost) clock() time.Duration                               { return h.at }
func (h *tableHost) trace(Point, inflight.CheckpointID, string, ...any) {}
func (h *tableHost) aborted(id inflight.CheckpointID, r Reason, _ error) {
	h.say("  aborted %d: %s", id, r)
}

func (h *tableHost) timer(t time.Duration, f func()) (stop func()) {
	h.say("  timer at %v", t)
	i := len(h.due)
	h.due, h.when = append(h.due, f), append(h.when, t)
	return func() {
		if h.due[i] != nil {
			h.say("  timer stopped")
		}
		h.due[i] = nil
	}
}

// TestBarrierTables runs the rows of flink-format §8.3 to §8.5: the scripts in
// testdata/barriers name them. Each command prints what was done, and the state.
func TestBarrierTables(t *testing.T) {
	datadriven.Walk(t, "testdata/barriers", func(t *testing.T, path string) {
		var h *barriers
		var host *tableHost
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				host = &tableHost{fail: inflight.CheckpointID(1 << 40)}
				h = newTable(t, d, host)
				return h.table()
			}
			var id, ch, seq int
			d.MaybeScanArgs(t, "id", &id)
			d.MaybeScanArgs(t, "ch", &ch)
			d.MaybeScanArgs(t, "seq", &seq)
			b := barrier{id: inflight.CheckpointID(id), alignment: Aligned, timeout: never, at: host.at, savepoint: d.HasArg("savepoint")}
			var timeout, age string
			if d.MaybeScanArgs(t, "timeout", &timeout); timeout != "" {
				b.timeout, _ = time.ParseDuration(timeout)
			}
			if d.MaybeScanArgs(t, "age", &age); age != "" {
				old, _ := time.ParseDuration(age)
				b.at -= old
			}
			switch {
			case d.HasArg("unaligned"):
				b = b.unaligned()
			case d.HasArg("forced"):
				b.alignment = ForcedAligned
			case d.HasArg("at-least-once"):
				b.alignment = AtLeastOnce
			}
			switch d.Cmd {
			case "barrier":
				h.barrier(b, h.channels[ch], true)
			case "inject":
				h.inject(b)
			case "announce":
				h.channels[ch].conn.q.push(entry{ev: &event{kind: evBarrier, b: b}, seq: uint32(seq)})
				h.announcement(b, h.channels[ch], uint32(seq))
			case "cancel":
				h.cancel(b.id)
			case "given":
				h.given(b.id)
			case "end":
				h.channels[ch].ended = true
				h.end(h.channels[ch])
			case "fail":
				host.fail = b.id
			case "wait":
				var by string
				d.ScanArgs(t, "for", &by)
				k, _ := time.ParseDuration(by)
				host.at += k
				for i, f := range host.due {
					if f != nil && host.when[i] <= host.at {
						host.due[i] = nil
						host.say("  timer fires")
						f()
					}
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			out := host.log.String() + h.table()
			host.log.Reset()
			return out
		})
	})
}

// newTable makes a handler over channels that say when they are resumed or
// their barrier is moved to the front.
func newTable(t *testing.T, d *datadriven.TestData, host *tableHost) *barriers {
	n := 2
	d.MaybeScanArgs(t, "channels", &n)
	in := &inputs{owner: wakeFunc(func() {})}
	var channels []*channel
	for i := range n {
		s := &subpartition{blocked: true}
		s.q.push(entry{ev: &event{kind: evRecovered}})
		s.notify = func(bool) {
			host.say("  resume %d", i)
			s.blocked = true
		}
		c := &channel{index: i, in: in, up: s, address: inflight.InputChannel{Channel: i}}
		c.conn = &conn{ch: c, up: s, persister: newPersister(inflight.InputChannel{Channel: i})}
		channels = append(channels, c)
	}
	return newBarriers(host, channels, !d.HasArg("aligned"))
}

type wakeFunc func()

func (f wakeFunc) Wake() { f() }

// table prints the state as the tables name it.
func (h *barriers) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s current %d done %d", [...]string{"AW", "AC", "UW", "UC"}[h.state], h.current, h.lastDone)
	if h.isPending() {
		fmt.Fprintf(&b, " pending %d/%d", h.count, h.target)
	}
	for i := range h.channels {
		if h.blocked[i] {
			fmt.Fprintf(&b, " blocked:%d", i)
		}
		if h.announced[i].set {
			fmt.Fprintf(&b, " announced:%d", i)
		}
		for h.channels[i].conn.prio.n > 0 {
			h.channels[i].conn.prio.pop()
			fmt.Fprintf(&b, " front:%d", i)
		}
	}
	return b.String() + "\n"
}
