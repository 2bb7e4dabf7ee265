#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tools/gpu_tests.sh [--build DIR] [--only TEXT] [--under COMMAND] [-- GOOGLETEST ARGUMENTS...]
       tools/gpu_tests.sh --sanitize TOOL [--build DIR] [--only TEXT]
       tools/gpu_tests.sh --pack DIR [--build DIR]

Runs every test program labelled "gpu" on a machine with GPUs and prints a table; fails if a test did.
Without --build it first builds them (preset release).

  --build DIR      take the programs of this build folder, or of a folder made by --pack
  --only TEXT      only programs whose name contains TEXT
  --under COMMAND  run each under COMMAND, as in --under "compute-sanitizer --error-exitcode 9"
  --sanitize TOOL  run their small cases under compute-sanitizer: memcheck, racecheck, synccheck or
                   initcheck.  One rank per case: the tool may let kernels wait for each other
  --pack DIR       run nothing: copy the programs to DIR, with the libraries they need beyond the C++
                   run time, the command, the fixtures and this script, so that they run where
                   nothing can be installed:
                   DIR/gpu_tests.sh

Environment: OUT                   folder for the logs (default: gpu_tests.log in the build folder)
             TEST_TIMEOUT          seconds a program may take (default 300)
             MOEBIUS_NCCL_LIBRARY  libnccl.so.2; searched for where it is not set
HELP
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/gpu_common.sh"
build=""
only=""
under=()
sanitizer=""
pack=""
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) build="$2"; shift 2 ;;
    --only) only="$2"; shift 2 ;;
    --under) read -ra under <<<"$2"; shift 2 ;;
    --sanitize) sanitizer="$2"; shift 2 ;;
    --pack) pack="$2"; shift 2 ;;
    --) shift; break ;;
    *) usage >&2; exit 2 ;;
  esac
done

# In a packed folder this script lies beside the programs.
if [[ -z "$build" && -f "$here/tests/gpu_tests.txt" ]]; then
  build="$here"
fi
if [[ -z "$build" ]]; then
  cd "$here/.."
  source tools/common.sh
  configure release
  build release --target moebius_gpu_tests
  build="build/release"
fi
build="$(cd "$build" && pwd)"
if [[ ! -f "$build/tests/gpu_tests.txt" ]]; then
  echo "gpu_tests: $build/tests/gpu_tests.txt is missing: not a build with CUDA and tests" >&2
  exit 2
fi
programs=()
while IFS= read -r program; do
  [[ "$program" == *"$only"* ]] && programs+=("$program")
done <"$build/tests/gpu_tests.txt"
if ((${#programs[@]} == 0)); then
  echo "gpu_tests: no test program whose name contains \"$only\"" >&2
  exit 2
fi

if [[ -n "$pack" ]]; then
  for program in "${programs[@]}"; do
    pack_program "$build/tests/$program" tests "$pack"
  done
  printf '%s\n' "${programs[@]}" >"$pack/tests/gpu_tests.txt"
  if [[ -x "$build/bin/moebius" ]]; then
    pack_program "$build/bin/moebius" bin "$pack"
  fi
  fixtures="${MOEBIUS_FIXTURES:-$here/../../shared/fixtures}"
  if [[ -d "$fixtures" ]]; then
    mkdir -p "$pack/fixtures"
    cp -RL "$fixtures/." "$pack/fixtures/"
  fi
  mkdir -p "$pack/families"
  cp -R "$here/../tests/fixtures/." "$pack/families/"
  cp "$here/gpu_tests.sh" "$here/gpu_common.sh" "$pack/"
  du -sh "$pack"
  exit 0
fi

gpu_environment "$build"

if [[ -n "$sanitizer" ]]; then
  tool="$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)"
  under=("$tool" --tool "$sanitizer" --error-exitcode 9 --print-limit 20)
  # These cases are small, and need no second rank and no second kernel at the same time.
  small='*/cuda:*/cuda_*:*/peer_R1_on1:*OnGpu*:CudaTest.*:StageGraph.*:CudaExperts.*:CudaRows.*'
  small+=':CudaLayer.*:CudaLayerGraph.*:Sm90GroupedGemmTest.OneTile*:Sm90GroupedGemmTest.Batched*'
  large='*WhileAKernelRuns:*SideBySide:*TooLarge*:*OutOfMemory*:*TenThousand*:*WideRows*:*HiddenSizes*'
  large+=':*WidthsOf*:*StagesHaveTimes:*AnyWayOf*:*TopkFrom*:*QuantizesAndDequantizes*:*UpTo8192*:*GivesUp*'
  set -- --gtest_filter="$small-$large"
  if [[ "$sanitizer" == racecheck ]]; then
    # The warps of this kernel hand over flags by release and acquire in shared memory, which racecheck reports
    # as a race: comm/high_throughput/cuda/combine.cu, FlagQueue.
    under+=(--kernel-name-exclude kernel_substring=CombineArgs)
  fi
fi

logs="${OUT:-$build/gpu_tests.log}"
mkdir -p "$logs"
# count_of WORD LOG: prints 12 for a line "[  PASSED  ] 12 tests.", and 0 where there is no such line.
count_of() {
  sed -nE "s/^\[  $1 ?\] ([0-9]+) tests?[.,].*/\1/p" "$2" | head -n 1 | grep . || echo 0
}
table=""
status=0
for program in "${programs[@]}"; do
  log="$logs/$program.log"
  begin="$(date +%s.%N)"
  code=0
  timeout --kill-after=10 "${TEST_TIMEOUT:-300}" \
    "${under[@]}" "$build/tests/$program" --gtest_color=no "$@" >"$log" 2>&1 || code=$?
  seconds="$(awk -v b="$begin" -v e="$(date +%s.%N)" 'BEGIN { printf "%.1f", e - b }')"
  passed="$(count_of 'PASSED ' "$log")"
  failed="$(count_of 'FAILED ' "$log")"
  skipped="$(count_of 'SKIPPED' "$log")"
  result="ok"
  if ((code == 124 || code == 137)); then
    result="timed out"
  elif ((code != 0)); then
    result="FAILED ($code)"
  elif ((passed == 0)); then
    result="all skipped"
  fi
  table+="$(printf '%-32s %7s %7s %7s %9s  %s' "$program" "$passed" "$failed" "$skipped" \
    "$seconds" "$result")"$'\n'
  if ((code != 0)); then
    status=1
    echo "---- $program"
    # Print what failed and why. Where the program died, the last lines show how far it came.
    grep -nE 'Failure|^\[  FAILED  \]|terminate|Error|Invalid|error' -A 6 "$log" | head -n 60 || true
    echo "  ..."
    tail -n 12 "$log"
  fi
done
printf '\n%-32s %7s %7s %7s %9s\n%s' program passed failed skipped seconds "$table"
exit $status
