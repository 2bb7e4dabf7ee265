// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Parses JSON files of users.  Size and depth are bounded, so that readers can hold a document and
// recurse over it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace moebius::checkpoint {

// Throws InvalidArgument naming `file` for text that is not JSON, is nested deeper than 64, or has
// a number beyond the range of double.
nlohmann::json parse_json(std::string_view text, std::string_view file);

// Reads a configuration.  Throws InvalidArgument naming the path as above, and for what is not a
// regular file, has more than 64 MiB, or holds no JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace moebius::checkpoint
