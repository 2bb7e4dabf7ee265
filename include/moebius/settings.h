// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Settings: what can be changed from the environment.  One table (src/core/settings.cc) lists every
// variable of the library and the command with its default and meaning, and those of launchers that
// are looked at; nothing outside core reads the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

struct SettingInfo {
  std::string_view name;           // "MOEBIUS_EXPERTS"
  std::string_view default_value;  // as a person would read it
  std::string_view meaning;
};

std::span<const SettingInfo> all_settings();

// The value of a listed variable, nullopt when unset or empty.
std::optional<std::string> setting(std::string_view name);
// As an integer in [low, high]; throws InvalidArgument naming variable, value and bounds.
std::optional<int64_t> setting_int(std::string_view name, int64_t low, int64_t high);

}  // namespace moebius
