//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkFallback has 100 MiB in flight and a bound of 1 MiB: each checkpoint that
// would overtake is declined, and the next one waits for all of it. It is
// compared with a run without checkpoints: the time that a record takes, and
// the highest memory. Run it with -benchtime 1x; it takes a minute.
func BenchmarkFallback(b *testing.B) {
	exe, err := os.Executable()
	require.NoError(b, err)
	trial := func(args string) (s story, peak float64) {
		cmd := exec.CommandContext(b.Context(), exe, strings.Fields(args+" --sleep 1ms --records 26000 --record-bytes 8000 --json --set network.memory=256MiB"+
			" --set network.output-buffers=1600 --set network.buffers-per-channel=1600 --store "+b.TempDir())...)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		require.NoError(b, cmd.Run())
		s = told(b, stdout.Bytes())
		s.exact(b)
		return s, float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
	}
	for b.Loop() {
		without, before := trial("aligned --interval 0")
		with, peak := trial("unaligned --interval 3s --set unaligned.max-buffered-data=1MiB")
		for i, l := range with.checkpoints {
			if l.Reason == "over-budget" {
				require.Equal(b, "completed aligned", with.checkpoints[i+1].State+" "+with.checkpoints[i+1].Alignment)
			}
		}
		require.NotZero(b, with.summary.Declined)
		require.Less(b, peak-before, 65.0)
		b.ReportMetric(peak-before, "growth-MiB")
		b.ReportMetric(100*(with.summary.RecordMs/without.summary.RecordMs-1), "slower-%")
	}
}
