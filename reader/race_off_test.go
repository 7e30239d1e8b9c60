//go:build !race

package reader

// damageStep is from one damaged byte to the next.
const damageStep = 1
