// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds what comes nearest to something that is not supported.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::app {

// How many letters have to be inserted, removed or replaced to make one word of the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The word that is most like `name`, by edit distance; the first of several.  Empty where half of
// the letters or more differ, as that says nothing.
std::string nearest_word(std::string_view name, const std::vector<std::string>& words);

// The name of the scheme of load_quant_schemes() whose weights have as many bits, and are integers
// or floats, as a quantization_config says; empty where it does not say it.
std::string nearest_scheme(const nlohmann::json& quantization);

}  // namespace moebius::app
