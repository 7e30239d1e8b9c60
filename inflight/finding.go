package inflight

import (
	"fmt"
	"strings"
	"time"
)

// Severity grades a Finding.
type Severity string

// The severities, as used in JSON.
const (
	SeverityError   Severity = "error"   // will not restore, or not right
	SeverityWarning Severity = "warning" // restores; something is not as it should be
	SeverityInfo    Severity = "info"    // worth knowing
)

// Finding is one thing that verification or salvage has to say. Task and
// Address are set where the finding concerns one.
type Finding struct {
	Severity Severity
	Code     string // stable, lower-case, with hyphens: "payload-checksum"; docs/json.md lists them
	Object   string // file or checkpoint
	Offset   int64  // in Object; -1 where there is none
	Task     *Task
	Address  *Address
	Text     string
	Err      error // the typed cause, where there is one
}

// String returns the finding on one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", f.Severity, f.Code, f.Object)
	if f.Offset >= 0 {
		fmt.Fprintf(&b, " at %d", f.Offset)
	}
	if f.Task != nil {
		fmt.Fprintf(&b, " %s", *f.Task)
	}
	if f.Address != nil {
		fmt.Fprintf(&b, " %s", *f.Address)
	}
	fmt.Fprintf(&b, ": %s", f.Text)
	return b.String()
}

// Event is one observation: something was done (Count, Bytes, Duration), or is
// being done (Bytes of Total).
type Event struct {
	Name       EventName
	Checkpoint CheckpointID
	Task       Task
	Object     string
	Count      int64
	Bytes      int64
	Total      int64 // what Bytes will reach; 0 where unknown
	Duration   time.Duration
	Err        error
}

// EventName names a kind of Event.
type EventName string

// The events that the library packages report.
const (
	EventFileSealed     EventName = "file-sealed"     // Object, Bytes, Duration of its life
	EventFileFailed     EventName = "file-failed"     // Object, Err
	EventFileRetried    EventName = "file-retried"    // Object (the failed one), Err
	EventCaptureDone    EventName = "capture-done"    // Checkpoint, Task, Bytes, Count of buffers, Duration, Err
	EventBuffered       EventName = "buffered"        // Bytes held by the writers of this process
	EventSpilled        EventName = "spilled"         // Bytes moved to the spill directory
	EventCommitted      EventName = "committed"       // Checkpoint, Bytes, Duration
	EventAborted        EventName = "aborted"         // Checkpoint, Err
	EventClaimed        EventName = "claimed"         // Checkpoint (the claim)
	EventRetired        EventName = "retired"         // Count of names deleted, Bytes
	EventReplayProgress EventName = "replay-progress" // Checkpoint, Task, Count of buffers, Bytes of Total
	EventReplayDone     EventName = "replay-done"     // Checkpoint, Task, Count, Bytes, Duration
	EventRequest        EventName = "request"         // one call to a backend: Object = operation, Bytes, Duration, Err
	EventRetried        EventName = "retried"         // a request within a call is made again: Object = operation, Err
	EventThrottled      EventName = "throttled"       // the store answered "too many": Object = operation, Err
)

// Observer receives events. Observe must be quick and may be called from
// several goroutines at once. It is never called for each buffer.
type Observer interface{ Observe(Event) }

// ObserverFunc is a function as an Observer.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Discard is the Observer that drops everything.
var Discard Observer = ObserverFunc(func(Event) {})
