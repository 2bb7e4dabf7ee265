// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoneGroup: one rank, whose peers are only heard.  A test says what it hears when.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/group/peer_group.h"

namespace moebius::testing {

class LoneGroup : public comm::PeerGroup {
 public:
  LoneGroup(int rank, int num_ranks, std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : PeerGroup(Topology::make(rank, num_ranks, 0), timeout, 1, 1) {
    told.reserve(2);  // so that a test without memory may tell
  }

  // Called at each look at the peers.
  std::function<void()> on_hear = [] {};
  std::function<std::optional<comm::PeerSight>(int)> sight_of = [](int) { return std::nullopt; };
  std::vector<comm::Failure> told;

  void hear(const comm::Failure& failure) { failures_.push_back(failure); }
  std::string_view name() const override { return "lone"; }

 private:
  std::unique_ptr<Exchange> post_exchange(const comm::Call&, comm::ExchangeBlocks) override {
    throw Error("no rank is there to exchange with");
  }
  std::unique_ptr<PeerGroup> make_sub_group(const comm::SubGroup&) override { return nullptr; }
  void progress() override {}
  void hear_failures() override { on_hear(); }
  void tell_failure(const comm::Failure& failure) override {
    told.push_back(failure);
    failures_.push_back(failure);
  }
  bool has_left(int) const override { return false; }
  std::optional<comm::PeerSight> look_at(int peer) const override { return sight_of(peer); }
};

}  // namespace moebius::testing
