// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The resident memory of this process, as Linux reports it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace moebius::testing {

// A field of /proc/self/status, such as VmRSS, in bytes; -1 where there is none.
inline int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return -1;
}

// Sets the peak VmHWM to the present size.  Returns false where the system does not allow it.
inline bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.flush();
  return file.good() && status_bytes("VmHWM") > 0;
}

}  // namespace moebius::testing
