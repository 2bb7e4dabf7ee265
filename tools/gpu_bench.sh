#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tools/gpu_bench.sh [--build DIR] [--ranks R] [--group threads|nccl] [--no-tests]
       tools/gpu_bench.sh --pack DIR [--build DIR]

On a machine with GPUs: runs every GPU test, then the benchmarks of stages, experts, dispatch, combine
and Qwen3-30B-A3B's layer, and prints the tables of dispatch and combine of
docs/performance/dispatch.md (docs/performance.md has the commands of DeepSeek-V3's layers). Fails if
a test did, or if a result that was to be timed is wrong.
Without --build it first builds what it needs (preset release).

  --build DIR   take the programs of this build folder, or of a folder made by --pack
  --ranks R     ranks of dispatch and combine (default: as many as there are GPUs)
  --group NAME  what their windows are made of (default threads)
  --no-tests    benchmarks only; they check what they time themselves
  --pack DIR    run nothing: copy everything to DIR, so that it runs where nothing can be installed:
                DIR/gpu_bench.sh

Environment: OUT  folder for logs and JSON lines (default: gpu_bench.log in the build folder);
                  those of gpu_tests.sh too
HELP
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/gpu_common.sh"
build=""
pack=""
tests=1
dispatch=()
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) build="$2"; shift 2 ;;
    --pack) pack="$2"; shift 2 ;;
    --no-tests) tests=0; shift ;;
    --ranks | --group) dispatch+=("$1" "$2"); shift 2 ;;
    *) usage >&2; exit 2 ;;
  esac
done

if [[ -z "$build" && -x "$here/bin/moebius" ]]; then
  build="$here"  # this script lies in a packed folder
fi
if [[ -z "$build" ]]; then
  cd "$here/.."
  source tools/common.sh
  configure release
  build release --target moebius_gpu_tests moebius_gpu_benches moebius_app
  build="build/release"
fi
build="$(cd "$build" && pwd)"
shopt -s nullglob
programs=("$build"/bench/gpu_*)  # which check, time and print by themselves

if [[ -n "$pack" ]]; then
  "$here/gpu_tests.sh" --pack "$pack" --build "$build" >/dev/null
  for program in "${programs[@]}"; do
    pack_program "$program" bench "$pack"
  done
  cp "$here/gpu_bench.sh" "$here/gpu_table.py" "$pack/"
  du -sh "$pack"
  exit 0
fi

export OUT="${OUT:-$build/gpu_bench.log}"
mkdir -p "$OUT"
status=0
if ((tests)); then
  "$here/gpu_tests.sh" --build "$build" || status=1
fi
gpu_environment "$build" >"$OUT/machine.txt"

# bench NAME STAGE ARGUMENTS...: runs a benchmark, which writes its JSON lines to OUT/NAME.jsonl.
bench() {
  local name="$1"
  shift
  timeout --kill-after=10 600 "$build/bin/moebius" bench "$@" --device cuda --json "$OUT/$name.jsonl" ||
    status=1
}
rm -f "$OUT"/*.jsonl
bench high_throughput dispatch "${dispatch[@]}" --mode ht --sms 8,12,16,24
bench low_latency dispatch "${dispatch[@]}" --mode ll
bench experts experts --iterations 20
bench layer layer --preset qwen3-30b-a3b --iterations 20
for program in "${programs[@]}"; do
  name="$(basename "$program")"
  timeout --kill-after=10 600 "$program" >"$OUT/$name.txt" 2>&1 || { status=1; tail -n 5 "$OUT/$name.txt"; }
done

cat "$OUT/machine.txt"
python3 "$here/gpu_table.py" "$OUT"/{experts,high_throughput,low_latency}.jsonl
for program in "${programs[@]}"; do
  name="$(basename "$program")"
  printf '\n## %s\n\n' "$name"
  cat "$OUT/$name.txt"
done
exit $status
