#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/test.sh [ARGUMENTS of ctest...]

Installs what is missing, builds the preset "release" and runs all of its tests, as
`cmake --workflow --preset release` does. Then runs tests labelled "fuzz" again under the address and
undefined behaviour sanitizers, and those labelled "tsan" under the thread sanitizer. The output of all
tests is in build/PRESET/ctest*.log. A test that fails is named at once and again at the end, and the
last line counts them:
  N passed, N failed, N skipped
Fails if a test failed or if none passed. Arguments select tests, as in: tools/test.sh -L cpu (but -LE,
which this script gives ctest itself).

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

# run_tests RUN [ARGUMENTS of ctest...]: runs tests and writes the files that test_report.py reads. RUN is a
# preset, perhaps with a suffix after a dot.
run_tests() {
  local base="build/${1%%.*}/ctest${1#"${1%%.*}"}"
  shift
  rm -f "$base".{log,xml,err}
  # Only the lines of failures are printed: "12/80 Test #12: name ....***Timeout  120.01 sec". A test program
  # that cannot even list its tests has no line.
  ctest --parallel "$jobs" --no-tests=ignore "$@" \
    --output-log "$PWD/$base.log" --output-junit "$PWD/$base.xml" 2>"$base.err" |
    awk '/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: .*\*\*\*/ && !/\*\*\*(Skipped|Not Run \(Disabled\)) / ||
         /tests passed,|^Total Test time|^Test project/ { print; fflush() }'
}

# Tests that read untrusted bytes also run under the address sanitizer, and tests of ranks as threads under the
# thread sanitizer, here with up to 4 ranks. The other tests labelled "sanitize" take longer: cmake --workflow
# --preset asan, or tsan.
build_sanitizers() {
  renice -n 19 -p "$BASHPID" >/dev/null
  configure asan
  configure tsan
  build asan --target moebius_fuzz_tests
  build tsan --target moebius_tsan_tests
}

configure release
build release

# The first ctest makes the programs list their cases once; otherwise the two below would do so at the same time.
# Tests labelled "waits" mostly wait for deadlines, so a second ctest, which keeps its files in another folder,
# runs them beside the others. The processor time that is left goes to building for the sanitizers.
echo
status=0
ctest --preset release -N >/dev/null 2>&1 || true
rm -f build/sanitizers.{xml,err}
trap 'jobs -p | xargs -r kill 2>/dev/null || true' EXIT
build_sanitizers >build/sanitizers.log 2>&1 &
sanitizers=$!
run_tests release.waits --test-dir build/release/tests --output-on-failure -L waits "$@" &
waits=$!
run_tests release --preset release -LE waits "$@" || status=1
wait $waits || status=1
runs=(release=build/release/ctest release.waits=build/release/ctest.waits)
if wait $sanitizers; then
  run_tests asan --preset asan -L fuzz "$@" || status=1
  run_tests tsan --preset tsan -L tsan -E 'R64|R8|LargeMessages' "$@" || status=1
  runs+=(asan=build/asan/ctest tsan=build/tsan/ctest)
else
  cp build/sanitizers.log build/sanitizers.err
  runs+=(sanitizers=build/sanitizers)
fi

echo
tools/test_report.py "${runs[@]}" || status=1
exit $status
