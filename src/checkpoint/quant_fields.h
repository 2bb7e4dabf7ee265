// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads what several methods of quantization_config have in common: lists of modules that stay
// unquantized, sizes of groups, and the schemes of the MX formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/quant_rules.h"

namespace moebius::checkpoint {

inline constexpr int64_t kMaxBlock = 1 << 20;
inline constexpr GroupShape kMxGroup{1, 32};
inline constexpr GroupShape kNvGroup{1, 16};

// A list of modules that stay unquantized, in one of the ways of ModuleNames.
using MakeNames = ModuleNames (*)(const std::string& entry, const std::string& what);

// Leaves out the modules that the list `key` names, if `fields` has it.
void leave_out(QuantRules& rules,
               const ConfigFields& fields,
               std::string_view key,
               MakeNames names);

// group_size of `fields`: {1, g}, or per row where it is -1.  Codes of 4 bits share bytes, so that
// groups of them are even.
GroupShape read_group_size(const ConfigFields& fields, int64_t bits);

// The name of a scheme, such as "gptq int4".
std::string bits_name(std::string_view method, int64_t bits);
// The format of 4 or 8 bits.
QuantFormat int_format(int64_t bits);

WeightScheme mxfp8(std::string name, bool quantizes_activations);
WeightScheme mxfp4(WeightFormat stored, std::string name);

}  // namespace moebius::checkpoint
