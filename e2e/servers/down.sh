#!/usr/bin/env bash
# Stops the S3 servers that up.sh started, and removes what they kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec go run ./servers/run down
