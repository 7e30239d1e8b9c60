package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Stats counts what a backend has sent over the wire, repetitions included.
type Stats struct {
	Puts, Posts, Gets, Heads, Deletes int64
	// Retries are the requests that were sent again, and Resumed the reads that
	// went on behind where they were cut.
	Retries, Resumed int64
	// Read are the bytes of all answers.
	Read int64
}

// Requests is the number of all requests.
func (s Stats) Requests() int64 { return s.Puts + s.Posts + s.Gets + s.Heads + s.Deletes }

type counters struct{ puts, posts, gets, heads, deletes, retries, resumed, read atomic.Int64 }

func (c *counters) stats() Stats {
	return Stats{Puts: c.puts.Load(), Posts: c.posts.Load(), Gets: c.gets.Load(), Heads: c.heads.Load(), Deletes: c.deletes.Load(),
		Retries: c.retries.Load(), Resumed: c.resumed.Load(), Read: c.read.Load()}
}

func (c *counters) count(method string) {
	switch method {
	case http.MethodPut:
		c.puts.Add(1)
	case http.MethodPost:
		c.posts.Add(1)
	case http.MethodGet:
		c.gets.Add(1)
	case http.MethodHead:
		c.heads.Add(1)
	case http.MethodDelete:
		c.deletes.Add(1)
	}
}

// wire carries requests: it bounds how many are under way at once, and counts
// them.
type wire struct {
	base    *http.Transport
	slots   *slots
	count   counters
	folders atomic.Bool // the store says that it is one whose empty folders stay
}

func newWire(o *Options) (*wire, error) {
	dialer := &net.Dialer{Timeout: min(5*time.Second, o.Timeout), KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &impatient{c, o.Timeout}, nil
		},
		MaxIdleConns:        o.Connections,
		MaxIdleConnsPerHost: o.Connections,
		IdleConnTimeout:     o.Timeout / 2, // before impatient cuts it
		TLSHandshakeTimeout: min(10*time.Second, o.Timeout),
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
		DisableCompression:  true,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, o.refuse(fmt.Sprintf("the certificates of ca=%s cannot be read", o.CAFile), "name a file with certificates (PEM)")
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, o.refuse(fmt.Sprintf("ca=%s has no certificate", o.CAFile), "name a file with certificates (PEM)")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &wire{base: t, slots: newSlots(o.Connections)}, nil
}

// RoundTrip implements http.RoundTripper. The slot is given back when the answer
// has been read.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := w.slots.acquire(req.Context()); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	w.count.count(req.Method)
	resp, err := w.base.RoundTrip(req)
	if err != nil {
		w.slots.release()
		return nil, err
	}
	if strings.HasPrefix(resp.Header.Get("Server"), "SeaweedFS") {
		w.folders.Store(true)
	}
	if req.Method == http.MethodHead || resp.Body == http.NoBody {
		w.slots.release()
		return resp, nil
	}
	resp.Body = &answer{ReadCloser: resp.Body, release: sync.OnceFunc(w.slots.release), read: &w.count.read}
	return resp, nil
}

type answer struct {
	io.ReadCloser
	release func()
	read    *atomic.Int64
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.read.Add(int64(n))
	if err != nil {
		a.release()
	}
	return n, err
}

func (a *answer) Close() error {
	defer a.release()
	return a.ReadCloser.Close()
}

// impatient is a connection that fails when nothing moves on it for a while.
type impatient struct {
	net.Conn
	timeout time.Duration
}

func (c *impatient) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *impatient) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// patience is how long a request waits for a slot before a stream that nobody
// reads has to give up its own.
const patience = time.Second

// slots bound the requests that are under way. A stream keeps its slot while it
// is open; so that whoever opens many and reads none cannot block everybody, one
// that rests gives it up, and asks anew for the rest of its bytes later.
type slots struct {
	taken chan struct{}

	mu      sync.Mutex
	streams map[*stream]struct{}
}

func newSlots(n int) *slots {
	return &slots{taken: make(chan struct{}, n), streams: map[*stream]struct{}{}}
}

func (s *slots) acquire(ctx context.Context) error {
	select {
	case s.taken <- struct{}{}:
		return nil
	default:
	}
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case s.taken <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			s.interrupt()
		}
	}
}

func (s *slots) release() { <-s.taken }

func (s *slots) add(r *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[r] = struct{}{}
}

func (s *slots) remove(r *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, r)
}

// interrupt takes the slot of one stream that rests.
func (s *slots) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.streams {
		if r.rest() {
			return
		}
	}
}
