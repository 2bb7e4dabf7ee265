// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/error.h"
#include "moebius/log.h"
#include "moebius/stream.h"

namespace moebius::comm {

// Waits for all work of the stream, in destructors whose objects that work may still use.  The work
// has bounded waits, so this ends.  Failures are logged.
inline void await_last_work(const Stream& stream) {
  try {
    stream.synchronize();
  } catch (const Error& error) {
    log(LogLevel::kError, error.what());
  }
}

}  // namespace moebius::comm
