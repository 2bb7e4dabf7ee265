// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroup: ranks are processes that were forked from one process.  Bytes go through a pipe
// from each rank to each other, in order of epoch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/processes/board.h"

namespace moebius::comm {

class ProcessGroup final : public PeerGroup {
 public:
  ProcessGroup(std::shared_ptr<Board> board,
               Topology topology,
               std::chrono::milliseconds timeout,
               int num_cpus);
  ~ProcessGroup() override;  // tells the peers that this rank has left

  std::string_view name() const override { return "processes"; }

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) override;
  void progress() override;
  void hear_failures() override { board_->read_told(num_seen_, failures_); }
  void tell_failure(const Failure& failure) override { board_->tell(rank(), failure); }
  bool has_left(int peer) const override;
  std::optional<PeerSight> look_at(int peer) const override;
  void show_waiting(int peer, std::string_view op) override;

 private:
  Board::Part& own() const { return board_->part(rank()); }

  const std::shared_ptr<Board> board_;
  std::vector<int> num_seen_;  // [num_ranks + 1] failures read from each part of the board
};

}  // namespace moebius::comm
