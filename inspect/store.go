package inspect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/inflight"
)

// CapabilitiesLine is what a store says of itself.
type CapabilitiesLine struct {
	Type            LineType `json:"type"`
	URL             string   `json:"url"`
	Exclusive       bool     `json:"exclusive"`
	AtomicList      bool     `json:"atomic_list"`
	SyncNames       bool     `json:"sync_names"`
	HeldUntilFinish bool     `json:"held_until_finish"`
	Remote          bool     `json:"remote"`
	ServerChecksum  bool     `json:"server_checksum"`
	MaxObject       int64    `json:"max_object,omitempty"`
	FreeBytes       *int64   `json:"free_bytes,omitempty"`
}

// The results of checks, as used in JSON.
const (
	CheckOK      = "ok"
	CheckFailed  = "failed"
	CheckSkipped = "skipped" // it does not concern this store
)

// tidyTime is for the removal of what was written, also after Ctrl-C.
const tidyTime = 5 * time.Second

// CheckLine is one promise of a store, tried.
type CheckLine struct {
	Type       LineType `json:"type"`
	Check      string   `json:"check"`
	Result     string   `json:"result"`
	About      string   `json:"about"`
	Text       string   `json:"text,omitempty"` // what is wrong, or why it was skipped
	DurationMS int64    `json:"duration_ms"`
}

// StoreCheck is what CheckStore found.
type StoreCheck struct {
	Capabilities CapabilitiesLine
	Checks       []CheckLine
}

// CheckStore runs the acceptance suite of backends on the store at url, in
// folders of its own that it creates and removes.
func (i *Inspector) CheckStore(ctx context.Context, url string) (*StoreCheck, error) {
	s := new(StoreCheck)
	if err := i.tryStore(ctx, url, s); err != nil {
		return nil, err
	}
	checks := backendtest.Checks()
	for _, c := range checks {
		start := i.o.Now()
		b, err := i.o.Open(ctx, url)
		if err != nil {
			return s, err
		}
		err = errors.Join(c.Run(ctx, b), b.Close())
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		line := CheckLine{Type: TypeCheck, Check: c.Name, Result: CheckOK, About: c.About, DurationMS: i.o.Now().Sub(start).Milliseconds()}
		if skipped, ok := errors.AsType[*backendtest.Skipped](err); ok {
			line.Result, line.Text = CheckSkipped, skipped.Reason
		} else if err != nil {
			line.Result, line.Text = CheckFailed, oneLine(err.Error())
		}
		s.Checks = append(s.Checks, line)
	}
	return s, nil
}

// tryStore finds out whether the store can be used at all, so that one that
// cannot be reached or written is one error and not thirty.
func (i *Inspector) tryStore(ctx context.Context, url string, s *StoreCheck) error {
	b, err := i.o.Open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close()
	for _, err := range b.Children(ctx, "") {
		if err != nil {
			return err
		}
		break
	}
	folder := fmt.Sprintf("backend-check-%08x", rand.Uint32())
	o, err := b.Create(ctx, folder+"/probe", backends.CreateOptions{Exclusive: true})
	if err == nil {
		if _, err = o.Write([]byte("probe")); err == nil {
			_, err = o.Finish(ctx)
		} else {
			err = errors.Join(err, o.Abort(ctx))
		}
	}
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	if errRemove := b.RemoveAll(tidy, folder); err == nil {
		err = errRemove
	}
	if err != nil {
		return err
	}
	c := b.Capabilities()
	s.Capabilities = CapabilitiesLine{Type: TypeCapabilities, URL: b.URL(), Exclusive: c.Exclusive, AtomicList: c.AtomicList, SyncNames: c.SyncNames,
		HeldUntilFinish: c.HeldUntilFinish, Remote: c.Remote, ServerChecksum: c.ServerChecksum, MaxObject: c.MaxObject}
	space, err := b.Space(ctx)
	if err != nil && !errors.Is(err, inflight.ErrUnsupported) {
		return err
	}
	s.Capabilities.FreeBytes = ptr(space.Free, err == nil)
	return nil
}

// Lines returns what the store says of itself, and the checks.
func (s *StoreCheck) Lines() []any {
	lines := []any{&s.Capabilities}
	for i := range s.Checks {
		lines = append(lines, &s.Checks[i])
	}
	return lines
}

// Failed reports whether a promise is broken.
func (s *StoreCheck) Failed() bool { return s.count(CheckFailed) > 0 }

func (s *StoreCheck) count(result string) (n int) {
	for _, c := range s.Checks {
		if c.Result == result {
			n++
		}
	}
	return n
}

// Tables returns what the store says of itself, and the checks.
func (s *StoreCheck) Tables() []Table {
	c := &s.Capabilities
	caps := Table{Title: "store " + c.URL, Columns: columns("PROMISE", "", "MEANING")}
	promise := func(name string, has bool, meaning string) {
		yes := "no"
		if has {
			yes = "yes"
		}
		caps.add(TonePlain, name, yes, meaning)
	}
	promise("exclusive create", c.Exclusive, "of several writers of one name exactly one wins: needed to commit")
	promise("ordered listing", c.AtomicList, "a listing is atomic or ascending: needed to commit")
	promise("names need sync", c.SyncNames, "names survive a power cut only after a sync, which the commit makes")
	promise("held until finish", c.HeldUntilFinish, "what was written can be lost until the end: writers keep it until then")
	promise("remote", c.Remote, "bytes cross a network")
	promise("server checksum", c.ServerChecksum, "the store keeps a checksum of each object")
	if c.FreeBytes != nil {
		caps.add(TonePlain, "free space", size(*c.FreeBytes), "")
	}
	checks := Table{Title: "checks", Columns: columns("CHECK", "RESULT", "ABOUT"),
		Note: fmt.Sprintf("%d ok, %d failed, %d skipped", s.count(CheckOK), s.count(CheckFailed), s.count(CheckSkipped))}
	for _, l := range s.Checks {
		tone, about := ToneGood, l.About
		switch l.Result {
		case CheckFailed:
			tone, about = ToneError, l.About+" "+l.Text
		case CheckSkipped:
			tone, about = ToneQuiet, l.About+" ("+l.Text+")"
		}
		checks.add(tone, l.Check, l.Result, about)
	}
	return []Table{caps, checks}
}
