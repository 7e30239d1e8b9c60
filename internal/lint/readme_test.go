package lint

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeExample keeps the README's ten lines equal to the example that the
// tests run, but for comments.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("../../example_test.go")
	require.NoError(t, err)
	_, block, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok)
	block, _, _ = strings.Cut(block, "```")
	have := map[string]bool{}
	for line := range strings.Lines(string(example)) {
		have[bare(line)] = true
	}
	for line := range strings.Lines(block) {
		require.True(t, have[bare(line)], "README: %s", line)
	}
}

func bare(line string) string {
	line, _, _ = strings.Cut(line, " // ")
	return strings.TrimSpace(line)
}
