// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This reads what Linux says of the machine and of the process in files of lines "key: value".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moebius {

// Returns what follows "key<blanks>:<blanks>" in a file of the proc file system, or "".
std::string proc_field(const char* path, std::string_view key);

// Returns a field such as "1234 kB" in bytes, or 0 where it is missing.
int64_t proc_bytes(const char* path, std::string_view key);

}  // namespace moebius
