package payload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheck compares with the sums that Flink's generator (bench/flink) prints.
func TestCheck(t *testing.T) {
	require.Len(t, words, 64)
	require.Equal(t, `random sub=0 dir=0 ch=0 n=262144 79261e338c3e59f3943caa093e3e3a44d35fe51d25e44da1aaa83d9a4f67aa29
random sub=63 dir=1 ch=7 n=25600 4a235de0c17a5766bf044a98586be9d39215d971a67b81f552138bdcd9533351
random sub=5 dir=1 ch=3 n=262144 ff9f584d324dca687490decf2459dbef0461830a3f844d672325bb90a8f2d35a
json sub=0 dir=0 ch=0 n=262144 75dbd20f9cc03abe38c1050609ffddb1113cbe45c6c9a880f5157cd237f3494a
json sub=63 dir=1 ch=7 n=25600 26c004052c37aca45c8bb4ba74f0f2488e38f2e28bd07c29c7ebcaa24fee774d
json sub=5 dir=1 ch=3 n=262144 cfaf9c019277d0962e32c4611c0440c21730e1382ba6e8f311258faa5608fa91
`, Check())
}

// TestFillPrefix: a shorter channel is the beginning of a longer one.
func TestFillPrefix(t *testing.T) {
	for _, kind := range []Kind{Random, JSON} {
		long := Channel(kind, 3, Output, 2, 5000)
		for _, n := range []int{0, 1, 7, 8, 9, 200, 4999} {
			require.Equal(t, long[:n], Channel(kind, 3, Output, 2, n))
		}
	}
}
