package dataflow

import (
	"sync"
	"sync/atomic"
)

// mailbox holds what others want an actor to do, on its own goroutine, between
// two records. The urgent lane goes first: the trigger of an unaligned
// checkpoint waits behind nothing.
type mailbox struct {
	owner Waker
	some  atomic.Bool // read once a record

	mu     sync.Mutex
	urgent []func() error
	normal []func() error
}

func (m *mailbox) put(f func() error, urgent bool) {
	m.mu.Lock()
	if urgent {
		m.urgent = append(m.urgent, f)
	} else {
		m.normal = append(m.normal, f)
	}
	m.some.Store(true)
	m.mu.Unlock()
	m.owner.Wake()
}

// take returns the next mail, or nil.
func (m *mailbox) take() (f func() error) {
	if !m.some.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	lane := &m.urgent
	if len(*lane) == 0 {
		lane = &m.normal
	}
	if len(*lane) > 0 {
		f = (*lane)[0]
		*lane = (*lane)[1:]
	}
	m.some.Store(len(m.urgent)+len(m.normal) > 0)
	return f
}
