package wrap_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/mem"
	"github.com/spillway-io/spillway/backends/wrap"
	"github.com/spillway-io/spillway/inflight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	for name, around := range map[string]func(backends.Backend) backends.Backend{
		"observe":  func(b backends.Backend) backends.Backend { return wrap.Observe(b, inflight.Discard) },
		"retry":    func(b backends.Backend) backends.Backend { return wrap.Retry(b, wrap.RetryOptions{}) },
		"throttle": func(b backends.Backend) backends.Backend { return wrap.Throttle(b, wrap.Limits{RequestsPerSecond: 1e6, BytesPerSecond: 1e12}) },
		"faults":   func(b backends.Backend) backends.Backend { return wrap.NewFaults(b) },
	} {
		for flavour, opt := range map[string]mem.Options{"tree": {}, "object store": {ObjectStore: true, HeldUntilFinish: true}} {
			t.Run(name+"/"+flavour, func(t *testing.T) {
				backendtest.Run(t, func(*testing.T) backends.Backend { return around(mem.New(opt)) }, backendtest.Options{})
			})
		}
	}
}
