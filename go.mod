module github.com/spillway-io/spillway

go 1.26
