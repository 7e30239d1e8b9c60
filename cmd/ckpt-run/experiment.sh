#!/usr/bin/env bash
# The experiment: aligned, unaligned and mixed checkpoints under backpressure, with 10 and 100 keys, in alternating runs.
# Prints a table in Markdown: of each figure the median over the rounds. "async" is barrier taken → durable.
# Then how long it takes to restore a checkpoint of each, after kill -9.
#   experiment.sh [ROUNDS] [SECONDS]      3 rounds of 30 s take 20 minutes; a quiet machine is needed
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
rounds=${1:-3} seconds=${2:-30}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/ckpt-run" ./cmd/ckpt-run

# run NAME ARGUMENTS…: adds a line of figures to $dir/NAME
run() {
  local name=$1
  shift
  "$dir/ckpt-run" slow "$@" --store "$dir/store" --json >"$dir/lines" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
  rm -rf "$dir/store"
  awk '
    function number(field, line) { match(line, "\"" field "\":[0-9.]+"); split(substr(line, RSTART, RLENGTH), part, ":"); return part[2] + 0 }
    function quantile(q, a, n,   i) { i = int(q * n); if (i < q * n) i++; return a[i < 1 ? 1 : i] }
    function sort(a, n,   i, j, v) { for (i = 2; i <= n; i++) { v = a[i]; for (j = i - 1; j > 0 && a[j] > v; j--) a[j + 1] = a[j]; a[j + 1] = v } }
    /"event":"checkpoint".*"state":"completed"/ { all[++lines] = $0 }
    /"event":"summary"/ { measured = number("measured", $0); record = number("record_ms", $0) }
    END {
      for (k = 2; k <= measured + 1; k++) { # the first is left out, and those after the end of the data
        n++; d[n] = number("duration_ms", all[k]); s[n] = number("size_bytes", all[k]); total += number("channel_state_bytes", all[k])
        m = split(all[k], subtasks, "\"vertex\":")
        for (i = 2; i <= m; i++) {
          if (subtasks[i] ~ /^"source"/) source += number("persisted_bytes", subtasks[i])
          a[++na] = number("async_ms", subtasks[i])
        }
      }
      sort(d, n); sort(s, n); sort(a, na)
      printf "%d %.1f %.1f %.1f %.1f %.0f %.0f %.0f %.1f %.1f %.2f\n", n, quantile(.5, d, n), quantile(.9, d, n), d[1], d[n],
        s[1] / 1000, s[n] / 1000, total ? 100 * source / total : 0, quantile(.5, a, na), quantile(.9, a, na), record
    }' "$dir/lines" >>"$dir/$name"
}

# restored MODE: adds what restoring a checkpoint of that mode took to "$dir/restored MODE"
restored() {
  "$dir/ckpt-run" slow "$1" --store "$dir/store" --json >"$dir/lines" 2>"$dir/log" &
  local victim=$!
  until (($(grep -c '"state":"completed"' "$dir/lines") >= 2)); do
    kill -0 "$victim" || { cat "$dir/log" >&2; exit 1; }
    sleep 0.1
  done
  kill -9 "$victim"
  wait "$victim" 2>"$dir/log" || true
  "$dir/ckpt-run" slow "$1" --store "$dir/store" --restore latest --duration 1s --json >"$dir/lines" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
  rm -rf "$dir/store"
  sed -n 's/.*"event":"restore".*"buffers":\([0-9]*\),"bytes":\([0-9]*\),"duration_ms":\([0-9.]*\).*/\3 \1 \2/p' "$dir/lines" >>"$dir/restored $1"
}

for ((round = 1; round <= rounds; round++)); do
  for mode in aligned unaligned mixed; do restored "$mode"; done
  for keys in 10 100; do
    for mode in aligned unaligned mixed; do
      run "$mode, $keys keys" "$mode" --keys "$keys" --duration "${seconds}s"
    done
  done
  run 'unaligned, every 220 ms' unaligned --interval 220ms --duration "${seconds}s"
  run 'the same, seal-linger 2 ms' unaligned --interval 220ms --set unaligned.seal-linger=2ms --duration "${seconds}s"
  run 'aligned, credit' aligned --network credit --interval 6s --duration "${seconds}s"
  run 'unaligned, credit' unaligned --network credit --duration "${seconds}s"
done

# median NAME COLUMN of "$dir/NAME"
median() { cut -d' ' -f"$2" "$dir/$1" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

echo '| 5 ms a record | checkpoints | p50 ms | p90 ms | min – max ms | size KB | at the sources % | async p50, p90 ms | record ms |'
echo '|---|---|---|---|---|---|---|---|---|'
for name in {aligned,unaligned,mixed}', 10 keys' {aligned,unaligned,mixed}', 100 keys' 'unaligned, every 220 ms' 'the same, seal-linger 2 ms' {aligned,unaligned}', credit'; do
  row=()
  for column in {1..11}; do row+=("$(median "$name" "$column")"); done
  echo "| $name | ${row[0]} | ${row[1]} | ${row[2]} | ${row[3]} – ${row[4]} | ${row[5]} – ${row[6]} | ${row[7]} | ${row[8]}, ${row[9]} | ${row[10]} |"
done

echo
echo '| restored after kill -9 | ms | buffers | bytes |'
echo '|---|---|---|---|'
for mode in aligned unaligned mixed; do
  echo "| $mode | $(median "restored $mode" 1) | $(median "restored $mode" 2) | $(median "restored $mode" 3) |"
done
