// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// parse_json: the JSON of users' files, in bounds that let readers recurse over it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace moebius::checkpoint {

// Throws InvalidArgument naming `file`: not JSON, nested deeper than 64, or a number beyond double.
nlohmann::json parse_json(std::string_view text, std::string_view file);

}  // namespace moebius::checkpoint
