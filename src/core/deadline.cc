// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/deadline.h"

#include "moebius/settings.h"

namespace moebius {

Deadline Deadline::from_settings() {
  constexpr int64_t kDefaultMs = 60'000;
  constexpr int64_t kMaxMs = std::chrono::milliseconds(kMaxTimeout).count();
  return after(
      std::chrono::milliseconds(setting_int("MOEBIUS_TIMEOUT_MS", 1, kMaxMs).value_or(kDefaultMs)));
}

}  // namespace moebius
