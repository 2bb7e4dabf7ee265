// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moebius {

namespace {

// AMX tiles are large state, which Linux grants to a process, with all its threads, on request.
bool request_amx_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  __builtin_cpu_init();  // also checks that the operating system saves the registers
  f.intel = __builtin_cpu_is("intel") != 0;
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
  f.avx512_vbmi = f.avx512 && __builtin_cpu_supports("avx512vbmi");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kFp16 = 1u << 23;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  const bool has_leaf = f.avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0;
  f.avx512_fp16 = has_leaf && (edx & kFp16) != 0;
  if (has_leaf && (edx & kAmxTile) != 0 && request_amx_permission()) {
    f.amx_bf16 = (edx & kAmxBf16) != 0;
    f.amx_int8 = (edx & kAmxInt8) != 0;
  }
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace moebius
