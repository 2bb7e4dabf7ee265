// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logging to stderr or to a function of the caller's.  MOEBIUS_LOG is a comma-separated list of a
// level (error, warn, info, debug) and topics; the topic "dispatch" prints why each implementation
// was chosen or refused.
// Thread-safety: any thread may log, and set the callback, at any time.
#pragma once

#include <functional>
#include <string_view>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Takes one message without a line break at its end; both texts live as long as the call.  `topic`
// is empty for messages that have a level only; those of a topic come as kInfo.  It is called by
// whichever thread logs, by several at a time, from destructors and handlers of errors too, and
// with no lock held that logging needs, so it may call the library.  What it logs itself goes to
// stderr.  What it throws is dropped.
using LogCallback =
    std::function<void(LogLevel level, std::string_view topic, std::string_view message)>;

// From now on messages that MOEBIUS_LOG lets through go to the callback instead of stderr; an empty
// one brings stderr back.  Returns when no other thread is in the one before, so what that uses may
// go then; hold no lock that it takes.
void set_log_callback(LogCallback callback);

// Never throws: handlers of errors and destructors call it.  It logs as if MOEBIUS_LOG were unset
// where that is misspelt or there is no memory to read it.
void log(LogLevel level, std::string_view message) noexcept;
// The next two functions throw InvalidArgument when MOEBIUS_LOG has an unknown word.  Every choice
// of an implementation calls them, so a misspelt word is found early.
bool log_topic_enabled(std::string_view topic);
// Logs the message when MOEBIUS_LOG lists the topic, whatever the level.
void log_topic(std::string_view topic, std::string_view message);

}  // namespace moebius
