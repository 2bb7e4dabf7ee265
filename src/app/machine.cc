// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/machine.h"

#include "core/cpu_caches.h"
#include "core/cpu_features.h"
#include "core/proc_fields.h"

namespace moebius::app {

std::string cpu_model() {
  const std::string model = proc_field("/proc/cpuinfo", "model name");
  return model.empty() ? "unknown" : model;
}

std::vector<std::pair<std::string, bool>> cpu_isa() {
  const CpuFeatures& cpu = cpu_features();
  return {
      {"avx2", cpu.avx2},
      {"avx512", cpu.avx512},
      {"avx512_vnni", cpu.avx512_vnni},
      {"avx512_bf16", cpu.avx512_bf16},
      {"amx_bf16", cpu.amx_bf16},
      {"amx_int8", cpu.amx_int8},
  };
}

int64_t last_level_cache_bytes() {
  return cpu_caches().last_level_bytes;
}

int64_t memory_bytes() {
  return proc_bytes("/proc/meminfo", "MemTotal");
}

int64_t resident_memory_bytes() {
  return proc_bytes("/proc/self/status", "VmRSS");
}

int64_t peak_memory_bytes() {
  return proc_bytes("/proc/self/status", "VmHWM");
}

int64_t disk_bytes() {
  const std::string text = proc_field("/proc/self/io", "read_bytes");
  return text.empty() ? 0 : std::stoll(text);
}

}  // namespace moebius::app
