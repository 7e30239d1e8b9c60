package main

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/spillway-io/spillway/inflight"
)

// progress shows on a terminal how much of what has to be read was read. It
// appears when that takes more than a moment.
type progress struct {
	env   *env
	start time.Time

	mu    sync.Mutex
	bytes int64
	total int64
	bar   *progressbar.ProgressBar
	over  bool
}

// patience is how long a command may be silent.
const patience = 500 * time.Millisecond

func newProgress(e *env) *progress { return &progress{env: e, start: e.now()} }

// expect adds to what is going to be read.
func (p *progress) expect(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += bytes
}

// Observe implements inflight.Observer: it counts what was read.
func (p *progress) Observe(e inflight.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += e.Bytes
	if !p.env.progress || p.over || p.total == 0 || p.env.now().Sub(p.start) < patience {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(p.total, progressbar.OptionSetWriter(p.env.stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription("reading"))
	}
	p.bar.ChangeMax64(max(p.total, p.bytes+1)) // a second look at the same bytes must not end it
	_ = p.bar.Set64(p.bytes)                   // it is only for show
}

// done takes the progress off the terminal.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over = true; p.bar != nil {
		_ = p.bar.Clear()
	}
}
