#!/usr/bin/env bash
# The whole story in under two minutes: a pipeline under backpressure; checkpoints that wait, overtake, and switch; kill -9 and
# restore; every word counted exactly once; and what lies in the files.
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
exec 3>&1 # so that the command is shown where only a part of its output is
show() {
  printf '%s$ %s%s\n' "$dim" "$*" "$plain" >&3
  (cd "$dir" && PATH="$dir:$PATH" "$@" 2>>log)
}
# checkpoint N: the table of checkpoint N out of what a run prints
checkpoint() { awk -v n="$1" '/^checkpoint /{ on = $2 == n } /^(summary|result)/{ on = 0 } on'; }

go build -o "$dir/ckpt-run" ./cmd/ckpt-run
go build -o "$dir/ckpt-inspect" ./cmd/ckpt-inspect

title 'A pipeline under backpressure'
say 'source ×2 ──hash──▶ count ×2 ──▶ sink: a record takes 5 ms at the count, so all queues are full. What does a checkpoint do?' ''

say 'Aligned: its barrier waits behind all that is queued. That takes seconds; nothing is captured.'
show ckpt-run slow --interval 2s --duration 4s | checkpoint 1
say '' 'Unaligned: the barrier overtakes, and what it overtakes is captured. That takes milliseconds.'
show ckpt-run slow unaligned --interval 2s --duration 5s | checkpoint 2
say '' 'Mixed: it waits for a second, and then overtakes: only what is still queued is captured.'
show ckpt-run slow mixed --interval 2s --duration 4s | checkpoint 1

title 'kill -9, in the middle of real text'
cat "$(go env GOROOT)"/src/net/http/*.go >"$dir/all"
head -c 200000 "$dir/all" | tr -s '[:space:]' '\n' | grep -a . >"$dir/words"
say "words are the $(($(wc -l <"$dir/words"))) words of a part of Go's net/http, one a line." ''
printf '%s$ ckpt-run unaligned --store store --input words --output counts --sleep 1ms --interval 300ms%s\n' "$dim" "$plain"
(cd "$dir" && exec ./ckpt-run unaligned --store store --input words --output counts --sleep 1ms --interval 300ms) >"$dir/run" 2>>"$dir/log" &
pid=$!
until grep -q '^checkpoint 8 ' "$dir/run"; do
  kill -0 "$pid" 2>/dev/null || { cat "$dir/run" "$dir/log"; exit 1; }
  sleep 0.1
done
{ kill -9 "$pid"; wait "$pid"; } 2>/dev/null || true
pid=
grep '^checkpoint' "$dir/run" | tail -n 3
say 'Killed.'
cp -r "$dir/store" "$dir/killed" # a checkpoint can be copied by any tool

title 'Restore'
show ckpt-run unaligned --store store --input words --output counts --restore latest | grep -E '^(restored|result)'

title 'Is the result right?'
say "${dim}\$ sort words | uniq -c${plain}"
sort "$dir/words" | uniq -c | awk '{ n = $1; sub(/^ *[0-9]+ /, ""); print $0 "\t" n }' >"$dir/expected"
# Of each key the last line counts, in the order of the files' names.
cat "$dir"/counts/part-*.tsv | awk -F'\t' '{ last[$1] = $2 } END { for (k in last) print k "\t" last[k] }' | sort >"$dir/counted"
if ! sort "$dir/expected" | cmp - "$dir/counted"; then
  say 'The counts differ.'
  exit 1
fi
say "${green}All $(($(wc -l <"$dir/expected"))) counts are equal: no word was lost or counted twice.$plain"

title 'What was in flight when the process died?'
show ckpt-inspect ls killed
say ''
show ckpt-inspect show --top 4 killed

title 'Is every byte there?'
show ckpt-inspect verify killed | sed -n '1,3p'
say '' 'Next: ckpt-run --help, ckpt-run slow mixed for the whole experiment, ckpt-inspect help.'
