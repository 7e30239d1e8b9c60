package s3_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/s3"
	"github.com/spillway-io/spillway/e2e/servers"
	"github.com/spillway-io/spillway/inflight"
)

const mib = 1 << 20

// behindWire opens a store whose bytes cross a proxy with faults.
func behindWire(t *testing.T, settings ...string) (*servers.Wire, *s3.Backend) {
	t.Helper()
	s := shared(t, servers.VersityGW)
	name := bucket(t, s)
	wire := servers.NewWire(t, s.Address)
	far := *s
	far.Endpoint = "http://" + wire.Address()
	return wire, open(t, urlOf(&far, name, "wire", settings...))
}

// within fails if call takes much longer than its context.
func within(t *testing.T, limit time.Duration, call func() error) error {
	t.Helper()
	start := time.Now()
	err := call()
	require.Less(t, time.Since(start), limit, "%v", err)
	return err
}

// TestSlowWires: what is slow is no fault.
func TestSlowWires(t *testing.T) {
	for name, fault := range map[string]func(*servers.Wire){
		"latency":   func(w *servers.Wire) { w.Fault("latency", "downstream", map[string]any{"latency": 50, "jitter": 10}) },
		"bandwidth": func(w *servers.Wire) { w.Fault("bandwidth", "upstream", map[string]any{"rate": 20_000}) },
		"slices": func(w *servers.Wire) {
			w.Fault("slicer", "downstream", map[string]any{"average_size": 50_000, "size_variation": 20_000, "delay": 10})
		},
	} {
		t.Run(name, func(t *testing.T) {
			wire, b := behindWire(t, "part-size", "5MiB")
			fault(wire)
			data := random(1, 11*mib)
			_, err := put(t.Context(), b, "x", data, backends.CreateOptions{Exclusive: true})
			require.NoError(t, err)
			got, err := get(t.Context(), b, "x")
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			require.Zero(t, b.Stats().Retries)
		})
	}
}

// TestResets: connections that are reset in the middle of an upload cost tries,
// not the object.
func TestResets(t *testing.T) {
	for name, fault := range map[string]func(*servers.Wire){
		"reset":        func(w *servers.Wire) { w.Fault("reset_peer", "upstream", map[string]any{"timeout": 0}) },
		"reset later":  func(w *servers.Wire) { w.Fault("reset_peer", "downstream", map[string]any{"timeout": 20}) },
		"cut upload":   func(w *servers.Wire) { w.Fault("limit_data", "upstream", map[string]any{"bytes": 100_000}) },
		"closed":       func(w *servers.Wire) { w.Fault("timeout", "upstream", map[string]any{"timeout": 100}) },
		"lost answers": func(w *servers.Wire) { w.Fault("limit_data", "downstream", map[string]any{"bytes": 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			wire, b := behindWire(t, "part-size", "5MiB")
			require.NoError(t, warm(t, b))
			o, err := b.Create(t.Context(), "x", backends.CreateOptions{Exclusive: true})
			require.NoError(t, err)
			data := random(2, 22*mib)
			_, err = o.Write(data[:12*mib])
			require.NoError(t, err)
			fault(wire)
			healed := time.AfterFunc(400*time.Millisecond, wire.Heal)
			defer healed.Stop()
			_, err = o.Write(data[12*mib:])
			require.NoError(t, err)
			_, err = o.Finish(t.Context())
			require.NoError(t, err)
			got, err := get(t.Context(), b, "x")
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			require.Positive(t, b.Stats().Retries)
		})
	}
}

// warm has a backend find out what it asks a store once.
func warm(t *testing.T, b backends.Backend) error {
	t.Helper()
	_, err := put(t.Context(), b, "warm", nil, backends.CreateOptions{Exclusive: true})
	return err
}

// TestBlackHole: a store that takes everything and answers nothing costs the time
// that the context, or the setting, allows.
func TestBlackHole(t *testing.T) {
	wire, b := behindWire(t, "timeout", "1s", "retry-for", "1s")
	_, err := put(t.Context(), b, "there", random(3, 1000), backends.CreateOptions{})
	require.NoError(t, err)
	s, err := b.Open(t.Context(), "there")
	require.NoError(t, err)
	wire.Fault("timeout", "upstream", map[string]any{"timeout": 0})
	wire.Fault("timeout", "downstream", map[string]any{"timeout": 0})

	calls := map[string]func(context.Context) error{
		"stat": func(ctx context.Context) error { _, err := b.Stat(ctx, "there"); return err },
		"read": func(ctx context.Context) error { return s.ReadAt(ctx, make([]byte, 1000), 0) },
		"list": func(ctx context.Context) (err error) {
			for _, err = range b.List(ctx, "") {
			}
			return err
		},
		"write": func(ctx context.Context) error {
			_, err := put(ctx, b, "new", []byte("x"), backends.CreateOptions{})
			return err
		},
		"parts": func(ctx context.Context) error {
			o, err := b.Create(ctx, "large", backends.CreateOptions{})
			require.NoError(t, err)
			stop := context.AfterFunc(ctx, func() { _ = o.Abort(ctx) })
			defer stop()
			if _, err = o.Write(random(4, 10*mib)); err == nil {
				_, err = o.Finish(ctx)
			}
			return errors.Join(err, o.Abort(ctx))
		},
		"remove": func(ctx context.Context) error { return b.Remove(ctx, "there") },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := within(t, 1300*time.Millisecond, func() error { return call(ctx) })
			if name != "parts" { // whose Abort comes first
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.Error(t, err)
			require.False(t, inflight.Retryable(err))

			err = within(t, 20*time.Second, func() error { return call(context.WithoutCancel(ctx)) })
			if name == "write" {
				require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
				return
			}
			require.ErrorIs(t, err, inflight.ErrTimeout)
			require.ErrorContains(t, err, "raise timeout=")
			require.True(t, inflight.Retryable(err))
		})
	}
}

