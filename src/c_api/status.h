// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How exceptions become statuses of the C API, and what the calling thread is told of the last one.
#pragma once

#include <concepts>
#include <stdexcept>
#include <utility>

#include "moebius/error.h"
#include "moebius_c.h"

namespace moebius::c_api {

// A callback of the caller's has returned something else than 0.
class CallbackFailed : public Error {
 public:
  using Error::Error;
};

// Keeps the exception that is being handled for moebius_last_error() of this thread, without
// allocating, and returns its status.
moebius_status keep_error() noexcept;

// Runs the body of a function of the API.  No exception leaves it.
template <std::invocable Body>
moebius_status guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return MOEBIUS_OK;
  } catch (...) {
    return keep_error();
  }
}

}  // namespace moebius::c_api
