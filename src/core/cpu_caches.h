// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The caches that a core of this processor reads through.
#pragma once

#include <cstdint>
#include <string>

namespace moebius {

struct CpuCaches {
  int64_t l1_data_bytes = 0;  // 0 where the system does not say, as for all of them
  int64_t l2_bytes = 0;
  int64_t last_level_bytes = 0;
};

// Those of the first CPU.
const CpuCaches& cpu_caches();

// Reads the folders index0, index1, ... of a CPU's caches, as Linux has them below
// /sys/devices/system/cpu/cpu0/cache.  What is not there, or no number, stays 0.
CpuCaches read_cpu_caches(const std::string& folder);

}  // namespace moebius
