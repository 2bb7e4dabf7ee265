// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logging to stderr.  MOEBIUS_LOG is a comma-separated list of a level (error, warn, info, debug)
// and topics ("dispatch" prints why each implementation was chosen or refused).
#pragma once

#include <string_view>

namespace moebius {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

void log(LogLevel level, std::string_view message);  // as if unset where MOEBIUS_LOG is misspelt
// These two throw InvalidArgument naming value and what is expected where MOEBIUS_LOG has another
// word: every choice of an implementation asks.
bool log_topic_enabled(std::string_view topic);
// Printed when the topic is listed in MOEBIUS_LOG, whatever the level.
void log_topic(std::string_view topic, std::string_view message);

}  // namespace moebius
