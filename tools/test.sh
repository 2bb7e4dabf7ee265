#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/test.sh [ARGUMENTS of ctest...]

Installs what is missing, builds everything and runs all tests, then those labelled "fuzz" again under
the address and undefined behaviour sanitizers, and those labelled "tsan" under the thread sanitizer.
The last line counts all of them:
  N passed, N failed, N skipped
Fails if a test failed or if there was none. Arguments select tests, as in: tools/test.sh -L cpu

Environment: JOBS               parallel jobs (default: all cores)
             MOEBIUS_FIXTURES   folder of the checkpoints with expected outputs
HELP
}
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac
exec </dev/null  # nothing here may wait for a person

tools/install_deps.sh
source tools/common.sh

passed=0
failed=0
skipped=0
status=0

# run_tests PRESET [ARGUMENTS of ctest...]: adds to the three counts.
run_tests() {
  local preset="$1"
  shift
  local log="build/$preset/ctest.log"
  # The exit code also tells of a test program that could not even list its tests.
  ctest --preset "$preset" --parallel "$jobs" --no-tests=ignore "$@" --output-log "$log" || status=1
  local now_passed now_failed now_skipped
  # Lines such as "12/80 Test #12: name .....***Skipped   0.01 sec"
  local result='^ *[0-9]+/[0-9]+ +Test +#[0-9]+: .*'
  now_passed="$(grep -cE "$result   Passed +[0-9.]+ sec" "$log" || true)"
  now_skipped="$(grep -cE "$result\*\*\*(Skipped|Not Run \(Disabled\)) +[0-9.]+ sec" "$log" || true)"
  now_failed="$(($(grep -cE "$result [0-9.]+ sec" "$log" || true) - now_passed - now_skipped))"
  passed=$((passed + now_passed))
  failed=$((failed + now_failed))
  skipped=$((skipped + now_skipped))
  echo
  echo "$preset: $now_passed passed, $now_failed failed, $now_skipped skipped (log: $log)"
}

configure release
build release
run_tests release "$@"

# Tests that read untrusted bytes also run where a stray read is seen, those of ranks as threads where
# a race is: up to 4 of them here. The rest of what is labelled "sanitize" takes longer: cmake --workflow
# --preset asan, or tsan.
configure asan
build asan --target moebius_fuzz_tests
run_tests asan -L fuzz "$@"
configure tsan
build tsan --target moebius_tsan_tests
run_tests tsan -L tsan -E 'R64|R8|LargeMessages' "$@"

echo
echo "$passed passed, $failed failed, $skipped skipped"
((status == 0 && failed == 0 && passed > 0))
