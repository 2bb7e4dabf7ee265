// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Pending: the caller's handle on a transfer that is under way.
// Thread-safety: as the object that returned it.
// Errors: hook and receive throw what that object's documentation says, such as CommError.
#pragma once

#include <functional>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

// The second half of an asynchronous operation.  `hook` completes the transfer and does nothing
// else; it may be empty.  `receive` hands over the result and is called once, after the hook.
template <typename Result>
struct Pending {
  std::function<void()> hook;
  std::function<Result()> receive;

  Result finish() {
    if (hook) {
      hook();
    }
    return receive();
  }
};

}  // namespace moebius
