# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# gpu_tests.sh and gpu_bench.sh source this script, also in a folder that --pack made.

# pack_program FILE FOLDER PACK: copies the stripped program to PACK/FOLDER, and to PACK/lib the libraries that it
# needs beyond those of the system and of the driver.
pack_program() {
  mkdir -p "$3/$2" "$3/lib"
  strip -o "$3/$2/$(basename "$1")" "$1"
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|ld-linux[^/]*)\.so' |
    xargs -r cp -Lu -t "$3/lib"
}

# gpu_environment BUILD: prints the GPUs of the machine and lets programs of BUILD find their libraries.
gpu_environment() {
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader || true
  else
    echo "no nvidia-smi here"
  fi
  export LD_LIBRARY_PATH="$1/lib:${LD_LIBRARY_PATH:-}"
  # Without these variables tests look for the command where it was built, and for fixtures beside the project.
  [[ -x "$1/bin/moebius" ]] && export MOEBIUS_COMMAND="${MOEBIUS_COMMAND:-$1/bin/moebius}"
  [[ -d "$1/fixtures" ]] && export MOEBIUS_FIXTURES="${MOEBIUS_FIXTURES:-$1/fixtures}"
  [[ -d "$1/families" ]] && export MOEBIUS_FAMILIES="${MOEBIUS_FAMILIES:-$1/families}"
  # NVLink multicast stays off.
  export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
  if [[ -z "${MOEBIUS_NCCL_LIBRARY:-}" ]]; then
    local nccl
    nccl="$({
      python3 -c 'import nvidia.nccl as n; print(n.__path__[0] + "/lib/libnccl.so.2")' 2>/dev/null
      ldconfig -p | sed -n 's|.*libnccl\.so\.2 .*=> ||p'
    } | while IFS= read -r path; do [[ -f "$path" ]] && echo "$path"; done | head -n 1 || true)"
    [[ -n "$nccl" ]] && export MOEBIUS_NCCL_LIBRARY="$nccl"
  fi
  echo "NCCL: ${MOEBIUS_NCCL_LIBRARY:-as the loader finds it}"
}
