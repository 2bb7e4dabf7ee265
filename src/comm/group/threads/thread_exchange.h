// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange between rank threads: the receiver copies from the sender's memory, or shows it.
#pragma once

#include <string>
#include <vector>

#include "comm/group/peer_exchange.h"
#include "comm/group/threads/thread_group.h"

namespace moebius::comm {

class ThreadExchange final : public PeerExchange {
 public:
  // Publishes the call.  REQUIRES: the slot of call.epoch is free.
  ThreadExchange(ThreadGroup& group, const Call& call, ExchangeBlocks blocks);
  ~ThreadExchange() override;

  bool advance() override;

 private:
  bool has_arrived(int peer) const override;
  bool is_missing(int peer) const override;
  std::string describe_rest(int peer) const override;
  void check_blocks(int peer);
  bool take_from(int peer);
  void show_all();
  void withdraw() noexcept;

  ThreadGroup& threads_;
  Slot& slot_;
  BlocksByPeer<RecvBlock> recvs_;
  bool is_shown_;
  std::vector<int> absent_;   // ranks, this one included, whose blocks have not been taken
  std::vector<int> unacked_;  // ranks that have not read what was sent to them
};

}  // namespace moebius::comm
