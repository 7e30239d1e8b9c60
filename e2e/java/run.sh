#!/usr/bin/env bash
# run.sh build|VERB ARG...   compiles what has changed, then runs a verb of src/main/java/spillway/e2e/Main.java
#   serve                          answers requests, a line of JSON each: see Serve.java
#   throughput SOURCE BODY WARM S  measures records of BODY bytes for S seconds of CPU time, after WARM; SOURCE is datagen or legacy
# E2E_LOG names the log file (default: build/log/PID.log).
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
build=$here/build
command -v javac >/dev/null || { echo "run.sh: no javac; install a JDK of version 17 or later (Debian: apt-get install openjdk-17-jdk-headless)" >&2; exit 127; }
mkdir -p "$build/log"
(
    flock 9
    if [ ! -f "$build/stamp" ] || [ -n "$(find "$here/src" "$here/pom.xml" -newer "$build/stamp")" ]; then
        now=$build/stamp.$$
        touch "$now"
        "$here/mvnw" compile >&2
        mv "$now" "$build/stamp"
    fi
) 9>"$build/lock"
[ "${1:-}" != build ] || exit 0
jvm=(-Xmx4g "-De2e.log=${E2E_LOG:-$build/log/$$.log}")
for p in java.util java.lang java.time java.nio sun.nio.ch; do jvm+=("--add-opens=java.base/$p=ALL-UNNAMED"); done
exec java "${jvm[@]}" ${E2E_JVM:-} -cp "$build/classes:$(<"$build/classpath")" spillway.e2e.Main "$@"
