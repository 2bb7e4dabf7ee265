// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/peer_exchange.h"

#include <fmt/format.h>

namespace moebius::comm {

void PeerExchange::wait() {
  if (!is_done_) {
    group_.wait_for(as_wait());
  }
}

void PeerExchange::abandon() noexcept {
  stop();
  group_.abandon(call_);
}

PeerGroup::Wait PeerExchange::as_wait() const {
  return {call_, [this] { return is_done_; }, [this](int peer) { return is_missing(peer); },
          [this](int peer) {
            return has_arrived(peer) ? describe_rest(peer)
                                     : fmt::format("expected at epoch {}", call_.epoch);
          }};
}

}  // namespace moebius::comm
