package servers

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Wire is a TCP proxy that has faults on demand.
type Wire struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// NewWire puts a proxy in front of an address. It ends with the test.
func NewWire(t testing.TB, upstream string) *Wire {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	w := &Wire{t: t, proxy: toxiproxy.NewProxy(server, "wire", "127.0.0.1:0", upstream)}
	if err := w.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.proxy.Stop)
	return w
}

// Address is where the proxy listens.
func (w *Wire) Address() string { return w.proxy.Listen }

// Stop closes all connections, and refuses new ones.
func (w *Wire) Stop() { w.proxy.Stop() }

// Fault adds a fault, as toxiproxy calls them; stream is upstream or downstream.
// It also holds for connections that are open.
func (w *Wire) Fault(kind, stream string, attributes map[string]any) {
	w.t.Helper()
	text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	if err == nil {
		_, err = w.proxy.Toxics.AddToxicJson(strings.NewReader(string(text)))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// Heal ends all faults.
func (w *Wire) Heal() { w.proxy.Toxics.ResetToxics(context.Background()) }

// Gate is an HTTP proxy that decides about each request.
type Gate struct {
	URL string

	mu     sync.Mutex
	decide func(*http.Request) Verdict
}

// Verdict is what becomes of a request.
type Verdict int

// The verdicts.
const (
	Pass       Verdict = iota
	LoseAnswer         // it is carried out, and the connection is closed instead of an answer
	Busy               // 503, and it is not carried out
	BusyAfter          // 503, although it is carried out
)

// NewGate puts a gate in front of a server without TLS. Decide may be nil.
func NewGate(t testing.TB, s *Server, decide func(*http.Request) Verdict) *Gate {
	t.Helper()
	upstream, err := url.Parse(s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{decide: decide}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	forward := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(upstream)
		r.Out.Host = r.In.Host // it is signed
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch g.verdict(r) {
		case Pass:
			forward.ServeHTTP(w, r)
		case LoseAnswer:
			forward.ServeHTTP(&nowhere{header: http.Header{}}, r)
			panic(http.ErrAbortHandler)
		case Busy:
			busy(w)
		case BusyAfter:
			forward.ServeHTTP(&nowhere{header: http.Header{}}, r)
			busy(w)
		}
	})}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	g.URL = "http://" + l.Addr().String()
	return g
}

// Decide replaces the decision.
func (g *Gate) Decide(decide func(*http.Request) Verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.decide = decide
}

func (g *Gate) verdict(r *http.Request) Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.decide == nil {
		return Pass
	}
	return g.decide(r)
}

func busy(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte(`<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`))
}

// nowhere is where an answer goes that is lost.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
