// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Settings: what can be changed from the environment.  One table (src/core/settings.cc) lists every
// variable that the library or the command reads, with its default and its meaning, and also the
// variables of launchers.  Nothing outside src/core reads the environment.
// Thread-safety: any thread may call these functions while no thread changes the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

struct SettingInfo {
  std::string_view name;           // "MOEBIUS_EXPERTS"
  std::string_view default_value;  // as a person would read it
  std::string_view meaning;
};

std::span<const SettingInfo> all_settings();

// The value of a variable in the table; nullopt when it is unset or empty.
std::optional<std::string> setting(std::string_view name);
// The value as an integer.  Throws InvalidArgument, which names variable, value and bounds, when it
// is not in [low, high].
std::optional<int64_t> setting_int(std::string_view name, int64_t low, int64_t high);

}  // namespace moebius