// TestCutReads: answers that are cut off are taken up where they ended.
func TestCutReads(t *testing.T) {
	wire, b := behindWire(t)
	data := random(5, 3*mib)
	_, err := put(t.Context(), b, "x", data, backends.CreateOptions{})
	require.NoError(t, err)
	s, err := b.Open(t.Context(), "x")
	require.NoError(t, err)
	wire.Fault("limit_data", "downstream", map[string]any{"bytes": 700_000})

	got := make([]byte, len(data))
	require.NoError(t, s.ReadAt(t.Context(), got, 0))
	require.True(t, bytes.Equal(data, got))
	require.GreaterOrEqual(t, b.Stats().Resumed, int64(4))

	r, err := s.Stream(t.Context(), 1000, -1)
	require.NoError(t, err)
	var streamed bytes.Buffer
	_, err = streamed.ReadFrom(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.True(t, bytes.Equal(data[1000:], streamed.Bytes()))
	require.GreaterOrEqual(t, b.Stats().Resumed, int64(8))
}

// behindGate opens a store whose requests pass a proxy that decides about each.
func behindGate(t *testing.T, settings ...string) (*servers.Gate, *s3.Backend) {
	t.Helper()
	s := shared(t, servers.VersityGW)
	name := bucket(t, s)
	gate := servers.NewGate(t, s, nil)
	far := *s
	far.Endpoint = gate.URL
	b := open(t, urlOf(&far, name, "gate", settings...))
	require.NoError(t, warm(t, b))
	return gate, b
}

// first gives its verdict about the first n requests that match.
func first(n int32, v servers.Verdict, match func(*http.Request) bool) func(*http.Request) servers.Verdict {
	var seen atomic.Int32
	return func(r *http.Request) servers.Verdict {
		if match(r) && seen.Add(1) <= n {
			return v
		}
		return servers.Pass
	}
}

func isPut(r *http.Request) bool {
	return r.Method == http.MethodPut && !r.URL.Query().Has("partNumber")
}

func isComplete(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}

// TestLostAnswers: an answer that was lost is found out. What was created is the
// writer's own, although the store says that it exists.
func TestLostAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		size  int
		match func(*http.Request) bool
	}{"put": {1000, isPut}, "complete": {11 * mib, isComplete}} {
		for how, v := range map[string]servers.Verdict{"lost": servers.LoseAnswer, "503 although done": servers.BusyAfter, "503": servers.Busy} {
			t.Run(name+" "+how, func(t *testing.T) {
				gate, b := behindGate(t, "part-size", "5MiB")
				if c.size > 5*mib { // what it asks once
					_, err := put(t.Context(), b, "large", random(6, c.size), backends.CreateOptions{Exclusive: true})
					require.NoError(t, err)
				}
				gate.Decide(first(2, v, c.match))
				data := random(7, c.size)
				info, err := put(t.Context(), b, "x", data, backends.CreateOptions{Exclusive: true})
				require.NoError(t, err)
				require.Equal(t, int64(c.size), info.Size)
				require.Positive(t, b.Stats().Retries)
				got, err := get(t.Context(), b, "x")
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
				require.Zero(t, uploads(t, b))

				gate.Decide(first(1, v, c.match))
				_, err = put(t.Context(), b, "x", random(8, c.size), backends.CreateOptions{Exclusive: true})
				require.ErrorIs(t, err, inflight.ErrExist)
				got, err = get(t.Context(), b, "x")
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got), "the loser's bytes are there")
			})
		}
	}
}

