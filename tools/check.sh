#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/check.sh [BASE]

Run this before a commit. It checks the format of all sources and their includes, compiles every
host source with clang (-fsyntax-only, tools/check_syntax.py), checks the types of the Python package
with mypy, and runs clang-tidy on the host sources (src/**/*.cc) that differ from BASE (default HEAD).
A tool that is not installed is named and passed over.
HELP
}
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac
base="${1:-HEAD}"
status=0

# Lists the tracked and the new files that exist.
list_sources() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
    while IFS= read -r file; do [[ -f "$file" ]] && echo "$file"; done
}

if command -v clang-format >/dev/null; then
  mapfile -t files < <(list_sources '*.h' '*.cc' '*.cuh' '*.cu')
  if ((${#files[@]})); then
    clang-format --dry-run -Werror "${files[@]}" || status=1
  fi
else
  echo "check: clang-format is not installed, the format is not checked"
fi

if command -v python3 >/dev/null; then
  python3 tools/check_includes.py || status=1
  python3 tools/check_missing_includes.py || status=1
  python3 tools/check_syntax.py || status=1
else
  echo "check: python3 is not installed, includes are not checked and nothing is compiled"
fi

# The types of the package and of what uses it. The package is found by its path alone, so that nothing has to be
# installed; numpy and torch may be missing.
if command -v mypy >/dev/null; then
  MYPYPATH=python mypy --strict --python-version 3.9 --no-error-summary -p moebius || status=1
  mypy --strict --python-version 3.9 --no-error-summary tools/make_wheel.py || status=1
else
  echo "check: mypy is not installed, the types of the Python package are not checked"
fi

if ! command -v clang-tidy >/dev/null; then
  echo "check: clang-tidy is not installed, changed sources are not checked"
elif [[ ! -f build/release/compile_commands.json ]]; then
  echo "check: no build/release, changed sources are not checked (cmake --preset release)"
else
  mapfile -t files < <({
    git diff --name-only --diff-filter=d "$base" -- 'src/*.cc'
    git ls-files --others --exclude-standard -- 'src/*.cc'
  } | sort -u)
  if ((${#files[@]})); then
    # GCC's own warning flags mean nothing to clang.
    tidy=(clang-tidy --quiet -p build/release --extra-arg=-Wno-unknown-warning-option)
    version="$(clang-tidy --version | sed -n 's/.*version \([0-9]*\).*/\1/p')"
    if ((version < 16)); then
      tidy+=(--extra-arg=-include --extra-arg="$PWD/tools/clang14_source_location.h")
    fi
    # Each file is a process. The lines that count warnings in system headers are dropped.
    printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "${tidy[@]}" \
      2> >(grep -vE '^[0-9]+ warnings?.* generated' >&2) || status=1
  fi
fi

if ((status == 0)); then
  echo "check: ok"
fi
exit $status
