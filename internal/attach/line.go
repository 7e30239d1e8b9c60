package attach

import "sync"

// line does one thing after the other, in the order in which they came, on a
// goroutine of its own.
type line struct {
	mu     sync.Mutex
	some   sync.Cond
	queue  []func()
	closed bool
	ended  chan struct{}
}

func newLine() *line {
	l := &line{ended: make(chan struct{})}
	l.some.L = &l.mu
	go l.run()
	return l
}

// do queues f. After close it answers false, and f is not called.
func (l *line) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.queue = append(l.queue, f)
	l.some.Signal()
	return true
}

// close has the line end when it has done what is queued.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.some.Signal()
}

func (l *line) run() {
	defer close(l.ended)
	for f := l.next(); f != nil; f = l.next() {
		f()
	}
}

func (l *line) next() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.some.Wait()
	}
	if len(l.queue) == 0 {
		return nil
	}
	f := l.queue[0]
	l.queue = l.queue[1:]
	return f
}
