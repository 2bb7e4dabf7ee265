#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: tools/install_deps.sh [--no-tests] [--list]

Installs what Moebius is built and tested with, from the distribution's packages (Debian 12,
Ubuntu 24.04). Packages that are there already are left alone; with none missing nothing is
downloaded and no rights are needed. A Node.js from elsewhere is left alone, too.

  --no-tests   leave out what only tests and benchmarks need, such as a browser
  --list       print the package names and stop
HELP
}

required=(
  g++ cmake ninja-build git pkg-config python3
  libfmt-dev libcli11-dev nlohmann-json3-dev
)
# Where these cannot be installed the build leaves out what depends on them.
optional=(
  ccache
  libopenmpi-dev openmpi-bin
)
command -v node >/dev/null || optional+=(nodejs)  # for the page of --report
tests_required=(libgtest-dev)
tests_optional=(libbenchmark-dev chromium)
# The Python package is tested with these; its type hints are checked with mypy.
tests_optional+=(python3-numpy python3-pytest python3-torch python3-venv mypy)

list=0
tests=1
for argument in "$@"; do
  case "$argument" in
    --list) list=1 ;;
    --no-tests) tests=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
if ((tests)); then
  required+=("${tests_required[@]}")
  optional+=("${tests_optional[@]}")
fi
if ((list)); then
  printf '%s\n' "${required[@]}" "${optional[@]}"
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps: this is not a Debian-like system. Install the counterparts of:" >&2
  echo "  ${required[*]}" >&2
  echo "and, for more speed and features: ${optional[*]}" >&2
  exit 1
fi

is_installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

missing_required=()
missing_optional=()
for package in "${required[@]}"; do
  is_installed "$package" || missing_required+=("$package")
done
for package in "${optional[@]}"; do
  is_installed "$package" || missing_optional+=("$package")
done
missing=("${missing_required[@]}" "${missing_optional[@]}")
if ((${#missing[@]} == 0)); then
  echo "install_deps: everything is installed"
  exit 0
fi
echo "install_deps: missing: ${missing[*]}"

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: neither root nor sudo; ask an administrator to run:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    ((${#missing_required[@]} == 0))  # the build can do without the others
    exit
  fi
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null
}
# install_packages PACKAGE...: installs the packages that a package source has. Fails if one of them has none.
install_packages() {
  local package available=() status=0
  for package in "$@"; do
    # apt-cache show fails for a name that no package source has.
    if apt-cache show "$package" >/dev/null 2>&1; then
      available+=("$package")
    else
      echo "install_deps: no package $package here" >&2
      status=1
    fi
  done
  if ((${#available[@]})); then
    apt install -y --no-install-recommends "${available[@]}" || status=1
  fi
  return $status
}

apt update || echo "install_deps: apt-get update failed; going on with the lists that are there" >&2
install_packages "${missing_required[@]}" || {
  echo "install_deps: the build needs what is missing (on Ubuntu, is universe enabled?)" >&2
  exit 1
}
install_packages "${missing_optional[@]}" || echo "install_deps: the build does without what is missing"
