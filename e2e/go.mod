module github.com/spillway-io/spillway/e2e

go 1.26.0

toolchain go1.26.10

replace github.com/spillway-io/spillway => ../

require (
	github.com/spillway-io/spillway v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/minio/crc64nvme v1.1.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
