// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/proc_fields.h"

#include <fstream>

namespace moebius {

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

int64_t proc_bytes(const char* path, std::string_view key) {
  const std::string text = proc_field(path, key);
  return text.empty() ? 0 : std::stoll(text) * 1024;
}

}  // namespace moebius
