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
Everything is in build/PRESET/ctest.log; tests that fail are also named when they do, and told of again
at the end, last of all how many there were:
  N passed, N failed, N skipped
Fails if a test failed or if none passed. Arguments select tests, as in: tools/test.sh -L cpu

Environment: JOBS               parallel jobs (default: all cores)
             CONFIGURE          an argument for configuring release, as -DMOEBIUS_PCH=ON
             MOEBIUS_FIXTURES   folder of the checkpoints with expected outputs
HELP
}
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac
exec </dev/null  # nothing here may wait for a person

tools/install_deps.sh
source tools/common.sh

status=0
runs=()

# run_tests PRESET [ARGUMENTS of ctest...]: with what test_report.py reads.
run_tests() {
  local preset="$1" base="build/$1/ctest"
  shift
  runs+=("$preset=$base")
  rm -f "$base".{log,xml,err}
  echo
  # Of each test's lines only those of what fails: "12/80 Test #12: name ....***Timeout  120.01 sec".
  # Where a test program cannot even list its tests, there is no result at all.
  ctest --preset "$preset" --parallel "$jobs" --no-tests=ignore "$@" \
    --output-log "$PWD/$base.log" --output-junit "$PWD/$base.xml" 2>"$base.err" |
    awk '/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: .*\*\*\*/ && !/\*\*\*(Skipped|Not Run \(Disabled\)) / ||
         /tests passed,|^Total Test time|^Test project/ { print; fflush() }' || status=1
}

# Everything is built first, so that what does not compile is seen first and what fails last.
# Tests that read untrusted bytes also run where a stray read is seen, those of ranks as threads where
# a race is: up to 4 of them here. The rest of what is labelled "sanitize" takes longer: cmake --workflow
# --preset asan, or tsan.
configure release ${CONFIGURE:+"$CONFIGURE"}
configure asan
configure tsan
build release
build asan --target moebius_fuzz_tests
build tsan --target moebius_tsan_tests
run_tests release "$@"
run_tests asan -L fuzz "$@"
run_tests tsan -L tsan -E 'R64|R8|LargeMessages' "$@"

echo
tools/test_report.py "${runs[@]}" || status=1
exit $status
