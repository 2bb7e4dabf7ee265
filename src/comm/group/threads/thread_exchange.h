// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "comm/group/threads/thread_group.h"

namespace moebius::comm {

class ThreadExchange final : public Exchange {
 public:
  // Publishes the call.  REQUIRES: the slot of call.epoch is free.
  ThreadExchange(ThreadGroup& group,
                 const Call& call,
                 std::span<const SendBlock> sends,
                 std::span<const RecvBlock> recvs,
                 BlockReader reader);
  ~ThreadExchange() override;

  bool test() override;
  void wait() override;

  // Takes what has arrived; true once nothing is left to do.  May fail the group.
  bool advance();
  int64_t epoch() const { return call_.epoch; }

 private:
  PeerGroup::Wait as_wait() const;
  void check_blocks(int peer);
  bool take_from(int peer);
  void show_all();
  void withdraw() noexcept;

  ThreadGroup& group_;
  const Call call_;
  Slot& slot_;
  BlocksByPeer<RecvBlock> recvs_;
  BlockReader reader_;
  bool is_shown_;
  bool is_done_ = false;
  std::vector<int> absent_;   // peers, self included, that have not arrived or not been copied from
  std::vector<int> unacked_;  // peers that have not read what was sent to them
};

}  // namespace moebius::comm
