#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/run.sh [ARGUMENTS of moebius run...]

Installs what is missing, builds the moebius command, makes a tiny model in build/models/tiny and
runs its first MoE layer on 64 tokens, checked against the float64 reference. Arguments go to
moebius run, as in
  tools/run.sh --ranks 4 --tokens 256
The tiny model stays the model where --model names no other, 64 tokens the input where neither
--tokens nor --input says otherwise.

Environment: JOBS   parallel build jobs (default: all cores)
HELP
}
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac

tools/install_deps.sh --no-tests
source tools/common.sh

if [[ -f build/release/CMakeCache.txt ]]; then
  configure_args=()  # a working build folder keeps its tests
else
  configure_args=(-DMOEBIUS_BUILD_TESTS=OFF -DMOEBIUS_BUILD_BENCH=OFF -DMOEBIUS_BUILD_EXAMPLES=OFF)
fi
configure release "${configure_args[@]}"
build release --target moebius_app

# has OPTION ARGUMENTS...: whether "OPTION" or "OPTION=..." is among the arguments.
has() {
  local option="$1" argument
  shift
  for argument in "$@"; do
    [[ "$argument" == "$option" || "$argument" == "$option="* ]] && return 0
  done
  return 1
}

moebius=build/release/bin/moebius
model=build/models/tiny
if (($# == 0)); then
  set -- --check
fi
if ! has --tokens "$@" && ! has --input "$@"; then
  set -- --tokens 64 "$@"
fi
if ! has --model "$@"; then
  rm -rf "$model"
  "$moebius" make-model --preset tiny --output "$model"
  set -- --model "$model" "$@"
fi
exec "$moebius" run "$@"
