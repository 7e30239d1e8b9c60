//go:build !unix

package hdfs

// fileLimit returns how many files the process may open.
func fileLimit() string { return "the system's" }
