//go:build !race

package attach

const scarce = 1
