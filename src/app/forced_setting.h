// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ForcedSetting: sets an environment variable for a scope, to force an implementation as a user
// would.
#pragma once

#include <string>

namespace moebius::app {

class ForcedSetting {
 public:
  ForcedSetting(const char* name, const std::string& value);
  ~ForcedSetting();  // restores the previous value
  ForcedSetting(const ForcedSetting&) = delete;
  ForcedSetting& operator=(const ForcedSetting&) = delete;

 private:
  const char* name_;
  std::string before_;
};

}  // namespace moebius::app
