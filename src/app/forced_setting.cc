// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/forced_setting.h"

#include <cstdlib>

#include "moebius/settings.h"

namespace moebius::app {

ForcedSetting::ForcedSetting(const char* name, const std::string& value)
    : name_(name), before_(setting(name).value_or("")) {
  setenv(name_, value.c_str(), 1);
}

ForcedSetting::~ForcedSetting() {
  setenv(name_, before_.c_str(), 1);  // an empty value counts as unset
}

}  // namespace moebius::app
