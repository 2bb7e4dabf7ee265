// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PeerExchange: what the exchanges of all groups share: how ranks wait for them, and what is
// reported when a peer does not come.
#pragma once

#include <cstdint>
#include <string>

#include "comm/group/peer_group.h"

namespace moebius::comm {

class PeerExchange : public Exchange {
 public:
  bool test() final { return is_done_ || group_.check(as_wait()); }
  void wait() final;

  // Takes what has arrived; true once nothing is left to do.  May fail the group.
  virtual bool advance() = 0;
  int64_t epoch() const { return call_.epoch; }

 protected:
  PeerExchange(PeerGroup& group, const Call& call, BlockReader reader)
      : group_(group), call_(call), reader_(std::move(reader)) {}

  // From now on the group moves this exchange forward; true when no other is under way.
  bool start() {
    group_.started_.push_back(this);
    return group_.started_.size() == 1;
  }
  void stop() noexcept { std::erase(group_.started_, this); }
  // Destructors call this while the exchange is not done; it breaks the group.
  void abandon() noexcept;

  virtual bool has_arrived(int peer) const = 0;  // the peer's call is known here
  virtual bool is_missing(int peer) const = 0;   // the exchange waits for this peer
  // What is expected of a peer that has arrived: "expected to read 8 bytes from rank 1".
  virtual std::string describe_rest(int peer) const = 0;

  PeerGroup& group_;
  const Call call_;
  BlockReader reader_;
  bool is_done_ = false;

 private:
  PeerGroup::Wait as_wait() const;
};

}  // namespace moebius::comm
