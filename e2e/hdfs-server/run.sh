#!/usr/bin/env bash
# run.sh build | DIR [-Dproperty=value ...]   compiles what has changed, then runs src/main/java/spillway/e2e/hdfs/Main.java
# with everything in DIR, until its standard input ends. What it says goes to DIR/log.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
build=$here/build
command -v javac >/dev/null || { echo "run.sh: no javac; install a JDK of version 17 or later (Debian: apt-get install openjdk-17-jdk-headless)" >&2; exit 127; }
mkdir -p "$build"
(
    flock 9
    if [ ! -f "$build/stamp" ] || [ -n "$(find "$here/src" "$here/pom.xml" -newer "$build/stamp")" ]; then
        now=$build/stamp.$$
        touch "$now"
        "$here/mvnw" compile >&2
        # Jetty unpacks the jar with the web pages at each start, and it has 54 MB: they get a jar of their own, which comes first.
        big=$(tr : '\n' <"$build/classpath" | grep hadoop-client-minicluster)
        (cd "$build" && jar xf "$big" webapps && jar cf webapps.jar webapps && rm -r webapps)
        mv "$now" "$build/stamp"
    fi
) 9>"$build/lock"
[ "$1" != build ] || exit 0
dir=$1
shift
mkdir -p "$dir/tmp"
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Djava.io.tmpdir=$dir/tmp" "-Ddir=$dir" "$@" \
    -cp "$build/webapps.jar:$build/classes:$(<"$build/classpath"):$dir" spillway.e2e.hdfs.Main >"$dir/log" 2>&1
