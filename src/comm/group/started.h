// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Moving the exchanges of a group that are under way.
#pragma once

#include <cstddef>
#include <vector>

namespace moebius::comm {

// advance(exchange) moves an exchange forward and returns whether it is done.  Those that are done
// leave the list.  Why it is not std::erase_if: advance() may throw, and the exchanges that were
// done before must have left the list by then, since they may be destroyed from now on.
template <typename Exchange, typename Advance>
void advance_started(std::vector<Exchange*>& started, const Advance& advance) {
  for (size_t i = 0; i < started.size();) {
    if (advance(*started[i])) {
      started.erase(started.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

}  // namespace moebius::comm
