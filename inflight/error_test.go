package inflight_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spillway-io/spillway/inflight"
)

// TestErrorNamesPathOnce has errors of the system, which name their path.
func TestErrorNamesPathOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := os.Open(path)
	require.EqualError(t, &inflight.Error{Op: "look into", Object: path, Err: err, Mend: "make it"}, "look into "+path+": no such file or directory (make it)")
	require.EqualError(t, &inflight.Error{Op: "start", Object: "job", Err: err}, "start job: "+err.Error())
	require.ErrorIs(t, &inflight.Error{Op: "open", Object: path, Err: err}, inflight.ErrNotExist)
}
