// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_caches.h"

#include <fmt/format.h>

#include <fstream>

namespace moebius {

namespace {

// Returns sizes as Linux writes them: "512K".
int64_t read_size(const std::string& path) {
  std::ifstream file(path);
  int64_t size = 0;
  if (!(file >> size) || size < 0) {
    return 0;
  }
  char unit = 0;
  file >> unit;
  return size << (unit == 'G' ? 30 : unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
}

}  // namespace

CpuCaches read_cpu_caches(const std::string& folder) {
  CpuCaches caches;
  int highest = 0;
  for (int index = 0;; ++index) {
    const std::string cache = fmt::format("{}/index{}", folder, index);
    int level = 0;
    std::string type;
    if (!(std::ifstream(cache + "/level") >> level)) {
      return caches;
    }
    std::ifstream(cache + "/type") >> type;
    if (type == "Instruction") {
      continue;
    }
    const int64_t bytes = read_size(cache + "/size");
    if (level == 1) {
      caches.l1_data_bytes = bytes;
    } else if (level == 2) {
      caches.l2_bytes = bytes;
    }
    if (level >= highest) {
      highest = level;
      caches.last_level_bytes = bytes;
    }
  }
}

const CpuCaches& cpu_caches() {
  static const CpuCaches caches = read_cpu_caches("/sys/devices/system/cpu/cpu0/cache");
  return caches;
}

}  // namespace moebius
