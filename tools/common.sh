# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Sourced by the other scripts of this folder, from the project root.

jobs="${JOBS:-$(nproc)}"

# configure PRESET [CMAKE ARGUMENTS...]: the presets ask for Ninja; without it, make. A folder that
# was configured before keeps its generator.
configure() {
  local preset="$1"
  shift
  local cache="build/$preset/CMakeCache.txt"
  local generator="Ninja"
  command -v ninja >/dev/null || generator="Unix Makefiles"
  if [[ -f "$cache" ]]; then
    generator="$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$cache")"
  fi
  cmake --preset "$preset" -G "$generator" "$@"
}

# build PRESET [ARGUMENTS of cmake --build...]
build() {
  local preset="$1"
  shift
  cmake --build --preset "$preset" --parallel "$jobs" "$@"
}