// TestUnknownOutcome: where no answer comes at all, Finish says that it does not
// know.
func TestUnknownOutcome(t *testing.T) {
	gate, b := behindGate(t, "retry-for", "500ms")
	gate.Decide(func(r *http.Request) servers.Verdict {
		if isPut(r) {
			return servers.LoseAnswer
		}
		return servers.Busy // and neither can be looked
	})
	_, err := put(t.Context(), b, "x", []byte("x"), backends.CreateOptions{Exclusive: true})
	require.ErrorIs(t, err, inflight.ErrOutcomeUnknown)
	require.False(t, inflight.Retryable(err))
	gate.Decide(nil)
	got, err := get(t.Context(), b, "x")
	require.NoError(t, err)
	require.Equal(t, "x", string(got))

	// Where nothing was sent there is nothing to wonder about.
	gate.Decide(func(*http.Request) servers.Verdict { return servers.Busy })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o, err := b.Create(t.Context(), "y", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Finish(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, inflight.ErrOutcomeUnknown)
}

// TestKilledServer: a server that is killed and comes back in the middle of an
// upload.
func TestKilledServer(t *testing.T) {
	for _, kind := range []servers.Kind{servers.VersityGW, servers.SeaweedFS} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := own(t, servers.Config{Kind: kind})
			b := open(t, urlOf(s, bucket(t, s), "killed", "part-size", "5MiB", "retry-for", "60s"))
			require.NoError(t, warm(t, b))
			o, err := b.Create(t.Context(), "x", backends.CreateOptions{Exclusive: true})
			require.NoError(t, err)
			data := random(9, 26*mib)
			_, err = o.Write(data[:11*mib])
			require.NoError(t, err)
			s.Kill()
			restarted := make(chan error, 1)
			go func() { restarted <- s.Restart() }()
			_, err = o.Write(data[11*mib:])
			require.NoError(t, err)
			_, err = o.Finish(t.Context())
			require.NoError(t, err)
			require.NoError(t, <-restarted)
			got, err := get(t.Context(), b, "x")
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
		})
	}
}

// TestDeadServer: a server that does not come back is a typed error, soon.
func TestDeadServer(t *testing.T) {
	s := own(t, servers.Config{Kind: servers.VersityGW})
	name := bucket(t, s)
	b := open(t, urlOf(s, name, "dead", "part-size", "5MiB", "retry-for", "1s"))
	require.NoError(t, warm(t, b))
	o, err := b.Create(t.Context(), "x", backends.CreateOptions{})
	require.NoError(t, err)
	_, err = o.Write(random(10, 11*mib))
	require.NoError(t, err)
	s.Kill()
	err = within(t, 10*time.Second, func() error { _, err := o.Finish(t.Context()); return err })
	require.ErrorIs(t, err, inflight.ErrUnavailable)
	require.ErrorContains(t, err, "is the store running at "+s.Address)
	require.True(t, inflight.Retryable(err))

	// One that never answered is given up sooner.
	stranger := open(t, urlOf(s, name, "dead"))
	err = within(t, 6*time.Second, func() error { _, err := stranger.Stat(t.Context(), "x"); return err })
	require.ErrorIs(t, err, inflight.ErrUnavailable)

	require.NoError(t, s.Restart())
	require.Equal(t, 1, uploads(t, b), "the upload could not be aborted")
	require.NoError(t, b.RemoveAll(t.Context(), ""))
	require.Zero(t, uploads(t, b))
}

// TestStoppedServer: a server that is stopped takes connections and answers
// nothing. No call outlives its context by more than a second.
func TestStoppedServer(t *testing.T) {
	s := own(t, servers.Config{Kind: servers.VersityGW})
	b := open(t, urlOf(s, bucket(t, s), "stopped", "part-size", "5MiB"))
	require.NoError(t, warm(t, b))
	writer := func(name string, size int) backends.Object {
		o, err := b.Create(t.Context(), name, backends.CreateOptions{})
		require.NoError(t, err)
		_, err = o.Write(random(11, size))
		require.NoError(t, err)
		return o
	}
	small, large, aborted := writer("small", 1000), writer("large", 11*mib), writer("aborted", 11*mib)
	require.NoError(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for name, o := range map[string]backends.Object{"small": small, "large": large} {
		t.Run(name, func(t *testing.T) {
			err := within(t, 1500*time.Millisecond, func() error { _, err := o.Finish(ctx); return err })
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	require.NoError(t, within(t, time.Second, func() error { return aborted.Abort(ctx) }))
	require.NoError(t, s.Resume())
	require.Eventually(t, func() bool { return uploads(t, b) == 0 }, 20*time.Second, 100*time.Millisecond, "what was given up is aborted later")
}

// TestBusyStore: three of ten requests are refused.
func TestBusyStore(t *testing.T) {
	gate, b := behindGate(t)
	var n atomic.Int32
	gate.Decide(func(*http.Request) servers.Verdict {
		if n.Add(1)*7%10 < 3 {
			return servers.Busy
		}
		return servers.Pass
	})
	for i := range 40 {
		_, err := put(t.Context(), b, "x", random(byte(i), 2000), backends.CreateOptions{})
		require.NoError(t, err)
		got, err := get(t.Context(), b, "x")
		require.NoError(t, err)
		require.Equal(t, random(byte(i), 2000), got)
	}
	require.Positive(t, b.Stats().Retries)
	gate.Decide(func(*http.Request) servers.Verdict { return servers.Busy })
	impatient := open(t, strings.Replace(b.URL(), "?", "?retry-for=200ms&", 1))
	_, err := impatient.Stat(t.Context(), "x")
	require.ErrorIs(t, err, inflight.ErrUnavailable)
	require.True(t, inflight.Retryable(err))
}
