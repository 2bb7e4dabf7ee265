// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What this command was built from and with.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius::app {

std::string_view version();  // "0.1.0"
std::string_view commit();   // "3e9baab", with "-dirty" after it where files differed; or "unknown"
std::string version_line();  // "moebius 0.1.0 (3e9baab)"

// Compiler, build type and libraries with their versions, "no" for those left out.
std::vector<std::pair<std::string, std::string>> build_facts();

}  // namespace moebius::app
