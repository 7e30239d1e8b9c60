// Package doctor looks at a machine and a store before a job runs there, and
// says what will stand in its way.
package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/shirou/gopsutil/v4/mem"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/local"
	"github.com/spillway-io/spillway/inflight"
)

// Options say what the job is going to need.
type Options struct {
	Backend     backends.Backend
	MaxBuffered int64  // unaligned.max-buffered-data, in bytes
	Network     int64  // network.memory, in bytes
	SpillDir    string // unaligned.spill-dir; "": none
	Files       int    // files that may be open at once, about
}

// State is how a check ended.
type State string

// The states, as used in JSON.
const (
	OK      State = "ok"
	Warning State = "warning" // it may go wrong
	Failed  State = "error"   // it will
)

// Check is what was looked at, and what to do about it.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"`
}

// Run makes all checks. It writes a few small objects to the store, in a folder
// of its own which it removes.
func Run(ctx context.Context, o Options) []Check {
	checks := []Check{openFiles(o.Files), memory(o.MaxBuffered + o.Network)}
	if o.SpillDir != "" {
		checks = append(checks, spillDir(o))
	}
	checks = append(checks, promises(o.Backend.Capabilities()), space(ctx, o.Backend, o.MaxBuffered, "the store"))
	return append(checks, probe(ctx, o.Backend)...)
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, State: OK, Text: fmt.Sprintf(format, args...)}
}

// but is a check that did not end well.
func but(name string, s State, mend, format string, args ...any) Check {
	return Check{Name: name, State: s, Text: fmt.Sprintf(format, args...), Mend: mend}
}

func failed(name string, err error) Check {
	c := Check{Name: name, State: Failed, Text: err.Error()}
	if e := (*inflight.Error)(nil); errors.As(err, &e) {
		c.Text, c.Mend = strings.TrimSuffix(c.Text, " ("+e.Mend+")"), e.Mend
	}
	return c
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// spare is how many files a process has open beside those of its checkpoints.
const spare = 64

func openFiles(needed int) Check {
	const name = "open files"
	limit, err := fileLimit()
	if err != nil {
		return failed(name, err)
	}
	want := uint64(needed + spare)
	switch mend := fmt.Sprintf("ulimit -n %d, or more subtasks to a file (unaligned.tasks-per-file)", want); {
	case limit < want:
		return but(name, Failed, mend, "the limit is %d, a checkpoint may need %d", limit, want)
	case limit < 2*want:
		return but(name, Warning, mend, "the limit is %d, a checkpoint may need %d", limit, want)
	}
	return ok(name, "the limit is %d, a checkpoint may need %d", limit, want)
}

func memory(needed int64) Check {
	const name = "memory"
	m, err := mem.VirtualMemory()
	if err != nil {
		return failed(name, err)
	}
	if free := int64(m.Available); free < needed {
		return but(name, Failed, "lower unaligned.max-buffered-data or network.memory", "%s are available; the buffers may take %s", size(free), size(needed))
	}
	return ok(name, "%s are available; the buffers may take %s", size(int64(m.Available)), size(needed))
}

func spillDir(o Options) Check {
	const name = "spill directory"
	dir, err := os.MkdirTemp(o.SpillDir, "doctor-")
	if err != nil {
		return but(name, Failed, "create it, or let this user write to it", "%v", err)
	}
	defer func() { _ = os.Remove(dir) }()
	b := local.New(dir)
	defer b.Close()
	c := space(context.Background(), b, o.MaxBuffered, "it")
	c.Name = name
	return c
}

func promises(c backends.Capabilities) Check {
	const name = "promises"
	switch {
	case !c.Exclusive:
		return but(name, Failed, "take a store with conditional writes; ckpt-inspect backend-check shows what it lacks",
			"the store cannot create exclusively: two coordinators could overwrite each other's checkpoints")
	case !c.AtomicList:
		return but(name, Failed, "take a store with ordered listings", "the store cannot list in order: a paused coordinator would not see that it was superseded")
	}
	return ok(name, "exclusive creation and ordered listings")
}

func space(ctx context.Context, b backends.Backend, needed int64, where string) Check {
	const name = "free space"
	s, err := b.Space(ctx)
	switch {
	case errors.Is(err, inflight.ErrUnsupported):
		return ok(name, "%s cannot tell, which counts as enough", where)
	case err != nil:
		return failed(name, err)
	case s.Free < needed:
		return but(name, Warning, "free some, or lower unaligned.max-buffered-data", "%s has %s free; one checkpoint may take %s", where, size(s.Free), size(needed))
	}
	return ok(name, "%s has %s free; one checkpoint may take %s", where, size(s.Free), size(needed))
}

const (
	writes   = 5
	maxSkew  = 5 * time.Second
	slowness = time.Second
	tidyTime = 5 * time.Second // to remove what was written, also after Ctrl-C
)

// probe writes, reads and deletes, and compares clocks.
func probe(ctx context.Context, b backends.Backend) []Check {
	const name = "store"
	folder := "doctor-" + rand.Text()[:8]
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer cancel()
		_ = b.RemoveAll(ctx, folder)
	}()
	var took []time.Duration
	var skew time.Duration
	for i := range writes {
		begin := time.Now()
		info, err := write(ctx, b, path.Join(folder, fmt.Sprint(i)))
		if err != nil {
			return []Check{failed(name, err)}
		}
		took = append(took, time.Since(begin))
		if !info.Modified.IsZero() {
			skew = time.Until(info.Modified)
		}
	}
	slices.Sort(took)
	middle := took[writes/2].Round(10 * time.Microsecond)
	checks := []Check{ok(name, "%s: a small object is durable after %v", b.URL(), middle)}
	if middle > slowness {
		checks[0] = but(name, Warning, "nearer or faster storage, or a longer checkpoint.interval", "%s: a small object takes %v", b.URL(), middle)
	}
	if skew.Abs() > maxSkew {
		return append(checks, but("clock", Warning, "set the clock (NTP): ages in listings are wrong; no decision depends on them", "the store's clock is %v off this machine's", skew.Round(time.Second)))
	}
	return append(checks, ok("clock", "within %v of the store's", maxSkew))
}

// write writes a small object and reads it back.
func write(ctx context.Context, b backends.Backend, name string) (backends.Info, error) {
	o, err := b.Create(ctx, name, backends.CreateOptions{Exclusive: true, Attempt: "doctor"})
	if err != nil {
		return backends.Info{}, err
	}
	text := []byte(name)
	if _, err := o.Write(text); err != nil {
		return backends.Info{}, errors.Join(err, o.Abort(ctx))
	}
	info, err := o.Finish(ctx)
	if err != nil {
		return info, err
	}
	src, err := b.Open(ctx, name)
	if err != nil {
		return info, err
	}
	defer src.Close()
	p := make([]byte, len(text))
	if err := src.ReadAt(ctx, p, 0); err != nil {
		return info, err
	}
	if string(p) != name {
		return info, &inflight.Error{Op: "read", Object: name, Err: inflight.ErrCorrupt, Mend: "do not use this store: it does not give back what was written"}
	}
	return info, nil
}
