// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Settings: what can be changed from the environment, or by set_setting().  One table
// (src/core/settings.cc) lists every variable that the library or the command reads, with its
// default, its meaning and the moment at which it is read.  Nothing outside src/core reads the
// environment.
// Thread-safety: any thread may call these functions at any time.  The environment must not be
// changed meanwhile (setenv), so a program with threads calls set_setting() instead.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

struct SettingRange {
  int64_t low = 0;
  int64_t high = 0;
};

struct SettingInfo {
  std::string_view name;           // "MOEBIUS_EXPERTS"
  std::string_view default_value;  // as a person would read it
  std::string_view meaning;
  std::string_view read = {};                // when it is read: a change counts from then on
  std::optional<SettingRange> numbers = {};  // for a whole number: the bounds
};

std::span<const SettingInfo> all_settings();

// The value of a variable in the table: that of set_setting(), else that of the environment;
// nullopt when it is unset or empty.
std::optional<std::string> setting(std::string_view name);
// The value of a variable that is a whole number.  Throws InvalidArgument, which names variable,
// value and bounds, when it is not within the bounds of the table.
std::optional<int64_t> setting_int(std::string_view name);

// Gives a variable a value for this process, whatever the environment says; an empty one makes it
// unset.  Takes effect when the variable is read next (SettingInfo::read).  Throws InvalidArgument
// for a name that is not in the table, a number out of bounds, and a misspelt MOEBIUS_LOG; names of
// implementations are looked up where they are read.  Nothing has changed then.
void set_setting(std::string_view name, std::string_view value);
// Lets the environment decide again.  Throws InvalidArgument for a name that is not in the table.
void clear_setting(std::string_view name);

}  // namespace moebius
