// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/machine.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>

#include "core/cpu_caches.h"
#include "core/cpu_features.h"

namespace moebius::app {

namespace {

// Returns what follows "key<blanks>:<blanks>" in a file of the proc file system, or "".
std::string proc_field(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos) {
      const size_t value = line.find_first_not_of(" \t", colon + 1);
      return value == std::string::npos ? "" : line.substr(value);
    }
  }
  return "";
}

// Returns a field such as "1234 kB" in bytes, or 0 where it is missing.
int64_t proc_bytes(const char* path, std::string_view key) {
  const std::string text = proc_field(path, key);
  return text.empty() ? 0 : std::stoll(text) * 1024;
}

}  // namespace

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
