#!/usr/bin/env bash
# run.sh [quick|full]   (default quick: about three minutes; full: about a quarter of an hour)
# Builds the driver and runs every workload on tmpfs and on disk, and Flink's own classes beside it where Maven, a JDK
# and Python are present (FLINK=0 leaves Flink out). Prints the tables of "bench report".
# Everything is built and written below build/bench (BENCH_BUILD). The disk is the one that holds it.
set -euo pipefail
level=${1:-quick}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
B=${BENCH_BUILD:-$root/build/bench}
mkdir -p "$B"
B=$(cd "$B" && pwd)
(cd "$root" && go build -o "$B/driver" ./bench)

missing=
for tool in mvn javac java python3; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
[ "${FLINK:-1}" = 1 ] || missing=" (FLINK=0)"
raw=
if [ -z "$missing" ]; then
    if GO_IMPL_CMD="$B/driver" PEER_BUILD="$B/flink" "$here/flink/run.sh" "$level"; then
        raw=$(ls -d "$B"/flink/runs/*-"$level" | tail -n 1)/raw.jsonl
    else
        echo "bench: flink/run.sh failed (see above, and the log in $B/flink/runs)" >&2
        exit 1
    fi
else
    echo "without Flink's columns: not found:$missing"
    raw=$B/$(date +%Y%m%d-%H%M%S)-$level.jsonl
    shm=$(mktemp -d /dev/shm/bench.XXXXXX)
    disk=$(mktemp -d "$B/data.XXXXXX")
    trap 'rm -rf "$shm" "$disk"' EXIT
    run() { "$B/driver" "$@" level="$level" out="$raw"; }
    for fs in shm disk; do
        dir=${!fs}
        for s in 1 8 64; do run mode=w S=$s fs=$fs dir="$dir"; done
        for mode in lat r m raw; do run mode=$mode fs=$fs dir="$dir"; done
    done
fi
disk=$(mktemp -d "$B/mem.XXXXXX")
trap 'rm -rf "${shm:-}" "$disk"' EXIT
"$B/driver" mode=mem fs=disk dir="$disk" level="$level" out="$raw"
"$B/driver" report "$raw"
echo "records: $raw"
