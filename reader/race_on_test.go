//go:build race

package reader

// damageStep leaves out bytes where every test takes ten times as long.
const damageStep = 7
