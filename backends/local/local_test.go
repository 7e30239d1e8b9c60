package local_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/backends/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backends.Backend { return local.New(t.TempDir()) }, backendtest.Options{})
}
