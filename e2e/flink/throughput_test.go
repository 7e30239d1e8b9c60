package flink_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rate is what a pipeline does, and what it costs.
type rate struct {
	cpuNS   float64 // of the whole process, for a record
	records float64 // a second
}

// TestThroughput measures the reference runtime and real Flink in turns: sources
// ×2 → hash → keyed count ×2 → sink, without checkpoints. The short form shows that
// both run; its windows are too short to compare anything.
func TestThroughput(t *testing.T) {
	rounds, warm, seconds, bodies, sources := 1, 1, 1, []int{100}, []string{"datagen"}
	if full() {
		rounds, warm, seconds, bodies, sources = 3, 14, 10, []int{100, 1000}, []string{"datagen", "legacy"}
	}
	requireJava(t)
	ours := filepath.Join(t.TempDir(), "dataflow.test")
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../..", "test", "-c", "-o", ours, "./dataflow").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, body := range bodies {
		t.Run(fmt.Sprintf("%dB", body), func(t *testing.T) {
			all := append([]string{"spillway"}, sources...)
			cpu, records := map[string][]float64{}, map[string][]float64{}
			for range rounds {
				for _, who := range all {
					var r rate
					if who == "spillway" {
						r = spillway(t, ours, body, seconds)
					} else {
						r = flinkRate(t, who, body, warm, seconds)
					}
					require.Positive(t, r.cpuNS)
					require.Positive(t, r.records)
					cpu[who], records[who] = append(cpu[who], r.cpuNS), append(records[who], r.records)
				}
			}
			if !full() {
				return
			}
			for _, who := range all {
				say(t, "throughput, %4d bytes, %-8s  CPU %6.1f ns a record %v, %5.2f M records/s %v", body, who, median(cpu[who]), rounded(cpu[who], 1), median(records[who])/1e6, rounded(records[who], 1e6))
			}
			for _, source := range sources {
				c, r := median(cpu["spillway"])/median(cpu[source]), median(records["spillway"])/median(records[source])
				say(t, "throughput, %4d bytes, against %s: %.2f of the CPU, %.2f times the records/s", body, source, c, r)
				if source == "datagen" {
					require.LessOrEqual(t, c, 0.6)
					require.GreaterOrEqual(t, r, 1.5)
				} else {
					require.LessOrEqual(t, c, 1.0)
					require.GreaterOrEqual(t, r, 1.0)
				}
			}
		})
	}
}

// rounded makes a list of rounds readable.
func rounded(list []float64, unit float64) (s []string) {
	for _, v := range list {
		s = append(s, fmt.Sprintf("%.1f", v/unit))
	}
	return s
}

// flinkRate measures Flink in a JVM of its own; the times are of CPU, on two cores.
func flinkRate(t testing.TB, source string, body, warm, seconds int) rate {
	cmd := exec.CommandContext(t.Context(), filepath.Join(javaDir, "run.sh"), "throughput", source, strconv.Itoa(body), strconv.Itoa(warm), strconv.Itoa(seconds))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &errs)
	var m struct {
		Records float64
		Wall    float64 `json:"wall_ns"`
		CPU     float64 `json:"cpu_ns"`
	}
	require.NoError(t, json.Unmarshal(out, &m), "%s", out)
	return rate{m.CPU / m.Records, m.Records / m.Wall * 1e9}
}

// spillway runs the benchmark of the reference runtime.
func spillway(t testing.TB, binary string, body, seconds int) rate {
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^$", fmt.Sprintf("-test.bench=^BenchmarkThroughput$/^%dB$/^local$", body), fmt.Sprintf("-test.benchtime=%ds", (seconds+1)/2))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	value := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[0], "Benchmark") {
			for i := 2; i+1 < len(f); i += 2 {
				value[f[i+1]], err = strconv.ParseFloat(f[i], 64)
				require.NoError(t, err)
			}
		}
	}
	require.Contains(t, value, "cpu-ns/op", "%s", out)
	return rate{value["cpu-ns/op"], 1e9 / value["ns/op"]}
}
