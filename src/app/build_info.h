// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The version of this command and what it was built with.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius::app {

std::string_view commit();   // "3e9baab", with "-dirty" after it where files differed; or "unknown"
std::string version_line();  // "moebius 0.1.0 (3e9baab)"

// The compiler, the build type and the libraries with their versions; "no" stands for a library
// that was left out.
std::vector<std::pair<std::string, std::string>> build_facts();

}  // namespace moebius::app
