// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Pending: a transfer under way, as the caller holds it.
#pragma once

#include <functional>

namespace moebius {

// Half of an asynchronous operation.  `hook` (may be empty) completes the transfer and does nothing
// else; `receive` hands over the result and is called once, after the hook.
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
