// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/nccl/version.h"

#include <fmt/format.h>

namespace moebius::comm {

std::string version_name(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string version_refusal(int built, int found) {
  constexpr int kOldest = 22807;  // the windows of earlier ones have another layout
  constexpr int kNextMajor = 30000;
  if (found >= kOldest && found < kNextMajor) {
    return "";
  }
  return fmt::format("NCCL {}, expected {} or later of major version 2 (this was built with {})",
                     version_name(found), version_name(kOldest), version_name(built));
}

}  // namespace moebius::comm
