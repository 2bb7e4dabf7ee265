// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The JSON of users' files, in bounds that let readers hold it and recurse over it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace moebius::checkpoint {

// Throws InvalidArgument naming `file`: not JSON, nested deeper than 64, or a number beyond double.
nlohmann::json parse_json(std::string_view text, std::string_view file);

// A configuration.  Throws InvalidArgument naming the path: as above, not a regular file, more than
// 64 MiB, or no JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace moebius::checkpoint
