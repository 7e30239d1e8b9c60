//go:build !race

package flink

const raceEnabled = false
