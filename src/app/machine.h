// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Facts about the machine that this process runs on, and about the memory that the process uses.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moebius::app {

std::string cpu_model();  // "AMD EPYC"
std::vector<std::pair<std::string, bool>>
cpu_isa();                         // what implementations may need, and if usable
int64_t last_level_cache_bytes();  // as this processor sees it; 0 when unknown
int64_t memory_bytes();            // of the machine; 0 when unknown
int64_t resident_memory_bytes();   // of this process now (VmRSS), or 0
int64_t peak_memory_bytes();       // of this process so far (VmHWM), or 0
// Bytes that disks have delivered for this process so far, or 0 when unknown.  What the page cache
// had does not count.
int64_t disk_bytes();

}  // namespace moebius::app
