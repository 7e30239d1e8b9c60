#!/usr/bin/env bash
# Runs examples/lines on real text, kills it with -9, restores it, compares the result, and looks into its files.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

dir=$(mktemp -d)
pid=
cleanup() {
  [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT

bold='' dim='' green='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' plain=$'\e[0m'; fi
title() { printf '\n%s== %s%s\n' "$bold" "$1" "$plain"; }
say() { printf '%s\n' "$@"; }
command_line() { printf '%s$ %s%s\n' "$dim" "$1" "$plain"; }
inspect() {
  command_line "ckpt-inspect $*"
  (cd "$dir" && ./ckpt-inspect "$@")
}
# number KEY of the edge FROM in the checkpoint
number() { sed -n "s/.*\"type\":\"edge\",\"from\":\"$2\".*\"$1\":\([0-9]*\).*/\1/p" "$dir/show.json"; }

title 'A pipeline of goroutines, on real text'
go build -o "$dir/lines" ./examples/lines
go build -o "$dir/ckpt-inspect" ./cmd/ckpt-inspect
cat "$(go env GOROOT)"/src/net/http/*.go >"$dir/all"
head -c 250000 "$dir/all" >"$dir/text"
words=$(wc -w <"$dir/text") lines=$(wc -l <"$dir/text")
say "text is the source of Go's net/http: $((words)) words in $((lines)) lines." \
  'read ──▶ split ×2 ──▶ count ×2 ──▶ output. To count a word takes 1 ms, so all queues are full.' \
  'Every 200 ms a checkpoint barrier overtakes what is queued, and what it overtook is captured.' ''
command_line 'lines --store store --input text --output counts --sleep 1ms'
(cd "$dir" && exec ./lines --store store --input text --output counts --sleep 1ms) 2>"$dir/log" &
pid=$!
until grep -q 'checkpoint 15:' "$dir/log"; do
  kill -0 "$pid" 2>/dev/null || { cat "$dir/log"; exit 1; }
  sleep 0.1
done
head -n 4 "$dir/log"
say '...'

title 'kill -9'
kill -9 "$pid"
{ wait "$pid"; } 2>/dev/null || true
pid=
tail -n 1 "$dir/log"
cp -r "$dir/store" "$dir/killed" # a checkpoint can be copied by any tool
(cd "$dir" && ./ckpt-inspect show --json killed) >"$dir/show.json"
queued=$(($(number records read) * words / lines + $(number records split)))
say "About $queued words were in flight. An aligned barrier, at the end of the queues, would have waited for two" \
  "tasks to count them: some $(awk "BEGIN { printf \"%.0f\", $queued / 2 / 1000 * 1.1 }") seconds. This one took milliseconds."

title 'Restore'
command_line 'lines --store store --input text --output counts --restore latest'
(cd "$dir" && exec ./lines --store store --input text --output counts --restore latest) 2>"$dir/log" &
pid=$!
{ wait "$pid"; } || { tail -n 3 "$dir/log"; exit 1; }
pid=
head -n 3 "$dir/log"
say '...'
tail -n 1 "$dir/log"

title 'Is the result right?'
command_line "tr -s '[:space:]' '\\n' <text | grep . | sort | uniq -c"
tr -s '[:space:]' '\n' <"$dir/text" | grep -a . | sort | uniq -c |
  awk '{ n = $1; sub(/^ *[0-9]+ /, ""); print $0 "\t" n }' >"$dir/expected"
if ! cmp "$dir/expected" "$dir/counts"; then
  say 'The counts differ.'
  exit 1
fi
say "${green}All $(($(wc -l <"$dir/counts"))) counts are equal: no word was lost or counted twice.$plain"

title 'What was in flight when the process died?'
inspect ls killed
say ''
inspect show --top 4 killed

title 'Is every byte there?'
inspect verify killed | sed -n '1,3p'

title 'Words that waited to be counted'
inspect dump --vertex count --subtask 0 --side input --channel 0 --records killed >"$dir/dump"
head -n 8 "$dir/dump"
say "... $(($(grep -c 'record of' "$dir/dump") - 3)) more" ''
say "Next: the program is examples/lines, the inspector's other verbs are in ckpt-inspect help."
