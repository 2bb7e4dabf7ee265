// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroup: ranks are processes that were forked from one.  Bytes go through a pipe from each
// rank to each other, in order of epoch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/processes/board.h"

namespace moebius::comm {

class ProcessExchange;

class ProcessGroup final : public PeerGroup {
 public:
  ProcessGroup(std::shared_ptr<Board> board,
               Topology topology,
               std::chrono::milliseconds timeout,
               int num_cpus);
  ~ProcessGroup() override;  // tells the peers that this rank has left

  std::string_view name() const override { return "processes"; }
  bool shares_address_space() const override { return false; }

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call,
                                          std::span<const SendBlock> sends,
                                          std::span<const RecvBlock> recvs,
                                          BlockReader reader) override;
  std::unique_ptr<Window> map_window(std::string_view op, int64_t bytes) override;
  void progress() override;
  std::optional<Failure> told_failure(size_t i) override;
  void tell_failure(const Failure& failure) override { board_->tell(rank(), failure); }
  bool has_left(int peer) const override;
  int waits_for(int peer) const override;
  void show_waiting(int peer, std::string_view op) override;
  std::string whereabouts(int peer) const override;

 private:
  friend class ProcessExchange;

  Board::Part& own() const { return board_->part(rank()); }

  const std::shared_ptr<Board> board_;
  std::vector<ProcessExchange*> started_;  // not complete, by epoch
  std::vector<int> num_seen_;              // of what each part of the board tells
  std::vector<Failure> failures_;
};

}  // namespace moebius::comm
