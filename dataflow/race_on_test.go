//go:build race

package dataflow

// scarce divides how many seeds run: the race detector takes ten times as long,
// and a seeded run has one goroutine anyway.
const scarce = 10
