// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ForcedSetting: gives a setting a value for a scope, to force an implementation as a user would.
#pragma once

#include <string>

#include "moebius/settings.h"

namespace moebius::app {

class ForcedSetting {
 public:
  ForcedSetting(const char* name, const std::string& value)
      : name_(name), before_(setting(name).value_or("")) {
    set_setting(name_, value);
  }
  ~ForcedSetting() {
    clear_setting(name_);
    if (setting(name_).value_or("") != before_) {  // it was not the environment's
      set_setting(name_, before_);
    }
  }
  ForcedSetting(const ForcedSetting&) = delete;
  ForcedSetting& operator=(const ForcedSetting&) = delete;

 private:
  const char* name_;
  std::string before_;
};

}  // namespace moebius::app
