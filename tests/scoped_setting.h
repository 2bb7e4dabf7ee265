// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moebius/settings.h"

namespace moebius::testing {

// Gives a setting a value during its lifetime.  An empty value counts as unset.
class ScopedSetting {
 public:
  ScopedSetting(const char* name, const std::string& value) : name_(name) {
    set_setting(name, value);
  }
  ~ScopedSetting() { clear_setting(name_); }
  ScopedSetting(const ScopedSetting&) = delete;
  ScopedSetting& operator=(const ScopedSetting&) = delete;

 private:
  const char* name_;
};

}  // namespace moebius::testing
