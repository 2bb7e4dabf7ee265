// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Parses JSON files of users.  Size and depth are bounded, so that readers can hold a document and
// recurse over it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace moebius::checkpoint {

// Reads a configuration.  Throws InvalidArgument naming the path for what is not a regular file,
// has more than 64 MiB, is not JSON, is nested deeper than 64, has a number beyond the range of
// double, or is no JSON object.  The key is named, too, where there is one.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace moebius::checkpoint
