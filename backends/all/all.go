// Package all imports the drivers that come with Spillway, so that
// backends.Open knows their schemes.
package all

import (
	_ "github.com/spillway-io/spillway/backends/hdfs"  // hdfs://
	_ "github.com/spillway-io/spillway/backends/local" // file://
	_ "github.com/spillway-io/spillway/backends/mem"   // mem://
	_ "github.com/spillway-io/spillway/backends/s3"    // s3://
)
