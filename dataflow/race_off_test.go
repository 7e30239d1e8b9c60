//go:build !race

package dataflow

const scarce = 1
