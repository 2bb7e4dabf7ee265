#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/wheel.sh [--build DIR] [CMAKE ARGUMENTS...]

Makes the Python package: build/wheel/moebius-VERSION-py3-none-PLATFORM.whl, one wheel for Python 3.9
and later, with and without torch. It is installed by: pip install build/wheel/moebius-*.whl
Beside it, build/wheel/moebius_deep_ep-VERSION-py3-none-any.whl lets "import deep_ep" give moebius.deep_ep.
The library is built in build/wheel/library, with CUDA and MPI where they are found; arguments go to
cmake, as -DMOEBIUS_CUDA=OFF. Nothing is downloaded.

  --build DIR   take the library of a finished build, as build/release, instead of building it

Environment: JOBS   parallel jobs (default: all cores)
HELP
}
build=""
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --build) build="${2:?--build needs a folder}"; shift 2 ;;
esac
source tools/common.sh

if [[ -z "$build" ]]; then
  build=build/wheel/library
  generator="Ninja"
  command -v ninja >/dev/null || generator="Unix Makefiles"
  cmake --preset release -B "$build" -G "$generator" -DMOEBIUS_BUILD_TESTS=OFF -DMOEBIUS_BUILD_BENCH=OFF \
    -DMOEBIUS_BUILD_APP=OFF -DMOEBIUS_BUILD_EXAMPLES=OFF "$@"
  cmake --build "$build" --parallel "$jobs"
fi
prefix="$(mktemp -d)"
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --strip --prefix "$prefix" >/dev/null
python3 tools/make_wheel.py "$prefix" build/wheel
