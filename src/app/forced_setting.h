// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ForcedSetting: sets an environment variable for a scope, to force an implementation as a user
// would.
#pragma once

#include <cstdlib>
#include <string>

#include "moebius/settings.h"

namespace moebius::app {

class ForcedSetting {
 public:
  ForcedSetting(const char* name, const std::string& value)
      : name_(name), before_(setting(name).value_or("")) {
    setenv(name_, value.c_str(), 1);
  }
  ~ForcedSetting() {
    setenv(name_, before_.c_str(), 1);  // an empty value counts as unset
  }
  ForcedSetting(const ForcedSetting&) = delete;
  ForcedSetting& operator=(const ForcedSetting&) = delete;

 private:
  const char* name_;
  std::string before_;
};

}  // namespace moebius::app
