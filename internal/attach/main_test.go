package attach

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(-1) // the simulations make much garbage and hold little
	debug.SetMemoryLimit(400 << 20)
	goleak.VerifyTestMain(m)
}
