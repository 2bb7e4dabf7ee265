// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Links slowed down: bytes are where they belong at once, as ever, but who sent them says from when
// on they may be looked at.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

using Due = std::chrono::nanoseconds;  // of the steady clock; 0: at once
bool is_due(Due due);

// When what one rank sends arrives at its peers.
class DepartureTimes {
 public:
  DepartureTimes(const SlowLink& link, int num_ranks);

  // Bytes that leave with the peer's next message.
  void add(int peer, int64_t bytes);
  // When that message, which leaves now, arrives.
  Due next(int peer);

 private:
  struct Link {
    int64_t bytes = 0;  // to leave with the next message
    Due free{0};        // large messages before it have left
  };
  SlowLink speed_;
  std::vector<Link> links_;  // by peer
};

// Signals under way to a rank, which stores them itself when it looks.
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
