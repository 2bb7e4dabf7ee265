// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LogChoice: what MOEBIUS_LOG asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moebius/log.h"

namespace moebius {

struct LogChoice {
  LogLevel level = LogLevel::kWarn;
  std::vector<std::string> topics;
  std::string error;  // what is wrong with the text; empty when nothing is
};

LogChoice parse_log_choice(std::string_view text);

}  // namespace moebius
