# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# The other scripts of this folder source this one, from the project root.

jobs="${JOBS:-$(nproc)}"

# configure PRESET [CMAKE ARGUMENTS...]: configures with Ninja, as the presets ask for, or with make where Ninja is
# missing. A folder that was configured before keeps its generator.
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

# build PRESET [ARGUMENTS of cmake --build...]: builds with $jobs jobs.
build() {
  local preset="$1"
  shift
  cmake --build --preset "$preset" --parallel "$jobs" "$@"
}
