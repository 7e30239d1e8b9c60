#!/usr/bin/env bash
# Starts the S3 servers for work by hand; the arguments choose some. down.sh stops them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec go run ./servers/run up "$@"
