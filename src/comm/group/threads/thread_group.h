// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ThreadGroup: ranks are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/threads/shared_state.h"
#include "moebius/stream.h"

namespace moebius::comm {

class ThreadGroup final : public PeerGroup {
 public:
  // What the ranks of one process have in common, also after a split.
  struct Setting {
    std::chrono::milliseconds timeout;
    SlowLink link;
    int num_threads;   // that the process has as ranks
    int num_cpus;      // that these share
    int copy_threads;  // that copy large blocks for a rank that is not pinned
  };
  ThreadGroup(std::shared_ptr<SharedState> shared, Topology topology, const Setting& setting);
  ~ThreadGroup() override;  // tells the peers that this rank has left

  void count_traffic(int peer, int64_t bytes) override;
  // When the peer may look at what this rank sends to it now.
  Due due(int peer);
  SharedState& shared() { return *shared_; }

  std::string_view name() const override { return "threads"; }
  bool shares_address_space() const override { return true; }

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) override;
  std::unique_ptr<Window> map_window(std::string_view op, int64_t bytes) override;
  std::unique_ptr<PeerGroup> make_sub_group(const SubGroup& sub) override;
  void progress() override;
  void hear_failures() override { shared_->read_told(failures_); }
  void tell_failure(const Failure& failure) override { shared_->tell_failure(failure); }
  bool has_left(int peer) const override;
  std::optional<PeerSight> look_at(int peer) const override;
  void show_waiting(int peer, std::string_view op) override;

 private:
  friend class ThreadExchange;

  // Names the threads that copy large blocks.  REQUIRES: the calling thread is the rank's.
  const Stream& copy_stream();
  RankState& own() const { return shared_->of(rank()); }
  uint64_t op_id(std::string_view op);
  void wait_for_slot(const Call& call);
  void publish_completed();

  std::shared_ptr<SharedState> shared_;
  const Setting setting_;
  std::optional<Stream> copy_stream_;                 // set at the first large copy
  std::optional<DepartureTimes> departures_;          // set where links are slow
  std::unordered_map<std::string, uint64_t> op_ids_;  // ids that op_id() has looked up before
  int64_t completed_by_all_ = 0;  // the last epoch known to be complete everywhere
};

}  // namespace moebius::comm
