// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/deadline.h"

#include "moebius/settings.h"

namespace moebius {

Deadline Deadline::from_settings() {
  constexpr int64_t kDefaultMs = 60'000;
  return after(std::chrono::milliseconds(setting_int("MOEBIUS_TIMEOUT_MS").value_or(kDefaultMs)));
}

}  // namespace moebius
