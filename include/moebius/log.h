// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logging to stderr.  MOEBIUS_LOG is a comma-separated list of a level (error, warn, info, debug)
// and topics; the topic "dispatch" prints why each implementation was chosen or refused.
// Thread-safety: any thread may log.
#pragma once

#include <string_view>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Never throws: handlers of errors and destructors call it.  It logs as if MOEBIUS_LOG were unset
// where that is misspelt or there is no memory for a logger.
void log(LogLevel level, std::string_view message) noexcept;
// The next two functions throw InvalidArgument when MOEBIUS_LOG has an unknown word.  Every choice
// of an implementation calls them, so a misspelt word is found early.
bool log_topic_enabled(std::string_view topic);
// Prints the message when MOEBIUS_LOG lists the topic, whatever the level.
void log_topic(std::string_view topic, std::string_view message);

}  // namespace moebius
