// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Slowed-down links.  Bytes arrive at once, as without them, but the sender says from when on the
// receiver may look at them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

using Due = std::chrono::nanoseconds;  // a time of the steady clock; 0: at once
bool is_due(Due due);

// Computes when the messages of one rank arrive at its peers.
class DepartureTimes {
 public:
  DepartureTimes(const SlowLink& link, int num_ranks);

  // Adds bytes to the next message to the peer.
  void add(int peer, int64_t bytes);
  // The message to the peer leaves now; returns when it arrives.
  Due next(int peer);

 private:
  struct Link {
    int64_t bytes = 0;  // to leave with the next message
    Due free{0};        // when the large messages before it have left
  };
  SlowLink speed_;
  std::vector<Link> links_;  // by peer
};

// Signals under way to a rank.  The rank stores them itself once they are due.
class LateSignals {
 public:
  struct Signal {
    Due due;
    std::shared_ptr<int64_t> word;
    int64_t value;
  };
  void add(Signal signal);
  void store_due();

 private:
  std::mutex mutex_;
  std::vector<Signal> signals_;
};

}  // namespace moebius::comm
