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

tmp=()
trap 'rm -rf "${tmp[@]}"' EXIT
fresh() { local d; d=$(mktemp -d "$1/bench.XXXXXX"); tmp+=("$d"); dir=$d; }

missing=
for tool in mvn javac java python3; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
[ "${FLINK:-1}" = 1 ] || missing=" (FLINK=0)"
export PEER_BUILD=$B/flink
if [ -z "$missing" ] && ! "$here/flink/run.sh" fetch; then missing=" Flink's jars"; fi

if [ -z "$missing" ]; then
    GO_IMPL_CMD="$B/driver" "$here/flink/run.sh" "$level"
    raw=$(ls -d "$PEER_BUILD"/runs/*-"$level" | tail -n 1)/raw.jsonl
else
    echo "without Flink's columns: not found:$missing"
    raw=$B/$(date +%Y%m%d-%H%M%S)-$level.jsonl
    run() { "$B/driver" "$@" level="$level" out="$raw"; }
    for fs in shm disk; do
        if [ $fs = shm ]; then fresh /dev/shm; else fresh "$B"; fi
        for s in 1 8 64; do run mode=w S=$s fs=$fs dir="$dir"; done
        for mode in lat r m raw; do run mode=$mode fs=$fs dir="$dir"; done
    done
fi
fresh "$B"
"$B/driver" mode=mem fs=disk dir="$dir" level="$level" out="$raw"
"$B/driver" report "$raw"
echo "records: $raw"
