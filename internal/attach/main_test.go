package attach

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // the simulations make much garbage and hold little
	goleak.VerifyTestMain(m)
}
