package s3_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/backends"
	"github.com/spillway-io/spillway/backends/backendtest"
	"github.com/spillway-io/spillway/e2e/servers"
)

// TestSuite runs the acceptance suite on real servers.
func TestSuite(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		name := bucket(t, s)
		backendtest.Run(t, func(t *testing.T) backends.Backend {
			b, err := backends.Open(t.Context(), urlOf(s, name, "suite"))
			require.NoError(t, err)
			return b
		}, backendtest.Options{})
	})
}
