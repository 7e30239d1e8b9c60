package mem_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	for name, opt := range map[string]mem.Options{
		"tree":              {},
		"object store":      {ObjectStore: true},
		"held until finish": {HeldUntilFinish: true},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(*testing.T) backends.Backend { return mem.New(opt) }, backendtest.Options{})
		})
	}
}
