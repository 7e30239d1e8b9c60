package flink

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocs holds docs/flink.md against the code: every code of a finding, and
// every kind of byte whose change cannot be detected.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/flink.md")
	require.NoError(t, err)
	doc := string(b)
	for k := range undetectable {
		require.Contains(t, doc, k)
	}
	src, err := os.ReadFile("codes.go")
	require.NoError(t, err)
	for line := range strings.Lines(string(src)) {
		if _, rest, ok := strings.Cut(line, `= "`); ok {
			code, _, _ := strings.Cut(rest, `"`)
			require.Contains(t, doc, code)
		}
	}
}
