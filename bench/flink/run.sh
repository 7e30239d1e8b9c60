#!/bin/bash
# run.sh [quick|full|fetch]   (default full; fetch: only the class path)
# Compiles and runs Flink's channel state classes (java/), the raw probe of our driver (mode=raw) and, if
# GO_IMPL_CMD is set, the implementation under test, interleaved on the same machine:
#   $GO_IMPL_CMD mode=w|lat|r|m [S=n] fs=shm|disk dir=DIR level=quick|full out=JSONL
# which must append JSON lines of the same shape with "impl":"go" (see ../README.md). It runs in the caller's directory,
# so a relative path or "go run ./bench" will do; dir and out are absolute.
# The class path comes from Maven (pom.xml) on the first run. Other environment: PEER_BUILD (where everything is
# built and written; default ./build beside this script), CP_FILE, HEAP, and SHM_DIR and DISK_DIR, which are
# removed at the end: never point them at a directory that holds anything.
set -euo pipefail
begin=$(date +%s)
level=${1:-full}
here=$(cd "$(dirname "$0")" && pwd)
from=$PWD
B=${PEER_BUILD:-$here/build}; mkdir -p "$B"; B=$(cd "$B" && pwd)
CP_FILE=$(realpath -m "${CP_FILE:-$B/cp.txt}")
[ -s "$CP_FILE" ] || ${PEER_MVN:-mvn} -q -B -ntp -Dstyle.color=never -f "$here/pom.xml" dependency:build-classpath -Dmdep.outputFile="$CP_FILE"
[ "$level" != fetch ] || exit 0
SHM_DIR=$(realpath -m "${SHM_DIR:-/dev/shm/flinkbench}")
DISK_DIR=$(realpath -m "${DISK_DIR:-$B/data}")
HEAP=${HEAP:-1g}
cd "$B"
cp=$(cat "$CP_FILE")
run="runs/$(date +%Y%m%d-%H%M%S)-$level"
mkdir -p classes "$run" "$SHM_DIR" "$DISK_DIR"
raw="$B/$run/raw.jsonl"
trap 'rm -rf "$SHM_DIR" "$DISK_DIR"' EXIT
if [ -n "$(find "$here/java" -name '*.java' -newer classes/.stamp 2>/dev/null)" ] || [ ! -e classes/.stamp ]; then
    javac -nowarn -d classes -cp "$cp" $(find "$here/java" -name '*.java')
    touch classes/.stamp
fi
(cd "$here/.." && go build -o "$B/driver" .)
[ "$(java -cp classes bench.Payload)" = "$(./driver check)" ] || { echo "payload generators differ"; exit 1; }
jvm() {
    java -Xms$HEAP -Xmx$HEAP -XX:+UseG1GC -XX:MaxDirectMemorySize=3g \
        -Dlog4j2.configurationFile="file:$here/log4j2.properties" \
        -cp "classes:$cp" bench.FlinkBench "$@" level="$level" out="$raw" >>"$run/log.txt"
    if [ -n "${GO_IMPL_CMD:-}" ]; then
        (cd "$from" && $GO_IMPL_CMD "$@" level="$level" out="$raw") >>"$run/log.txt"
    fi
}
echo "{\"kind\":\"ENV\",\"level\":\"$level\",\"date\":\"$(date -Is)\",\"nproc\":$(nproc),\"cpu\":\"$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs)\",\"kernel\":\"$(uname -r)\",\"java\":\"$(java -version 2>&1 | sed -n 's/.*version "\(.*\)".*/\1/p')\",\"go\":\"$(go env GOVERSION)\",\"flink\":\"$(grep -o 'flink-runtime-[0-9.]*[0-9]' "$CP_FILE" | head -1)\",\"disk_fs\":\"$(findmnt -no FSTYPE,OPTIONS -T "$DISK_DIR" | xargs)\",\"load_start\":\"$(cut -d' ' -f1-3 /proc/loadavg)\"}" >>"$raw"
for fs in shm disk; do
    dir=$SHM_DIR; [ $fs = disk ] && dir=$DISK_DIR
    jvm mode=w S=1 fs=$fs dir="$dir"
    jvm mode=w S=8 fs=$fs dir="$dir"
    if [ "$level" = full ] || [ $fs = disk ]; then jvm mode=w S=64 fs=$fs dir="$dir"; fi
    jvm mode=lat fs=$fs dir="$dir"
    if [ "$level" = full ] || [ $fs = shm ]; then jvm mode=r fs=$fs dir="$dir"; fi
    if [ "$level" = full ] || [ $fs = disk ]; then jvm mode=m fs=$fs dir="$dir"; fi
    ./driver mode=raw fs=$fs dir="$dir" level="$level" out="$raw" >>"$run/log.txt"
done
echo "{\"kind\":\"ENV\",\"load_end\":\"$(cut -d' ' -f1-3 /proc/loadavg)\"}" >>"$raw"
python3 "$here/report.py" "$raw" --json results.json --md results.md
cp results.json results.md "$run/"
echo "$run: $(wc -l <"$raw") lines, $(($(date +%s) - begin)) s; results.json, results.md"
