//go:build race

package attach

// scarce divides the numbers of what takes long.
const scarce = 20
