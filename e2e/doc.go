// Package e2e holds the tests against real systems, in a module of their own: what
// they need is nothing that a user of the library should have to fetch.
//
//	flink/ java/         real Apache Flink restores what package flink wrote
//	hdfs/ hdfs-server/   backends/hdfs and the programs on real HDFS, with Kerberos
//	servers/ s3/         backends/s3 and the programs on real S3 servers, with faults in between
package e2e
