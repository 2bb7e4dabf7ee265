// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ProcessGroup: ranks are processes of a machine that share a board.  Bytes go through a pipe from
// each rank to each other, in order of epoch.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/processes/board.h"
#include "comm/group/processes/process_watch.h"

namespace moebius::comm {

class ProcessGroup final : public PeerGroup {
 public:
  // num_neighbours processes share the num_cpus CPUs of this one.
  ProcessGroup(std::shared_ptr<Board> board,
               Topology topology,
               std::chrono::milliseconds timeout,
               int num_neighbours,
               int num_cpus,
               ProcessWatch watch = {});
  ~ProcessGroup() override;  // tells the peers that this rank has left

  std::string_view name() const override { return "processes"; }

  // Waits until every rank has made its group on the board.
  void await_peers(std::string_view op);

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) override;
  void progress() override;
  void hear_failures() override;
  std::unique_ptr<PeerGroup> make_sub_group(const SubGroup& sub) override;
  void tell_failure(const Failure& failure) override { board_->tell(rank(), failure); }
  bool has_left(int peer) const override;
  std::optional<PeerSight> look_at(int peer) const override;
  void show_waiting(int peer, std::string_view op) override;

 private:
  bool has_come(int peer) const;  // has made its group on the board
  Board::Part& own() const { return board_->part(rank()); }

  const std::shared_ptr<Board> board_;
  ProcessWatch watch_;
  std::vector<int> num_seen_;  // [num_ranks + 1] failures read from each part of the board
};

}  // namespace moebius::comm
