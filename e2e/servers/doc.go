// Package servers starts the real S3 servers that the tests use, on free ports of
// 127.0.0.1, and stops, pauses, kills and restarts them. It needs Linux.
package servers
